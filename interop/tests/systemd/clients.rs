//! Initiators that write and verify while the service restarts: libiscsi, by way of QEMU, and Lunar's own.

use interop::TARGET;
use interop::machine::Machine;
use interop::tool::Tool;

pub const TOOLS: [Tool; 1] = [Tool { program: "qemu-io", package: "qemu-utils qemu-block-extra" }];

/// Starts both, and waits for their sessions.
const START: &str = r#"
rm -f /run/enough
(   n=0
    while [ ! -e /run/enough ]; do
        n=$((n % 255 + 1)); echo "write -P $n $((n * 64))k 64k"; echo "read -P $n $((n * 64))k 64k"
    done | qemu-io -f raw $url/1
    echo $? >/run/libiscsi.status ) >/run/libiscsi 2>&1 </dev/null &
(   lunar bench randrw $url/0 --destroy --verify-state /run/state --depth 4 --bs 4k/50:64k/50 --runtime 1h & echo $! >/run/lunar.pid
    wait $! || echo $? >/run/lunar.status ) >/run/own 2>&1 </dev/null &
for n in $(seq 200); do [ "$(lunar session list | grep -c ' iqn')" = 2 ] && exit; sleep 0.05; done
echo "not two sessions"; tail -n 20 /run/libiscsi /run/own; exit 1
"#;

/// Waits until both have read and written again, ends them, and looks for failures.
const END: &str = r#"
fail() { echo "$1"; tail -n 20 /run/libiscsi /run/own; exit 1; }
await() { for n in $(seq 600); do eval "$1" && return; sleep 0.05; done; fail "in vain: $1"; }
work() { lunar session list --json | tr -d ' \n' | grep -o '"commands":[0-9]*' | tr -dc '0-9\n' | awk '$1 > 100' | wc -l; }
await '[ "$(work)" = 2 ]'
: >/run/enough; kill "$(cat /run/lunar.pid)"
await '[ -s /run/libiscsi.status ] && [ -s /run/lunar.status ]'
[ "$(cat /run/libiscsi.status)" = 0 ] && ! grep -qiE 'failed|error' /run/libiscsi || fail "qemu-io failed"
[ "$(cat /run/lunar.status)" = 143 ] || fail "lunar bench did not end by the signal"
lunar bench $url/0 --verify-state /run/state --verify-only | grep 'blocks hold acknowledged data' || fail "data were lost"
# The form of a time with hours is longer, and sorts last.
echo "longest command of libiscsi: $(grep -o 'ops; [^ ]*' /run/libiscsi | sort | tail -n 1)"
grep -E ' WARN |IOPS|^(read|write)' /run/own
"#;

/// Runs `change` under verified I/O, of which no command may fail. Prints how long commands took, which the test does
/// not judge.
pub fn run_during(machine: &Machine, change: &str) {
    let script = |text: &str| format!("url=iscsi://127.0.0.1/{TARGET}; {text}");
    machine.shell(&script(START));
    machine.shell(change);
    println!("{change}:\n{}", machine.shell(&script(END)));
}
