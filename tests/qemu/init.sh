#!/bin/sh
# The first process of a guest: mounts, loads modules, runs the scene that the host has put into the
# shared directory, reports its exit code on the second serial line and turns the machine off.

export PATH=/bin LD_LIBRARY_PATH=/lib
/bin/busybox --install -s /bin

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t tmpfs tmpfs /tmp

code=99
finish() {
  sync
  umount /share 2> /dev/null
  # Once more if the first one was cut: the host takes the last line.
  echo "RESULT $code" > /dev/ttyS1
  poweroff -f
}

# insmod knows no dependencies: the list has its order.
for module in $(cat /modules/order); do
  insmod "/modules/$module.ko" || echo "init: cannot load $module"
done

mkdir -p /share
if mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144 share /share; then
  ip link set lo up
  sh /share/scene.sh > /share/output 2>&1
  code=$?
  dmesg > /share/dmesg
else
  echo "init: no shared directory"
fi
finish
