#!/bin/bash
# A disk over NVMe/TCP: discovery, identity, verified data, file systems, discard and zeroes, digests,
# resets, DH-HMAC-CHAP. The same disk is a LUN too.
#   GUARDED  a subsystem that admits only this host, with SECRET; its own secret is PROOF
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/nvme_lib.sh"
start_nvme

# is FILE TEXT: an attribute of sysfs has this content
is() { [ "$(sed 's/ *$//' "$1")" = "$2" ] || fail "$1 is $(cat "$1"), not $2"; }
# zeros OFFSET_MIB MIB: this part of the disk reads as zeros
zeros() { dd if="$disk" bs=1M skip="$1" count="$2" iflag=direct status=none | cmp -n "$(($2 << 20))" - /dev/zero || fail "not zeros"; }

step "discovery"
try nvme discover $(at "$NVME") -o json >/run/discovered
cat /run/discovered
for word in "$NQN" "${NVME%:*}" "${NVME##*:}"; do grep -q "\"$word\"" /run/discovered || fail "no $word in the discovery log"; done

step "connect"
nvme_connect "$NVME"
disk=$(nvme_disk 1) name=$(basename "$(nvme_disk 1)") controller=$(path_to "$NVME")
is "$controller/queue_count" 3
is "$controller/serial" SER-0001
is "$controller/cntrltype" io
is "$controller/subsysnqn" "$NQN"
is "/sys/block/$name/size" "$((512 << 11))"
is "/sys/block/$name/queue/logical_block_size" 512
grep -qE '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' "/sys/block/$name/uuid" || fail "no UUID"
grep -qE '^[0-9a-f-]{36}$' "/sys/block/$name/nguid" || fail "no NGUID"
is "/sys/block/$name/wwid" "uuid.$(cat "/sys/block/$name/uuid")"
uuid=$(cat "/sys/block/$name/uuid")

step "data"
verify "$disk" 16
blocks_of_all_sizes "$disk"
step "ext4"; filesystem ext4 "$disk"
step "xfs"; filesystem xfs "$disk"

step "discard and zeroes"
verify "$disk" 4
try blkdiscard -f -o 0 -l 1M "$disk"
zeros 0 1
try blkdiscard -f -z -o 2M -l 1M "$disk"
zeros 2 1
dd if="$disk" bs=1M skip=3 count=1 iflag=direct status=none >/run/kept
dd if=/run/pattern bs=1M skip=3 count=1 status=none | cmp - /run/kept || fail "a neighbour of the zeroed part changed"

step "the same disk by iSCSI"
start_initiator 5; discover "$PORTAL"; login "$PORTAL"
lun=$(disk_of "$PORTAL")
verify "$disk" 4
dd if="$lun" bs=1M count=4 iflag=direct status=none | cmp - /run/pattern || fail "the LUN differs from the namespace"
tac /run/pattern | head -c 4M >/run/other
try dd if=/run/other of="$lun" bs=1M oflag=direct status=none
dd if="$disk" bs=1M count=4 iflag=direct status=none | cmp - /run/other || fail "the namespace differs from the LUN"
logout "$PORTAL"

step "digests"
nvme_disconnect
nvme_connect "$NVME" --hdr-digest --data-digest
disk=$(nvme_disk 1)
is "/sys/block/$(basename "$disk")/uuid" "$uuid"
dd if="$disk" bs=1M count=4 iflag=direct status=none | cmp - /run/other || fail "the data changed"
verify "$disk" 8
blocks_of_all_sizes "$disk"
nvme_disconnect

step "resets under load, without flow control of the queue"
nvme_connect "$NVME" --disable-sqflow
disk=$(nvme_disk 1)
verify "$disk" 8
start_load "$disk"
for _ in 1 2 3; do sleep 2; try nvme reset "/dev/$(basename "$(path_to "$NVME")")"; done
load_goes_on
stop_load
nvme_disconnect
! dmesg | grep -iE 'nvme.*(error|failed|timeout|mismatch)' || fail "the kernel complains"

step "authentication"
# guarded OPTION...: connects to the guarded subsystem
guarded() { nvme connect $(at "$NVME") -n "$GUARDED" --nr-io-queues=2 "$@"; }
for options in "" "-S $PROOF" "-S $SECRET -C $SECRET"; do
    ! guarded $options || fail "connected with: $options"
    try wait_for 20 '! ls -d /sys/class/nvme/nvme*'
done
for options in "-S $SECRET" "-S $SECRET -C $PROOF"; do
    try guarded $options
    try wait_for 20 "nvme_disk 3"
    verify "$(nvme_disk 3)" 4
    try nvme disconnect -n "$GUARDED"
    try wait_for 20 '! ls -d /sys/class/nvme/nvme*'
done
echo "PASS nvme"
