# Helpers of the scenarios, which run in the lab's guest. Source it: . "$(dirname "$0")/lib.sh"
#
# Every scenario takes from the environment:
#   PORTAL   address:port of the target as the guest sees it: 10.0.2.2 is the host's 127.0.0.1
#   IQN, LUN the target's name and the LUN (default 0)
#   CHAP     "user secret" to log in with; CHAP_MUTUAL "user secret" that the target must answer with
#   RDMA     siw or rxe: the kernel's initiator goes by iSER over this kind of software device; not set: TCP
#   BRIEF    not empty: the scenario leaves out what does not depend on the provider and the device
#   STATIC   not empty: the target does not report an address that the guest can reach, so discovery's own record is
#            not used for the login
set -u
[ -e /lab/main ] || { echo "this runs in the lab's guest, not here" >&2; exit 99; }
: "${LUN:=0}"

step() { local up; read -r up _ </proc/uptime; printf '\n### [%7ss] %s\n' "$up" "$*"; }
fail() { [ ! -s /run/server/log ] || tail -n 20 /run/server/log; echo "FAIL: $*"; exit 1; }
# Prints and runs a command. If it fails, the scenario fails.
try() { printf '+ %s\n' "$*"; "$@" || fail "status $? from: $*"; }

full() { [ -z "${BRIEF-}" ]; }

# wait_for SECONDS 'condition'
wait_for() {
    local left=$(($1 * 5))
    until eval "$2" >/dev/null 2>&1; do
        [ $((left -= 1)) -gt 0 ] || { echo "waited $1 s in vain for: $2"; return 1; }
        sleep 0.2
    done
}

# ask NAME: requests an action from the test on the host, and waits until it is done
ask() {
    [ -z "${PROVIDER-}" ] || { served_here "$1"; return; }
    echo "host: $1"
    : >"/lab/$1.wanted"
    wait_for 60 "test -e /lab/$1.done" || fail "the host did not answer: $1"
}

# start_initiator REPLACEMENT_TIMEOUT_S: starts iscsid with an empty database and a short keepalive. Sets IFACE, the
# interface of open-iscsi to use: default (TCP) or iser.
start_initiator() {
    modprobe -a libiscsi iscsi_tcp sd_mod sg || fail modprobe
    mkdir -p /etc/iscsi /run/lock/iscsi
    rm -rf /etc/iscsi/nodes /etc/iscsi/send_targets /etc/iscsi/ifaces /var/lib/iscsi
    echo "InitiatorName=${INITIATOR:-iqn.2026-11.lab.guest:initiator}" >/etc/iscsi/initiatorname.iscsi
    sed -i -e "s/^\(node.session.timeo.replacement_timeout\).*/\1 = $1/" \
        -e 's/^\(node.conn\[0\].timeo.noop_out_interval\).*/\1 = 2/' \
        -e 's/^\(node.conn\[0\].timeo.noop_out_timeout\).*/\1 = 4/' \
        -e 's/^#* *node.startup.*/node.startup = manual/' /etc/iscsi/iscsid.conf
    pidof iscsid >/dev/null || iscsid || fail iscsid
    wait_for 10 'iscsiadm -m session 2>&1 | grep -q "No active"' || fail "iscsid does not answer"
    IFACE=default
    [ -n "${RDMA-}" ] || return 0
    soft_rdma "$RDMA"
    modprobe ib_iser || fail "modprobe ib_iser"
    IFACE=iser      # a built-in interface of open-iscsi
}

# discover PORTAL: SendTargets names the target at that portal
discover() {
    iscsiadm -m discovery -t sendtargets -p "$1" -I "$IFACE" | tee /run/discovered || fail "discovery of $1"
    grep -q " $IQN\$" /run/discovered || fail "$IQN was not discovered"
    if [ -n "${STATIC-}" ]; then
        iscsiadm -m node -o delete >/dev/null
        try iscsiadm -m node -o new -T "$IQN" -p "$1"
    else
        grep -q "^$1,[0-9]* $IQN\$" /run/discovered || fail "$1 was not reported as the address of $IQN"
    fi
}

