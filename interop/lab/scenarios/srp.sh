#!/bin/bash
# The kernel's SRP initiator (ib_srp) over siw: login, a disk in full use, task management under load, the server killed
# and started again under a file system, a port that is not there.
#   PORTAL  of SRP
#   PORT    the target port: 16 hexadecimal digits, both id_ext and ioc_guid
. "$(dirname "$0")/lib.sh"

# log_in PORT: what the kernel is told
log_in() { echo "id_ext=$1,ioc_guid=$1,dest=$PORTAL" >"/sys/class/infiniband_srp/srp-siw_eth0-1/add_target"; }
srp_disk() { ls -d /sys/class/srp_remote_ports/port-*/../../target*/*:0/block/* /sys/class/scsi_host/host*/device/target*/*:0/block/* 2>/dev/null | head -n 1 | sed 's#.*/#/dev/#'; }

step "login"
soft_rdma siw
modprobe -a ib_srp sd_mod sg || fail "modprobe ib_srp"
log_in "$PORT" || { dmesg | tail -n 10; fail "no login"; }
wait_for 20 '[ -b "$(srp_disk)" ]' || fail "no disk"
disk=$(srp_disk)
port=$(ls -d /sys/class/srp_remote_ports/port-*)
# what is lost is tried again until it is there
for limit in fast_io_fail_tmo dev_loss_tmo; do echo off >"$port/$limit" || fail "$limit"; done
echo 2 >"$port/reconnect_delay"
[ "$(cat "/sys/block/${disk##*/}/device/vendor")" = "LUNAR   " ] || fail "it is another"

step "write and read back"; verify "$disk" 16
step "blocks of all sizes"
try fio --name=verified --filename="$disk" --rw=randwrite --bsrange=512-1m --bs_unaligned=0 --ba=512 --iodepth=16 \
    --ioengine=libaio --direct=1 --size=16M --verify=crc32c --output=/run/fio.log

step "resets under load"
fio --name=reset --filename="$disk" --rw=randwrite --bs=64k --iodepth=8 --ioengine=libaio --direct=1 --size=8M \
    --loops=100 --runtime=15 --time_based --verify=crc32c --verify_backlog=16 >/run/fio.log 2>&1 & fio=$!
for reset in 1 2 3 4; do sleep 2; try sg_reset -d "$disk"; done
wait "$fio" || { cat /run/fio.log; dmesg | tail -n 20; fail "it read other than it wrote"; }

step "ext4"; filesystem ext4 "$disk"

step "the server is killed under a file system"
try mkfs.ext4 -q -F "$disk"
try mount "$disk" /mnt
start_writer
for kill in 1 2; do
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
! log_in "${PORT:0:8}00000000" 2>/run/refused || fail "it let us in"
dmesg | grep -i 'rej' | tail -n 1
echo "PASS srp"
