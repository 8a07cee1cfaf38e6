# Helpers of the NVMe/TCP scenarios. Source it after lib.sh. They take from the environment:
#   NVME     address:port of the NVMe portals, separated by blanks
#   NQN      the subsystem; its namespace 1 is the disk

HOSTNQN=nqn.2014-08.org.nvmexpress:uuid:7d3f1a52-90c4-4b61-8a0e-2f6c5b1d9e70
HOSTID=7d3f1a52-90c4-4b61-8a0e-2f6c5b1d9e70

start_nvme() { modprobe -a nvme_core nvme_fabrics nvme_tcp || fail "modprobe nvme_tcp"; }

# at PORTAL: the options of nvme-cli that name a portal and this host
at() { echo "-t tcp -a ${1%:*} -s ${1##*:} --hostnqn=$HOSTNQN --hostid=$HOSTID"; }

# nvme_connect PORTAL [OPTION...]: connects two I/O queues, and waits for the disk
nvme_connect() {
    local portal=$1; shift
    try nvme connect $(at "$portal") -n "$NQN" --nr-io-queues=2 --reconnect-delay=1 --ctrl-loss-tmo=120 "$@"
    try wait_for 20 "nvme_disk 1"
}

nvme_disconnect() {
    try nvme disconnect -n "$NQN"
    try wait_for 20 '! ls -d /sys/class/nvme/nvme*'
}

# nvme_disk NSID: prints the block device of a namespace. Those of single paths have a name with a c.
nvme_disk() {
    local at
    for at in /sys/block/nvme*n*; do
        case ${at##*/} in *c*n*) continue ;; esac
        [ -b "/dev/${at##*/}" ] && [ "$(cat "$at/nsid" 2>/dev/null)" = "$1" ] && { echo "/dev/${at##*/}"; return 0; }
    done
    return 1
}

# path_to PORTAL: prints the folder of the controller that is connected there
path_to() {
    local at
    for at in /sys/class/nvme/nvme*; do
        grep -q "traddr=${1%:*},trsvcid=${1##*:}" "$at/address" 2>/dev/null && { echo "$at"; return 0; }
    done
    return 1
}

# path_is PORTAL STATE
path_is() { [ "$(cat "$(path_to "$1")/state")" = "$2" ]; }

# access_state PORTAL: prints the ANA state of the path
access_state() { cat "$(path_to "$1")"/nvme*c*n*/ana_state; }

# becomes PORTAL STATE: waits for this ANA state of the path
becomes() {
    wait_for 40 "[ \"\$(access_state $1)\" = $2 ]" ||
        { dmesg | tail -n 15; fail "the path $1 does not become $2, but $(access_state "$1")"; }
}

# start_load DEVICE: verified writes of 4 KiB blocks in the background, until stop_load. A write that is repeated must
# not overtake a newer one of the same block.
start_load() {
    loaded=${1##*/}
    fio --name=load --filename="$1" --serialize_overlap=1 --rw=randwrite --bs=4k --iodepth=8 --ioengine=libaio --direct=1 --size=8M \
        --loops=1000 --rate_iops=200 --runtime=1h --time_based --verify=crc32c --verify_backlog=64 >/run/fio.log 2>&1 & load=$!
}

# written [PORTAL]: writes of the load up to now, on all paths or on that path
written() {
    local at=/sys/block/$loaded
    [ $# = 0 ] || at=$(echo "$(path_to "$1")"/nvme*c*n*)
    awk '{ print $5 }' "$at/stat"
}

# load_goes_on [PORTAL]: waits for more writes of the load, on that path
load_goes_on() {
    local before; before=$(written "$@")
    wait_for 30 "[ \"\$(written $*)\" -gt $before ]" || { cat /run/fio.log; dmesg | tail -n 15; fail "nothing is written $*"; }
}

# stop_load: ends the load, which must run without an error until then. Only a signal ends fio with status 128.
stop_load() {
    local status
    kill "$load"; wait "$load"; status=$?
    [ $status = 128 ] || { cat /run/fio.log; dmesg | tail -n 20; fail "I/O failed, or read other data than were written ($status)"; }
    grep -E 'IOPS|err=' /run/fio.log
}
