#!/bin/bash
# The emulated long-distance link of `lunar bench reproduce sn5420-2002`, made with netem. It must be slower than
# loopback, and slower still if the TCP window is smaller than the bandwidth-delay product. Nothing of it may be left.
#   LUNAR   the program
. "$(dirname "$0")/lib.sh"

# average ROW: the last of the four measured values in this row of the TCP window table, in 0.1 MB/s
average() {
    sed -n '/TCP window.*Lunar /,/^$/p' /run/output | sed '1,/measured/d' |
        awk -F'|' -v row="$1" '$1 ~ "^" row { split($2, f, " "); printf "%d\n", 10 * f[4]; exit }'
}

fail_with_table() {
    grep -A 12 'TCP window.*Lunar ' /run/output
    fail "$@"
}

step "the kernel's line"
modprobe -a veth sch_netem || fail modprobe
cd /run || fail /run
"$LUNAR" bench reproduce sn5420-2002 --against none --brief 500 --dir /run --out /run/results >/run/output 2>/run/err ||
    { tail -n 5 /run/output /run/err; fail "status $?"; }
grep -q 'tc-netem' /run/output || { grep -i 'line' /run/output; fail "it is not the kernel's"; }
# 64 KiB every 4 ms are 16 MB/s, and 622 Mbit/s are 78
small=$(average "64 KB") wide=$(average "1 MB")
[ "${small:-0}" -gt 0 ] && [ "$small" -lt 250 ] || fail_with_table "64 KB: $small"
[ "${wide:-0}" -gt "$small" ] && [ "$wide" -lt 1000 ] || fail_with_table "1 MB: $wide"

step "nothing is left"
[ -z "$(ip netns list)" ] || { ip netns list; fail "a network namespace is left"; }
ip -o link show type veth | grep . && fail "a veth device is left"
echo "PASS far"
