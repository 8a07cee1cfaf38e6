#!/bin/bash
# The commands that use targets, against the kernel's own target (LIO) in the same guest: discovery, CHAP one-way and
# mutual, digests, data copied and compared, zeros, a target that goes away under I/O and comes back, and what is told
# when something is wrong.
#   LUNAR   the program
. "$(dirname "$0")/lib.sh"

T=/sys/kernel/config/target
IQN=iqn.2026-11.lab.guest
USER="ann annsecret1234" MOON="moon moonsecret1234"

# backstore NAME MIB: a file, with UNMAP
backstore() {
    truncate -s "$2"M "/run/$1.img"
    mkdir -p "$T/core/fileio_0/$1"
    echo "fd_dev_name=/run/$1.img,fd_dev_size=$(($2 << 20)),fd_buffered_io=1" >"$T/core/fileio_0/$1/control"
    echo "lunar-$1" >"$T/core/fileio_0/$1/wwn/vpd_unit_serial"
    echo 1 >"$T/core/fileio_0/$1/enable" || fail "no backstore $1"
    echo 1 >"$T/core/fileio_0/$1/attrib/emulate_tpu"
}

# target NAME AUTHENTICATION: one LUN, open to all names, at both portals
target() {
    local group=$T/iscsi/$IQN:$1/tpgt_1 portal
    mkdir -p "$group/lun/lun_0" || fail "no target $1"
    ln -s "$T/core/fileio_0/$1" "$group/lun/lun_0/store"
    for portal in 127.0.0.1:3260 127.0.0.1:3261; do mkdir "$group/np/$portal" || fail "no portal $portal"; done
    echo "$2" >"$group/attrib/authentication"
    echo 1 >"$group/attrib/generate_node_acls"
    echo 1 >"$group/attrib/cache_dynamic_acls"
    echo 0 >"$group/attrib/demo_mode_write_protect"
}
serve() { echo "$2" >"$T/iscsi/$IQN:$1/tpgt_1/enable" || fail "$1: enable $2"; }

# told STATUS TEXT ARGUMENTS: lunar must end with this status, and soon, and say this
told() {
    local status=$1 text=$2 got=0; shift 2
    "$LUNAR" "$@" --timeout 60 >/run/told 2>&1 || got=$?
    [ "$got" = "$status" ] || { cat /run/told; fail "status $got, not $status, from: $*"; }
    grep -q -- "$text" /run/told || { cat /run/told; fail "it does not say \"$text\": $*"; }
    echo "status $status, $text: $*"
}
url() { echo "iscsi://${2:+$2@}127.0.0.1:3260/$IQN:$1/0${3:+?$3}"; }

step "the kernel's target"
mkdir -p /etc/target /var/target    # before its module, which looks for the folder
ip link set lo up
mountpoint -q /sys/kernel/config || { modprobe configfs; mount -t configfs configfs /sys/kernel/config; }
modprobe -a target_core_mod target_core_file iscsi_target_mod || fail modprobe
for name in open chap mutual; do backstore $name 64; target $name $([ $name = open ]; echo $?); done
for name in chap mutual; do
    auth=$T/iscsi/$IQN:$name/tpgt_1/auth
    echo -n "${USER% *}" >"$auth/userid"; echo -n "${USER#* }" >"$auth/password"
done
echo -n "${MOON% *}" >"$auth/userid_mutual"; echo -n "${MOON#* }" >"$auth/password_mutual"
for name in open chap mutual; do serve $name 1; done
ann=${USER% *}%${USER#* } moon="target_user=${MOON% *}&target_password=${MOON#* }"
digests="header_digest=crc32c&data_digest=crc32c"

step "discovery and login"
told 0 "127.0.0.1:3261,1 $IQN:mutual" discover 127.0.0.1:3260
told 0 "LUN 0: disk, 64 MiB" ls "$(url open)"
told 0 "LUN 0: disk, 64 MiB" ls "$(url open "" "$digests")"
told 0 "LUN 0: disk, 64 MiB" ls "$(url chap "$ann")"
told 0 "LUN 0: disk, 64 MiB" ls "$(url mutual "$ann" "$moon")"
told 0 "LUN 0: disk, 64 MiB" ls "$(url mutual "$ann" "$moon&$digests")"
told 0 "round trip" doctor "$(url open)"

step "what is wrong is told soon"
told 24 "hint:" ls "$(url chap ann%wrong-secret-12)"
told 24 "does not know its secret" ls "$(url mutual "$ann" "${moon/moonsecret/sunsecret}")"
told 4 "may want CHAP" ls "$(url chap)"
told 4 "hint: .*LIO" ls "$(url none)"
told 21 "LUN 7: there is no such logical unit" ls "iscsi://127.0.0.1:3260/$IQN:open/7"
told 4 "refused" ls "iscsi://127.0.0.1:3262/$IQN:open/0"

step "data"
pattern 64 >/run/pattern
told 0 verified copy --verify --force /run/pattern "$(url open)"
cmp /run/pattern /run/open.img || fail "the medium differs"
told 0 verified copy --verify --force /run/pattern "$(url mutual "$ann" "$moon&$digests")"
cmp /run/pattern /run/mutual.img || fail "the medium differs"
head -c 64M /dev/zero >/run/zeros
told 0 verified copy --verify --force /run/zeros "$(url mutual "$ann" "$moon")"
cmp /run/zeros /run/mutual.img || fail "the zeros are none"

step "the target goes away under I/O and comes back"
for round in 1 2; do
    told 0 copied copy --force /run/zeros "$(url open)"
    "$LUNAR" copy --force --verify --block 64K --depth 4 /run/pattern "$(url open "" commands=4)" >/run/copied 2>&1 & writer=$!
    wait_for 30 'grep -q [^[:space:]] /proc/net/tcp && ! cmp -s -n 1048576 /run/open.img /run/zeros' || fail "nothing was written"
    serve open 0; sleep "$round"; serve open 1
    wait "$writer" || { cat /run/copied; fail "the writer saw an error"; }
    cmp /run/pattern /run/open.img || fail "something was lost"
    cat /run/copied
done

step "the portal is gone for good: told after the recovery time"
"$LUNAR" copy --force --block 64K --depth 1 /run/pattern "$(url open "" "commands=1&recovery_timeout=2")" >/run/copied 2>&1 & writer=$!
sleep 0.5
serve open 0
if wait "$writer"; then fail "the writer saw nothing"; fi
cat /run/copied
grep -q "hint:" /run/copied || fail "it does not say what to do"
echo "PASS lio"
