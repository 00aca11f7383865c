#!/bin/bash
# DMA that the IOMMU refuses: the guest's kernel and the library tell of the same accesses.

set -uo pipefail
. "$1" && qemu_setup "$@"

boot blocked '
bind 0000:00:04.0 0000:00:05.0
guest_checks -w NoTests "[blocked]"
'
passed blocked
# "library: 0000:00:04.0 write at 0x..." against "DMAR: [DMA Write ...] ... fault addr 0x...": each
# access that the library reports stands in the kernel's log, and the other way round.
sed -n 's/^library: 0000:\([0-9a-f:.]*\) \([a-z]*\) at \(0x[0-9a-f]*\) .*/\1 \2 \3/p' \
  "$share/output" | sort -u > "$work/library"
sed -n 's/.*\[DMA \(Read\|Write\).*device \[\([0-9a-f:.]*\)\] fault addr \(0x[0-9a-f]*\) .*/\2 \1 \3/p' \
  "$share/dmesg" | tr 'RW' 'rw' | sort -u > "$work/kernel"
[[ -s $work/library ]] || fail "the library has reported nothing"
cat "$work/kernel"
diff "$work/kernel" "$work/library" || fail "the kernel's log and the library's reports differ"
pass
