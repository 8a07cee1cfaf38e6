# STGT's target over iSER. Source it after lib.sh.

# start_tgtd PORTAL TARGET INITIATOR STORE...: iSER at that portal, which has its port 3260, TCP at another; one LUN, 1, of
# that store. It takes its options in this order only.
start_tgtd() {
    local iqn=$2 initiator=$3
    echo 80 >/proc/sys/vm/nr_hugepages      # where its buffers are
    tgtd --iser pool_sz_mb=128 -f -C 9 --iscsi "portal=${1%:*}:3264" >>/run/tgtd.log 2>&1 & tgtd=$!
    shift 3
    wait_for 20 "tgtadm -C 9 --lld iser --mode target --op show" || { cat /run/tgtd.log; fail "no tgtd"; }
    admin --mode target --op new --tid 1 -T "$iqn"
    admin --mode logicalunit --op new --tid 1 --lun 1 "$@"
    # over iSER it lets in those alone that it knows by name
    admin --mode target --op bind --tid 1 -I ALL
    admin --mode target --op bind --tid 1 -Q "$initiator"
}

admin() { tgtadm -C 9 --lld iser "$@" || fail "tgtadm $*"; }
# it takes no notice of SIGTERM
kill_tgtd() { kill -9 "$tgtd" && wait "$tgtd"; } 2>/dev/null
