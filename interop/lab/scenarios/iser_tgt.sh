#!/bin/bash
# Commands of `lunar` over iSER with its software iWARP, against STGT over siw in the same guest: discovery and data
# in both directions. The target is also killed and restarted, under I/O and under a file system.
#   LUNAR   the program
: "${RDMA:=siw}" "${PROVIDER:=iwarp}"
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/target.sh"
. "$(dirname "$0")/tgt.sh"

PORTAL=10.0.2.15:3260 IQN=iqn.2026-11.lab.guest:tgt US=iqn.2026-11.lab.guest:lunar
ASKS="initiator=$US&provider=$PROVIDER"
url() { echo "iser://$PORTAL/$IQN/1?$ASKS${1:+&$1}"; }
step "STGT"
soft_rdma "$RDMA"
truncate -s "$MIB"M /run/disk.img
serve_disk() { start_tgtd "$PORTAL" "$IQN" "$US" -b /run/disk.img; }
serve_disk

step "discovery and login"
must_end 0 "$IQN" discover "iser://$PORTAL?$ASKS"
must_end 0 "$MIB MiB" ls "$(url)"
must_end 0 "RDMAExtensions=Yes  -> Yes" doctor "$(url)"

step "data"
pattern "$MIB" >/run/pattern
must_end 0 verified copy --verify --force /run/pattern "$(url)"
cmp /run/pattern /run/disk.img || fail "the medium differs"
must_end 0 verified copy --verify --force "$(url)" /run/back
cmp /run/pattern /run/back || fail "it reads other data than was written"

step "the target is killed under I/O and comes back"
head -c "$MIB"M /dev/zero >/run/zeros
must_end 0 copied copy --force /run/zeros "$(url)"
"$LUNAR" copy --force --verify --block 64K --depth 4 /run/pattern "$(url commands=4)" >/run/copied 2>&1 & writer=$!
wait_for 30 '! cmp -s -n 1048576 /run/disk.img /run/zeros' || fail "nothing was written"
again() { kill_tgtd; serve_disk; }
again
wait "$writer" || { cat /run/copied; fail "the writer saw an error"; }
cmp /run/pattern /run/disk.img || fail "something was lost"
cat /run/copied

file_system_outlives again "$(url)"
kill_tgtd
echo "PASS iser_tgt"
