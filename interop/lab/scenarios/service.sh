#!/bin/bash
# The kernel's initiator writes and verifies while the service restarts, and while the package is upgraded. systemd is
# process 1 of namespaces in this guest.
#   DEB   the Debian package
. "$(dirname "$0")/lib.sh"

PORTAL=127.0.0.1:3260 IQN=iqn.2026-11.lab.guest:service STATIC=yes
UNITS=/run/root/etc/systemd/system

machine() { nsenter --target "$systemd" --mount --pid --ipc --uts env -u LUNAR_RUN_DIR "$@"; }
pid() { machine systemctl show --value --property MainPID lunar.service; }

# writes: short verified runs one after the other. The first that fails is the last.
writes() {
    local run=0
    while [ ! -e /run/enough ]; do
        fio --name=verified --filename="$disk" --rw=randwrite --bsrange=4k-64k --iodepth=4 --ioengine=libaio --direct=1 \
            --size=4M --verify=crc32c --output=/run/fio.$((run += 1)) >/run/fio.err 2>&1 || { echo "$run" >/run/broken; return; }
        echo "$run" >/run/runs
    done
}
more_runs() { [ -e /run/broken ] || [ "$(</run/runs)" -gt "$1" ]; }

# during WHAT COMMAND...: runs the command during the writes. The service is a new process afterwards, and writes go on.
during() {
    local before start runs
    step "$1"; shift
    before=$(pid) runs=$(</run/runs) start=${EPOCHREALTIME/./}
    machine "$@" >/run/output 2>&1 || { cat /run/output; fail "status $? from: $*"; }
    echo "$(((${EPOCHREALTIME/./} - start) / 1000)) ms: $*"
    [ "$(pid)" != "$before" ] || fail "the process is the same"
    try wait_for 60 "more_runs $((runs + 2))"
    [ ! -e /run/broken ] || { cat /run/fio.err "/run/fio.$(</run/broken)"; dmesg | tail -n 20; fail "fio reports errors"; }
}

step "systemd"
ip link set lo up
mountpoint -q /sys/fs/cgroup || mount -t cgroup2 cgroup2 /sys/fs/cgroup || fail "no control groups"
mkdir -p $UNITS/lunar.service.d
for unit in test.target network-online.target lunar.service.d/test.conf; do
    printf '[Unit]\nDefaultDependencies=no\n' >$UNITS/$unit
done
bash "$(dirname "$0")/../machine.sh" /run/root "" lab "" >/run/machine.log 2>&1 &
wait_for 30 'systemd=$(pgrep -x systemd)' || { cat /run/machine.log; fail "no systemd"; }
wait_for 60 'machine systemctl is-system-running | grep -E "running|degraded"' || { cat /run/machine.log; fail "systemd does not start"; }

step "install the package"
# An empty database: to read that of the host, and to index its manual pages, takes minutes here.
machine mount -t tmpfs tmpfs /var/lib/dpkg
machine mkdir /var/lib/dpkg/info /var/lib/dpkg/updates /var/lib/dpkg/triggers
machine touch /var/lib/dpkg/status /var/lib/dpkg/available
try cp "$DEB" "/proc/$systemd/root/run/lunar.deb"
try machine dpkg --force-depends --install /run/lunar.deb
machine tee /etc/lunar/lunar.toml >/dev/null <<END
[[portal_group]]
tag = 1
portals = ["$PORTAL"]
[[target]]
name = "$IQN"
[[target.lun]]
lun = 0
backend = "file"
path = "/var/lib/lunar/disk.img"
size = "64M"
END
start=${EPOCHREALTIME/./}
try machine systemctl start lunar
echo "$(((${EPOCHREALTIME/./} - start) / 1000)) ms: the start without hosts"

step "a disk in use"
start_initiator 120
discover $PORTAL
login $PORTAL
disk=$(disk_of $PORTAL)
echo 0 >/run/runs
writes & writer=$!
try wait_for 60 "more_runs 0"

during restart systemctl restart lunar
during upgrade dpkg --force-depends --install /run/lunar.deb
: >/run/enough; wait "$writer"
[ ! -e /run/broken ] || fail "fio reports errors"
! dmesg | grep -E 'I/O error|blk_update_request' || fail "the kernel reports errors"
logout $PORTAL
# the longest command; fio writes its unit in front, and shortens thousands
awk -F '[=,]' '/ clat \(/ { n = $4 + 0; if ($4 ~ /k/) n *= 1000; if ($0 ~ /usec/) n /= 1000; if ($0 ~ /nsec/) n /= 1e6; if (n > most) most = n }
    END { print "longest command: " most " ms" }' /run/fio.[0-9]*
machine systemctl stop lunar
echo "PASS service"
