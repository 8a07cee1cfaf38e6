//! Records of open-iscsi, the initiator of Linux, which become saved attachments.

mod folder;
mod paths;
mod record;
mod settings;

use crate::attachment::{NewAttachment, NewPath};
use crate::common::is_initiator;
use crate::files::Reader;
use crate::{ImportError, Imported};
use folder::IscsiFolder;
use record::IscsiFile;
use std::collections::BTreeMap;

/// The most sessions to one portal that become paths.
const MAX_SESSIONS: usize = 16;
/// The longest time for recovery in seconds: thirty days.
const MAX_RECOVERY: u64 = 30 * 86400;

/// Imports the records below `/etc/iscsi`, or one record. The reader gets the empty path for the file or folder itself,
/// and paths relative to it.
///
/// # Errors
/// There is no record, or a file cannot be read.
pub fn open_iscsi(reader: Reader<'_>) -> Result<Imported, ImportError> {
    let folder = IscsiFolder::read(reader)?;
    if !folder.records.iter().any(|record| record.value("node.name").is_some()) {
        return Err(ImportError::new(
            "there is no record with node.name",
            "give /etc/iscsi, a folder below /etc/iscsi/nodes, or a record",
        ));
    }
    let mut import = OpenIscsiImport::default();
    import.other_files(&folder);
    let mut targets: BTreeMap<String, Vec<(&IscsiFile, NewPath)>> = BTreeMap::new();
    for record in &folder.records {
        if let Some(path) = import.path(record) {
            targets.entry(path.target.clone()).or_default().push((record, path));
        }
    }
    for (target, records) in targets {
        import.attachment(&target, records, &folder);
    }
    let what = "the devices, which are /dev/ublkbN in place of /dev/sdX: ublk needs Linux 6.1";
    import.0.notes.changed("records", what);
    Ok(import.0)
}

/// The import in progress.
#[derive(Default)]
struct OpenIscsiImport(Imported);

impl OpenIscsiImport {
    /// Reports what the folder has beside records.
    fn other_files(&mut self, folder: &IscsiFolder) {
        if let Some(file) = &folder.defaults {
            self.0.notes.changed(file.path.clone(), "its values are defaults of new records only");
        }
        for file in folder.defaults.iter().chain(&folder.discovery) {
            const USER: &str = "discovery.sendtargets.auth.username";
            if file.value(USER).is_some() {
                let what = "the CHAP user of discovery: lunar discover takes it from its URL";
                self.0.notes.lost(file.place(USER), what);
            }
        }
    }

    /// Adds the attachment of a target. Its records are paths.
    fn attachment(&mut self, target: &str, records: Vec<(&IscsiFile, NewPath)>, folder: &IscsiFolder) {
        let Some((first, _)) = records.first() else { return };
        let suffix = target.rsplit(':').next().unwrap_or_default();
        let name = self.0.configuration.free_attachment_name(suffix);
        let recovery_timeout = self.recovery_timeout(&records);
        let initiator = self.initiator(&records, folder);
        let mut paths = Vec::new();
        let mut at_boot = false;
        for (record, mut path) in records.iter().cloned() {
            at_boot |= matches!(record.value("node.startup"), Some("automatic" | "onboot"));
            path.keys.extend(initiator.clone().map(|name| ("initiator", name)));
            paths.extend(vec![path; self.sessions(record)]);
        }
        let how = if at_boot { "systemctl enable" } else { "started by hand: systemctl start" };
        let what = format!("{target}: {}, {how} lunar-attach@{name}", count_of_paths(paths.len()));
        self.0.notes.carried(first.place("node.startup"), what);
        let what = format!(
            "{target}: its LUN, which records do not have: if it has several, add /LUN to each URL, in a file for \
             each LUN"
        );
        self.0.notes.changed(first.place("node.name"), what);
        self.0.configuration.attachments.push(NewAttachment { name, paths, recovery_timeout });
    }

    /// The number of sessions of a record.
    fn sessions(&mut self, record: &IscsiFile) -> usize {
        const KEY: &str = "node.session.nr_sessions";
        let Some(value) = record.value(KEY) else { return 1 };
        match value.parse::<usize>() {
            Ok(sessions @ 1..=MAX_SESSIONS) => sessions,
            _ => {
                self.0.notes.lost(record.place(KEY), format!("{KEY} = {value}: one session"));
                1
            }
        }
    }

    /// The time for recovery, which an attachment has once. A negative one is without end.
    fn recovery_timeout(&mut self, records: &[(&IscsiFile, NewPath)]) -> Option<u64> {
        const KEY: &str = "node.session.timeo.replacement_timeout";
        let mut times = Vec::new();
        for (record, _) in records {
            let value = record.value(KEY).unwrap_or("120");
            let time = match value.parse::<i64>() {
                Ok(time @ 0..) if time.unsigned_abs() <= MAX_RECOVERY => time.unsigned_abs(),
                Ok(_) => {
                    let what = format!("{KEY} = {value}: I/O fails after thirty days");
                    self.0.notes.changed(record.place(KEY), what);
                    MAX_RECOVERY
                }
                Err(_) => {
                    self.0.notes.lost(record.place(KEY), format!("{KEY} = {value}"));
                    120
                }
            };
            if times.first().is_some_and(|first| *first != time) {
                let what = format!("{KEY} = {value}: all paths have that of the first one");
                self.0.notes.changed(record.place(KEY), what);
            }
            times.push(time);
        }
        times.first().copied().filter(|time| *time != 120)
    }

    /// The initiator name, which all paths to a disk share.
    fn initiator(&mut self, records: &[(&IscsiFile, NewPath)], folder: &IscsiFolder) -> Option<String> {
        let common = folder.name.as_ref().and_then(|file| file.value("InitiatorName"));
        let mut names: Vec<Option<&str>> = Vec::new();
        for (record, _) in records {
            let interface = record.value("iface.iscsi_ifacename").and_then(|name| {
                folder.interfaces.iter().find(|file| file.value("iface.iscsi_ifacename") == Some(name))
            });
            let own = [Some(*record), interface].into_iter().flatten();
            let name = own.filter_map(|file| file.value("iface.initiatorname")).next().or(common);
            if let Some(first) = names.first().filter(|first| **first != name) {
                let what = format!(
                    "the initiator name {}: all paths to a disk use {}, which the target has to admit here too",
                    name.unwrap_or("of the host"),
                    first.unwrap_or("that of the host")
                );
                self.0.notes.changed(record.place("iface.iscsi_ifacename"), what);
            }
            names.push(name);
        }
        let (record, name) = (records.first()?.0, names.first().copied().flatten()?);
        if !is_initiator(name) {
            let what = format!("the initiator name {name:?}, which is no iSCSI name");
            self.0.notes.lost(record.place("iface.initiatorname"), what);
            return None;
        }
        Some(name.to_ascii_lowercase())
    }
}

fn count_of_paths(paths: usize) -> String {
    if paths == 1 { "1 path".into() } else { format!("{paths} paths") }
}
