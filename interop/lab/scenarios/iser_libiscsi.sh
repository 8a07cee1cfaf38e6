#!/bin/bash
# libiscsi's iSER initiator over siw, or over the device that RDMA names: suites of `iscsi-test-cu` that move data in
# both directions.
: "${RDMA:=siw}"
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/server.sh"
serve_here
url=iser://$PORTAL/$IQN/$LUN
soft_rdma "$RDMA"
failed=
for suite in ${SUITES:-Inquiry Read10 Read16 ReadCapacity16 Write10 Write16 WriteVerify10 WriteSame16 Verify10 \
    CompareAndWrite OrWrite Unmap ModeSense6 ReportSupportedOpcodes TestUnitReady Prefetch10 PrinReadKeys \
    ProutRegister ProutReserve}; do
    if timeout 100 iscsi-test-cu --dataloss --fail --test "ALL.$suite" "$url" >/run/said 2>&1; then
        echo "$suite: $(grep -E '^ *tests' /run/said)"
    else
        echo "$suite: status $?"; cat /run/said; failed="$failed $suite"
    fi
done
[ -z "$failed" ] || fail "$failed"
echo "PASS iser_libiscsi"
