#!/bin/bash
# What the lab does between scenarios, tried on itself.
#   LEAVE   not empty: leaves behind what scenarios may
#   GUEST   same or new: this guest ran such a scenario before, or did not
#   DIE     not empty: ends the guest
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/target.sh"
IQN=iqn.2026-11.lab.guest

if [ -n "${GUEST-}" ]; then
    step "nothing is left"
    [ "$([ -e /left ] && echo same || echo new)" = "$GUEST" ] || fail "not the $GUEST guest"
    [ -z "$(ls -d $T/iscsi/iqn* $T/core/fileio_0 2>/dev/null)" ] || fail "a target"
    [ -z "$(ip netns list)$(ip -o link show type veth)" ] || fail "a network"
    ! pidof sleep || fail "a program"
    [ ! -e /run/open.img ] || fail "a file"
    [ -z "$(ls /sys/block | grep ^sd)" ] || fail "a disk"
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
