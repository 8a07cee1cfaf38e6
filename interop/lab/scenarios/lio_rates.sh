#!/bin/bash
# How fast Lunar and the kernel's target (LIO) answer over loopback, each with a null disk and with a file on tmpfs, and
# the least that a target must do (floor). Lunar serves two files, one with zero_copy. All of them serve in this guest,
# with one processor, and blast measures them in turn. The rates depend on the machine, so the ratios count.
#   LUNAR, BLAST, FLOOR  the programs
#   LOADS         the loads: OPERATION-KIB-DEPTH... (default: the six below)
#   CONTENDERS    the targets to measure (default: all)
#   ROUNDS        measurements of each load and target (default 3)
#   SECONDS_EACH  length of a measurement in seconds (default 2)
# Each measurement prints a line: rate LOAD NAME IO/s
: "${ROUNDS:=3}" "${SECONDS_EACH:=2}"
: "${LOADS:=read-4-32 write-4-32 read-4-1 read-64-16 read-256-8 write-256-8}"
: "${CONTENDERS:=floor LIO-null Lunar-null LIO-file Lunar-file Lunar-file-zero-copy}"
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/target.sh"
. "$(dirname "$0")/server.sh"

FLOOR_PORTAL=127.0.0.1:3259 LIO_PORTAL=127.0.0.1:3260 LUNAR_PORTAL=127.0.0.1:3270
IQN=iqn.2026-11.lab.guest
# size of the files, and the part of a LUN that blast uses
FILE_MIB=192

# where NAME: the portal, the name of the target and the LUN, for blast
where() {
    case $1 in
        floor) echo $FLOOR_PORTAL $IQN:floor 0 ;;
        LIO-null) echo $LIO_PORTAL $IQN:null 0 ;;
        LIO-file) echo $LIO_PORTAL $IQN:file 0 ;;
        Lunar-null) echo $LUNAR_PORTAL $IQN:lunar 0 ;;
        Lunar-file) echo $LUNAR_PORTAL $IQN:lunar 1 ;;
        Lunar-file-zero-copy) echo $LUNAR_PORTAL $IQN:lunar 2 ;;
        *) return 1 ;;
    esac
}

# rate NAME LOAD: measures, and prints the line
rate() {
    local operation kib depth portal target lun
    IFS=- read -r operation kib depth <<<"$2"
    read -r portal target lun <<<"$(where "$1")"
    "$BLAST" --portal "$portal" --target "$target" --lun "$lun" --op "$operation" --bytes $((kib * 1024)) \
        --depth "$depth" --seconds "$SECONDS_EACH" --span-mib $FILE_MIB >/run/rate || fail "blast: $1, $2"
    echo "rate $2 $1 $(sed -n 's/.*\<iops \([0-9.]*\).*/\1/p' /run/rate)"
}

# null_store, file_store NAME: the backstores of LIO
null_store() {
    mkdir -p "$T/core/rd_mcp_0/$1"
    echo "rd_pages=262144,rd_nullio=1" >"$T/core/rd_mcp_0/$1/control"
    echo 1 >"$T/core/rd_mcp_0/$1/enable" || fail "no backstore $1"
}
file_store() {
    head -c ${FILE_MIB}M /dev/zero >"/run/$1.img"
    backstore "$1" $FILE_MIB
}

# lun NUMBER LINES: a LUN in Lunar's configuration
lun() { printf '[[target.lun]]\nlun = %s\n%s\n' "$1" "$2"; }

serve_lunar() {
    mkdir -p $SERVER
    for name in file zero_copy; do head -c ${FILE_MIB}M /dev/zero >$SERVER/$name.img; done
    {
        printf '[server]\nstate_dir = "%s"\nadmin_socket = "%s"\n' $SERVER $SERVER/admin.sock
        printf '[[portal_group]]\ntag = 1\nportals = ["%s"]\n[[target]]\nname = "%s"\n' $LUNAR_PORTAL $IQN:lunar
        lun 0 $'backend = "null"\nsize = "1G"'
        lun 1 $'backend = "file"\npath = "file.img"'
        lun 2 $'backend = "file"\npath = "zero_copy.img"\nzero_copy = true'
    } >$SERVER/lunar.toml
    trap stop_server EXIT
    start_server
}

step "one processor"
for cpu in /sys/devices/system/cpu/cpu[1-9]*; do
    echo 0 >"$cpu/online" || fail "$cpu"
done

step "LIO"
start_target
null_store null
file_store file
STORE=rd_mcp_0/null target null 0 $LIO_PORTAL
target file 0 $LIO_PORTAL
for name in null file; do serve $name 1; done

step "Lunar"
serve_lunar

step "floor"
"$FLOOR" $FLOOR_PORTAL >/run/floor & wait_for 10 "grep -q '^listening on' /run/floor" || fail "floor does not serve"

for load in $LOADS; do
    step "$load"
    for _ in $(seq "$ROUNDS"); do
        for name in $CONTENDERS; do rate "$name" "$load"; done
    done
done
echo "PASS lio_rates"
