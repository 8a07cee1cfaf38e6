#!/bin/bash
# The commands that use nvme:// URLs, against the kernel's own NVMe/TCP target in the same guest: discovery, DH-HMAC-CHAP
# one-way and mutual, digests, data copied and compared, a portal that goes away under I/O and comes back, and two paths.
#   LUNAR   the program
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/target.sh"
. "$(dirname "$0")/nvmet.sh"

OPEN=nqn.2026-11.lab.guest:open CLOSED=nqn.2026-11.lab.guest:closed HOST=nqn.2026-11.lab.guest:host
# Secrets for tests only.
SECRET=DHHC-1:01:AEZMBmZcb5d0kyH9G0Fd58zuiD+9oOSeIrdt8c4IYm9wiXnb:
THEIRS=DHHC-1:02:dd3lTPfuulmShB1/t5kO/c14yG5WoQxR80VC4kS8/2Ot55nhfoPm5aRoaRc5l/MZw86hnw==:
url() { echo "nvme://127.0.0.1/$1${2:+/$2}${3:+?$3}"; }

step "the kernel's target"
ip link set lo up
start_nvmet 4420
subsystem $OPEN 64 32
subsystem $CLOSED 32
only_host $CLOSED $HOST $SECRET $THEIRS
(umask 077; echo $SECRET >/run/host.secret; echo $THEIRS >/run/subsystem.secret)
host="host_nqn=$HOST&secret_file=/run/host.secret"
mutual="$host&subsystem_secret_file=/run/subsystem.secret"
digests="header_digest=crc32c&data_digest=crc32c"

step "discovery and connections"
must_end 0 "127.0.0.1:4420,1 $OPEN" discover nvme://127.0.0.1:4420
must_end 0 "127.0.0.1:4420,1 $CLOSED" discover "nvme://127.0.0.1:4420?host_nqn=$HOST"
must_end 0 "namespace 2: disk, 32 MiB" ls nvme://127.0.0.1:4420
must_end 0 "namespace 1: disk, 64 MiB" ls "$(url $OPEN 1 "$digests")"
must_end 0 "namespace 1: disk, 32 MiB" ls "$(url $CLOSED "" "$host")"
must_end 0 "uuid.5a5a5a5a-0000-4000-8000-000000000001" info "$(url $CLOSED 1 "$mutual&$digests")"

step "errors are reported soon"
must_end 7 "choose one of: .*/1, .*/2" info "$(url $OPEN)"
must_end 21 "no namespace 9" info "$(url $OPEN 9)"
must_end 21 "hint: check the name of the subsystem" info "$(url nqn.2026-11.lab.guest:none)"
must_end 5 "hint: let the subsystem admit the name" info "$(url $CLOSED)"
must_end 24 "requires authentication" info "$(url $CLOSED 1 "host_nqn=$HOST")"
must_end 24 "authentication failed" info "$(url $CLOSED 1 "host_nqn=$HOST&secret_file=/run/subsystem.secret")"
must_end 24 "authentication failed" info "$(url $CLOSED 1 "$host&subsystem_secret_file=/run/host.secret")"
must_end 4 "refused" info "nvme://127.0.0.1:4421/$OPEN"

step "data"
pattern 64 >/run/pattern
must_end 0 verified copy --verify --force /run/pattern "$(url $OPEN 1)"
cmp /run/pattern /run/$OPEN-1.img || fail "the medium differs"
head -c 32M /run/pattern >/run/half
must_end 0 verified copy --verify --force /run/half "$(url $CLOSED 1 "$mutual&$digests")"
cmp /run/half /run/$CLOSED-1.img || fail "the medium differs"
head -c 32M /dev/zero >/run/zeros
must_end 0 verified copy --verify --force /run/zeros "$(url $CLOSED 1 "$host&queue_len=3")"
cmp /run/zeros /run/$CLOSED-1.img || fail "the blocks are not zero"
must_end 0 verified copy --verify --force "$(url $OPEN 1)" /run/back
cmp /run/pattern /run/back || fail "the copy differs"

step "the portal goes away under I/O and comes back"
head -c 64M /dev/zero >/run/zeros
for round in 1 2; do
    must_end 0 copied copy --force /run/zeros "$(url $OPEN 1)"
    "$LUNAR" copy --force --verify --block 64K --depth 4 /run/pattern "$(url $OPEN 1 queue_len=4)" >/run/copied 2>&1 & writer=$!
    wait_for 30 "! cmp -s -n 1048576 /run/$OPEN-1.img /run/zeros" || fail "nothing was written"
    withdraw $OPEN; sleep "$round"; publish $OPEN
    wait "$writer" || { cat /run/copied; fail "the writer saw an error"; }
    cmp /run/pattern /run/$OPEN-1.img || fail "something was lost"
done

step "attached over two paths: one is inaccessible, and the other goes away under I/O and comes back"
portal 2 4421
publish $OPEN 2
echo inaccessible >$V/ports/2/ana_groups/1/ana_state
uri=$("$LUNAR" attach "$(url $OPEN 1 paths=127.0.0.1:4421)") || fail "not attached"
must_end 0 "4421/.*: standby" attach list open-1
# Without zeros: here the target rejects the command for them, and an NBD client does not write them in another way.
head -c 64M /dev/zero | tr '\0' '\1' >/run/ones
for first in 1 2; do
    must_end 0 copied copy --force /run/ones "$uri"
    "$LUNAR" copy --force --verify --block 64K --depth 4 /run/pattern "$uri" >/run/copied 2>&1 & writer=$!
    wait_for 30 "! cmp -s -n 1048576 /run/$OPEN-1.img /run/ones" || fail "nothing was written"
    withdraw $OPEN "$first"; sleep 1; publish $OPEN "$first"
    wait "$writer" || { cat /run/copied; fail "the writer saw an error"; }
    cmp /run/pattern /run/$OPEN-1.img || fail "something was lost"
    echo optimized >$V/ports/2/ana_groups/1/ana_state
    echo inaccessible >$V/ports/1/ana_groups/1/ana_state
    wait_for 30 '"$LUNAR" attach list open-1 | grep -q "4421/.*: optimized"' || fail "the path is not used"
done
echo optimized >$V/ports/1/ana_groups/1/ana_state
must_end 0 "is detached" detach open-1

step "the portal goes away for good"
must_end 0 copied copy --force /run/zeros "$(url $OPEN 1)"
"$LUNAR" copy --force --block 64K --depth 4 /run/pattern "$(url $OPEN 1 "queue_len=4&recovery_timeout=2s")" >/run/copied 2>&1 & writer=$!
wait_for 30 "! cmp -s -n 1048576 /run/$OPEN-1.img /run/zeros" || fail "nothing was written"
withdraw $OPEN
if wait "$writer"; then fail "the writer saw no error"; fi
cat /run/copied
grep -q "the controller is lost" /run/copied || fail "the error does not name the controller"
echo "PASS nvme_initiator"
