#!/bin/bash
# Native multipath over two portals: the host closes one and opens it again during verified I/O. The kernel uses both paths
# in turn.
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
for at in /sys/class/nvme-subsystem/nvme-subsys*/iopolicy; do echo round-robin >"$at" || fail "$at"; done
start_load "$disk"
for path in "$one" "$two"; do load_goes_on "$path"; done
step "a path is cut"; ask cut
try wait_for 20 'path_is "$one" connecting'
path_is "$two" live || fail "the other path is lost too"
load_goes_on "$two"
step "it comes back"; ask join
try wait_for 30 'path_is "$one" live'
for path in "$one" "$two"; do load_goes_on "$path"; done
stop_load
verify "$disk" 4
nvme_disconnect
echo "PASS nvme_paths"
