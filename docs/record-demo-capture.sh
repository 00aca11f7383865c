#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Records the traffic of nic/cmd/demo.pcap anew; demo-capture.md explains it. Needs root, iproute2,
# ethtool, tcpdump, dnsmasq, curl, ping, arping and python3. Touches only network namespaces of its own
# and /etc/netns/dmakit-client, and removes both.
#
#   docs/record-demo-capture.sh OUTPUT.pcap

set -euo pipefail
out=${1:?usage: record-demo-capture.sh OUTPUT.pcap}
work=$(mktemp -d)
client=dmakit-client cable=dmakit-cable server=dmakit-server
mtu=8986 # a frame has 14 bytes more: the largest is 9,000

pids=()
cleanup() {
  kill "${pids[@]}" 2> /dev/null || true
  wait 2> /dev/null || true
  for ns in $client $cable $server; do ip netns del $ns 2> /dev/null || true; done
  rm -rf "$work" "/etc/netns/$client"
}
trap cleanup EXIT
on() { ip netns exec "$@"; }
start() { ip netns exec "$@" & pids+=($!); }

# --- A cable between two hosts, with a small switch at either end -------------------------------------
#
#   client a0 = a1 .               . b1 = b0 server     untagged
#                   switch m0=m1 switch
#   client v0 = v1 '               ' w1 = w0 server     VLAN 100, tagged between the switches
for ns in $client $cable $server; do ip netns add $ns; done
on $cable sysctl -qw net.ipv6.conf.default.disable_ipv6=1
pair() { # outer end, inner end, namespace of the outer end, MAC address of the outer end
  ip -n $cable link add "$2" mtu $mtu type veth peer name "$1" netns "$3"
  ip -n "$3" link set "$1" mtu $mtu address "$4"
}
pair a0 a1 $client 02:00:00:00:00:0a
pair v0 v1 $client 02:00:00:00:01:0a
pair b0 b1 $server 02:00:00:00:00:0b
pair w0 w1 $server 02:00:00:00:01:0b
pair m0 m1 $cable 02:00:00:00:00:01
ip -n $client link set v0 mtu $((mtu - 4))
ip -n $server link set w0 mtu $((mtu - 4))

# Frames as a wire carries them: whole checksums, no segment larger than the MTU.
for end in "$client a0" "$client v0" "$server b0" "$server w0" "$cable a1" "$cable b1" \
  "$cable v1" "$cable w1" "$cable m0" "$cable m1"; do
  read -r ns dev <<< "$end"
  on "$ns" ethtool -K "$dev" tx off rx off sg off tso off gso off gro off txvlan off rxvlan off \
    > /dev/null
done

# veth does not pad short frames; the sender of a real wire does. Each switch pads to 60 bytes, so
# that between them, at m0, every frame has passed one in either direction.
cat > "$work/switch.py" << 'SWITCH'
import select, socket, struct, sys
SOL_PACKET, PACKET_AUXDATA, SO_RCVBUFFORCE, ETH_P_ALL, OUTGOING = 263, 8, 33, 3, 4
TAG = struct.pack("!HH", 0x8100, 3 << 13 | 100)  # priority 3, VLAN 100
def port(name):
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    s.bind((name, ETH_P_ALL))
    s.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
    s.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
    return s
untagged, vlan, trunk = map(port, sys.argv[1:])
def vlan_of(extra):  # the kernel takes the tag out of what a packet socket sees
    for _, kind, data in extra:
        status, _, _, _, _, tci = struct.unpack("IIIHHH", data[:18])
        if kind == PACKET_AUXDATA and status & 0x10:
            return tci & 0xfff
while True:
    for s in select.select([untagged, vlan, trunk], [], [])[0]:
        frame, extra, _, address = s.recvmsg(16384, 64)
        if address[2] == OUTGOING:
            continue
        if s is trunk:
            (vlan if vlan_of(extra) == 100 else untagged).send(frame.ljust(60, b"\0"))
        else:
            if s is vlan:
                frame = frame[:12] + TAG + frame[12:]
            trunk.send(frame.ljust(60, b"\0"))
SWITCH

for dev in a1 v1 b1 w1 m0 m1; do ip -n $cable link set $dev up promisc on; done
for dev in a0 v0; do ip -n $client link set $dev up; done
for dev in b0 w0; do ip -n $server link set $dev up; done
sleep 1
start $cable python3 "$work/switch.py" a1 v1 m0
start $cable python3 "$work/switch.py" b1 w1 m1
start $cable tcpdump -i m0 -s 0 -Z root --time-stamp-precision=nano -w "$work/all.pcap" 2> /dev/null
tcpdump=$!
sleep 1

