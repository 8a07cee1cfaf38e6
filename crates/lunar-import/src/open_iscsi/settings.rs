//! Settings of records. Values that open-iscsi has by default are not carried, because Lunar has its own defaults.

use super::record::{IscsiFile, IscsiKey};
use crate::Notes;
use std::ops::RangeInclusive;

/// The value of a setting in a URL.
enum IscsiValue {
    Number(RangeInclusive<u64>),
    Flag,
    Digest,
    /// Seconds, at least 1.
    Time,
    /// Seconds, or 0 for never.
    TimeOrNever,
}
use IscsiValue::{Digest, Flag, Number, Time, TimeOrNever};

/// Bytes of bursts and data segments (RFC 7143 section 13).
const BYTES: IscsiValue = Number(512..=0xff_ffff);

/// A setting: its key, its values by default, the key of a URL, and its values.
type IscsiSetting = (&'static str, &'static [&'static str], &'static str, IscsiValue);

static CARRIED: [IscsiSetting; 20] = [
    ("node.session.initial_login_retry_max", &["8"], "login_tries", Number(1..=1_000_000)),
    ("node.session.cmds_max", &["128"], "commands", Number(1..=4096)),
    ("node.session.err_timeo.abort_timeout", &["15"], "abort_timeout", Time),
    ("node.session.err_timeo.lu_reset_timeout", &["30"], "lun_reset_timeout", Time),
    ("node.session.err_timeo.tgt_reset_timeout", &["30"], "target_reset_timeout", Time),
    ("node.session.iscsi.InitialR2T", &["No"], "initial_r2t", Flag),
    ("node.session.iscsi.ImmediateData", &["Yes"], "immediate_data", Flag),
    ("node.session.iscsi.FirstBurstLength", &["262144"], "first_burst_length", BYTES),
    ("node.session.iscsi.MaxBurstLength", &["16776192"], "max_burst_length", BYTES),
    ("node.session.iscsi.DefaultTime2Wait", &["2"], "default_time2wait", Number(0..=3600)),
    ("node.session.iscsi.DefaultTime2Retain", &["0"], "default_time2retain", Number(0..=3600)),
    ("node.session.iscsi.MaxOutstandingR2T", &["1"], "max_outstanding_r2t", Number(1..=65535)),
    ("node.conn[0].timeo.login_timeout", &["15", "30"], "login_timeout", Time),
    ("node.conn[0].timeo.logout_timeout", &["15"], "logout_timeout", Time),
    ("node.conn[0].timeo.noop_out_interval", &["5"], "noop_interval", TimeOrNever),
    ("node.conn[0].timeo.noop_out_timeout", &["5"], "noop_timeout", Time),
    ("node.conn[0].tcp.window_size", &["524288"], "window", Number(4096..=1 << 30)),
    (
        "node.conn[0].iscsi.MaxRecvDataSegmentLength",
        &["262144", "131072"],
        "max_recv_data_segment_length",
        BYTES,
    ),
    ("node.conn[0].iscsi.HeaderDigest", &["None"], "header_digest", Digest),
    ("node.conn[0].iscsi.DataDigest", &["None"], "data_digest", Digest),
];

/// Settings without a counterpart, with their values by default.
const OTHERS: [(&str, &str); 20] = [
    ("node.leading_login", "No"),
    ("node.session.initial_cmdsn", "0"),
    ("node.session.reopen_max", "0"),
    ("node.session.xmit_thread_priority", "-20"),
    ("node.session.queue_depth", "32"),
    ("node.session.scan", "auto"),
    ("node.session.err_timeo.host_reset_timeout", "60"),
    ("node.session.iscsi.FastAbort", "Yes"),
    ("node.session.iscsi.MaxConnections", "1"),
    ("node.session.iscsi.ERL", "0"),
    ("node.conn[0].tcp.type_of_service", "0"),
    ("node.conn[0].timeo.auth_timeout", "45"),
    ("node.conn[0].timeo.active_timeout", "30"),
    ("node.conn[0].timeo.idle_timeout", "60"),
    ("node.conn[0].timeo.ping_timeout", "5"),
    ("node.conn[0].iscsi.MaxXmitDataSegmentLength", "0"),
    ("node.conn[0].iscsi.IFMarker", "No"),
    ("node.conn[0].iscsi.OFMarker", "No"),
    ("iface.iface_num", "0"),
    ("iface.vlan_id", "0"),
];

/// Keys that are read elsewhere, or that only name the origin of a record.
const READ: [&str; 11] = [
    "node.name",
    "node.tpgt",
    "node.startup",
    "node.session.nr_sessions",
    "node.session.timeo.replacement_timeout",
    "node.conn[0].address",
    "node.conn[0].port",
    "node.conn[0].startup",
    "iface.iscsi_ifacename",
    "iface.transport_name",
    "iface.initiatorname",
];

/// The keys of a URL for the settings of a record. The others are reported.
pub(super) fn keys(record: &IscsiFile, iser: bool, notes: &mut Notes) -> Vec<(&'static str, String)> {
    let mut keys: Vec<(&'static str, String)> = Vec::new();
    for key in &record.keys {
        if let Some((_, defaults, name, kind)) = CARRIED.iter().find(|setting| setting.0 == key.key) {
            if key.value.is_empty() || defaults.contains(&key.value.as_str()) {
                continue;
            }
            let is_new = keys.iter().all(|(other, _)| other != name);
            match value(kind, &key.value).filter(|_| is_new) {
                // A device with RDMA has its own checksums.
                Some(_) if iser && matches!(kind, Digest) => notes.changed(record.place_of(key), shown(key)),
                Some(value) => keys.push((name, value)),
                None => notes.lost(record.place_of(key), shown(key)),
            }
        } else if is_other(key) {
            notes.lost(record.place_of(key), shown(key));
        }
    }
    keys
}

/// Whether a setting has no counterpart, and another value than by default.
fn is_other(key: &IscsiKey) -> bool {
    let default = OTHERS.iter().find(|(name, _)| *name == key.key).map(|(_, default)| *default);
    let is_known = READ.contains(&key.key.as_str())
        || ["node.discovery_", "node.session.auth."].iter().any(|begin| key.key.starts_with(begin));
    let is_unset = matches!(key.value.as_str(), "" | "default")
        || key.key.starts_with("iface.") && matches!(key.value.as_str(), "0" | "disable");
    !is_known && !is_unset && default != Some(key.value.as_str())
}

/// A setting as the file has it.
pub(super) fn shown(key: &IscsiKey) -> String {
    let value = if key.key.contains("password") { "***" } else { &key.value };
    format!("{} = {value}", key.key)
}

fn value(kind: &IscsiValue, text: &str) -> Option<String> {
    let number = || text.parse::<u64>().ok();
    let lower = text.to_ascii_lowercase();
    let is_valid = match kind {
        Number(range) => number().is_some_and(|number| range.contains(&number)),
        Flag => matches!(lower.as_str(), "yes" | "no"),
        Digest => matches!(lower.as_str(), "none" | "crc32c" | "none,crc32c" | "crc32c,none"),
        Time => number().is_some_and(|number| (1..=86400).contains(&number)),
        TimeOrNever => number().is_some_and(|number| number <= 86400),
    };
    is_valid.then_some(lower)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Outcome;

    #[test]
    fn only_values_that_differ_are_carried() {
        let text = "node.session.cmds_max = 128\nnode.session.queue_depth = 64\nnode.conn[0].iscsi.HeaderDigest = \
                    CRC32C,None\nnode.session.iscsi.InitialR2T = Yes\nnode.conn[0].timeo.noop_out_interval = 0\n\
                    node.conn[0].timeo.login_timeout = soon\nnew.password = x\niface.hwaddress = 02:00:00:00:00:01";
        let mut notes = Notes::default();
        let found = keys(&IscsiFile::parse("", text), false, &mut notes);
        let found: Vec<String> = found.iter().map(|(key, value)| format!("{key}={value}")).collect();
        assert_eq!(found, ["header_digest=crc32c,none", "initial_r2t=yes", "noop_interval=0"]);
        let lost: Vec<String> =
            notes.list().iter().map(|note| format!("{} {}", note.place, note.text)).collect();
        assert_eq!(
            lost,
            [
                "line 2 node.session.queue_depth = 64",
                "line 6 node.conn[0].timeo.login_timeout = soon",
                "line 7 new.password = ***",
                "line 8 iface.hwaddress = 02:00:00:00:00:01",
            ]
        );
        assert!(notes.list().iter().all(|note| note.outcome == Outcome::Lost));
    }
}
