#!/bin/bash
# `lunar attach` in the guest: a file system on its block device, while the target is restarted and the attachment's
# process is killed. Then the kernel's NBD client uses its NBD server.
#   LUNAR   the program
. "$(dirname "$0")/lib.sh"
url=iscsi://$PORTAL/$IQN/$LUN
# status NUMBER ARGUMENTS: lunar must end with this exit status
status() {
    local wanted=$1 got; shift
    "$LUNAR" "$@" >/run/said 2>&1; got=$?
    [ "$got" = "$wanted" ] || { cat /run/said; fail "lunar $*: status $got, not $wanted"; }
}
pid_of() { "$LUNAR" attach list "$1" --json | sed -n 's/^ *"pid": \([0-9]*\),$/\1/p'; }
state_of() { "$LUNAR" attach list "$1" --json | sed -n 's/^  "state": "\(.*\)",$/\1/p'; }

step "a block device"
modprobe -a ublk_drv ext4 || fail "modprobe"
disk=$("$LUNAR" attach "$url" --ublk --name data) || fail "attach"
[ -b "$disk" ] || fail "\"$disk\" is not a block device"
[ "$(blockdev --getsize64 "$disk")" = 536870912 ] || fail "capacity"
status 15 attach "$url" --ublk --name other
try mkfs.ext4 -q -F "$disk"
try mount "$disk" /mnt
status 28 detach data
grep -q 'mounted on /mnt' /run/said || fail "it does not name the user: $(cat /run/said)"
start_writer
await_files 10

step "the target is killed and started again"
ask kill-1
await_files 10

step "the process is killed, and its device taken over"
kill -9 "$(pid_of data)"
try wait_for 10 '[ "$(state_of data)" = ended ]'
[ -b "$disk" ] || fail "$disk is gone"
status 28 detach data
[ "$("$LUNAR" attach data)" = "$disk" ] || fail "not $disk again"
await_files 10
step "the same, and the target meanwhile"
kill -9 "$(pid_of data)"
ask kill-2
try wait_for 10 '[ "$(state_of data)" = ended ]'
[ "$("$LUNAR" attach "$url" --ublk --name data)" = "$disk" ] || fail "not $disk again"
await_files 10
stop_writer
check_files "$disk"
status 0 detach "$disk"
[ ! -e "$disk" ] || fail "$disk is still there"
status 21 detach data

step "a device that was left behind is removed"
disk=$("$LUNAR" attach "$url" --ublk --name data) || fail "attach"
kill -9 "$(pid_of data)"
try wait_for 10 '[ "$(state_of data)" = ended ]'
status 0 detach data
[ ! -e "$disk" ] || fail "$disk is still there"

step "the kernel's NBD client"
modprobe nbd || fail "modprobe nbd"
status 0 attach "$url" --nbd unix:/run/data.sock --name data
try nbd-client -unix /run/data.sock /dev/nbd0
verify /dev/nbd0 8
filesystem ext4 /dev/nbd0
status 28 detach data
try nbd-client -d /dev/nbd0
try wait_for 10 '"$LUNAR" detach data'
echo "PASS attach"
