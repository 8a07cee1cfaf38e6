#!/bin/bash
# A file system is written, each file flushed, while the host kills the server with SIGKILL and starts it again.
# Every file whose fsync returned must be there, and the file system whole.
#   KILLS  how often (default 2)
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
