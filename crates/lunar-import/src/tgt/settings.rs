//! The settings of a target or of a store by key, and the settings of all targets.

use super::TgtImport;
use super::file::TgtEntry;
use crate::Discovery;

/// Keys that only tgt-admin uses.
const OF_TGT_ADMIN: [&str; 3] = ["ignore-errors", "allow-in-use", "control-port"];

/// Keys of the login negotiation.
const NEGOTIATED: [&str; 20] = [
    "MaxRecvDataSegmentLength",
    "MaxXmitDataSegmentLength",
    "HeaderDigest",
    "DataDigest",
    "InitialR2T",
    "MaxOutstandingR2T",
    "ImmediateData",
    "FirstBurstLength",
    "MaxBurstLength",
    "DataPDUInOrder",
    "DataSequenceInOrder",
    "ErrorRecoveryLevel",
    "IFMarker",
    "OFMarker",
    "DefaultTime2Wait",
    "DefaultTime2Retain",
    "OFMarkInt",
    "IFMarkInt",
    "MaxConnections",
    "RDMAExtensions",
];

/// Keys with one value each, and where they stand.
#[derive(Debug, Default)]
pub(super) struct TgtSettings<'a>(pub(super) Vec<&'a TgtEntry>);

impl<'a> TgtSettings<'a> {
    /// The entry of a key. Of several, the last counts.
    pub(super) fn entry(&self, key: &str) -> Option<&'a TgtEntry> {
        self.0.iter().rfind(|entry| entry.key == key && entry.block.is_none()).copied()
    }

    pub(super) fn value(&self, key: &str) -> Option<&'a str> {
        self.entry(key).map(|entry| entry.value.as_str()).filter(|value| !value.is_empty())
    }

    pub(super) fn all(&self, key: &str) -> Vec<&'a TgtEntry> {
        self.0.iter().filter(|entry| entry.key == key && entry.block.is_none()).copied().collect()
    }

    /// Whether a flag is set. A key without a value sets it.
    pub(super) fn is_set(&self, key: &str) -> Option<bool> {
        let value = self.entry(key)?.value.to_ascii_lowercase();
        Some(!matches!(value.as_str(), "0" | "no" | "off" | "false"))
    }
}

impl TgtImport {
    /// Carries over the settings of all targets, and returns the default driver.
    pub(super) fn globals(&mut self, entries: &[TgtEntry]) -> String {
        let keys = TgtSettings(entries.iter().filter(|entry| entry.key != "target").collect());
        for entry in &keys.0 {
            match entry.key.as_str() {
                "incomingdiscoveryuser" | "outgoingdiscoveryuser" | "default-driver" => {}
                _ => self.other_key(entry, "all targets"),
            }
        }
        let chap = self.users(&keys.all("incomingdiscoveryuser"));
        let mutual = self.mutual(&keys.all("outgoingdiscoveryuser"), &chap);
        self.0.configuration.discovery = Discovery { disabled: false, chap, mutual };
        keys.value("default-driver").unwrap_or("iscsi").to_owned()
    }

    /// Reports a key that has no counterpart.
    pub(super) fn other_key(&mut self, entry: &TgtEntry, of: &str) {
        let (key, place) = (entry.key.as_str(), &entry.place);
        let what = format!("{of}: {key} {}", entry.value);
        let what = what.trim_end();
        if OF_TGT_ADMIN.contains(&key) {
            self.0.notes.carried(place, format!("{what}: only tgt-admin uses it"));
        } else if NEGOTIATED.contains(&key) {
            let what =
                format!("{what}: hosts negotiate it with the server, see [session] in docs/operate.md");
            self.0.notes.changed(place, what);
        } else if key.to_ascii_lowercase().starts_with("isns") {
            self.0.notes.lost(place, format!("{what}: Lunar does not register with iSNS"));
        } else {
            self.0.notes.lost(place, what);
        }
    }
}
