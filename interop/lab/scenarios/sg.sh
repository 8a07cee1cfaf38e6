#!/bin/bash
# SCSI pass-through of the kernel's scsi_debug devices with the example program `sg`.
#   SG      the program
. "$(dirname "$0")/lib.sh"

# exercised: every kind of command; its output is in /run/output
exercised() {
    "$SG" exercise "$sg" >/run/output 2>&1 || { cat /run/output; fail "exercise of $sg"; }
    cat /run/output
}
no_device() { try rmmod scsi_debug; }
option() { echo "$2" >"/sys/bus/pseudo/drivers/scsi_debug/$1"; }
# watched TEXT: the program that watches says so within 90 s
watched() { wait_for 90 "grep -q '$1' /run/watch" || { cat /run/watch; fail "the output lacks: $1"; }; }

step "without a device"
[ ! -d /sys/module/sg ] || try modprobe -r sg
! "$SG" exercise /dev/sg7 2>/run/refused || fail "it opened a missing device"
try grep 'modprobe sg' /run/refused
try modprobe sg
modprobe sd_mod

step "a disk"
debug_device dev_size_mb=16
exercised
grep -q 'vendor: "Linux", product: "scsi_debug"' /run/output || fail "it is another"
disk=/dev/$(basename /sys/block/sd*)
try cmp -n 8192 -i 0:8192 "$disk" "$disk"
! cmp -n 8192 "$disk" /dev/zero || fail "nothing was written"

step "an answer that is lost"
"$SG" watch "$sg" >/run/watch & watcher=$!
watched 'status 00h'
option opts 4           # the device does not respond
option every_nth 1
sleep 1
option every_nth 0
watched 'command timeout during processing'
option opts 0

step "a device that is taken away"
echo 1 >"/sys/class/scsi_generic/${sg##*/}/device/delete"
wait "$watcher" || fail "sg watch failed"
cat /run/watch
grep -q '^gone' /run/watch || fail "it does not know"
grep -q 'unavailable state' /run/watch || fail "not in SCSI terms"
no_device

step "a tape"
debug_device ptype=1
exercised
grep -q 'device_type=1' /run/output || fail "it is not a tape"
no_device
echo "PASS sg"
