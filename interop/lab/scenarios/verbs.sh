#!/bin/bash
# Two endpoints of the verbs provider connected to each other, over each kind of soft RDMA device that the kernel
# supports.
#   VERBS_LOOP  the example program verbs_loop of crates/lunar-rdma
. "$(dirname "$0")/lib.sh"
modprobe -a ib_uverbs rdma_cm rdma_ucm iw_cm || fail modprobe
passed=0
for kind in rxe:rdma_rxe siw:siw; do
    step "${kind%:*}"
    modprobe "${kind#*:}" 2>/dev/null || { echo "this kernel has no module ${kind#*:}"; continue; }
    device=${kind%:*}_eth0
    try rdma link add "$device" type "${kind%:*}" netdev eth0
    wait_for 10 "rdma link show $device/1 | grep -q 'state ACTIVE'" || fail "$device does not come up"
    try timeout 200 "$VERBS_LOOP" 10.0.2.15:7174
    try rdma link delete "$device"
    passed=$((passed + 1))
done
[ "$passed" -gt 0 ] || fail "no soft RDMA device"
echo "PASS verbs"
