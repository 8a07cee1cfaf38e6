#!/bin/bash
# The answers of Lunar and of the kernel's target (nvmet) to the same commands of nvme-cli, after the same I/O on disks of
# one size. /lab/answers/TARGET/NAME has the output of a command, and the file NAME.status its exit status.
#   SERIAL   the serial number of Lunar's subsystem, which the other gets too
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/nvme_lib.sh"
. "$(dirname "$0")/nvmet.sh"
start_nvme

THEIRS=nqn.2026-11.lab.guest:disks THEIR_PORTAL=127.0.0.1:4420
ANSWERS=/lab/answers
MIB=64

# answer NAME COMMAND...: keeps the output of a command of nvme-cli, which may fail
answer() {
    local file=$ANSWERS/$target/$1; shift
    nvme "$@" >"$file" 2>&1
    echo $? >"$file.status"
}

# answers TARGET PORTAL: connects, does some I/O, and asks
answers() {
    local target=$1 controller disk feature offset
    step "$target"
    mkdir -p "$ANSWERS/$target"
    nvme_connect "$2"
    disk=$(nvme_disk 1) controller=/dev/$(basename "$(path_to "$2")")
    pattern 1 | try dd of="$disk" bs=256K iflag=fullblock oflag=direct status=none
    try dd if="$disk" of=/dev/null bs=256K count=8 iflag=direct status=none
    # A failed command, for the error log: a read behind the end.
    ! taskset -c 0 nvme read "$disk" --start-block=$((MIB << 11)) --block-count=0 --data-size=512 >/dev/null 2>&1 || fail "reads behind the end"
    answer error-log error-log "$controller" --log-entries=1 -o json
    answer smart-log smart-log "$controller" -o json
    answer list list -o json
    answer id-ctrl id-ctrl "$controller" -o json
    answer id-ns id-ns "$disk" -o json
    answer ns-descs ns-descs "$disk" -o json
    answer nvm-id-ctrl nvm-id-ctrl "$controller" -o json
    answer list-ns list-ns "$controller" -o json
    answer list-ctrl list-ctrl "$controller" -o json
    answer ana-log ana-log "$controller" -o json
    answer resv-report resv-report "$disk" --eds -o json
    answer effects-log effects-log "$controller" --csi=0 -o json
    answer fw-log fw-log "$controller" -o json
    answer changed-ns changed-ns-list-log "$controller" -o json
    answer supported-log-pages supported-log-pages "$controller"   # its JSON output fails in nvme-cli 2.3
    # A buffer of 4 KiB for a block of 512 bytes
    answer long-buffer io-passthru "$disk" --opcode=2 --namespace-id=1 --data-len=4096 --read
    # The registers, one by one, because show-regs of nvme-cli 2.3 fails with controllers of fabrics.
    for offset in 0x0 0x8 0x14 0x1c 0x20; do answer "property-$offset" get-property "$controller" --offset=$offset; done
    for feature in 0x06 0x07 0x0b 0x0f 0x84; do
        answer "feature-$feature" get-feature "$controller" --feature-id=$feature
    done
    answer host-id-64 get-feature "$controller" --feature-id=0x81 --data-len=8
    answer host-id get-feature "$controller" --feature-id=0x81 --cdw11=1 --data-len=16
    nvme_disconnect
}

step "the kernel's target"
ip link set lo up
start_nvmet 4420
truncate -s ${MIB}M /run/disk.img
loop=$(losetup --find --show /run/disk.img) || fail losetup
mkdir "$V/subsystems/$THEIRS" || fail "no subsystem"
echo 1 >"$V/subsystems/$THEIRS/attr_allow_any_host"
echo -n "$SERIAL" >"$V/subsystems/$THEIRS/attr_serial"
mkdir "$V/subsystems/$THEIRS/namespaces/1" || fail "no namespace"
echo -n 6a7b8c9d-0000-4000-8000-000000000001 >"$V/subsystems/$THEIRS/namespaces/1/device_nguid"
echo -n "$loop" >"$V/subsystems/$THEIRS/namespaces/1/device_path"
echo 1 >"$V/subsystems/$THEIRS/namespaces/1/enable" || fail "cannot enable the namespace"
publish "$THEIRS"

rm -rf "$ANSWERS"
answers Lunar "$NVME"
NQN=$THEIRS answers nvmet $THEIR_PORTAL

withdraw "$THEIRS"
echo 0 >"$V/subsystems/$THEIRS/namespaces/1/enable"
try losetup --detach "$loop"
echo "PASS nvme_answers"
