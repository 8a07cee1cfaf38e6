#!/bin/bash
# Commands of `lunar` over iSER with its software iWARP, against LIO (ib_isert) over siw in the same guest: discovery,
# CHAP, and data in both directions. The target also goes away and comes back, with commands and with a file system on
# it.
#   LUNAR   the program
: "${RDMA:=siw}" "${PROVIDER:=iwarp}"
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/target.sh"

PORTAL=10.0.2.15:3260 IQN=iqn.2026-11.lab.guest
ann="ann annsecret1234" moon="moon moonsecret1234"
url() { echo "iser://${2:+$2@}$PORTAL/$IQN:$1/0?provider=$PROVIDER${3:+&$3}"; }
mutual="target_user=${moon% *}&target_password=${moon#* }"

step "the kernel's target"
soft_rdma "$RDMA"
start_target
for name in open chap; do
    backstore $name "$MIB"
    target $name $([ $name = open ]; echo $?)
    iser_portal $name $PORTAL
done
credentials chap "$ann" "$moon"
for name in open chap; do serve $name 1; done
rdma resource show cm_id

step "discovery and login"
must_end 0 "$PORTAL,1 $IQN:open" discover "iser://$PORTAL?provider=$PROVIDER"
must_end 0 "LUN 0: disk, $MIB MiB" ls "$(url open)"
must_end 0 "LUN 0: disk, $MIB MiB" ls "$(url chap "${ann/ /%}" "$mutual")"
# over iSER it closes behind its refusal, which is seen or not
got=0; "$LUNAR" ls "$(url chap ann%wrong-secret-12)" --timeout 60 >/run/refused 2>&1 || got=$?
case $got in 4 | 24) ;; *) cat /run/refused; fail "a wrong secret is not reported" ;; esac
grep -q password /run/refused || { cat /run/refused; fail "no error about the password"; }
must_end 0 "lunar-open" info "$(url open)"
must_end 0 "RDMAExtensions=Yes  -> Yes" doctor "$(url open)"

step "data"
pattern "$MIB" >/run/pattern
must_end 0 verified copy --verify --force /run/pattern "$(url open)"
cmp /run/pattern /run/open.img || fail "the medium differs"
must_end 0 verified copy --verify --force "$(url open)" /run/back
cmp /run/pattern /run/back || fail "it reads other data than was written"
must_end 0 verified copy --verify --force --block 64K /run/pattern "$(url chap "${ann/ /%}" "$mutual")"
cmp /run/pattern /run/chap.img || fail "the medium differs"

gone_and_back() { serve open 0; sleep 1; serve open 1; }
half=$((MIB * 1048576 / 2))
in_halves() {
    head -c "$half" /run/pattern
    until [ -e /run/back_again ]; do sleep 0.2; done
    tail -c "+$((half + 1))" /run/pattern
}

# with commands in flight
under_io() {
    step "the target goes away under I/O and comes back"
    "$LUNAR" copy --force --verify --block 64K --depth 4 /run/pattern "$(url open "" commands=4)" >/run/copied 2>&1 & writer=$!
    wait_for 30 '! cmp -s -n 1048576 /run/open.img /run/zeros' || fail "nothing was written"
    gone_and_back
}

# between two commands of one session
between() {
    step "the target goes away between two writes and comes back"
    rm -f /run/back_again
    in_halves | "$LUNAR" copy --force --block 64K --depth 4 - "$(url open)" >/run/copied 2>&1 & writer=$!
    wait_for 60 "cmp -s -n $half /run/open.img /run/pattern" || fail "the first half was not written"
    sleep 2
    gone_and_back
    : >/run/back_again
}

head -c "$MIB"M /dev/zero >/run/zeros
must_end 0 copied copy --force /run/zeros "$(url open)"
# Over siw isert's own thread (iscsi_ttx) may sleep for good when it is disabled under I/O, and nothing goes on there.
if [ "$RDMA" = siw ]; then between; else under_io; fi
wait "$writer" || { cat /run/copied; dmesg | tail -n 20; fail "the writer saw an error"; }
cmp /run/pattern /run/open.img || fail "something was lost"
cat /run/copied

# waits until the commands in flight have ended
at_rest() {
    : >/run/pause
    sleep 1; sync; sleep 2
    gone_and_back
    rm /run/pause
}
file_system_outlives $([ "$RDMA" = siw ] && echo at_rest || echo gone_and_back) "$(url open)"
for name in open chap; do rmdir "$T/iscsi/$IQN:$name/tpgt_1/np/$PORTAL"; done     # for the next scenario in this guest
echo "PASS iser_lio"
