#!/bin/bash
# Commands of `lunar` over SRP with its software iWARP, against LIO (ib_srpt) over siw in the same guest: login, and
# data in both directions, also over several channels. The target also goes away and comes back, under I/O and under a
# file system.
#   LUNAR   the program
: "${RDMA:=siw}" "${PROVIDER:=iwarp}"
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/target.sh"

# ib_srpt listens only on [::], and siw does not accept IPv4 connections there.
IP=fd00:1ab::15
enable() { echo "$1" >"$group/enable" || fail "enable $1"; }
url() { echo "srp://[$IP]:5555/$port/0?provider=$PROVIDER${1:+&$1}"; }

step "the kernel's target"
ip addr add $IP/64 dev eth0 nodad
soft_rdma "$RDMA"
start_target
backstore disk "$MIB"
modprobe ib_srpt || fail "modprobe ib_srpt"
mkdir -p $T/srpt
echo 5555 >$T/srpt/discovery_auth/rdma_cm_port || fail "no port for the connection manager"
# Its name is the GUID of its RDMA port. The names of the initiators that may log in are their full addresses.
gid=$(cat /sys/class/infiniband/${RDMA}_eth0/ports/1/gids/0)
name=${gid#*:*:*:*:}
group=$T/srpt/$name/$name
mkdir -p "$group/lun/lun_0" || fail "no target $name"
ln -s "$T/core/fileio_0/disk" "$group/lun/lun_0/store"
mkdir -p "$group/acls/fd00:01ab:0000:0000:0000:0000:0000:0015/lun_0" || fail "no access"
ln -s "$group/lun/lun_0" "$group/acls/fd00:01ab:0000:0000:0000:0000:0000:0015/lun_0/lun" || fail "no access"
enable 1
port=$(sed 's/^0x//' /sys/module/ib_srpt/parameters/srpt_service_guid)
port=$(printf %016x "0x$port")
rdma resource show cm_id

step "login"
must_end 0 "$MIB MiB" ls "$(url)"
must_end 0 "lunar-disk" info "$(url)"
must_end 21 "no such target port" ls "srp://[$IP]:5555/${port:0:8}00000000/0?provider=$PROVIDER"

step "data"
pattern "$MIB" >/run/pattern
must_end 0 verified copy --verify --force /run/pattern "$(url)"
cmp /run/pattern /run/disk.img || fail "the medium differs"
must_end 0 verified copy --verify --force "$(url channels=2)" /run/back
cmp /run/pattern /run/back || fail "it reads other data than was written"

step "the target goes away under I/O and comes back"
head -c "$MIB"M /dev/zero >/run/zeros
must_end 0 copied copy --force /run/zeros "$(url)"
"$LUNAR" copy --force --verify --block 64K --depth 4 /run/pattern "$(url commands=4)" >/run/copied 2>&1 & writer=$!
wait_for 30 '! cmp -s -n 1048576 /run/disk.img /run/zeros' || fail "nothing was written"
gone_and_back() { enable 0; sleep 1; enable 1; }
gone_and_back
wait "$writer" || { cat /run/copied; dmesg | tail -n 20; fail "the writer saw an error"; }
cmp /run/pattern /run/disk.img || fail "something was lost"
cat /run/copied

# number of connected queue pairs of the kernel, which are those of its target
channels() { rdma resource show qp | grep -c 'state RTS .*comm \[rdma_cm\]'; }
both_gone_and_back() {
    [ "$(channels)" = 2 ] || fail "$(channels) channels, not 2"
    gone_and_back
    wait_for 30 '[ "$(channels)" = 2 ]' || fail "$(channels) channels came back"
}
file_system_outlives both_gone_and_back "$(url channels=2)"
echo "PASS srp_lio"
