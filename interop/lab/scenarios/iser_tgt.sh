#!/bin/bash
# The commands that use targets, over iSER and the software iWARP of lunar, against STGT over siw in the same guest:
# discovery, data there and back, a target that is killed under I/O and comes back.
#   LUNAR   the program
: "${RDMA:=siw}" "${PROVIDER:=iwarp}"
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/target.sh"

PORTAL=10.0.2.15:3260 IQN=iqn.2026-11.lab.guest:tgt US=iqn.2026-11.lab.guest:lunar
ASKS="initiator=$US&provider=$PROVIDER"
url() { echo "iser://$PORTAL/$IQN/1?$ASKS${1:+&$1}"; }
admin() { tgtadm -C 9 --lld iser "$@" || fail "tgtadm $*"; }

# start_tgtd: iSER at its port 3260, TCP at another. Its buffers are in huge pages. It takes its options in this order
# only.
start_tgtd() {
    tgtd --iser pool_sz_mb=128 -f -C 9 --iscsi portal=10.0.2.15:3264 >>/run/tgtd.log 2>&1 & tgtd=$!
    wait_for 20 "tgtadm -C 9 --lld iser --mode target --op show" || { cat /run/tgtd.log; fail "no tgtd"; }
    admin --mode target --op new --tid 1 -T "$IQN"
    admin --mode logicalunit --op new --tid 1 --lun 1 -b /run/disk.img
    # over iSER it lets in those alone that it knows by name
    admin --mode target --op bind --tid 1 -I ALL
    admin --mode target --op bind --tid 1 -Q "$US"
}

step "STGT"
soft_rdma "$RDMA"
echo 80 >/proc/sys/vm/nr_hugepages
truncate -s "$MIB"M /run/disk.img
start_tgtd

step "discovery and login"
told 0 "$IQN" discover "iser://$PORTAL?$ASKS"
told 0 "$MIB MiB" ls "$(url)"
told 0 "RDMAExtensions=Yes  -> Yes" doctor "$(url)"

step "data"
pattern "$MIB" >/run/pattern
told 0 verified copy --verify --force /run/pattern "$(url)"
cmp /run/pattern /run/disk.img || fail "the medium differs"
told 0 verified copy --verify --force "$(url)" /run/back
cmp /run/pattern /run/back || fail "it reads other than was written"

step "the target is killed under I/O and comes back"
head -c "$MIB"M /dev/zero >/run/zeros
told 0 copied copy --force /run/zeros "$(url)"
"$LUNAR" copy --force --verify --block 64K --depth 4 /run/pattern "$(url commands=4)" >/run/copied 2>&1 & writer=$!
wait_for 30 '! cmp -s -n 1048576 /run/disk.img /run/zeros' || fail "nothing was written"
kill -9 "$tgtd"; wait "$tgtd" 2>/dev/null
start_tgtd
wait "$writer" || { cat /run/copied; fail "the writer saw an error"; }
cmp /run/pattern /run/disk.img || fail "something was lost"
cat /run/copied
kill -9 "$tgtd"; wait "$tgtd" 2>/dev/null
echo "PASS iser_tgt"
