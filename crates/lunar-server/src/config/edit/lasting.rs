//! The identity of a LUN that moves.

use crate::build::{UnitName, is_nameless};
use crate::config::Config;
use crate::identity;
use lunar_admin::{ControlError, Keys, ObjectId};

/// The keys that keep the identity of a LUN at another place. A LUN of a `[[disk]]` needs none.
pub(super) fn keys(config: &Config, id: &ObjectId) -> Result<Keys, ControlError> {
    let ObjectId::Lun(target, number) = id else { return Ok(Keys::new()) };
    let mut targets = config.targets.iter();
    let lun = targets.find(|one| one.name == *target).and_then(|target| target.luns.get(number));
    let Some(lun) = lun.filter(|lun| lun.disk.is_none()) else { return Ok(Keys::new()) };
    if is_nameless(lun) {
        let what = format!("{id} is memory without `serial`, which has no lasting identity");
        return Err(ControlError::conflict(what, "remove the LUN, and add it to the other target"));
    }
    Ok(identity::lasting_keys(&UnitName::Lun(target.clone(), *number), lun))
}
