#!/bin/bash
# The host kills the server with SIGKILL during verified I/O over NVMe/TCP, and restarts it: no I/O fails.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/nvme_lib.sh"
start_nvme
step "connect"; nvme_connect "$NVME"
disk=$(nvme_disk 1)
start_load "$disk"
load_goes_on
step "kill"; ask kill
try wait_for 30 'path_is "$NVME" live'
step "the server is back"
load_goes_on
stop_load
dmesg | grep -q 'Successfully reconnected' || fail "the kernel has lost no connection"
verify "$disk" 8
nvme_disconnect
echo "PASS nvme_crash"
