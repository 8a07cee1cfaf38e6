#!/bin/bash
# dm-multipath over two gateways of one Ceph image each for a file system and for a checker of blocks. The host lets one
# gateway fail after the other. No I/O may fail, and no acknowledged write may be lost.
#   PORTALS  a portal of each gateway. LUN 0 has the blocks, LUN 1 the file system
#   FAULTS   the faults in order; one that ends with -briefly is over before hosts use another path
#   CHECKER  interop's program disk_checker
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/multipathd.sh"
set -- $PORTALS
one=$1 two=$2
DISK_PATHS=4

# paths STATE COUNT: dm-multipath has this number of paths that are active (A) or failed (F)
paths() { [ "$(dmsetup status --target multipath | grep -oE " [0-9]+:[0-9]+ $1 " | wc -l)" = "$2" ]; }
a_path_fails() { ! paths F 0; }
logged_in() {
    local at state
    for at in /sys/class/iscsi_session/session*/state; do
        read -r state <"$at"
        [ "$state" = LOGGED_IN ] || return 1
    done
}
all_paths() { logged_in && paths A $DISK_PATHS; }
# map_of PORTAL: the map of LUN in the session with this portal
map_of() { local at; at=$(disk_of "$1") && echo /dev/"$(ls "/sys/block/${at#/dev/}/holders")"; }
broken() { dmesg | tail -n 40; multipath -ll; cat /run/checked; fail "$*"; }
goes_on() {
    kill -0 $checker 2>/dev/null || broken "the checker has ended"
    [ ! -e /run/broken ] || broken "$(cat /run/broken)"
}

step "a session with each gateway"
rm -f /lab/gaps /run/stop
try ip route add default via 10.0.2.2
NO_PATH_RETRY=queue start_multipathd multibus
start_initiator 5
sed -i 's/^\(node.conn\[0\].timeo.noop_out_timeout\).*/\1 = 2/' /etc/iscsi/iscsid.conf
discover "$one"
login "$one"
login "$two"
try wait_for 60 all_paths
multipath -ll
blocks=$(map_of "$one")
files=$(LUN=1 map_of "$one")

step "a file system on $files, a checker on $blocks"
modprobe ext4
try mkfs.ext4 -q -F "$files"
try mount "$files" /mnt
start_writer
"$CHECKER" "$blocks" /run/stop /lab/gaps >/run/checked & checker=$!
await_files 5

n=0
for fault in $FAULTS; do
    step "$fault"
    ask "fault-$n"
    case $fault in *-briefly) ;; *) wait_for 60 a_path_fails || broken "no path has failed" ;; esac
    ask "mended-$n"
    wait_for 120 all_paths || broken "a path does not come back"
    goes_on
    ask "counted-$n"
    n=$((n + 1))
done

step "the end"
await_files 1
stop_writer
: >/run/stop
wait $checker || broken "the checker has failed"
cat /run/checked
check_files "$files"
if dmesg | grep -E 'dev dm-|EXT4-fs (error|warning)'; then fail "an I/O has failed"; fi
try wait_for 30 "multipath -F"
logout "$one"
logout "$two"
echo "PASS gateways"
