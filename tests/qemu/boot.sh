# Sourced by the tests of this folder, which run in bash with the arguments that BUILD gives all of
# them. Boots a machine with the guest's kernel, two e1000e on one hub and an IOMMU, and lets it run
# one scene.
#
#   . "$1" && qemu_setup "$@"                   once
#   boot NAME SCENE [QEMU_ARGUMENT...]          SCENE: shell text, run in the guest as root
#   pass                                        at the end
#
# After boot, $share has what the guest left: output (what the scene printed), dmesg, and whatever it
# wrote to /share. $hub is the capture of the hub, as NIC 1 saw it. `code` is the scene's exit code.
# In a scene: `bind ADDRESS...` gives devices to vfio-pci; dmakit and guest_checks are on the PATH.
#
# Every machine has the NICs at 0000:00:04.0 (52:54:00:00:00:01) and 0000:00:05.0 (...:02). Variables
# a test may set before boot: iommu (QEMU arguments of the IOMMU), memory (MiB), seconds (until a
# guest counts as hung), accel (QEMU arguments), capture ("yes": of the hub).

work=${TEST_TMPDIR:?run it with bazel}/qemu
share=$work/share
hub=$work/hub.pcap

fail() {
  echo "FAILED: $*"
  for file in "$share/output" "$work/serial.log"; do
    if [[ -s $file ]]; then
      echo "--- ${file##*/}, its end"
      tail -n 60 "$file"
    fi
  done
  exit 1
}

# copy_program PROGRAM: and the libraries it is linked with.
copy_program() {
  local library
  cp -L "$1" "$root/bin/"
  while read -r library; do
    [[ -f $root/lib/${library##*/} ]] || cp -L "$library" "$root/lib/"
  done < <(ldd "$1" 2> /dev/null | awk '/=> \// { print $3 } /^\t\// { print $1 }')
}

qemu_setup() {
  local checks=$2 dmakit=$3 file
  compare=$4
  root=$work/root
  mkdir -p "$root"/{bin,lib,lib64,modules,proc,sys,dev,tmp,etc,share} "$share"
  for file in $5; do
    case $file in
      */vmlinuz) kernel=$file ;;
      *.ko) cp -L "$file" "$root/modules/" ;;
    esac
  done
  cp -L "$6" "$root/init"
  cp -L "$7" "$root/modules/order"
  cp -L "$(command -v busybox)" "$root/bin/busybox"
  ln -s busybox "$root/bin/sh"
  copy_program "$checks"
  copy_program "$dmakit"
  # Where a program's header says that its loader is.
  cp -L /lib64/ld-linux-x86-64.so.2 "$root/lib64/"
  chmod -R u+w "$root"
  chmod +x "$root/init"
  (cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) > "$work/initrd" ||
    fail "cannot make the initial file system"
}

# What every scene may use.
prelude='
bind() {
  for address in "$@"; do
    echo vfio-pci > "/sys/bus/pci/devices/$address/driver_override"
    if [ -e "/sys/bus/pci/devices/$address/driver" ]; then
      echo "$address" > "/sys/bus/pci/devices/$address/driver/unbind"
    fi
    echo "$address" > /sys/bus/pci/drivers_probe
  done
}
group() { basename "$(readlink "/sys/bus/pci/devices/$1/iommu_group")"; }
'

# passed TEXT: the scene ended well.
passed() {
  [[ $code == 0 ]] || fail "$1: the scene ended with $code"
  cat "$share/output"
}

# contains FILE TEXT: the file has a line with it.
contains() {
  grep -qF -- "$2" "$1" || fail "${1##*/} does not contain: $2"
}

pass() {
  echo "PASSED"
  exit 0
}

boot() {
  local name=$1 scene=$2 start=$SECONDS
  shift 2
  rm -rf "$share" "$hub"
  mkdir -p "$share"
  printf '%s\n%s\n' "$prelude" "$scene" > "$share/scene.sh"
  local -a machine=(
    -machine q35 -cpu max -smp 1 -m "${memory:-768}"
    -nodefaults -no-user-config -display none -no-reboot
    -virtfs "local,path=$share,mount_tag=share,security_model=none"
    -serial "file:$work/serial.log" -serial "file:$work/result.log"
    -kernel "$kernel" -initrd "$work/initrd"
    -append "console=ttyS0 loglevel=4 rdinit=/init intel_iommu=on no_timer_check panic=-1 ${append:-}"
  )
  local -a more
  read -ra more <<< "${accel:--accel tcg,thread=multi} ${iommu--device intel-iommu,intremap=on}"
  machine+=(
    "${more[@]}"
    -netdev "hubport,id=h0,hubid=0"
    -device "e1000e,netdev=h0,mac=52:54:00:00:00:01,addr=4,romfile="
    -netdev "hubport,id=h1,hubid=0"
    -device "e1000e,netdev=h1,mac=52:54:00:00:00:02,addr=5,romfile="
  )
  if [[ ${capture:-} == yes ]]; then
    machine+=(-object "filter-dump,id=dump0,netdev=h0,file=$hub,maxlen=65536")
  fi
  timeout "${seconds:-180}" qemu-system-x86_64 "${machine[@]}" "$@" < /dev/null > "$work/qemu.log" 2>&1
  local status=$?
  [[ $status == 0 ]] || fail "$name: QEMU ended with $status: $(tail -n 3 "$work/qemu.log")"
  # The exit code of QEMU says nothing about the scene.
  code=$(awk '/^RESULT/ { c = $2 } END { print c }' "$work/result.log" | tr -d '\r')
  [[ -n $code ]] || fail "$name: the guest left no result"
  echo "$name: exit code $code after $((SECONDS - start)) s"
}
