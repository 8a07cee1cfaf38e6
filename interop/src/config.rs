//! Configuration texts for the tests.

/// The target of [`standard`].
pub const TARGET: &str = "iqn.2026-11.org.example:disks";
/// The default initiator name of the client.
pub const INITIATOR: &str = "iqn.2026-11.org.example:host";

/// One portal, no keepalive, and the target with LUN 0 (memory, 64 MiB), LUN 1 (null, 1 GiB) and LUN 2
/// (memory, 16 MiB, reads and writes delayed by 0.5 s). LUN 0 has a serial number, so it is the same disk after a restart,
/// and keeps its reservations.
pub fn standard() -> String {
    with("", "", "")
}

/// [`standard`] with further keys in `[session]`, further keys of the target, and further tables at the end.
pub fn with(session: &str, target: &str, tables: &str) -> String {
    format!(
        r#"
[session]
nop_interval_s = 0
{session}
[[portal_group]]
tag = 1
portals = ["127.0.0.1:0"]
[[target]]
name = "{TARGET}"
{target}
[[target.lun]]
lun = 0
backend = "memory"
size = "64MiB"
serial = "memory-0"
[[target.lun]]
lun = 1
backend = "null"
size = "1GiB"
[[target.lun]]
lun = 2
backend = "memory"
size = "16MiB"
filters = [{{ kind = "delay", read_us = 500000, write_us = 500000 }}]
{tables}
"#
    )
}

/// A target with one null LUN, as a table to append.
pub fn target(name: &str, keys: &str) -> String {
    format!(
        "[[target]]\nname = \"{name}\"\n{keys}\n[[target.lun]]\nlun = 0\nbackend = \"null\"\nsize = \"1GiB\"\n"
    )
}
