#!/bin/bash
# The kernel's SRP initiator (ib_srp) over siw, or over the device that RDMA names: login, data verification, task
# management under load, several channels, kills of the server under a file system, and an unknown target port.
#   PORTAL  the SRP portal
#   KILLS   number of kills (default 2)
#   PORT    the target port: 16 hexadecimal digits, both id_ext and ioc_guid
: "${RDMA:=siw}"
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/server.sh"

# log_in PORT: the login string for the kernel
log_in() { echo "id_ext=$1,ioc_guid=$1,dest=$SRP_PORTAL,ch_count=2" >"/sys/class/infiniband_srp/srp-${RDMA}_eth0-1/add_target"; }
srp_disk() { ls -d /sys/class/srp_remote_ports/port-*/../../target*/*:0/block/* /sys/class/scsi_host/host*/device/target*/*:0/block/* 2>/dev/null | head -n 1 | sed 's#.*/#/dev/#'; }

serve_here
: "${SRP_PORTAL:=$PORTAL}"
step "login"
soft_rdma "$RDMA"
modprobe -a ib_srp sd_mod sg || fail "modprobe ib_srp"
log_in "$PORT" || { dmesg | tail -n 10; fail "no login"; }
wait_for 20 '[ -b "$(srp_disk)" ]' || fail "no disk"
disk=$(srp_disk)
port=$(ls -d /sys/class/srp_remote_ports/port-*)
# I/O waits up to dev_loss_tmo while ib_srp reconnects. (If dev_loss_tmo is off as well, ib_srp fails I/O after the
# first failed reconnect.)
echo 2 >"$port/reconnect_delay" && echo off >"$port/fast_io_fail_tmo" && echo 300 >"$port/dev_loss_tmo" || fail "no timeouts"
# commands that a reset aborts get no response, so ib_srp has to time them out
echo 5 >"/sys/block/${disk##*/}/device/timeout"
[ "$(cat "/sys/block/${disk##*/}/device/vendor")" = "LUNAR   " ] || fail "the vendor is not LUNAR"

step "write and read back"; verify "$disk" $(full && echo 16 || echo 4)
full && { step "blocks of all sizes"; blocks_of_all_sizes "$disk"; }
step "resets under load"; resets_under_load "$disk"

step "two channels, each of a processor"
[ "$(cat /sys/class/scsi_host/host*/ch_count)" = 2 ] || fail "not two channels"
both="--filename=$disk --rw=randwrite --bs=16k --size=4M --iodepth=8 --ioengine=libaio --direct=1 --verify=crc32c"
try fio $both --name=first --cpus_allowed=0 --name=second --cpus_allowed=1 --offset=8M --output=/run/fio.log
ask channels

full && { step "ext4"; filesystem ext4 "$disk"; }

step "the server is killed under a file system"
try mkfs.ext4 -q -F "$disk"
try mount "$disk" /mnt
start_writer
for kill in $(seq "${KILLS:-2}"); do
    await_files 20
    ask "kill-$kill"
    await_files 20
done
stop_writer
check_files "$disk"

step "logout"
echo 1 >"$port/delete"
wait_for 10 "! test -e $disk" || fail "$disk is still there"
step "a port that is not there"
! log_in "${PORT:0:8}00000000" 2>/run/refused || fail "the login succeeded"
dmesg | grep -i 'rej' | tail -n 1
echo "PASS srp"
