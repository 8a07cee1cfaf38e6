# The kernel's target (LIO), configured through configfs, and `lunar` against it. Source it after lib.sh.
#
#   IQN     prefix of the target names
#   LUNAR   the program

T=/sys/kernel/config/target
# size of the copied data
MIB=$(full && echo 64 || echo 32)

# start_target: loads the modules
start_target() {
    mkdir -p /etc/target/pr /var/target/pr      # the module looks for the folder when it is loaded
    mountpoint -q /sys/kernel/config || { modprobe configfs; mount -t configfs configfs /sys/kernel/config; }
    modprobe -a target_core_mod target_core_file iscsi_target_mod || fail modprobe
}

# backstore NAME MIB: a file, with UNMAP
backstore() {
    truncate -s "$2"M "/run/$1.img"
    mkdir -p "$T/core/fileio_0/$1"
    echo "fd_dev_name=/run/$1.img,fd_dev_size=$(($2 << 20)),fd_buffered_io=1" >"$T/core/fileio_0/$1/control"
    echo "lunar-$1" >"$T/core/fileio_0/$1/wwn/vpd_unit_serial"
    echo 1 >"$T/core/fileio_0/$1/enable" || fail "no backstore $1"
    echo 1 >"$T/core/fileio_0/$1/attrib/emulate_tpu"
}

# target NAME AUTHENTICATION PORTAL...: one LUN, open to all initiators, on TCP portals. STORE selects another
# backstore.
target() {
    local name=$1 auth=$2 portal; shift 2
    local group=$T/iscsi/$IQN:$name/tpgt_1
    mkdir -p "$group/lun/lun_0" || fail "no target $name"
    ln -s "$T/core/${STORE:-fileio_0/$name}" "$group/lun/lun_0/store"
    for portal in "$@"; do mkdir "$group/np/$portal" || fail "no portal $portal"; done
    echo "$auth" >"$group/attrib/authentication"
    echo 1 >"$group/attrib/generate_node_acls"
    echo 1 >"$group/attrib/cache_dynamic_acls"
    echo 0 >"$group/attrib/demo_mode_write_protect"
}

# iser_portal NAME PORTAL: an iSER portal. LIO creates every portal with a TCP listener first, and siw cannot use the
# same TCP port. So the portal is created in a temporary network namespace.
iser_portal() {
    local portal=$T/iscsi/$IQN:$1/tpgt_1/np/$2
    modprobe ib_isert || fail "modprobe ib_isert"
    unshare -n sh -c "echo 1 >/proc/sys/net/ipv4/ip_nonlocal_bind; mkdir $portal" || fail "no portal $2"
    [ "$(cat "$portal/iser")" = 1 ] || echo 1 >"$portal/iser" || fail "no iSER at $2"
}

# credentials NAME "USER SECRET" ["USER SECRET"]: the account for logins, and the account that the target authenticates as
credentials() {
    local auth=$T/iscsi/$IQN:$1/tpgt_1/auth
    echo -n "${2% *}" >"$auth/userid"; echo -n "${2#* }" >"$auth/password"
    [ -z "${3-}" ] || { echo -n "${3% *}" >"$auth/userid_mutual"; echo -n "${3#* }" >"$auth/password_mutual"; }
}

serve() { echo "$2" >"$T/iscsi/$IQN:$1/tpgt_1/enable" || fail "$1: enable $2"; }

# must_end STATUS TEXT ARGUMENTS: lunar must end with this status within a minute, and print this text
must_end() {
    local status=$1 text=$2 got=0; shift 2
    "$LUNAR" "$@" --timeout 60 >/run/output 2>&1 || got=$?
    [ "$got" = "$status" ] || { cat /run/output; fail "status $got, not $status, from: $*"; }
    grep -q -- "$text" /run/output || { cat /run/output; fail "the output lacks \"$text\": $*"; }
    echo "status $status, $text: $*"
}

# file_system_outlives GONE URL: attaches the LUN and writes files to it. Meanwhile the command GONE takes the target
# away and brings it back. No acknowledged file may be lost.
file_system_outlives() {
    local disk
    step "a file system, and a target that goes away"
    modprobe -a ublk_drv ext4 || fail modprobe
    disk=$("$LUNAR" attach "$2" --ublk --name data) || fail "attach $2"
    # no background initialization after the mount
    try mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 "$disk"
    try mount "$disk" /mnt
    start_writer
    await_files 10
    "$1"
    await_files 10
    stop_writer
    check_files "$disk"
    try "$LUNAR" detach data
}
