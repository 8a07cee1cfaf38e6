#!/bin/bash
# The router between the kernel's initiator and LIO, with a file system that survives kills of the router; between the
# kernel's initiator and STGT; and in front of a disk and a tape of scsi_debug, in passthrough mode.
#   LUNAR   the program
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/target.sh"

IQN=iqn.2026-11.lab.guest
LIO=$IQN:open
BLOCK=iqn.2026-11.lab.guest:block PASS=iqn.2026-11.lab.guest:pass SG=iqn.2026-11.lab.guest:sg
PORTAL=127.0.0.1:3290

# configuration: LIO's disk in block mode and in passthrough mode
configuration() {
    cat <<END
[server]
state_dir = "/run/router"
admin_socket = "/run/router/admin.sock"
[[portal_group]]
tag = 1
portals = ["$PORTAL"]
[router.r1.upstream.block]
urls = ["iscsi://127.0.0.1:3260/$LIO"]
[router.r1.upstream.pass]
urls = ["iscsi://127.0.0.1:3260/$LIO"]
mode = "passthrough"
[[router.r1.target]]
map = "target"
name = "$BLOCK"
upstream = "block"
access = "all"
[[router.r1.target]]
map = "target"
name = "$PASS"
upstream = "pass"
access = "all"
END
}

# devices: passthrough of $sg
devices() {
    cat <<END
[server]
state_dir = "/run/router"
admin_socket = "/run/router/admin.sock"
[router.r1]
listen = ["$PORTAL"]
[router.r1.upstream.sg]
sg = "$sg"
mode = "passthrough"
[[router.r1.target]]
map = "lun"
name = "$SG"
access = "all"
lun = [{ lun = 0, upstream = "sg" }]
END
}

start_router() {
    mkdir -p /run/router
    configuration >/run/router/lunar.toml
    "$LUNAR" serve --config /run/router/lunar.toml >>/run/router/out 2>>/run/router/err & router=$!
    wait_for 30 "grep -q '^ready' /run/router/out" || { cat /run/router/err; fail "the router does not start"; }
}
kill_router() { kill -9 "$router"; wait "$router" 2>/dev/null; : >/run/router/out; }
# routed NAME: waits until `lunar ls` finds LUN 0 of NAME
routed() {
    local tries=20
    until "$LUNAR" ls "iscsi://$PORTAL/$1/0?login_tries=1" --timeout 20 >/run/output 2>&1; do
        [ $((tries -= 1)) -gt 0 ] || { cat /run/router/err /run/output; fail "$1 is not there"; }
        sleep 0.5
    done
}