ip -n $client link set lo up; ip -n $server link set lo up
ip -n $client addr add 192.0.2.1/24 dev a0
ip -n $server addr add 192.0.2.2/24 dev b0
ip -n $client addr add 2001:db8::1/64 dev a0
ip -n $server addr add 2001:db8::2/64 dev b0
ip -n $client addr add 198.51.100.1/24 dev v0
ip -n $server addr add 198.51.100.2/24 dev w0
sleep 3 # duplicate address detection

# --- Services ----------------------------------------------------------------------------------------
mkdir -p "/etc/netns/$client"
echo "nameserver 192.0.2.2" > "/etc/netns/$client/resolv.conf"
start $server dnsmasq --keep-in-foreground --conf-file=/dev/null --no-hosts --no-resolv --user=root \
  --pid-file= --listen-address=192.0.2.2 --bind-interfaces --log-facility=/dev/null \
  --host-record=www.example.com,192.0.2.2,2001:db8::2 --txt-record=example.com,"v=spf1 -all" \
  --mx-host=example.com,mail.example.com,10

cat > "$work/server.py" << 'SERVER'
import http.server, socket, threading
class Page(http.server.BaseHTTPRequestHandler):
    def version_string(self): return "example"
    def log_message(self, *args): pass
    def do_GET(self):
        line = b"This domain is for use in documentation examples. "
        body = line * (24000 // len(line)) if self.path == "/large" else line
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
class Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6
threading.Thread(target=Server(("::", 80), Page).serve_forever, daemon=True).start()
echo = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
echo.bind(("::", 7))
while True:
    data, peer = echo.recvfrom(65536)
    echo.sendto(data, peer)
SERVER
start $server python3 "$work/server.py"
sleep 1

# --- Traffic -----------------------------------------------------------------------------------------
quiet() { "$@" > /dev/null 2>&1 || { echo "failed: $*" >&2; exit 1; }; }
run() { quiet on $client "$@"; }
fetch() { run curl -sS -A example -o /dev/null "$@"; }

run arping -c 2 -I a0 192.0.2.2
for size in 0 1 18 56 500 1472 4000 8958; do run ping -c 2 -i 0.01 -s $size 192.0.2.2; done
for size in 0 56 1452 8938; do run ping -c 2 -i 0.01 -s $size 2001:db8::2; done
run ping -c 2 -i 0.01 -s 20000 192.0.2.2 # fragments
for size in 0 56 1400 8954; do run ping -c 2 -i 0.01 -s $size 198.51.100.2; done

fetch -4 http://www.example.com/
fetch -6 http://www.example.com/
fetch http://198.51.100.2/ # VLAN
fetch -4 http://www.example.com/large

cat > "$work/client.py" << 'CLIENT'
import socket, struct
def ask(name, kind):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(2)
    labels = b"".join(bytes([len(l)]) + l.encode() for l in name.split("."))
    s.sendto(struct.pack("!6H", 0x1234 + kind, 0x100, 1, 0, 0, 0) + labels + b"\0" +
             struct.pack("!2H", kind, 1), ("192.0.2.2", 53))
    s.recv(4096)
for name, kind in [("www.example.com", 1), ("www.example.com", 28), ("example.com", 15),
                   ("example.com", 16), ("absent.example.com", 1)]:
    ask(name, kind)
def echo(family, address, sizes):
    s = socket.socket(family, socket.SOCK_DGRAM)
    s.settimeout(2)
    for size in sizes:
        s.sendto(bytes(i & 255 for i in range(size)), (address, 7))
        s.recv(65536)
echo(socket.AF_INET, "192.0.2.2", [0, 1, 2, 17, 18, 19, 22, 86, 214, 470, 982, 1472, 2000, 8958])
echo(socket.AF_INET6, "2001:db8::2", [0, 1, 100, 1452, 8938])
echo(socket.AF_INET, "198.51.100.2", [0, 14, 15, 1468, 8954])
echo(socket.AF_INET, "192.0.2.2", list(range(1, 400, 13)))
CLIENT
run python3 "$work/client.py"
# One connection with an MTU of 1,500 at the client: full-size TCP segments of the ordinary kind.
ip -n $client route add 192.0.2.2 dev a0 mtu 1500 advmss 1460
fetch -4 http://www.example.com/large
ip -n $client route add 2001:db8::2 dev a0 mtu 1500 advmss 1440
fetch -6 http://www.example.com/large
# A port where nobody listens: ICMP errors and TCP resets.
on $client python3 -c 'import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.sendto(b"?", ("192.0.2.2", 9))'
on $client curl -sS -A example http://192.0.2.2:81/ 2> /dev/null || true
sleep 1

kill $tcpdump
wait $tcpdump || true
cp "$work/all.pcap" "$out"
