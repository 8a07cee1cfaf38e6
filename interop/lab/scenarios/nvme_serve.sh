#!/bin/bash
# `lunar serve` and the kernel's NVMe/TCP host in this guest, with the lines that the server prints, unchanged: discovery, a
# disk, file systems, kill -9 of the server under verified I/O, and a host that authenticates itself.
#   LUNAR    the program
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/nvme_lib.sh"
start_nvme
ip link set lo up
mkdir /run/served && cd /run/served || fail "no folder"

# served ARGUMENT...: starts the server
served() {
    : >banner
    "$LUNAR" serve "$@" >banner 2>>log & server=$!
    wait_for 60 "grep -qx ready banner" || { cat banner log; fail "the server does not serve"; }
}
killed() { kill -9 "$server"; wait "$server"; } 2>/dev/null
# printed WORD...: the line of the banner that begins so
printed() { sed -n "s/^  \($* .*\)/\1/p" banner; }
# run_printed WORD...: runs that line as it is
run_printed() {
    local line; line=$(printed "$@")
    [ "$(wc -l <<<"$line")" = 1 ] && [ -n "$line" ] || { cat banner; fail "not one line: $*"; }
    echo "+ $line"
    eval "$line" || { dmesg | tail; fail "status $? from: $line"; }
}
# disconnected: ends the controllers of the subsystem of the printed line
disconnected() {
    NQN=$(printed nvme connect | sed 's/.* -n \([^ ]*\).*/\1/')
    nvme_disconnect
}

step "lunar serve --nvme disk.img"
truncate -s 512M disk.img
served --nvme disk.img
run_printed nvme discover >discovered
cat discovered
grep -q "subnqn: *$(printed nvme connect | sed 's/.* -n //')$" discovered || fail "the subsystem is not discovered"
run_printed nvme connect
wait_for 20 "test -b /dev/nvme0n1" || { ls /dev/nvme*; fail "no /dev/nvme0n1"; }
disk=/dev/nvme0n1
[ "$(blockdev --getsize64 $disk)" = $((512 << 20)) ] || fail "another size"
verify $disk 16
cmp -n $((16 << 20)) disk.img /run/pattern || fail "the file differs"
step "ext4"; filesystem ext4 $disk
step "xfs"; filesystem xfs $disk

step "the server is killed under I/O"
start_load $disk
load_goes_on
killed
wait_for 20 '[ "$(cat /sys/class/nvme/nvme0/state)" = connecting ]' || fail "the kernel notices nothing"
served --nvme disk.img
wait_for 60 '[ "$(cat /sys/class/nvme/nvme0/state)" = live ]' || { dmesg | tail; fail "the kernel does not come back"; }
load_goes_on
stop_load
verify $disk 8
disconnected
killed

step "connect-all, by the default port of discovery"
served --nvme disk.img
try nvme connect-all -t tcp -a 127.0.0.1
try wait_for 20 "nvme_disk 1"
# The discovery had the first number.
disk=$(nvme_disk 1)
dd if=$disk bs=1M count=8 iflag=direct status=none | cmp - /run/pattern || fail "the data changed"
disconnected
killed

step "a host with a secret"
try "$LUNAR" chap add --nvme $HOSTNQN --output host.key
cat >lunar.toml <<TOML
[[portal_group]]
tag = 1
portals = [{ listen = "127.0.0.1:4420", transport = ["nvme-tcp"] }]
[[subsystem]]
nqn = "nqn.2026-11.org.example:guarded"
[[subsystem.host]]
nqn = "$HOSTNQN"
secret_file = "$PWD/host.key"
[[subsystem.namespace]]
nsid = 1
backend = "file"
path = "$PWD/disk.img"
TOML
served --config lunar.toml
printed nvme connect | grep -q " -S SECRET$" || { cat banner; fail "the line lacks the secret"; }
sed -i "s#-S SECRET#-S $(cat host.key)#" banner
run_printed nvme connect
try wait_for 20 "nvme_disk 1"
disk=$(nvme_disk 1)
dd if=$disk bs=1M count=8 iflag=direct status=none | cmp - /run/pattern || fail "the data changed"
disconnected
killed
echo "PASS nvme_serve"
