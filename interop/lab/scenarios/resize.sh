#!/bin/bash
# The host makes the disk larger: the unit attention arrives, and a rescan shows the new size.
. "$(dirname "$0")/lib.sh"
step "login"; start_initiator 5
discover "$PORTAL"; login "$PORTAL"
disk=$(disk_of "$PORTAL")
before=$(blockdev --getsize64 "$disk")
ask grow
step "the unit attention"
# any command may receive it
wait_for 30 "dd if=$disk of=/dev/null bs=4k count=1 iflag=direct status=none; dmesg | grep -q 'Capacity data has changed'" ||
    fail "no CAPACITY DATA HAS CHANGED"
try iscsiadm -m session --rescan
after=$(blockdev --getsize64 "$disk")
[ "$after" -gt "$before" ] || fail "still $before bytes"
step "the new part works: $before -> $after bytes"
pattern 1 >/run/pattern
try dd if=/run/pattern of="$disk" bs=1M seek=$((before >> 20)) oflag=direct status=none
dd if="$disk" bs=1M skip=$((before >> 20)) count=1 iflag=direct status=none | cmp - /run/pattern || fail "reads other data than was written"
logout "$PORTAL"
echo "PASS resize"