set_node() { iscsiadm -m node -T "$IQN" -p "$1" -I "$IFACE" -o update -n "$2" -v "$3" || fail "set $2"; }

# login PORTAL: logs in with the credentials of CHAP and CHAP_MUTUAL, and the digests of DIGEST (None or CRC32C)
login() {
    [ -z "${DIGEST-}" ] || { set_node "$1" 'node.conn[0].iscsi.HeaderDigest' "$DIGEST"
        set_node "$1" 'node.conn[0].iscsi.DataDigest' "$DIGEST"; }
    if [ -n "${CHAP-}" ]; then
        set_node "$1" node.session.auth.authmethod CHAP
        set_node "$1" node.session.auth.username "${CHAP% *}"
        set_node "$1" node.session.auth.password "${CHAP#* }"
    fi
    if [ -n "${CHAP_MUTUAL-}" ]; then
        set_node "$1" node.session.auth.username_in "${CHAP_MUTUAL% *}"
        set_node "$1" node.session.auth.password_in "${CHAP_MUTUAL#* }"
    fi
    try iscsiadm -m node -T "$IQN" -p "$1" -I "$IFACE" --login
    try wait_for 20 "disk_of $1"
}

logout() { try iscsiadm -m node -T "$IQN" -p "$1" -I "$IFACE" --logout; }

# disk_of PORTAL: prints the block device of LUN in the session with this portal
disk_of() {
    local session connection disk
    for session in /sys/class/iscsi_session/session*; do
        connection=/sys/class/iscsi_connection/connection${session##*/session}:0
        [ "$(cat "$connection/persistent_address"):$(cat "$connection/persistent_port")" = "$1" ] || continue
        [ "$(cat "$session/targetname")" = "$IQN" ] || continue
        [ "$(cat "$session/ifacename")" = "$IFACE" ] || continue
        for disk in "$session"/device/target*/*:"$LUN"/block/*; do
            [ -e "$disk" ] && { echo "/dev/${disk##*/}"; return 0; }
        done
    done
    return 1
}

# soft_rdma siw|rxe: creates a soft RDMA device over eth0, named siw_eth0 or rxe_eth0, unless it exists
soft_rdma() {
    case $1 in
        siw) modprobe -a ib_uverbs iw_cm siw || fail "no siw: lab siw builds it" ;;
        rxe) modprobe rdma_rxe || fail "modprobe rdma_rxe" ;;
    esac
    modprobe -a rdma_cm rdma_ucm || fail "modprobe rdma_cm"
    rdma link show "$1_eth0/1" >/dev/null 2>&1 || try rdma link add "$1_eth0" type "$1" netdev eth0
    try wait_for 10 "rdma link show $1_eth0/1 | grep -q ACTIVE"
}

