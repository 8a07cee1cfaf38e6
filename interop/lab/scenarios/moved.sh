#!/bin/bash
# Disks keep their names when they move to Lunar: first LIO serves them, and then STGT. `lunar import` converts the
# configuration, Lunar serves the same media, and the kernel's initiator logs in again. The links that udev makes, and the
# maps of dm-multipath, must be the same before and after.
#   LUNAR   the program
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/target.sh"
. "$(dirname "$0")/multipathd.sh"
. /lab/guest-tidy

PORTALS="127.0.0.1:3260 10.0.2.15:3260"     # of every target here: two paths
AT=/run/moved

# attach_all: logs in over both paths, and waits for a map of each LUN
attach_all() {
    local portal
    for portal in $PORTALS; do
        iscsiadm -m node -o new -T "$IQN" -p "$portal" >/dev/null || fail "no record of $portal"
        login "$portal"
    done
    try udevadm settle
    wait_for 60 '[ "$(multipath -ll | grep -c "active ready running")" = 4 ]' || { multipath -ll; fail "not four paths"; }
    try udevadm settle              # for the links to the maps
}

detach_all() {
    try wait_for 30 "udevadm settle; multipath -F; ! multipath -ll | grep -q ."
    local portal
    for portal in $PORTALS; do logout "$portal"; done
    iscsiadm -m node -o delete >/dev/null
}

# names: all names that hosts know the disks by, with their LUNs. It starts few programs, because that is slow here.
names() {
    local at path disk name to key value
    local -A lun=()
    find /dev/disk/by-id -type l -printf '%f %l\n' >$AT/links
    {
        for path in /sys/class/iscsi_session/session*/device/target*/*/block/*; do
            at=${path%/block/*}; lun[${path##*/}]=${at##*:}
            for key in vendor model rev wwid; do
                read -r value <"$at/$key"
                echo "lun ${at##*:} $key $value"
            done
        done
        for path in /sys/block/dm-*/slaves/*; do
            disk=${path%/slaves/*}; lun[${disk##*/}]=${lun[${path##*/}]}
        done
        while read -r name to; do echo "lun ${lun[${to##*/}]-} disk/by-id/$name"; done <$AT/links
        multipath -ll | sed -n 's/^\(mpath.*)\) dm-[0-9]* */map \1 /p'
    } >$AT/names
    sort -u $AT/names
}

# content write|compare: each LUN's own text, under its name from before
content() {
    local lun name
    while read -r _ lun name; do
        case $name in disk/by-id/wwn-*) ;; *) continue ;; esac
        printf '%-4096s' "LUN $lun of $IQN" >$AT/text
        if [ "$1" = write ]; then
            dd if=$AT/text of="/dev/$name" bs=4096 oflag=direct status=none || fail "write $name"
        else
            dd if="/dev/$name" bs=4096 count=1 iflag=direct status=none | cmp - $AT/text || fail "$name is another disk"
        fi
    done <$AT/before
}

# before: the names that the old target gives its two LUNs
before() {
    attach_all
    names >$AT/before
    cat $AT/before
    [ "$(grep -cE 'lun [0-9] disk/by-id/(wwn-0x|scsi-S|dm-uuid-mpath-)' $AT/before)" = 6 ] || fail "LUNs have no names"
    [ "$(grep -c ^map $AT/before)" = 2 ] || fail "not two maps"
    content write
    detach_all
}

# after KIND FILE: imports the configuration, serves it, and compares the names
after() {
    step "$IQN moves"
    rm -rf $AT/lunar; mkdir $AT/lunar
    try "$LUNAR" import "$1" "$2" -o $AT/lunar/lunar.toml
    "$LUNAR" serve --config $AT/lunar/lunar.toml >$AT/ready 2>$AT/log & server=$!
    wait_for 30 "grep -qx ready $AT/ready" || { cat $AT/log $AT/lunar/lunar.toml; fail "the server does not start"; }
    attach_all
    names >$AT/after
    diff $AT/before $AT/after || fail "the names differ"
    content compare
    detach_all
    kill -9 "$server"; wait "$server" 2>/dev/null
}

ip link set lo up
mkdir -p $AT /etc/rtslib-fb-target/pr
rm -rf /dev/disk /run/udev      # of an earlier scenario
start_multipathd multibus
start_initiator 120

step "LIO serves"
IQN=iqn.2026-11.lab.guest:lio
start_target
modprobe -a target_core_iblock loop || fail modprobe
truncate -s 64M $AT/{home,raid}.img
disk=$(losetup --find --show $AT/raid.img) || fail losetup
object() { printf '{"plugin": "%s", "name": "%s", "dev": "%s", "wwn": "%s", %s "attributes": {%s}}' "$@"; }
lun() { printf '{"index": %s, "storage_object": "/backstores/%s"}' "$@"; }
cat >$AT/restore.json <<END
{"storage_objects": [
$(object fileio home $AT/home.img 3f2d9c1a-7b54-4e60-9a11-0c5d8e7f6a21 '"size": 67108864, "write_back": true,' '"emulate_tpu": 1, "emulate_model_alias": 1'),
$(object block raid "$disk" 50cfd3766cc33a70 '"readonly": false,' '')],
"targets": [{"fabric": "iscsi", "wwn": "$IQN", "tpgs": [{"tag": 1, "enable": true,
"attributes": {"authentication": 0, "generate_node_acls": 1, "cache_dynamic_acls": 1, "demo_mode_write_protect": 0},
"luns": [$(lun 0 fileio/home), $(lun 1 block/raid)],
"portals": [{"ip_address": "0.0.0.0", "port": 3260}]}]}]}
END
try targetctl restore $AT/restore.json
try targetctl save $AT/saveconfig.json      # as targetcli saves it
before
tidy_lio
after lio $AT/saveconfig.json
losetup -d "$disk"

step "STGT serves"
IQN=iqn.2026-11.lab.guest:tgt LUN=1      # LUN 0 is its controller
mkdir -p /run/tgtd
truncate -s 64M $AT/{a,b}.img
cat >$AT/targets.conf <<END
default-driver iscsi
<target $IQN>
    <backing-store $AT/a.img>
    </backing-store>
    <backing-store $AT/b.img>
        scsi_id LAB0001
        scsi_sn LAB-SN-0001
        vendor_id LAB
        product_id Kept
        product_rev 0042
        write-cache off
    </backing-store>
</target>
END
tgtd -f >/run/tgtd.log 2>&1 & tgtd=$!
wait_for 20 "tgtadm --lld iscsi --mode target --op show" || { cat /run/tgtd.log; fail "no tgtd"; }
try tgt-admin --execute --conf $AT/targets.conf
before
kill -9 $tgtd; wait $tgtd 2>/dev/null
after tgt $AT/targets.conf
echo "PASS moved"
