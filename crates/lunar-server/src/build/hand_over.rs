//! State of logical units for the next process of a server.

use super::{OpenUnit, Units};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The version of the format.
const VERSION: u32 = 1;

/// The state of all units that have any.
#[derive(Serialize, Deserialize)]
struct HandOver {
    version: u32,
    units: Vec<HandedUnit>,
}

/// The state of a unit.
#[derive(Serialize, Deserialize)]
struct HandedUnit {
    /// `LUN 0 of iqn...`, or `disk NAME`.
    name: String,
    /// The serial number: under another one, it is another unit.
    serial: String,
    /// The result of [`lunar_scsi::Lu::hand_over`].
    state: Vec<u8>,
}

impl Units {
    /// The state that a restart would lose. None if there is none. Sessions must have ended.
    pub fn hand_over(&self) -> Option<Vec<u8>> {
        let units: Vec<HandedUnit> = self
            .open
            .iter()
            // The group keeps the state of a shared unit.
            .filter(|(_, open)| open.unit.sharing().is_none())
            .filter_map(|(name, open)| {
                let (lu, state) = (&open.unit.lu, open.unit.lu.hand_over());
                let serial = || lu.settings().identity.serial.clone();
                (!state.is_empty()).then(|| HandedUnit { name: name.to_string(), serial: serial(), state })
            })
            .collect();
        if units.is_empty() { None } else { serde_json::to_vec(&HandOver { version: VERSION, units }).ok() }
    }

    /// Takes the state that an earlier process handed over. Units that do not exist anymore are skipped. State that cannot be
    /// used is logged: without it the server starts as after a power loss.
    pub fn take_over(&self, bytes: &[u8]) {
        let whole = serde_json::from_slice(bytes).ok().filter(|whole: &HandOver| whole.version == VERSION);
        let Some(whole) = whole else {
            tracing::warn!("state of the earlier process ignored: unknown format");
            return;
        };
        let open: BTreeMap<String, &OpenUnit> =
            self.open.iter().map(|(name, open)| (name.to_string(), open)).collect();
        for unit in whole.units {
            let same =
                open.get(&unit.name).filter(|open| open.unit.lu.settings().identity.serial == unit.serial);
            let taken = same.map(|open| open.unit.lu.take_over(&unit.state));
            match taken {
                Some(Ok(())) => tracing::info!("{}: state of the earlier process taken over", unit.name),
                Some(Err(e)) => tracing::warn!("{}: state of the earlier process ignored: {e}", unit.name),
                None => tracing::info!("{}: state of the earlier process dropped: no such unit", unit.name),
            }
        }
    }
}
