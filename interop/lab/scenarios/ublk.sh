#!/bin/bash
# A ublk device of the example program `ublk`: data verification, `kill -9` of its process, and removal.
#   UBLK    the program
#   KILLS   number of kills under load (default 2)
. "$(dirname "$0")/lib.sh"

# serve ARGUMENTS: starts the program in the background; its process is $server, its device $disk
serve() {
    rm -f /run/device
    "$UBLK" "$@" >/run/device 2>/run/ublk.log & server=$!
    wait_for 60 "test -s /run/device || ! kill -0 $server"
    disk=$(cat /run/device)
    [ -b "$disk" ] || { cat /run/ublk.log; fail "no device from: $*"; }
}
# refused TEXT ARGUMENTS: the program must fail and print TEXT
refused() {
    local text=$1; shift
    ! "$UBLK" "$@" >/run/refused 2>&1 || fail "not refused: $*"
    grep -q -- "$text" /run/refused || { cat /run/refused; fail "the output lacks: $text"; }
}
killed() { kill -9 "$server"; wait "$server" 2>/dev/null; }
stopped() {
    kill -TERM "$server"
    wait "$server" || { cat /run/ublk.log; fail "it did not exit with status 0"; }
    [ ! -e "$disk" ] || fail "$disk is still there"
}
allocated() { stat -c %b "$1"; }
all_zero() { cmp -n "$2" "$1" /dev/zero || fail "$1 is not all zeros"; }

step "without the driver"
[ ! -d /sys/module/ublk_drv ] || try modprobe -r ublk_drv
refused 'modprobe ublk_drv' start memory:1048576
modprobe ublk_drv || fail "modprobe"
echo 2 >/proc/sys/kernel/io_uring_disabled
refused 'which ublk needs' start memory:1048576
echo 0 >/proc/sys/kernel/io_uring_disabled
refused 'cannot find the device' recover 0 memory:1048576
refused '1 to 4096 requests' start memory:1048576 depth=5000

step "a file as a device"
truncate -s 256M /run/disk.img
serve start /run/disk.img queues=2
[ "$(blockdev --getsize64 "$disk")" = 268435456 ] || fail "capacity"
[ "$(cat /sys/block/ublkb0/queue/write_cache)" = "write back" ] || fail "no write cache"
[ "$(cat /sys/block/ublkb0/queue/fua)" = 1 ] || fail "no FUA"
verify "$disk" 8
filesystem ext4 "$disk"
try fio --name=verified --filename="$disk" --rw=randwrite --bsrange=512-600k --bs_unaligned=0 --ba=512 --iodepth=16 \
    --ioengine=libaio --direct=1 --size=8M --verify=crc32c --fsync=64 --output=/run/fio.log

step "discard and zeros"
before=$(allocated /run/disk.img)
try blkdiscard "$disk"
[ "$(allocated /run/disk.img)" -lt $((before / 10)) ] || fail "no space came back: $before -> $(allocated /run/disk.img)"
all_zero "$disk" 8388608
pattern 4 >/run/pattern
try dd if=/run/pattern of="$disk" bs=1M oflag=direct status=none
try blkdiscard -z -o 1048576 -l 2097152 "$disk"
{ head -c 1M /run/pattern; head -c 2M /dev/zero; tail -c +3145729 /run/pattern; } | cmp -n 4194304 - "$disk" ||
    fail "not zero where it was zeroed, or elsewhere too"

step "kill -9 under load"
try mkfs.ext4 -q -F "$disk"
try mount "$disk" /mnt
refused 'serves its requests' recover 0 memory:268435456
refused 'serves its requests' remove 0
start_writer
for kill in $(seq "${KILLS:-2}"); do
    await_files 12
    killed
    echo "killed after file $(cat /run/acknowledged)"
    sleep 0.5
    refused 'use the medium that' recover 0 memory:1048576
    serve recover 0 /run/disk.img
done
await_files 12
stop_writer
check_files "$disk"
stopped

step "a larger medium"
serve start /run/disk.img
truncate -s 320M /run/disk.img
kill -HUP "$server"
wait_for 30 '[ "$(blockdev --getsize64 "$disk")" = 335544320 ] || grep -q "Linux 6.16 can change" /run/ublk.log' ||
    fail "neither a new capacity nor a log line"
stopped

step "taken away from under a file system"
serve start /run/disk.img
[ "$(blockdev --getsize64 "$disk")" = 335544320 ] || fail "not the new capacity"
try mount -o ro "$disk" /mnt
stopped
grep -q 'is in use' /run/ublk.log || fail "not known to be in use"
try umount /mnt
serve start /run/disk.img id=0
stopped

step "no process, no device"
serve start memory:16777216 id=3 block-size=4096 depth=1
[ "$disk" = /dev/ublkb3 ] || fail "it is $disk"
[ "$(blockdev --getss "$disk")" = 4096 ] || fail "not blocks of 4096 bytes"
refused 'choose another device number' start memory:1048576 id=3
verify "$disk" 4
killed
try "$UBLK" remove 3
[ ! -e "$disk" ] || fail "$disk is still there"

step "read only"
serve start /run/disk.img read-only=true
[ "$(blockdev --getro "$disk")" = 1 ] || fail "not read only"
! dd if=/run/pattern of="$disk" bs=4k count=1 oflag=direct status=none 2>/dev/null || fail "it was written"
stopped
echo "PASS ublk"