# debug_device ARGUMENTS: loads scsi_debug; $sg is the SCSI generic device of its only device
debug_device() {
    try modprobe scsi_debug add_host=1 "$@"
    wait_for 20 'ls -d /sys/bus/pseudo/drivers/scsi_debug/adapter0/host*/target*/*/scsi_generic/sg*' || fail "no device"
    sg=/dev/$(basename /sys/bus/pseudo/drivers/scsi_debug/adapter0/host*/target*/*/scsi_generic/sg*)
}

# pattern MIB: prints text whose lines all differ (/dev/urandom and checksums are slow under emulation)
pattern() { seq 10000000 99999999 | head -c "$1"M; }

# verify DEVICE MIB: writes, reads back with O_DIRECT, and compares
verify() {
    pattern "$2" >/run/pattern
    try dd if=/run/pattern of="$1" bs=1M oflag=direct conv=fsync status=none
    dd if="$1" bs=1M count="$2" iflag=direct status=none | cmp - /run/pattern || fail "$1 reads other data than was written"
    echo "$2 MiB written to $1 and read back"
}

# blocks_of_all_sizes DEVICE: writes blocks of 512 bytes to 1 MiB at random places, and verifies them
blocks_of_all_sizes() {
    try fio --name=verified --filename="$1" --rw=randwrite --bsrange=512-1m --bs_unaligned=0 --ba=512 --iodepth=16 \
        --ioengine=libaio --direct=1 --size=16M --verify=crc32c --output=/run/fio.log
}

# resets_under_load DEVICE: resets the device during verified I/O, which must lose no data
resets_under_load() {
    local resets=4 fio
    full || resets=2
    # A write that is retried must not overtake a newer write of the same block.
    fio --name=reset --filename="$1" --serialize_overlap=1 --rw=randwrite --bs=64k --iodepth=8 --ioengine=libaio --direct=1 --size=8M \
        --loops=100 --runtime=$((resets * 3 + 3)) --time_based --verify=crc32c --verify_backlog=16 >/run/fio.log 2>&1 &
    fio=$!
    for _ in $(seq $resets); do sleep 2; try sg_reset -d "$1"; done
    wait "$fio" || { cat /run/fio.log; dmesg | tail -n 20; fail "it read other data than it wrote"; }
}

# filesystem KIND DEVICE: creates a file system, writes a file, and compares it after a remount
filesystem() {
    modprobe "$1"
    pattern 8 >/run/pattern
    case $1 in
        ext4) try mkfs.ext4 -q -F "$2" ;;
        xfs) try mkfs.xfs -q -f "$2" ;;
    esac
    try mount "$2" /mnt
    try dd if=/run/pattern of=/mnt/file bs=1M conv=fsync status=none
    try umount /mnt
    blockdev --flushbufs "$2"
    try mount -o ro "$2" /mnt
    try cmp /mnt/file /run/pattern
    try umount /mnt
    case $1 in
        ext4) try e2fsck -f -n "$2" ;;
        xfs) try xfs_repair -n "$2" ;;
    esac
}

# start_writer: starts to write numbered files to /mnt. /run/acknowledged holds the number of the last file whose
# fsync returned
start_writer() {
    TEXT=$(pattern 1 | head -c 64K)
    rm -f /run/enough /run/broken /run/pause
    echo 0 >/run/acknowledged
    keep_writing & writer=$!
}

# file_content NUMBER: without a program, which would take longer to start than the file to write
file_content() {
    local LC_ALL=C
    printf '%s\n%s' "$1" "${TEXT:0:$1 % 16 * 4096 + 512}"
}

keep_writing() {
    local n=0
    while [ ! -e /run/enough ]; do
        [ ! -e /run/pause ] || { sleep 0.2; continue; }
        n=$((n + 1))
        file_content "$n" >/run/one
        dd if=/run/one of="/mnt/$n" bs=64k conv=fsync status=none || { echo "write of $n failed" >/run/broken; return; }
        echo "$n" >/run/acknowledged
    done
}

more_than() { [ "$(cat /run/acknowledged)" -gt "$1" ]; }

# await_files COUNT: waits until the writer has written COUNT more files
await_files() {
    local before
    before=$(cat /run/acknowledged)
    try wait_for 120 "more_than $((before + $1)) || test -e /run/broken"
    [ ! -e /run/broken ] || { dmesg | tail -n 20; fail "$(cat /run/broken)"; }
}

stop_writer() { : >/run/enough; wait "$writer"; }

# check_files DEVICE: unmounts the file system, which must be consistent, with every acknowledged file unchanged
check_files() {
    local n last
    last=$(cat /run/acknowledged)
    step "check: $last files were acknowledged"
    try umount /mnt
    blockdev --flushbufs "$1"
    try e2fsck -f -n "$1"
    try mount -o ro "$1" /mnt
    for n in $(seq "$last"); do file_content "$n"; done >/run/written
    (cd /mnt && seq "$last" | xargs cat) | cmp - /run/written || fail "the files differ from what was written"
    try umount /mnt
}
