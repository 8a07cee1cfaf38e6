#!/bin/bash
# How fast the kernel's iSER initiator reads and writes over a soft device at Lunar, STGT and LIO: all three serve in this
# guest, from disks of no content, and take turns. The rates depend on the machine, so the ratios count.
#   LUNAR         the program
#   RDMA          siw or rxe
#   LOADS         the loads: OPERATION-BLOCK-DEPTH... (default: the four below)
#   ROUNDS        measurements of each load and target (default 3)
#   SECONDS_EACH  length of a measurement in seconds (default 3)
# Each measurement prints a line: rate LOAD NAME IO/s
: "${RDMA:=siw}" "${PROVIDER:=verbs}" "${ROUNDS:=3}" "${SECONDS_EACH:=3}"
: "${LOADS:=randread-4k-32 randwrite-4k-32 randread-256k-8 randwrite-256k-8}"
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/target.sh"
. "$(dirname "$0")/server.sh"
. "$(dirname "$0")/tgt.sh"

declare -A disk

# opened NAME: logs in to the target that PORTAL, IQN and LUN name. The same queue settings for all disks make Linux
# split and queue commands alike.
opened() {
    iscsiadm -m node -o new -T "$IQN" -p "$PORTAL" -I iser >/dev/null
    login "$PORTAL"
    disk[$1]=$(disk_of "$PORTAL")
    local queue=/sys/block/${disk[$1]#/dev/}/queue
    echo none >"$queue/scheduler"
    for setting in rotational=0 add_random=0 nomerges=2 max_sectors_kb=256; do
        echo "${setting#*=}" >"$queue/${setting%=*}" || fail "$1: $setting"
    done
    echo "$1: ${disk[$1]}, $(blockdev --getsize64 "${disk[$1]}") bytes, $(cat "$queue/../device/queue_depth") commands"
}

# rate NAME LOAD: commands per second, from fio's terse output
rate() {
    local operation block depth field=8
    IFS=- read -r operation block depth <<<"$2"
    [ "$operation" = randread ] || field=49
    fio --name=rate --filename="${disk[$1]}" --size=256M --norandommap --rw="$operation" --bs="$block" --iodepth="$depth" \
        --ioengine=libaio --direct=1 --runtime="$SECONDS_EACH" --time_based --output-format=terse >/run/terse || fail "fio: $1"
    cut -d ';' -f $field /run/terse
}

step "STGT"
start_initiator 30
PORTAL=10.0.2.15:3260 IQN=iqn.2026-11.lab.guest:tgt LUN=1
start_tgtd "$PORTAL" "$IQN" iqn.2026-11.lab.guest:initiator --bstype null -b /dev/null
opened STGT

step "LIO"
PORTAL=10.0.2.15:3261 IQN=iqn.2026-11.lab.guest LUN=0
start_target
mkdir -p $T/core/rd_mcp_0/none
echo "rd_pages=262144,rd_nullio=1" >$T/core/rd_mcp_0/none/control
echo 1 >$T/core/rd_mcp_0/none/enable || fail "no backstore"
STORE=rd_mcp_0/none target none 0
iser_portal none $PORTAL
serve none 1
IQN=$IQN:none opened LIO

step "Lunar"
PORTAL=10.0.2.15:3270 LUN=1
serve_here
opened Lunar

step "sessions"
iscsiadm -m session -P 2 | grep -E 'Target:|DataSegmentLength|BurstLength|ImmediateData|InitialR2T'

for load in $LOADS; do
    step "$load"
    for _ in $(seq "$ROUNDS"); do
        for name in STGT LIO Lunar; do echo "rate $load $name $(rate $name "$load")"; done
    done
done
echo "PASS iser_rates"
