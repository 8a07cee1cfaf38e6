#!/bin/bash
# Discovery, login, data verification and file systems, once for each digest in DIGESTS (default "None CRC32C").
. "$(dirname "$0")/lib.sh"
step "discovery"; start_initiator 5
discover "$PORTAL"
for DIGEST in ${DIGESTS:-None CRC32C}; do
    step "login, digests $DIGEST"; login "$PORTAL"
    disk=$(disk_of "$PORTAL")
    iscsiadm -m session -P 2 | grep -E 'HeaderDigest|DataDigest' | tee /run/digests
    [ "$(grep -c ": $DIGEST\$" /run/digests)" = 2 ] || fail "the digests are not $DIGEST"
    step "write and read back"; verify "$disk" 16
    step "ext4"; filesystem ext4 "$disk"
    step "xfs"; filesystem xfs "$disk"
    step "logout"; logout "$PORTAL"
    [ ! -e "$disk" ] || fail "$disk is still there"
done
if [ -n "${CHAP-}" ]; then
    step "a wrong secret"
    set_node "$PORTAL" node.session.auth.password not-the-right-one
    ! iscsiadm -m node -T "$IQN" -p "$PORTAL" --login || fail "logged in with a wrong secret"
fi
echo "PASS disk"
