#!/bin/bash
# Native multipath over two portals: the host closes one and opens it again during verified I/O.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/nvme_lib.sh"
start_nvme
read -r one two <<<"$NVME"
step "connect"; nvme_connect "$one"
nvme_connect "$two"
disk=$(nvme_disk 1)
try wait_for 10 '[ "$(ls -d /sys/class/nvme/nvme*/nvme*c*n* | wc -l)" = 2 ]'
[ "$(ls -d /sys/block/nvme*n* | grep -vc 'c[0-9]*n')" = 1 ] || fail "the paths are two disks"
[ "$(cat /sys/block/nvme*c*n*/ana_state | sort -u)" = optimized ] || fail "a path is not optimized"
start_load "$disk" 20
sleep 3
step "a path is cut"; ask cut
try wait_for 20 'path_is "$one" connecting'
path_is "$two" live || fail "the other path is lost too"
before=$(awk '{ print $5 }' /sys/block/nvme*n1/stat | sort -n | tail -n 1)
sleep 2
after=$(awk '{ print $5 }' /sys/block/nvme*n1/stat | sort -n | tail -n 1)
[ "$after" -gt "$before" ] || fail "no I/O by the other path"
step "it comes back"; ask join
try wait_for 30 'path_is "$one" live'
await_load
verify "$disk" 4
nvme_disconnect
echo "PASS nvme_paths"
