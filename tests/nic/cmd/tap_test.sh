#!/bin/bash
# Two kernels' worth of network stack joined by dmakit: two network namespaces, each with a TAP
# interface whose other end is the wire of a NIC, and `forward --both` between the NICs. Ping and TCP
# must get through both ways, and the audit must have nothing to say.
#
#   tap_test.sh DMAKIT [SECONDS [OPTION...]]     SECONDS of iperf3 each way, OPTIONs for forward
#
# Everything lives in namespaces of its own (network, mounts, processes): names cannot collide, and
# when the test ends, however it ends, the kernel takes all of it away.

set -uo pipefail

dmakit=$1
seconds=${2:-3}
shift $(($# < 2 ? $# : 2))

skip() {
  echo "SKIPPED: $*"
  exit 0
}

fail() {
  echo "FAILED: $*"
  exit 1
}

# --- Outside: enter the namespaces ---------------------------------------------------------------

if [[ ${DMAKIT_TAP_TEST:-} != inside ]]; then
  for program in ip iperf3 ping unshare nsenter; do
    command -v "$program" > /dev/null || skip "$program is not installed (bazel/packages.debian, ci)"
  done
  [[ -c /dev/net/tun ]] || skip "there is no /dev/net/tun"
  (: <> /dev/net/tun) 2> /dev/null || skip "/dev/net/tun may not be opened by this user"
  enter=(unshare --net --mount --pid --fork --kill-child)
  if [[ $(id -u) != 0 ]]; then enter+=(--user --map-root-user); fi
  "${enter[@]}" true 2> /dev/null || skip "namespaces may not be made by this user"
  export DMAKIT_TAP_TEST=inside
  exec "${enter[@]}" "$0" "$dmakit" "$seconds" "$@"
fi

# --- Inside ---------------------------------------------------------------------------------------

trap 'exit 143' TERM INT HUP

# Private to this test; `ip netns` wants /run/netns.
work=/run/tap_test
mount -t tmpfs tmpfs /run && mkdir /run/netns $work || skip "no file system may be mounted"
out=$work/out
err=$work/err
stats=$work/stats.json

left() { nsenter --net=/run/netns/left "$@"; }
right() { nsenter --net=/run/netns/right "$@"; }

# until_true COMMAND...: for at most 30 seconds.
until_true() {
  local i
  for ((i = 0; i < 300; i++)); do
    if "$@" > /dev/null 2>&1; then return 0; fi
    sleep 0.1
  done
  return 1
}

# one_end NAME INTERFACE ADDRESS
one_end() {
  ip link set "$2" netns "$1" || fail "$2 does not go into its namespace"
  # Neighbour discovery would send before the other side is up, which is loss.
  nsenter --net=/run/netns/"$1" sh -c 'echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6' \
    2> /dev/null || true
  nsenter --net=/run/netns/"$1" ip address add "$3/24" dev "$2" || fail "$2 takes no address"
}

ip netns add left && ip netns add right || skip "network namespaces cannot be named here"

"$dmakit" forward --both --in=enic,wire=tap:dmaT1 --out=enic,wire=tap:dmaT2 --audit \
  --stats="$stats" "$@" > "$out" 2> "$err" &
pid=$!
until_true ip link show dmaT1 && until_true ip link show dmaT2 || {
  cat "$err"
  fail "dmakit made no interfaces"
}

one_end left dmaT1 10.77.0.1
one_end right dmaT2 10.77.0.2
left ip link set dmaT1 up || fail "dmaT1 does not come up"
right ip link set dmaT2 up || fail "dmaT2 does not come up"

echo "=== ping"
for ping in "left ping 10.77.0.2" "right ping 10.77.0.1"; do
  read -r side program address <<< "$ping"
  "$side" "$program" -c 10 -i 0.1 -W 5 "$address" | tee $work/ping | tail -n 2
  grep -q ' 10 received, ' $work/ping || fail "$ping: not every echo came back"
done

echo "=== iperf3, $seconds s each way"
right iperf3 --server > $work/server 2>&1 &
for way in "" --reverse; do
  for ((try = 0; ; try++)); do
    left iperf3 --client 10.77.0.2 --time "$seconds" --connect-timeout 5000 $way \
      > $work/client 2>&1 && break
    # Only until the server listens.
    grep -q 'Connection refused' $work/client && ((try < 100)) || {
      cat $work/client $work/server
      fail "iperf3 $way: the connection was lost"
    }
    sleep 0.1
  done
  grep -E 'sender|receiver' $work/client
done

echo "=== the end"
kill -INT "$pid"
wait "$pid"
code=$?
cat "$out" "$err"

number() { sed -n "s/^  \"$1\": \([0-9]*\),\$/\1/p" "$stats"; }
for name in audit_errors iommu_faults live_mappings_at_exit; do
  [[ $(number "$name") == 0 ]] || fail "$name is '$(number "$name")'"
done
(($(number frames_out) > 1000)) || fail "hardly a frame came through"
# A kernel that does not take a frame is loss, which TCP makes good; it must be the only kind.
if [[ $(number frames_dropped) == 0 ]]; then
  [[ $code == 0 ]] || fail "exit code $code"
else
  grep -Eq '^dmakit: [0-9]+ of [0-9]+ frames lost \([0-9]+ not written\)$' "$err" ||
    fail "frames were lost and not by the kernel"
fi
echo "passed"
