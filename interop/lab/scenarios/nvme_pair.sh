#!/bin/bash
# Native multipath over a failover pair of routers, during verified I/O: the routers change their places, the active one is
# killed and comes back, and they change their places again.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/nvme_lib.sh"

start_nvme
read -r one two <<<"$NVME"
step "a controller at each router"
nvme_connect "$one"
nvme_connect "$two"
disk=$(nvme_disk 1)
becomes "$one" optimized
becomes "$two" inaccessible
[ "$(ls -d /sys/block/nvme*n* | grep -vc 'c[0-9]*n')" = 1 ] || fail "the controllers are not paths of one disk"
start_load "$disk"
load_goes_on "$one"
step "the routers change their places"; ask failover
becomes "$two" optimized
becomes "$one" inaccessible
load_goes_on "$two"
step "the active one is killed"; ask kill
becomes "$one" optimized
load_goes_on "$one"
step "it comes back"; ask return
wait_for 40 'path_is "$two" live' || fail "its controller does not come back"
becomes "$two" inaccessible
load_goes_on "$one"
step "the routers change their places again"; ask failback
becomes "$two" optimized
load_goes_on "$two"
stop_load
verify "$disk" 4
nvme_disconnect
echo "PASS nvme_pair"
