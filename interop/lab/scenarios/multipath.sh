#!/bin/bash
# dm-multipath over two portals of one target; one path is cut while verified writes run.
#   PORTALS  the two portals
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/multipathd.sh"
set -- $PORTALS
one=$1 two=$2
paths_up() { [ "$(multipath -ll | grep -c 'active ready running')" = "$1" ]; }

step "multipathd"
modprobe -a cls_u32 act_gact sch_ingress || fail modprobe
start_multipathd multibus

step "two sessions"; start_initiator 5
discover "$one"
[ -z "${STATIC-}" ] || try iscsiadm -m node -o new -T "$IQN" -p "$two"
login "$one"; login "$two"
wait_for 30 "paths_up 2" || { multipath -ll; fail "not two paths"; }
multipath -ll
map=/dev/mapper/$(multipath -ll -v1 | head -n 1)
verify "$map" 8

step "cut $two"
fio --name=verified --filename="$map" --rw=randwrite --bs=16k --iodepth=4 --ioengine=libaio --direct=1 --size=32M \
    --io_size=1g --rate_iops=100 --runtime=40 --time_based --verify=crc32c --verify_backlog=64 >/run/fio.log 2>&1 &
fio=$!
sleep 5
tc qdisc add dev eth0 clsact
tc filter add dev eth0 egress protocol ip u32 match ip dport "${two#*:}" 0xffff match ip dst "${two%:*}" \
    action drop || fail tc
wait_for 40 "multipath -ll | grep -E 'failed|faulty'" || { multipath -ll; fail "the path did not fail"; }
step "mend it"
tc qdisc del dev eth0 clsact
wait_for 40 "paths_up 2" || { multipath -ll; fail "the path did not come back"; }
status=0; wait "$fio" || status=$?
grep -E 'err=|WRITE' /run/fio.log
[ "$status" = 0 ] || { cat /run/fio.log; fail "fio: status $status"; }

step "log out of one, read through the other"
logout "$two"
wait_for 10 "paths_up 1" || fail "not one path"
try dd if="$map" of=/dev/null bs=1M count=8 iflag=direct status=none
try wait_for 20 "multipath -F"       # udev opens the map after its last close
logout "$one"
echo "PASS multipath"
