# `lunar serve` in the guest, over its soft RDMA device. Source it after lib.sh. If PROVIDER is not set, the server
# runs on the host, and serve_here does nothing.
#
#   PROVIDER  the server's RDMA provider: verbs or iwarp
#   RDMA      siw or rxe
#   LUNAR     the program

# serve_here: starts a server with a disk as LUN 0 and a null disk as LUN 1, which runs until the scenario ends. Sets
# PORTAL (iSER) unless it is set, TCP_PORTAL, SRP_PORTAL, IQN, and PORT, the SRP target port.
serve_here() {
    [ -n "${PROVIDER-}" ] || return 0
    : "${PORTAL:=10.0.2.15:3260}"
    TCP_PORTAL=10.0.2.15:3262 SRP_PORTAL=10.0.2.15:5555 IQN=iqn.2026-11.lab.guest:lunar
    soft_rdma "$RDMA"
    mkdir -p $SERVER
    truncate -s 512M $SERVER/disk.img
    # siw uses TCP itself, so the TCP portal needs another port
    cat >$SERVER/lunar.toml <<TOML
[server]
state_dir = "$SERVER"
admin_socket = "$SERVER/admin.sock"
[[portal_group]]
tag = 1
portals = [
    { listen = "$PORTAL", transport = ["iser"], provider = "$PROVIDER" },
    { listen = "$TCP_PORTAL" },
    { listen = "$SRP_PORTAL", transport = ["srp"], provider = "$PROVIDER" },
]
[[target]]
name = "$IQN"
[[target.lun]]
lun = 0
backend = "file"
path = "disk.img"
[[target.lun]]
lun = 1
backend = "null"
size = "1G"
TOML
    trap stop_server EXIT
    start_server
    PORT=$(sed -n 's/^ *id_ext=\([0-9a-f]*\),ioc_guid=\1,dest='"$SRP_PORTAL"'$/\1/p' $SERVER/banner)
    [ -n "$PORT" ] || { cat $SERVER/banner; fail "no line for ib_srp"; }
}

SERVER=/run/server

start_server() {
    "$LUNAR" serve --config $SERVER/lunar.toml >$SERVER/banner 2>>$SERVER/log & server=$!
    wait_for 30 "grep -qx ready $SERVER/banner" || fail "the server does not serve"
}

stop_server() {
    kill -9 "$server" && wait "$server"
} 2>/dev/null

# served_here NAME: the action that `ask NAME` requests, for a server in the guest
served_here() {
    case $1 in
        kill-*) stop_server; sleep 1; start_server ;;
        channels) channels_work ;;
        grow) truncate -s 640M $SERVER/disk.img; kill -HUP "$server" ;;
        *) fail "the server cannot do this: $1" ;;
    esac
}

# channels_work: there are two SRP channels, and each had commands (column 11, after "SRP, channel 1 of 2")
channels_work() {
    "$LUNAR" session list --socket $SERVER/admin.sock | tee /run/sessions
    [ "$(awk '$4 == "SRP," && $11 > 50' /run/sessions | wc -l)" = 2 ] || fail "not two channels that work"
}
