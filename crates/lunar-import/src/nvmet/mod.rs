//! The configuration of the Linux kernel's NVMe target (nvmet): `config.json` of nvmetcli, or the tree in configfs.
//!
//! nvmetcli saves no secrets of hosts. The tree has them.

mod file;
mod hosts;
mod ports;
mod subsystems;
mod tree;

pub use tree::{MAX_ATTRIBUTE, MAX_TREE_ENTRIES, TreeEntry, TreeReader};

use crate::nvme_steps::DISCOVERY_NQN;
use crate::portals::PortalSets;
use crate::{ImportError, Imported, json};
use file::NvmetConfig;
use serde_json::Value;

/// Imports a `config.json` of nvmetcli.
///
/// # Errors
/// The text is no such file, or it has no subsystem.
pub fn nvmet(text: &str) -> Result<Imported, ImportError> {
    let file = json::parse(text).map_err(|e| {
        let hint = "give the file that nvmetcli saves, or the folder /sys/kernel/config/nvmet";
        ImportError::new(format!("the file is no config.json of nvmetcli: {e}"), hint)
    })?;
    import(&file, false)
}

/// Imports the tree `/sys/kernel/config/nvmet`.
///
/// # Errors
/// A file of the tree cannot be read, the tree is no such tree or too large, or it has no subsystem.
pub fn nvmet_tree(reader: TreeReader<'_>) -> Result<Imported, ImportError> {
    let file = serde_json::from_value(Value::Object(tree::read(reader)?)).map_err(|e| {
        ImportError::new(format!("the folder is no tree of nvmet: {}", json::fault(&e)), tree::HINT)
    })?;
    import(&file, true)
}

fn import(file: &NvmetConfig, has_secrets: bool) -> Result<Imported, ImportError> {
    if file.subsystems.is_empty() {
        return Err(ImportError::new("there is no subsystem", "save the running target: nvmetcli save"));
    }
    let mut import = NvmetImport::default();
    let mut sets = PortalSets::default();
    let ports = import.ports(file, &mut sets);
    let used: Vec<_> = file
        .subsystems
        .iter()
        .enumerate()
        .map(|(n, subsystem)| {
            import.subsystem(file, subsystem, &format!("subsystems[{n}]"));
            ports.iter().filter(|port| port.offers(&subsystem.nqn)).map(|port| port.set).collect()
        })
        .collect();
    import.0.subsystem_portals(&mut sets, &used, "ports");
    import.unused_hosts(file);
    if !matches!(file.discovery_nqn.as_str(), "" | DISCOVERY_NQN) {
        let what =
            format!("the name {:?} of the discovery service, which is {DISCOVERY_NQN}", file.discovery_nqn);
        import.0.notes.lost("discovery_nqn", what);
    }
    if !has_secrets && file.subsystems.iter().any(|one| !one.allowed_hosts.is_empty()) {
        let what =
            "nvmetcli saves no secrets of DH-HMAC-CHAP: if hosts have any, import /sys/kernel/config/nvmet";
        import.0.notes.changed("hosts", what);
    }
    Ok(import.0)
}

/// The import in progress.
#[derive(Default)]
struct NvmetImport(Imported);
