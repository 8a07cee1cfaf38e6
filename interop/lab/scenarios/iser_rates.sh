#!/bin/bash
# How fast ib_iser reads over a soft device from Lunar, STGT and LIO, all in this guest and with disks of no content. The
# rates tell of the machine; their ratios are what is looked at.
#   LUNAR    the program
#   RDMA     siw or rxe
#   SECONDS_EACH  how long each is read (default 8)
: "${RDMA:=siw}" "${PROVIDER:=verbs}" "${SECONDS_EACH:=8}"
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/target.sh"
. "$(dirname "$0")/server.sh"
LUN=1

# read_rate BLOCK DEPTH: commands per second
read_rate() {
    fio --name=rate --filename="$disk" --rw=randread --bs="$1" --iodepth="$2" --ioengine=libaio --direct=1 --minimal \
        --runtime="$SECONDS_EACH" --time_based | cut -d ';' -f 8
}

# rates NAME: of the target that is at PORTAL now
rates() {
    iscsiadm -m node -o new -T "$IQN" -p "$PORTAL" -I iser >/dev/null
    login "$PORTAL"
    disk=$(disk_of "$PORTAL")
    echo "$1 $(read_rate 4k 32) $(read_rate 256k 8)" | tee -a /run/rates
    logout "$PORTAL"
    iscsiadm -m node -o delete -T "$IQN" >/dev/null
}

step "STGT"
start_initiator 30
PORTAL=10.0.2.15:3260 IQN=iqn.2026-11.lab.guest:tgt
echo 80 >/proc/sys/vm/nr_hugepages
tgtd --iser pool_sz_mb=128 -f -C 9 --iscsi portal=10.0.2.15:3264 >/run/tgtd.log 2>&1 & tgtd=$!
wait_for 20 "tgtadm -C 9 --lld iser --mode target --op show" || { cat /run/tgtd.log; fail "no tgtd"; }
for what in "target --op new --tid 1 -T $IQN" "logicalunit --op new --tid 1 --lun 1 --bstype null -b /dev/null" \
    "target --op bind --tid 1 -I ALL" "target --op bind --tid 1 -Q iqn.2026-11.lab.guest:initiator"; do
    tgtadm -C 9 --lld iser --mode $what || fail "tgtadm $what"
done
rates STGT
kill -9 $tgtd; wait $tgtd 2>/dev/null

step "LIO"
start_target
IQN=iqn.2026-11.lab.guest
mkdir -p $T/core/rd_mcp_0/none
echo "rd_pages=65536,rd_nullio=1" >$T/core/rd_mcp_0/none/control
echo 1 >$T/core/rd_mcp_0/none/enable || fail "no backstore"
STORE=rd_mcp_0/none target none 0
iser_portal none $PORTAL
serve none 1
IQN=$IQN:none LUN=0 rates LIO
rmdir "$T/iscsi/$IQN:none/tpgt_1/np/$PORTAL"

step "Lunar"
serve_here
rates Lunar

step "rates"
awk '{ print; a[$1] = $2; b[$1] = $3 }
     END { for (n in a) if (n != "Lunar") printf "Lunar / %s: 4 KiB %.2f, 256 KiB %.2f\n", n, a["Lunar"] / a[n], b["Lunar"] / b[n] }' /run/rates
echo "PASS iser_rates"
