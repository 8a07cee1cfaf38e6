#!/bin/bash
# dm-multipath over a failover pair of routers, each in its own network namespace, with delay and loss on every hop:
# from the host to the routers, from the routers to the storage (LIO), and between the routers. While files are
# written, the active router is killed, and later the link of the active router is cut.
#   LUNAR   the program
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/target.sh"
. "$(dirname "$0")/multipathd.sh"

IQN=iqn.2026-11.lab.guest
LIO=$IQN:open
IQN_PAIR=$IQN:pair
STORAGE=10.9.0.1:3260
HOP="delay 1ms loss 0.3%"

# line NAME NUMBER: a network namespace with the address 10.9.0.NUMBER, behind a link with delay and loss both ways
line() {
    try ip netns add "$1"
    try ip link add "line-$1" type veth peer name near netns "$1"
    try ip link set "line-$1" master hop up
    try ip -n "$1" addr add "10.9.0.$2/24" dev near
    try ip -n "$1" link set near up
    try ip -n "$1" link set lo up
    try tc qdisc add dev "line-$1" root netem $HOP
    try ip netns exec "$1" tc qdisc add dev near root netem $HOP
}

# configuration NUMBER OTHER: prints the configuration of the router at 10.9.0.NUMBER, whose peer is 10.9.0.OTHER
configuration() {
    cat <<END
[server]
state_dir = "/run/router-$1"
admin_socket = "/run/router-$1/admin.sock"
[[portal_group]]
tag = $1
portals = ["10.9.0.$1:3260"]
[router.r1]
path_loss_timeout_s = 3
[router.r1.upstream.u]
urls = ["iscsi://$STORAGE/$LIO"]
[[router.r1.target]]
map = "target"
name = "$IQN_PAIR"
upstream = "u"
access = "all"
[router.r1.failover]
peer = "10.9.0.$2:3260"
group = $2
prefer = $([ "$1" = 2 ] && echo true || echo false)
initiator = "iqn.2026-11.lab.guest:pair-$1"
END
}

declare -A router
# start_router NAME NUMBER: every router needs its own initiator name
start_router() {
    : >"/run/router-$2/out"
    # `ip netns exec` would create a mount namespace, which keeps the current mounts busy.
    LUNAR_INITIATOR=iqn.2026-11.lab.guest:router-$1 nsenter --net="/run/netns/$1" \
        "$LUNAR" serve --config "/run/router-$2/lunar.toml" >>"/run/router-$2/out" 2>>"/run/router-$2/err" &
    router[$1]=$!
    wait_for 30 "grep -q '^ready' /run/router-$2/out" || { cat "/run/router-$2/err"; fail "router $1 does not start"; }
}

logs() { tail -n 15 /run/router-*/err; multipath -ll; dmesg | tail -n 15; }
is() { "$LUNAR" router show r1 --socket "/run/router-$1/admin.sock" | grep -q "router r1: $2"; }
becomes() { wait_for 90 "is $1 $2" || { logs; fail "router $1 does not become $2"; }; }
paths() { [ "$(multipath -ll | grep -cE "$1 running")" = "$2" ]; }
goes_on() { wait_for 100 "more_than $(($(cat /run/acknowledged) + 10)) || test -e /run/broken" || { logs; fail "nothing is written"; }
    [ ! -e /run/broken ] || { logs; fail "$(cat /run/broken)"; }; }

step "the storage, and two routers behind lines with delay and loss"
modprobe -a veth bridge sch_netem || fail modprobe
ip link set lo up
try ip link add hop type bridge
try ip addr add 10.9.0.1/24 dev hop
try ip link set hop up
line a 2
line b 3
start_target
backstore open 128
target open 0 $STORAGE
serve open 1
for at in 2 3; do mkdir -p /run/router-$at; configuration $at $((5 - at)) >/run/router-$at/lunar.toml; done
start_router a 2
start_router b 3
# Whoever is ready first has the place; router 2 is to have it.
wait_for 90 "is 2 active || is 3 active" || { logs; fail "no process serves it"; }
is 2 active || wait_for 60 "$LUNAR router failover r1 --socket /run/router-3/admin.sock" || { logs; fail "failover"; }
becomes 2 active
becomes 3 standby

step "a host with a path through each"
start_multipathd group_by_prio
start_initiator 5
IQN=$IQN_PAIR
discover 10.9.0.2:3260
discover 10.9.0.3:3260
login 10.9.0.2:3260
login 10.9.0.3:3260
wait_for 30 "paths 'active (ready|ghost)' 2" || { logs; fail "not two paths"; }
multipath -ll
map=/dev/mapper/$(multipath -ll -v1 | head -n 1)
modprobe ext4
try mkfs.ext4 -q -F "$map"
try mount "$map" /mnt
start_writer
goes_on

step "the active router is killed"
kill -9 "${router[a]}"; wait "${router[a]}" 2>/dev/null
goes_on
is 3 active || { logs; fail "no process serves it"; }

step "it comes back, to stand by"
start_router a 2
becomes 2 standby
wait_for 150 "paths 'active (ready|ghost)' 2" || { logs; fail "its path does not come back"; }
goes_on

step "the line of the active one is cut"
try ip link set line-b down
goes_on
is 2 active || { logs; fail "no process serves it"; }

step "and mended"
try ip link set line-b up
becomes 3 standby
wait_for 150 "paths 'active (ready|ghost)' 2" || { logs; fail "its path does not come back"; }
goes_on

step "places are changed on demand"
wait_for 60 "$LUNAR router failover r1 --socket /run/router-2/admin.sock" || { logs; fail "failover"; }
becomes 3 active
goes_on
stop_writer
check_files "$map"

step "the end"
try wait_for 60 "multipath -F"
logout 10.9.0.2:3260
logout 10.9.0.3:3260
kill "${router[@]}"
echo "PASS pair"
