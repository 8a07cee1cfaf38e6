#!/bin/bash
# How fast the kernel's NVMe/TCP host reads and writes at Lunar and at the kernel's target (nvmet), each with a null disk
# and with a file on tmpfs. Both serve in this guest, with one processor, and fio measures them in turn. The rates depend
# on the machine, so the ratios count.
#   LUNAR         the program
#   LOADS         the loads: OPERATION-BLOCK-DEPTH... (default: the four below)
#   CONTENDERS    the disks to measure (default: all)
#   ROUNDS        measurements of each load and disk (default 3)
#   SECONDS_EACH  length of a measurement in seconds (default 3)
# Each measurement prints a line: rate LOAD NAME IO/s
# Lunar-zero_copy is a file with `zero_copy`: it is sent without a copy, as nvmet does.
: "${ROUNDS:=3}" "${SECONDS_EACH:=3}"
: "${LOADS:=randread-4k-32 randwrite-4k-32 randread-256k-8 randwrite-256k-8}"
: "${CONTENDERS:=nvmet-null Lunar-null nvmet-file Lunar-file Lunar-zero_copy}"
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/nvme_lib.sh"
. "$(dirname "$0")/nvmet.sh"
. "$(dirname "$0")/server.sh"

THEIRS=nqn.2026-11.lab.guest:nvmet OURS=nqn.2026-11.lab.guest:lunar
FILE_MIB=192

declare -A disk

# disk_in NQN NSID: prints the block device
disk_in() {
    local subsystem at
    for subsystem in /sys/class/nvme-subsystem/nvme-subsys*; do
        [ "$(cat "$subsystem/subsysnqn" 2>/dev/null)" = "$1" ] || continue
        for at in "$subsystem"/nvme*n*; do
            case ${at##*/} in *c*n*) continue ;; esac
            [ "$(cat "$at/nsid" 2>/dev/null)" = "$2" ] && { echo "/dev/${at##*/}"; return 0; }
        done
    done
    return 1
}

# opened NAME NQN PORTAL DISK...: connects one queue. The disks are the namespaces from 1 on.
opened() {
    local name=$1 nqn=$2 portal=$3 nsid=0 of
    shift 3
    try nvme connect $(at "$portal") -n "$nqn" --nr-io-queues=1
    for of in "$@"; do
        nsid=$((nsid + 1))
        try wait_for 20 "disk_in $nqn $nsid"
        disk[$name-$of]=$(disk_in "$nqn" $nsid)
    done
}

# rate NAME LOAD: commands per second, from fio's terse output
rate() {
    local operation block depth field=8
    IFS=- read -r operation block depth <<<"$2"
    [ "$operation" = randread ] || field=49
    fio --name=rate --filename="${disk[$1]}" --size=${FILE_MIB}M --norandommap --rw="$operation" --bs="$block" --iodepth="$depth" \
        --ioengine=libaio --direct=1 --runtime="$SECONDS_EACH" --time_based --output-format=terse >/run/terse || fail "fio: $1"
    cut -d ';' -f $field /run/terse
}

# namespace NUMBER PATH BUFFERED: of nvmet. With buffered_io, a block device would go through the page cache.
namespace() {
    local at=$V/subsystems/$THEIRS/namespaces/$1
    mkdir "$at" || fail "no namespace $1"
    echo -n "$2" >"$at/device_path"
    echo "$3" >"$at/buffered_io"
    echo 1 >"$at/enable" || fail "cannot enable namespace $1"
}

step "one processor"
for cpu in /sys/devices/system/cpu/cpu[1-9]*; do
    echo 0 >"$cpu/online" || fail "$cpu"
done
ip link set lo up
start_nvme

step "nvmet"
start_nvmet 4420
# Requests end in the context of their submission.
modprobe null_blk nr_devices=1 gb=1 bs=512 irqmode=0 || fail "modprobe null_blk"
head -c ${FILE_MIB}M /dev/zero >/run/nvmet.img
mkdir "$V/subsystems/$THEIRS" || fail "no subsystem"
echo 1 >"$V/subsystems/$THEIRS/attr_allow_any_host"
namespace 1 /dev/nullb0 0
namespace 2 /run/nvmet.img 1
publish $THEIRS
opened nvmet $THEIRS 127.0.0.1:4420 null file

step "Lunar"
mkdir -p $SERVER
for name in file zero_copy; do head -c ${FILE_MIB}M /dev/zero >$SERVER/$name.img; done
{
    printf '[server]\nstate_dir = "%s"\nadmin_socket = "%s"\n' $SERVER $SERVER/admin.sock
    printf '[[portal_group]]\ntag = 1\nportals = [{ listen = "127.0.0.1:4430", transport = ["nvme-tcp"] }]\n'
    printf '[[subsystem]]\nnqn = "%s"\n' $OURS
    printf '[[subsystem.namespace]]\nnsid = 1\nbackend = "null"\nsize = "1G"\n'
    printf '[[subsystem.namespace]]\nnsid = 2\nbackend = "file"\npath = "file.img"\n'
    printf '[[subsystem.namespace]]\nnsid = 3\nbackend = "file"\npath = "zero_copy.img"\nzero_copy = true\n'
} >$SERVER/lunar.toml
trap stop_server EXIT
start_server
opened Lunar $OURS 127.0.0.1:4430 null file zero_copy

step "queues"
for at in /sys/block/nvme*c*n*/queue; do
    echo none >"$at/scheduler" || fail "$at"
    grep -H . "$at/scheduler" "$at/max_sectors_kb"
done

for load in $LOADS; do
    step "$load"
    for _ in $(seq "$ROUNDS"); do
        for name in $CONTENDERS; do echo "rate $load $name $(rate "$name" "$load")"; done
    done
done
try nvme disconnect -n $OURS
try nvme disconnect -n $THEIRS
echo "PASS nvmet_rates"
