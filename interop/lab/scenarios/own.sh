#!/bin/bash
# Commands of `lunar` against `lunar serve`, both in the guest, over iSER and SRP: with software iWARP, and with verbs
# over each kind of soft RDMA device. They copy data in both directions, also while the server is killed and
# restarted.
#   LUNAR   the program
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/target.sh"
. "$(dirname "$0")/server.sh"

# there_and_back URL: copies with verification, once while the server is killed and restarted
there_and_back() {
    must_end 0 "512 MiB" ls "$1"
    must_end 0 verified copy --verify --force /run/pattern "$1"
    cmp -n 16777216 /run/pattern $SERVER/disk.img || fail "the medium differs"
    "$LUNAR" copy --force --verify --block 64K --depth 4 /run/other "$1&commands=4" >/run/copied 2>&1 & local writer=$!
    wait_for 30 "cmp -s -n 1048576 $SERVER/disk.img /run/other" || fail "nothing was written"
    served_here kill-1
    wait "$writer" || { cat /run/copied; fail "the writer saw an error"; }
    cmp -n 33554432 /run/other $SERVER/disk.img || fail "something was lost"
    cat /run/copied
}

pattern 16 >/run/pattern
pattern 33 | tail -c 32M >/run/other
for way in siw:iwarp siw:verbs rxe:verbs; do
    RDMA=${way%:*} PROVIDER=${way#*:}
    step "$PROVIDER/$RDMA"
    serve_here
    there_and_back "iser://$PORTAL/$IQN/0?provider=$PROVIDER"
    there_and_back "srp://$SRP_PORTAL/$PORT/0?provider=$PROVIDER"
    stop_server
    # only one soft RDMA device at a time may use the address
    [ "$way" = siw:iwarp ] || try rdma link delete "${RDMA}_eth0"
done
echo "PASS own"
