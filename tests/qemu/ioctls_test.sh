#!/bin/bash
# System calls and guest instructions per packet, persistent against mapping each buffer. Under
# -icount an instruction takes one nanosecond of the guest's time, so that its clocks count them.

set -uo pipefail
. "$1" && qemu_setup "$@"

accel="-accel tcg,thread=single -icount shift=0,sleep=off"
seconds=280
boot ioctls '
bind 0000:00:04.0 0000:00:05.0
guest_checks -w NoTests "[ioctls]"
'
passed ioctls
contains "$share/output" "ioctls per packet: persistent 0.0000, strict per buffer 2.0000"
pass
