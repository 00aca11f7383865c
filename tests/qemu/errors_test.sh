#!/bin/bash
# Everything that can stand between a program and a NIC, met for real on machines that have it.

set -uo pipefail
. "$1" && qemu_setup "$@"

# Two devices that the IOMMU cannot tell apart: one for VFIO, one in the kernel's hands.
boot errors '
bind 0000:00:04.0 0000:00:05.0 0000:01:01.0
chown 1000:1000 "/dev/vfio/$(group 0000:00:04.0)"
guest_checks -w NoTests "[errors],[facts],[conformance],[shared-group]" || exit 1
dmakit devices
# A user reads the same in one line.
dmakit forward --in=e1000e,pci=0000:00:1f.2 --out=enic,wire=null
[ $? = 2 ] || exit 2
' -device pcie-pci-bridge,id=bridge,addr=6 -device e1000,bus=bridge,addr=1,romfile= \
  -device virtio-serial-pci,bus=bridge,addr=2
passed errors
contains "$share/output" "driverctl set-override 0000:00:1f.2 vfio-pci"

iommu=
boot no-iommu '
bind 0000:00:04.0 2> /dev/null
guest_checks -w NoTests "[no-iommu]"
'
passed no-iommu

iommu="-device intel-iommu,intremap=off"
boot no-intremap '
bind 0000:00:04.0
guest_checks -w NoTests "[no-intremap]" || exit 1
echo Y > /sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts
guest_checks -w NoTests "[unsafe]"
'
passed no-intremap
pass
