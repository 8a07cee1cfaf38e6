#!/bin/bash
# A SCSI disk of this machine (scsi_debug) as an NVMe namespace of the kernel's host. First its block device is served. Then
# its SCSI generic device is: a router passes its commands through, and a second one gives that LUN an NVMe face.
#   LUNAR   the program
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/nvme_lib.sh"

NVME=127.0.0.1:4420
NQN=nqn.2026-11.lab.guest:old
PASSED=iqn.2026-11.lab.guest:passed SERVED=iqn.2026-11.lab.guest:old
MIB=64

# serve NAME ARGUMENT...: starts a server, whose files are in /run/NAME
serve() {
    local name=$1; shift
    mkdir -p "/run/$name"
    "$LUNAR" serve "$@" >"/run/$name/out" 2>"/run/$name/err" & servers="$! ${servers-}"
    wait_for 30 "grep -q '^ready' /run/$name/out" || { cat "/run/$name/err"; fail "$name does not start"; }
}

# passing: the disk as a LUN whose commands it executes itself
passing() {
    cat <<END
[server]
state_dir = "/run/passing"
admin_socket = "/run/passing/admin.sock"
[router.r1]
listen = ["127.0.0.1:3290"]
[router.r1.upstream.sg]
sg = "$sg"
mode = "passthrough"
[[router.r1.target]]
map = "lun"
name = "$PASSED"
access = "all"
lun = [{ lun = 0, upstream = "sg" }]
END
}

# facing: that LUN as a namespace
facing() {
    cat <<END
[server]
state_dir = "/run/facing"
admin_socket = "/run/facing/admin.sock"
[[portal_group]]
tag = 1
portals = ["127.0.0.1:3291", { listen = "$NVME", transport = ["nvme-tcp"] }]
[router.r1.upstream.disk]
urls = ["iscsi://127.0.0.1:3290/$PASSED/0"]
[[router.r1.target]]
map = "lun"
name = "$SERVED"
access = "none"
lun = [{ lun = 0, upstream = "disk" }]
[[subsystem]]
nqn = "$NQN"
[[subsystem.namespace]]
nsid = 1
target = "$SERVED"
lun = 0
END
}

# kept MIB: the adapter's own disk has the first MiB of the pattern
kept() {
    blockdev --flushbufs "$own"
    cmp -n $(($1 << 20)) "$own" /run/pattern || fail "the adapter's disk has other data than the namespace"
}

# used: capacity, data, a flush, and a file system that the adapter's own disk has too
used() {
    nvme_connect "$NVME"
    disk=$(nvme_disk 1)
    [ "$(cat "/sys/block/${disk##*/}/size")" = $((MIB << 11)) ] || fail "the capacity is not that of the disk"
    verify "$disk" 16
    try nvme flush "$disk" -n 1
    kept 16
    blocks_of_all_sizes "$disk"
    filesystem ext4 "$disk"
    nvme_disconnect
    kill -9 $servers; wait $servers 2>/dev/null; servers=
    blockdev --flushbufs "$own"
    try mount -o ro "$own" /mnt
    try cmp /mnt/file /run/pattern
    try umount /mnt
}

start_nvme
modprobe -a sg sd_mod ext4
ip link set lo up
debug_device dev_size_mb=$MIB
own=/dev/$(basename /sys/bus/pseudo/drivers/scsi_debug/adapter0/host*/target*/*/block/*)

step "its block device"
serve device --nvme="$NVME" "$own" --target "$SERVED"
used

step "its SCSI generic device, by two routers"
passing >/run/passing.toml
facing >/run/facing.toml
serve passing --config /run/passing.toml
serve facing --config /run/facing.toml
wait_for 30 '"$LUNAR" info "nvme://$NVME/$NQN/1"' || { cat /run/facing/err; fail "the routers do not find the disk"; }
used

step "the commands refuse the SCSI generic device alone"
timeout 20 "$LUNAR" serve --nvme="$NVME" "$sg" >/run/refused 2>&1
status=$?
cat /run/refused
# 124: it ran until the time was over.
[ $status != 0 ] && [ $status != 124 ] || fail "it is served: status $status"
try grep -q 'hint: ' /run/refused
echo "PASS nvme_sg"
