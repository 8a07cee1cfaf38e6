#!/bin/bash
# NVMe over TLS: the kernel's host, with a handshake agent on GnuTLS. Its only portal demands TLS.
#   KEY      the key of this host, as the server has it
#   WRONG    another key
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/nvme_lib.sh"
start_nvme
modprobe tls || fail "modprobe tls"

# agent KEY: starts the agent with this key
agent() {
    rm -f /run/agent.log
    python3 "$(dirname "$0")/../tls_agent.py" "$1" "$HOSTNQN" "$NQN" >/run/agent.log 2>&1 & agent=$!
    wait_for 30 "grep -q ^ready /run/agent.log" || { cat /run/agent.log; fail "the agent does not start"; }
}
stop_agent() { kill "$agent"; wait "$agent" || true; }
# connect OPTION...: connects through the kernel's own file, because nvme-cli of Debian 12 knows no TLS
connect() {
    local options="transport=tcp,traddr=${NVME%:*},trsvcid=${NVME##*:},nqn=$NQN,hostnqn=$HOSTNQN,hostid=$HOSTID"
    options+=",nr_io_queues=2,reconnect_delay=1,ctrl_loss_tmo=120"
    for option; do options+=",$option"; done
    echo "$options" >/dev/nvme-fabrics
}
gone() { try wait_for 20 '! ls -d /sys/class/nvme/nvme*'; }

step "a wrong key"
agent "$WRONG"
! connect tls || fail "connected with a wrong key"
grep -q "handshake failed" /run/agent.log || { cat /run/agent.log; fail "no failed handshake"; }
gone
stop_agent

step "without TLS"
! connect || fail "connected without TLS"
gone

step "connect and data"
agent "$KEY"
try connect tls
try wait_for 20 "nvme_disk 1"
disk=$(nvme_disk 1)
[ -n "$(cat "$(path_to "$NVME")/tls_key")" ] || fail "the controller has no TLS key"
verify "$disk" 16
blocks_of_all_sizes "$disk"
grep -q "^TlsCurrTxSw.*[1-9]" /proc/net/tls_stat || { cat /proc/net/tls_stat; fail "the kernel encrypts nothing"; }
step "ext4"; filesystem ext4 "$disk"

step "resets under load"
start_load "$disk"
for _ in 1 2; do sleep 2; try nvme reset "/dev/$(basename "$(path_to "$NVME")")"; done
load_goes_on
stop_load
nvme_disconnect
stop_agent
! dmesg | grep -iE 'nvme.*(timeout|mismatch)' || fail "the kernel complains"
echo "PASS nvme_tls"
