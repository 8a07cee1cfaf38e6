#!/bin/bash
# Namespaces that grow, come and go while the host is connected. The kernel's initiator uses the first one as a LUN at the
# same time: it sees the growth too, and reservations of one family hold against the other.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/nvme_lib.sh"
start_nvme
step "connect"; nvme_connect "$NVME"
disk=$(nvme_disk 1)
start_initiator 5; discover "$PORTAL"; login "$PORTAL"
lun=$(disk_of "$PORTAL")

reads() { dd if="$1" of=/dev/null bs=4k count=1 iflag=direct status=none; }
writes() { dd if=/dev/zero of="$1" bs=4k count=1 oflag=direct status=none; }

step "a reservation by NVMe"
try nvme resv-register "$disk" --nrkey=10 --rrega=0
try nvme resv-acquire "$disk" --crkey=10 --rtype=1 --racqa=0
# 24: reservation conflict. A unit attention would be no refusal, so read those first.
for n in 1 2 3 4 5; do sg_turs "$lun" >/dev/null 2>&1 && break; done
sg_persist --out --register --param-sark=11 "$lun"
status=$?
[ $status = 24 ] || fail "a registration beside those of the other family has status $status"
try reads "$lun"
! writes "$lun" || fail "the initiator writes to what the host has reserved"
try writes "$disk"
try nvme resv-register "$disk" --crkey=10 --rrega=1
try writes "$lun"

step "a reservation by SCSI"
try sg_persist --out --register --param-sark=11 "$lun"
try sg_persist --out --reserve --param-rk=11 --prout-type=1 "$lun"
! nvme resv-register "$disk" --nrkey=10 --rrega=0 || fail "hosts of both families are registered"
try reads "$disk"
! writes "$disk" || fail "the host writes to what the initiator has reserved"
try writes "$lun"
try sg_persist --out --clear --param-rk=11 "$lun"
try writes "$disk"

before=$(blockdev --getsize64 "$disk")
step "grow"; ask grow
try wait_for 20 '[ "$(blockdev --getsize64 "$disk")" -gt "$before" ]'
is=$(blockdev --getsize64 "$disk")
[ "$is" = $((640 << 20)) ] || fail "$is bytes"
pattern 1 >/run/pattern
try dd if=/run/pattern of="$disk" bs=1M seek=$((before >> 20)) oflag=direct status=none
dd if="$disk" bs=1M skip=$((before >> 20)) count=1 iflag=direct status=none | cmp - /run/pattern || fail "reads other data than was written"
wait_for 30 'reads "$lun"; dmesg | grep -q "Capacity data has changed"' || fail "no CAPACITY DATA HAS CHANGED"
try iscsiadm -m session --rescan
[ "$(blockdev --getsize64 "$lun")" = "$is" ] || fail "the LUN has $(blockdev --getsize64 "$lun") bytes"
dd if="$lun" bs=1M skip=$((before >> 20)) count=1 iflag=direct status=none | cmp - /run/pattern || fail "the LUN differs from the namespace"
logout "$PORTAL"

step "a second namespace"; ask add
try wait_for 20 'nvme_disk 7'
second=$(nvme_disk 7)
[ "$(blockdev --getsize64 "$second")" = $((32 << 20)) ] || fail "the second namespace has another size"
verify "$second" 2
step "it goes"; ask remove
try wait_for 20 '! nvme_disk 7'
dd if="$disk" bs=1M skip=$((before >> 20)) count=1 iflag=direct status=none | cmp -n $((1 << 20)) - /run/pattern || fail "the first namespace has changed"
nvme_disconnect
echo "PASS nvme_change"
