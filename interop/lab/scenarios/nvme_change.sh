#!/bin/bash
# Namespaces that grow, come and go while the host is connected.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/nvme_lib.sh"
start_nvme
step "connect"; nvme_connect "$NVME"
disk=$(nvme_disk 1)
before=$(blockdev --getsize64 "$disk")
step "grow"; ask grow
try wait_for 20 '[ "$(blockdev --getsize64 "$disk")" -gt "$before" ]'
is=$(blockdev --getsize64 "$disk")
[ "$is" = $((640 << 20)) ] || fail "$is bytes"
pattern 1 >/run/pattern
try dd if=/run/pattern of="$disk" bs=1M seek=$((before >> 20)) oflag=direct status=none
dd if="$disk" bs=1M skip=$((before >> 20)) count=1 iflag=direct status=none | cmp - /run/pattern || fail "reads other data than was written"

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
