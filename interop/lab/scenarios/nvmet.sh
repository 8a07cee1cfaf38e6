# The kernel's NVMe target (nvmet) over TCP, configured through configfs. Source it after lib.sh.

V=/sys/kernel/config/nvmet

# start_nvmet PORT: loads the modules, and prepares a portal at 127.0.0.1
start_nvmet() {
    mountpoint -q /sys/kernel/config || { modprobe configfs; mount -t configfs configfs /sys/kernel/config; }
    modprobe -a nvmet nvmet_tcp loop || fail modprobe
    portal 1 "$1"
}

# portal NUMBER PORT: another portal at 127.0.0.1
portal() {
    mkdir "$V/ports/$1" || fail "no port $1"
    echo tcp >"$V/ports/$1/addr_trtype"
    echo ipv4 >"$V/ports/$1/addr_adrfam"
    echo 127.0.0.1 >"$V/ports/$1/addr_traddr"
    echo "$2" >"$V/ports/$1/addr_trsvcid"
}

# subsystem NAME MIB...: a subsystem for all hosts, with a file as each namespace
subsystem() {
    local name=$1 number=0 size at; shift
    mkdir "$V/subsystems/$name" || fail "no subsystem $name"
    echo 1 >"$V/subsystems/$name/attr_allow_any_host"
    for size in "$@"; do
        number=$((number + 1))
        truncate -s "$size"M "/run/$name-$number.img"
        at=$V/subsystems/$name/namespaces/$number
        mkdir "$at" || fail "no namespace $number"
        echo -n "/run/$name-$number.img" >"$at/device_path"
        printf '5a5a5a5a-0000-4000-8000-%012d' "$number" >"$at/device_uuid"
        echo 1 >"$at/buffered_io"
        echo 1 >"$at/enable" || fail "cannot enable namespace $number"
    done
    publish "$name"
}

# publish NAME [PORTAL], withdraw NAME [PORTAL]: at portal 1 by default
publish() { ln -s "$V/subsystems/$1" "$V/ports/${2:-1}/subsystems/$1" || fail "cannot publish $1"; }
withdraw() { rm "$V/ports/${2:-1}/subsystems/$1"; }

# only_host NAME HOST SECRET SECRET_OF_SUBSYSTEM: the subsystem admits one host, by DH-HMAC-CHAP
only_host() {
    local host=$V/hosts/$2
    mkdir "$host" || fail "no host"
    echo -n "$3" >"$host/dhchap_key"
    echo -n "$4" >"$host/dhchap_ctrl_key"
    echo 'hmac(sha384)' >"$host/dhchap_hash"
    echo ffdhe2048 >"$host/dhchap_dhgroup"
    echo 0 >"$V/subsystems/$1/attr_allow_any_host"
    ln -s "$host" "$V/subsystems/$1/allowed_hosts/$2" || fail "cannot admit $2"
}
