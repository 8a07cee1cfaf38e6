# STGT's target over iSER. Source it after lib.sh.

# start_tgtd PORTAL TARGET INITIATOR STORE...: STGT with iSER on PORTAL, whose port must be 3260, and TCP on port
# 3264. LUN 1 is on STORE. tgtd accepts its options only in this order.
start_tgtd() {
    local iqn=$2 initiator=$3
    echo 80 >/proc/sys/vm/nr_hugepages      # for tgtd's iSER buffers
    tgtd --iser pool_sz_mb=128 -f -C 9 --iscsi "portal=${1%:*}:3264" >>/run/tgtd.log 2>&1 & tgtd=$!
    shift 3
    wait_for 20 "tgtadm -C 9 --lld iser --mode target --op show" || { cat /run/tgtd.log; fail "no tgtd"; }
    admin --mode target --op new --tid 1 -T "$iqn"
    admin --mode logicalunit --op new --tid 1 --lun 1 "$@"
    # over iSER, STGT admits only initiators that are bound by name
    admin --mode target --op bind --tid 1 -I ALL
    admin --mode target --op bind --tid 1 -Q "$initiator"
}

admin() { tgtadm -C 9 --lld iser "$@" || fail "tgtadm $*"; }
# tgtd ignores SIGTERM
kill_tgtd() { kill -9 "$tgtd" && wait "$tgtd"; } 2>/dev/null
