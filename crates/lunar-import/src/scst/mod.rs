//! `scst.conf` of scstadmin, the configuration of SCST.

mod access;
mod disks;
mod file;
mod groups;
mod hosts;
mod portals;
mod targets;

use crate::{ImportError, Imported};
use file::ScstEntry;
use std::collections::BTreeMap;

/// Imports a `scst.conf`.
///
/// # Errors
/// The text is no such file, or it has no device and no target.
pub fn scst(text: &str) -> Result<Imported, ImportError> {
    let file = file::parse(text)?;
    if !file.entries.iter().any(|entry| matches!(entry.key.as_str(), "HANDLER" | "TARGET_DRIVER")) {
        return Err(ImportError::new(
            "the file has no HANDLER and no TARGET_DRIVER",
            "give the file that scstadmin -write_config saves, usually /etc/scst.conf",
        ));
    }
    let mut import = ScstImport::default();
    import.globals(&file);
    import.disks(&file);
    import.drivers(&file);
    import.device_groups(&file);
    let disk = |device: &ScstDevice| match device {
        ScstDevice::Disk(index, line) => Some((*index, format!("line {line}"))),
        _ => None,
    };
    import.imported.unused_disks(import.devices.values().filter_map(disk));
    Ok(import.imported.keep_identities_apart())
}

/// The import in progress.
#[derive(Default)]
struct ScstImport {
    imported: Imported,
    /// Upper half of the number from which default identities are made.
    setup_id: u32,
    devices: BTreeMap<String, ScstDevice>,
}

/// A device of the file.
#[derive(Clone, Copy)]
enum ScstDevice {
    /// A disk of the configuration, and its line.
    Disk(usize, usize),
    /// A placeholder for a LUN that does not exist.
    Dummy,
    /// A device that Lunar cannot serve.
    Lost,
}

/// Settings of threads, queues and logs, which change nothing that hosts see.
const TUNING: [&str; 20] = [
    "threads",
    "max_tasklet_cmd",
    "suspend",
    "poll_us",
    "trace_level",
    "trace_mask",
    "cpu_mask",
    "io_grouping_type",
    "threads_num",
    "threads_pool_type",
    "numa_node_id",
    "bind_alua_state",
    "lb_per_pb_exp",
    "async",
    "read_zero",
    "opt_trans_len",
    "expl_alua",
    "force_global_sgv_pool",
    "last_sysfs_mgmt_res",
    "dif_filename",
];

impl ScstImport {
    fn globals(&mut self, file: &ScstEntry) {
        for entry in &file.entries {
            match entry.key.as_str() {
                "setup_id" => match number(entry.arg()) {
                    Some(id) => self.setup_id = id,
                    None => {
                        let what = format!("the setup_id {:?}, which is no number: 0 is used", entry.arg());
                        self.imported.notes.lost(entry.place(), what);
                    }
                },
                "HANDLER" | "TARGET_DRIVER" | "DEVICE_GROUP" => {}
                _ => self.unknown(entry, ""),
            }
        }
    }

    /// Reports an entry that has no counterpart.
    fn unknown(&mut self, entry: &ScstEntry, owner: &str) {
        if TUNING.contains(&entry.key.as_str()) {
            return;
        }
        let gap = if owner.is_empty() { "" } else { ": " };
        // A secret follows the name of a user.
        let arg = match entry.key.starts_with("IncomingUser") || entry.key.starts_with("OutgoingUser") {
            true => entry.arg().split_whitespace().next().unwrap_or_default(),
            false => entry.arg(),
        };
        let what = format!("{owner}{gap}{}", [&entry.key, arg].join(" ").trim_end());
        self.imported.notes.lost(entry.place(), what);
    }

    /// Reports ALUA states. Each path begins as active/optimized.
    fn device_groups(&mut self, file: &ScstEntry) {
        for group in file.all("DEVICE_GROUP") {
            for targets in group.all("TARGET_GROUP") {
                let state = targets.value("state").unwrap_or("active");
                let is_preferred = targets.flag("preferred") == Some(true);
                let what = format!("the ALUA group {}/{}", group.arg(), targets.arg());
                let notes = &mut self.imported.notes;
                match state {
                    "active" if !is_preferred => notes.changed(
                        targets.place(),
                        format!("{what}: hosts see the portal groups as target port groups"),
                    ),
                    "active" => notes.lost(targets.place(), format!("{what}, which is preferred")),
                    _ => notes.lost(
                        targets.place(),
                        format!("{what} and its state {state}: each path begins as active/optimized"),
                    ),
                }
            }
        }
    }
}

/// A number in the notation of C: a prefix shows that it is hexadecimal or octal.
fn number(text: &str) -> Option<u32> {
    let (digits, radix) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None if text.len() > 1 && text.starts_with('0') => (&text[1..], 8),
        None => (text, 10),
    };
    u32::from_str_radix(digits, radix).ok()
}
