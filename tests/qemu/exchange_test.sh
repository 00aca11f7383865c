#!/bin/bash
# Two NICs driven by one program exchange frames; the hub's capture, what arrived and what tcpdump
# reads are compared.

set -uo pipefail
. "$1" && qemu_setup "$@"

# same_frames CAPTURE SOURCE COUNT: what arrived is what NIC 1's end of the hub saw from SOURCE.
same_frames() {
  local said
  said=$("$compare" "$hub" "$1" "$2" 2>&1) || fail "captures differ, ${1##*/}: $said"
  [[ $said == "$3 frames" ]] || fail "${1##*/}: $said, and not $3"
}

command -v tcpdump > /dev/null || fail "tcpdump is not installed"
as_user=()  # as root it would change to a user who may not read the capture
((UID)) || as_user=(-Z root)

capture=yes
boot exchange '
bind 0000:00:04.0 0000:00:05.0
guest_checks -w NoTests "[large]"
'
passed exchange
same_frames "$share/from1.pcap" 52:54:00:00:00:01 50000
same_frames "$share/from2.pcap" 52:54:00:00:00:02 50000
count=$(tcpdump "${as_user[@]}" --count -r "$hub" 'ether proto 0x88b5' 2> "$work/tcpdump.log")
[[ $count == "100000 packets" ]] ||
  fail "tcpdump sees '$count' at the hub, and not 100000 packets: $(< "$work/tcpdump.log")"

# What this QEMU can do with a large TCP packet (tests/qemu/exchange_checks.cc).
version=$(qemu-system-x86_64 --version | sed -n 's/.*version \([0-9]*\.[0-9]*\).*/\1/p')
cuts=
if [[ $(printf '%s\n8.1\n' "$version" | sort -V | head -n 1) != 8.1 ]]; then
  cuts='export CUTS_AT_IP=1'
  echo "QEMU $version cuts large TCP packets into IP fragments: their bytes are checked, not headers"
fi

boot more "$cuts"'
bind 0000:00:04.0 0000:00:05.0
guest_checks -w NoTests "[exchange],[interrupt],[offload]"
'
passed more
# The guest has checked sums of what arrived; tcpdump has an opinion of its own. What the NICs were
# told to leave wrong is wrong, 4 UDP or TCP frames of which 2 are IPv4.
tcpdump "${as_user[@]}" -nn -vv -r "$hub" 'ip or ip6 or vlan' > "$work/words" 2> /dev/null
[[ -s $work/words ]] || fail "tcpdump read nothing"
wrong=$(grep -cE 'incorrect|bad (udp|tcp) cksum|bad cksum' "$work/words")
echo "tcpdump: $wrong lines about wrong sums"
pass
