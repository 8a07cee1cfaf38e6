#!/bin/bash
# Native multipath over two portals during verified I/O: the host closes one and opens it again, and an initiator sets the
# access states. The kernel uses both paths in turn.
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

step "an initiator sets the access states"
start_initiator 5; discover "$PORTAL"; login "$PORTAL"
lun=$(disk_of "$PORTAL")
# set_states ONE TWO: the states of the portal groups 1 and 2, in the words of sg_stpg
set_states() { try sg_stpg --tp=1,2 --state="$1,$2" "$lun"; }
# only GOOD BAD: writes go by the first path alone
only() {
    local before
    becomes "$2" inaccessible
    becomes "$1" optimized
    load_goes_on "$1"
    before=$(written "$2")
    load_goes_on "$1"
    [ "$(written "$2")" = "$before" ] || fail "writes by the inaccessible path $2"
}
set_states s ao; only "$two" "$one"
sg_rtpg --decode "$lun" | tee /run/groups
grep -A 1 "group id : 0x1 " /run/groups | grep -q standby || fail "the initiator does not see the state"
set_states ao s; only "$one" "$two"
set_states ao ao
for path in "$one" "$two"; do becomes "$path" optimized; load_goes_on "$path"; done
logout "$PORTAL"
stop_load
verify "$disk" 4
nvme_disconnect
echo "PASS nvme_paths"
