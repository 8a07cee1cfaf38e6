#!/bin/bash
# A file system is written, each file flushed, while the host kills the server with SIGKILL and starts it again.
# Every file whose fsync returned must be there, and the file system whole.
#   KILLS  how often (default 2)
. "$(dirname "$0")/lib.sh"
step "login"; start_initiator 120
discover "$PORTAL"; login "$PORTAL"
disk=$(disk_of "$PORTAL")
modprobe ext4
try mkfs.ext4 -q -F "$disk"
try mount "$disk" /mnt
pattern 1 >/run/pattern

# Writes file after file and notes the number of each one that fsync has acknowledged.
writer() {
    local n=0
    while [ ! -e /run/enough ]; do
        n=$((n + 1))
        { echo "$n"; head -c $((n % 16 * 4096 + 512)) /run/pattern; } >/run/one
        dd if=/run/one of="/mnt/$n" bs=64k conv=fsync status=none || { echo "write of $n failed" >/run/broken; return; }
        echo "$n" >/run/acknowledged
    done
}
more_than() { [ "$(cat /run/acknowledged)" -gt "$1" ]; }

echo 0 >/run/acknowledged
writer & writer=$!
for kill in $(seq "${KILLS:-2}"); do
    step "kill $kill"
    before=$(cat /run/acknowledged)
    try wait_for 60 "more_than $((before + 20)) || test -e /run/broken"
    ask "kill-$kill"
    before=$(cat /run/acknowledged)
    try wait_for 120 "more_than $((before + 20)) || test -e /run/broken"
    [ ! -e /run/broken ] || { dmesg | tail -n 20; fail "$(cat /run/broken)"; }
done
: >/run/enough
wait "$writer"
last=$(cat /run/acknowledged)
step "check: $last files were acknowledged"
try umount /mnt
blockdev --flushbufs "$disk"
try e2fsck -f -n "$disk"
try mount -o ro "$disk" /mnt
for n in $(seq "$last"); do
    { echo "$n"; head -c $((n % 16 * 4096 + 512)) /run/pattern; } | cmp - "/mnt/$n" || fail "file $n differs"
done
try umount /mnt
logout "$PORTAL"
echo "PASS crash: $last files"
