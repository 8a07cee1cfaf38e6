#!/bin/bash
# Writes files with fsync to a file system, while the host kills the server with SIGKILL and restarts it. Every file
# whose fsync returned must exist, and the file system must be consistent.
#   KILLS  number of kills (default 2)
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/server.sh"
serve_here
step "login"; start_initiator 120
discover "$PORTAL"; login "$PORTAL"
disk=$(disk_of "$PORTAL")
modprobe ext4
try mkfs.ext4 -q -F "$disk"
try mount "$disk" /mnt

start_writer
for kill in $(seq "${KILLS:-2}"); do
    step "kill $kill"
    await_files 20
    ask "kill-$kill"
    await_files 20
done
stop_writer
check_files "$disk"
logout "$PORTAL"
echo "PASS crash"
