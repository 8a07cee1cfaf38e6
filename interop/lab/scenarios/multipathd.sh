# dm-multipath. Source it after lib.sh.

# start_multipathd GROUPING [SETTING...]: with this path_grouping_policy, and further lines for the defaults section.
# NO_PATH_RETRY is that of the maps.
start_multipathd() {
    local grouping=$1; shift
    modprobe -a dm_multipath dm_service_time scsi_dh_alua || fail modprobe
    /lib/systemd/systemd-udevd --daemon || fail udevd
    mkdir -p /etc/multipath
    rm -f /etc/multipath/wwids /etc/multipath/bindings
    printf '%s\n' "defaults {" "user_friendly_names yes" "find_multipaths no" "polling_interval 2" \
        "max_polling_interval 2" "path_grouping_policy $grouping" "no_path_retry ${NO_PATH_RETRY:-15}" "$@" "}" >/etc/multipath.conf
    multipathd -d -s >/run/multipathd.log 2>&1 &
    wait_for 15 "multipathd show daemon" || { cat /run/multipathd.log; fail multipathd; }
}
