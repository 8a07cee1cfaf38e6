#!/bin/bash
# Persistent reservations by sg_persist, through two gateways of one image.
#   PORTALS  the portal of each gateway
. "$(dirname "$0")/lib.sh"
set -- $PORTALS
portal_one=$1 portal_two=$2

# Reads the unit attentions of a disk, and prints a line for each command.
settle() { local n; for n in 1 2 3 4 5; do sg_turs "$1" >/dev/null 2>&1 && return; done; fail "unit attentions of $1 do not end"; }
pr_out() { local disk=$1; shift; settle "$disk"; try sg_persist -n --out "$@" "$disk"; }
# conflicts DISK ARGUMENTS: the command ends with RESERVATION CONFLICT
conflicts() {
    local disk=$1 status=0; shift; settle "$disk"
    sg_persist -n --out "$@" "$disk" || status=$?
    [ "$status" = 24 ] || fail "status $status instead of a conflict from: $*"
}
# pr_in TEXT ARGUMENTS: both disks report the text
pr_in() {
    local text=$1 disk; shift
    for disk in "$one" "$two"; do
        settle "$disk"
        sg_persist -n --in "$@" "$disk" >/run/said || fail "sg_persist $*"
        grep -q -- "$text" /run/said || { cat /run/said; fail "$disk does not report: $text"; }
    done
}
writes() { settle "$1"; try dd if=/dev/zero of="$1" bs=4k count=1 oflag=direct status=none; }
write_fails() { settle "$1"; ! dd if=/dev/zero of="$1" bs=4k count=1 oflag=direct status=none || fail "$1 was written"; }
disks() { one=$(disk_of "$portal_one") && two=$(disk_of "$portal_two"); }
# Reads of both disks succeed: the sessions are there again.
reads() { local disk; for disk in "$one" "$two"; do dd if="$disk" of=/dev/null bs=4k count=1 iflag=direct status=none || return 1; done; }

step "a session with each gateway"; start_initiator 60
discover "$portal_one"
login "$portal_one"; login "$portal_two"
disks || fail "not two disks"

step "two registrations"
pr_out "$one" --register --param-sark=0xa
pr_out "$two" --register --param-sark=0xb
pr_in '2 registered reservation keys' --read-keys
conflicts "$two" --register --param-rk=0xa --param-sark=0xc

step "a reservation"
pr_out "$one" --reserve --param-rk=0xa --prout-type=5
pr_in 'Key=0xa' --read-reservation
pr_in 'Write Exclusive, registrants only' --read-reservation
conflicts "$two" --reserve --param-rk=0xb --prout-type=5
writes "$one"; writes "$two"
# The relative identifiers of the ports of both gateways.
pr_in 'Relative port address: 0x101' --read-full-status
pr_in 'Relative port address: 0x201' --read-full-status

step "preempt and abort"
pr_out "$two" --preempt-abort --param-rk=0xb --param-sark=0xa --prout-type=1
pr_in '1 registered reservation key' --read-keys
pr_in 'Key=0xb' --read-reservation
write_fails "$one"; writes "$two"
conflicts "$one" --release --param-rk=0xa --prout-type=1
conflicts "$one" --clear --param-rk=0xa

step "registrations that persist through power loss"
pr_out "$one" --register-ignore --param-sark=0xa --param-aptpl
pr_in 'Persist Through Power Loss Active(PTPL_A): 1' --report-capabilities
ask power-loss
wait_for 60 reads || fail "the sessions do not come back"
disks || fail "not two disks"
pr_in '2 registered reservation keys' --read-keys
pr_in 'Key=0xb' --read-reservation
write_fails "$one"; writes "$two"

step "release and clear"
pr_out "$two" --release --param-rk=0xb --prout-type=1
pr_in 'there is NO reservation held' --read-reservation
writes "$one"
pr_out "$one" --clear --param-rk=0xa
pr_in 'there are NO registered reservation keys' --read-keys
logout "$portal_one"; logout "$portal_two"
echo "PASS gateways_pr"