# used PATH: prints the result of each use of a tape. The tape of scsi_debug stores data only since Linux 6.15. Before
# that, the router must return the same errors as the device.
used() {
    local tape=/dev/${1##*/}
    {
        mt -f "$tape" rewind; echo "rewind: $?"
        mt -f "$tape" status; echo "status: $?"
        dd if=/run/pattern of="$tape" bs=32k count=16 status=none; echo "write: $?"
        mt -f "$tape" rewind; echo "rewind: $?"
        dd if="$tape" bs=32k count=16 status=none >/run/read; echo "read: $?"
        cksum </run/read
        mt -f "$tape" eom; echo "eom: $?"
        mt -f "$tape" rewind; echo "rewind: $?"
    } 2>&1 | sed "s#$tape#tape#g"
}

step "the kernel's target and a router before it"
ip link set lo up
start_target
backstore open 192
target open 0 127.0.0.1:3260
serve open 1
start_router
routed $BLOCK
routed $PASS
start_initiator 120

for IQN in $BLOCK $PASS; do
    step "$IQN: a disk"
    discover $PORTAL
    login $PORTAL
    disk=$(disk_of $PORTAL)
    [ "$(cat "/sys/block/${disk##*/}/device/vendor")" = "LIO-ORG " ] || fail "the vendor is not that of LIO"
    verify "$disk" 16
    cmp -n $((16 << 20)) /run/open.img /run/pattern || fail "the medium of LIO differs"
    filesystem ext4 "$disk"

    step "$IQN: the router ends under a file system and comes back"
    try mkfs.ext4 -q -F "$disk"
    try mount "$disk" /mnt
    start_writer
    await_files 10
    for round in 1 2; do
        kill_router
        sleep $round
        start_router
        await_files 10
    done
    stop_writer
    check_files "$disk"
    logout $PORTAL
done
kill_router

step "ten lines of configuration before STGT"
admin() { tgtadm -C 9 --lld iscsi --mode "$@" || fail "tgtadm $*"; }
tgtd -f -C 9 --iscsi portal=127.0.0.1:3264 >/run/tgtd.log 2>&1 & tgtd=$!
wait_for 20 "tgtadm -C 9 --lld iscsi --mode target --op show" || { cat /run/tgtd.log; fail "no tgtd"; }
truncate -s 64M /run/stgt.img
admin target --op new --tid 1 -T iqn.2026-11.lab.guest:stgt
admin logicalunit --op new --tid 1 --lun 1 -b /run/stgt.img
admin target --op bind --tid 1 -I ALL
configuration() {
    cat <<END
[router.r1]
listen = ["$PORTAL"]
[router.r1.upstream.a]
urls = ["iscsi://127.0.0.1:3264/iqn.2026-11.lab.guest:stgt"]
[[router.r1.target]]
map = "target"
name = "$BLOCK"
upstream = "a"
access = "all"
END
}
start_router
wait_for 20 '"$LUNAR" ls "iscsi://$PORTAL/$BLOCK/1?login_tries=1"' || { cat /run/router/err; fail "$BLOCK is not there"; }
IQN=$BLOCK LUN=1
# The portal has another tag than before: a record with the former one would log in a second time.
iscsiadm -m node -T "$IQN" -o delete
discover $PORTAL
login $PORTAL
disk=$(disk_of $PORTAL)
[ "$(cat "/sys/block/${disk##*/}/device/vendor")" = "IET     " ] || fail "the vendor is not that of STGT"
verify "$disk" 16
cmp -n $((16 << 20)) /run/stgt.img /run/pattern || fail "the medium of STGT differs"
filesystem ext4 "$disk"
logout $PORTAL
kill_router
kill -9 $tgtd; wait $tgtd 2>/dev/null
configuration() { devices; }
LUN=0

step "a disk of a SCSI adapter, passed through"
modprobe -a sg sd_mod
debug_device dev_size_mb=16
start_router
routed $SG
IQN=$SG
discover $PORTAL
login $PORTAL
disk=$(disk_of $PORTAL)
[ "$(cat "/sys/block/${disk##*/}/device/model")" = "scsi_debug      " ] || fail "the model is not scsi_debug"
verify "$disk" 8
own=$(ls -d /sys/bus/pseudo/drivers/scsi_debug/adapter0/host*/target*/*/block/*)
blockdev --flushbufs "/dev/${own##*/}"
cmp -n $((8 << 20)) "/dev/${own##*/}" /run/pattern || fail "the adapter's disk differs"

step "it goes, and comes back"
own=$(ls -d /sys/bus/pseudo/drivers/scsi_debug/adapter0/host*/target*/*/scsi_device/..)
echo 1 >"$own/delete"
read_one() { dd if="$disk" of=/dev/null bs=4k count=1 iflag=direct status=none; }
read_one && fail "a read without a medium succeeded"
wait_for 20 'grep -q "sg[0-9]* was removed" /run/router/err' || fail "the log does not report it"
for host in /sys/bus/pseudo/drivers/scsi_debug/adapter0/host*/scsi_host/host*; do echo "- - -" >"$host/scan"; done
wait_for 20 read_one || { cat /run/router/err; ls /dev/sg*; fail "it is not served again"; }
dd if="$disk" bs=1M count=8 iflag=direct status=none | cmp - /run/pattern || fail "it reads other data than was written"
logout $PORTAL
kill_router
try rmmod scsi_debug

step "a tape, passed through"
modprobe st || echo "no tape driver: only its INQUIRY data is checked"
debug_device ptype=1
start_router
routed $SG
"$LUNAR" ls "iscsi://$PORTAL/$SG/0" | tee /run/output
grep -qi tape /run/output || fail "it is not a tape"
discover $PORTAL
try iscsiadm -m node -T "$IQN" -p $PORTAL --login
if [ -d /sys/module/st ]; then
    wait_for 20 'ls /sys/class/iscsi_session/session*/device/target*/*/scsi_tape/nst?' || fail "no tape is seen"
    pattern 1 >/run/pattern
    used "$(ls -d /sys/bus/pseudo/drivers/scsi_debug/adapter0/host*/target*/*/scsi_tape/nst?)" >/run/direct
    used "$(ls -d /sys/class/iscsi_session/session*/device/target*/*/scsi_tape/nst?)" >/run/routed
    cat /run/direct
    try diff /run/direct /run/routed
    grep -q 'status: 0' /run/routed || fail "mt status did not succeed"
fi
logout $PORTAL
kill_router
try rmmod scsi_debug
echo "PASS router"
