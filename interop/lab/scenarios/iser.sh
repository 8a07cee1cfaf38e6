#!/bin/bash
# The kernel's iSER initiator (ib_iser) over siw: discovery, login, data verification, file systems, task management
# under load, a capacity change, and the same disk over TCP at the same time.
: "${RDMA:=siw}"
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/server.sh"

# in_session IFACE COMMAND...: runs a helper on the session of that interface
in_session() { local IFACE=$1; shift; "$@"; }
# direct_write DEVICE, direct_read DEVICE: the first 4096 bytes, with O_DIRECT
direct_write() { head -c 4096 /run/pattern | dd of="$1" bs=4k count=1 oflag=direct status=none 2>/run/refused; }
direct_read() { dd if="$1" bs=4k count=1 iflag=direct status=none; }

serve_here
: "${TCP_PORTAL:=$PORTAL}"
step "discovery and login"; start_initiator 120
discover "$PORTAL"; login "$PORTAL"
disk=$(disk_of "$PORTAL")
iscsiadm -m session -P 2 | grep -E 'Iface Transport|DataSegmentLength|BurstLength|ImmediateData|InitialR2T' | tee /run/session
grep -q 'Iface Transport: iser' /run/session || fail "it is not an iSER session"
before=$(blockdev --getsize64 "$disk")

step "write and read back"; verify "$disk" $(full && echo 16 || echo 4)
full && { step "blocks of all sizes"; blocks_of_all_sizes "$disk"; }
step "resets under load"; resets_under_load "$disk"

step "ext4"; filesystem ext4 "$disk"
if full; then
step "xfs"; filesystem xfs "$disk"

step "the same disk over TCP"
try iscsiadm -m node -T "$IQN" -p "$TCP_PORTAL" -I default -o new
in_session default login "$TCP_PORTAL"
other=$(in_session default disk_of "$TCP_PORTAL")
[ "$other" != "$disk" ] || fail "one disk, not two"
pattern 4 >/run/pattern
try dd if=/run/pattern of="$other" bs=1M oflag=direct status=none
dd if="$disk" bs=1M count=4 iflag=direct status=none | cmp - /run/pattern || fail "iSER does not read what TCP wrote"
try dd if=/run/pattern of="$disk" bs=1M seek=8 oflag=direct status=none
dd if="$other" bs=1M skip=8 count=4 iflag=direct status=none | cmp - /run/pattern || fail "TCP does not read what iSER wrote"

step "reservations"
try sg_persist -n --out --register --param-sark=0x5a "$disk"
try sg_persist -n --out --reserve --param-rk=0x5a --prout-type=1 "$disk"
sg_persist -n --in --read-reservation "$other" | tee /run/reserved
grep -q 'Key=0x5a' /run/reserved || fail "TCP does not see the reservation"
direct_write "$disk" || fail "the holder cannot write"
! direct_write "$other" || fail "TCP wrote to a disk that iSER has reserved"
direct_read "$other" | cmp -n 4096 - /run/pattern || fail "TCP cannot read"
try sg_persist -n --out --release --param-rk=0x5a --prout-type=1 "$disk"
# any command may return the unit attention for it
wait_for 10 "direct_write $other" || { cat /run/refused; fail "it is still reserved"; }
try sg_persist -n --out --clear --param-rk=0x5a "$disk"
in_session default logout "$TCP_PORTAL"

step "a larger disk"
ask grow
wait_for 30 "direct_read $disk; dmesg | grep -q 'Capacity data has changed'" || fail "no CAPACITY DATA HAS CHANGED"
try iscsiadm -m session --rescan
[ "$(blockdev --getsize64 "$disk")" -gt "$before" ] || fail "still $before bytes"
fi

step "logout"; logout "$PORTAL"
[ ! -e "$disk" ] || fail "$disk is still there"
if [ -n "${CHAP-}" ]; then
    step "a wrong secret"
    set_node "$PORTAL" node.session.auth.password not-the-right-one
    ! iscsiadm -m node -T "$IQN" -p "$PORTAL" -I "$IFACE" --login || fail "logged in with a wrong secret"
fi
echo "PASS iser"
