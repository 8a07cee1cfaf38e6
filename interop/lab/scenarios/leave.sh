#!/bin/bash
# Tests the lab's cleanup between scenarios.
#   LEAVE   not empty: leaves a target, a disk, a network and programs behind
#   GUEST   same or new: whether this guest has run a scenario with LEAVE before
#   DIE     not empty: resets the guest
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/target.sh"
IQN=iqn.2026-11.lab.guest

if [ -n "${GUEST-}" ]; then
    step "nothing is left"
    [ "$([ -e /left ] && echo same || echo new)" = "$GUEST" ] || fail "not the $GUEST guest"
    [ -z "$(ls -d $T/iscsi/iqn* $T/core/fileio_0 2>/dev/null)" ] || fail "a target is left"
    [ -z "$(ip netns list)$(ip -o link show type veth)" ] || fail "a network is left"
    ! pidof sleep || fail "a program is left"
    [ ! -e /run/open.img ] || fail "a file is left"
    [ -z "$(ls /sys/block | grep ^sd)" ] || fail "a disk is left"
fi

if [ -n "${LEAVE-}" ]; then
    step "a target, a disk, a network and programs"
    start_target
    backstore open 16
    target open 0 127.0.0.1:3260
    serve open 1
    try modprobe -a sd_mod scsi_debug
    wait_for 20 'ls /sys/block | grep -q ^sd' || fail "no disk"
    modprobe veth
    try ip netns add left
    try ip link add left type veth peer name right netns left
    sleep 1000 &
    setsid sleep 1000 &
    : >/left
fi

[ -z "${DIE-}" ] || echo b >/proc/sysrq-trigger
echo "PASS leave"
