#!/bin/bash
# A NIC driven by dmakit, bridged to a TAP, against the guest kernel's own e1000e driver on the other
# NIC: ping, and a file over TCP both ways.

set -uo pipefail
. "$1" && qemu_setup "$@"

boot peer '
insmod /modules/e1000e.ko
bind 0000:00:04.0
other=$(ls /sys/bus/pci/devices/0000:00:05.0/net) || exit 10
echo "kernel driver on $other: $(basename "$(readlink /sys/bus/pci/devices/0000:00:05.0/driver)")"

dmakit devices
dmakit forward --both --in=e1000e,pci=0000:00:04.0 --out=enic,wire=tap:T1 --audit \
  --stats=/share/stats.json > /share/forward 2>&1 &
forward=$!
give_up() {
  echo "given up at $1"
  n cat /proc/self/net/dev /proc/self/net/snmp
  cat /proc/net/dev
  kill -INT $forward
  wait $forward
  cat /share/forward
  exit "$1"
}

# The kernel must not take a short cut through loopback: its end has a network of its own.
unshare -n sleep 600 &
inside=$!
sleep 1
ip link set "$other" netns $inside || exit 11
n() { nsenter --net=/proc/$inside/ns/net "$@"; }
n ip address add 10.0.0.2/24 dev "$other"
n ip link set "$other" up
n ip link set "$other" mtu 9000 || give_up 12
i=0
while ! ip link set T1 up 2> /dev/null; do
  i=$((i + 1)); [ $i -lt 100 ] || give_up 13
  sleep 0.1
done
ip link set T1 mtu 9000
ip address add 10.0.0.1/24 dev T1
i=0
until ping -c 1 -W 1 10.0.0.2 > /dev/null; do
  i=$((i + 1)); [ $i -lt 30 ] || give_up 14
done
ping -c 20 -i 0.1 -s 8000 10.0.0.2 || give_up 15

dd if=/dev/urandom of=/tmp/file bs=1M count=16 2> /dev/null
n httpd -p 10.0.0.2:80 -h /tmp
httpd -p 10.0.0.1:80 -h /tmp
wget -q -O /tmp/there http://10.0.0.2/file || give_up 16
cmp /tmp/file /tmp/there || give_up 17
n wget -q -O /tmp/back http://10.0.0.1/there || give_up 18
cmp /tmp/file /tmp/back || give_up 19
echo "16 MiB there and back"

kill -INT $forward
wait $forward
status=$?
cat /share/forward
kill $inside
exit $status
'
passed peer
contains "$share/output" "20 packets received, 0% packet loss"
contains "$share/output" "16 MiB there and back"
for counter in frames_dropped iommu_faults live_mappings_at_exit audit_errors; do
  grep -qE "^$counter +0$" "$share/forward" || fail "$counter is not 0"
done
if grep -q DMAR.*fault "$share/dmesg"; then fail "the kernel has logged faults of the IOMMU"; fi
pass
