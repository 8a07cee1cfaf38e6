#!/bin/bash
# The commands that use targets, against the kernel's own target (LIO) in the same guest: discovery, CHAP one-way and
# mutual, digests, data copied and compared, zeros, a target that goes away under I/O and comes back, and what is reported
# when something is wrong.
#   LUNAR   the program
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/target.sh"

IQN=iqn.2026-11.lab.guest
USER="ann annsecret1234" MOON="moon moonsecret1234"
url() { echo "iscsi://${2:+$2@}127.0.0.1:3260/$IQN:$1/0${3:+?$3}"; }

step "the kernel's target"
ip link set lo up
start_target
for name in open chap mutual; do
    backstore $name 64
    target $name $([ $name = open ]; echo $?) 127.0.0.1:3260 127.0.0.1:3261
done
credentials chap "$USER"
credentials mutual "$USER" "$MOON"
for name in open chap mutual; do serve $name 1; done
ann=${USER% *}%${USER#* } moon="target_user=${MOON% *}&target_password=${MOON#* }"
digests="header_digest=crc32c&data_digest=crc32c"

step "discovery and login"
must_end 0 "127.0.0.1:3261,1 $IQN:mutual" discover 127.0.0.1:3260
must_end 0 "LUN 0: disk, 64 MiB" ls "$(url open)"
must_end 0 "LUN 0: disk, 64 MiB" ls "$(url open "" "$digests")"
must_end 0 "LUN 0: disk, 64 MiB" ls "$(url chap "$ann")"
must_end 0 "LUN 0: disk, 64 MiB" ls "$(url mutual "$ann" "$moon")"
must_end 0 "LUN 0: disk, 64 MiB" ls "$(url mutual "$ann" "$moon&$digests")"
must_end 0 "round trip" doctor "$(url open)"

step "errors are reported soon"
must_end 24 "hint:" ls "$(url chap ann%wrong-secret-12)"
must_end 24 "wrong CHAP response of the target" ls "$(url mutual "$ann" "${moon/moonsecret/sunsecret}")"
must_end 4 "may require CHAP" ls "$(url chap)"
must_end 4 "hint: .*LIO" ls "$(url none)"
must_end 21 "LUN 7: the target has no such logical unit" ls "iscsi://127.0.0.1:3260/$IQN:open/7"
must_end 4 "refused" ls "iscsi://127.0.0.1:3262/$IQN:open/0"

step "data"
pattern 64 >/run/pattern
must_end 0 verified copy --verify --force /run/pattern "$(url open)"
cmp /run/pattern /run/open.img || fail "the medium differs"
must_end 0 verified copy --verify --force /run/pattern "$(url mutual "$ann" "$moon&$digests")"
cmp /run/pattern /run/mutual.img || fail "the medium differs"
head -c 64M /dev/zero >/run/zeros
must_end 0 verified copy --verify --force /run/zeros "$(url mutual "$ann" "$moon")"
cmp /run/zeros /run/mutual.img || fail "the blocks are not zero"

step "the target goes away under I/O and comes back"
for round in 1 2; do
    must_end 0 copied copy --force /run/zeros "$(url open)"
    "$LUNAR" copy --force --verify --block 64K --depth 4 /run/pattern "$(url open "" commands=4)" >/run/copied 2>&1 & writer=$!
    wait_for 30 '! cmp -s -n 1048576 /run/open.img /run/zeros' || fail "nothing was written"
    serve open 0; sleep "$round"; serve open 1
    wait "$writer" || { cat /run/copied; fail "the writer saw an error"; }
    cmp /run/pattern /run/open.img || fail "something was lost"
    cat /run/copied
done

step "the portal is gone for good: reported after the recovery time"
"$LUNAR" copy --force --block 64K --depth 1 /run/pattern "$(url open "" "commands=1&recovery_timeout=2")" >/run/copied 2>&1 & writer=$!
sleep 0.5
serve open 0
if wait "$writer"; then fail "the writer saw no error"; fi
cat /run/copied
grep -q "hint:" /run/copied || fail "it does not print a hint"
echo "PASS lio"
