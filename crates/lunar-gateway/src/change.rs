//! Changes of the access of members, by administrators.

use crate::shared_unit::SharedUnit;
use crate::{Gateway, MemberId};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time that all units have for a change.
const TIMEOUT: Duration = Duration::from_secs(40);

/// A change of the access of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessChange {
    /// Its hosts are to use other members.
    Drain,
    /// Its hosts may use it again.
    Resume,
    /// It serves the units that one member at a time serves.
    Activate,
}

/// The reason why a change did not take place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessChangeError {
    /// This server shares no such image.
    NoImage,
    /// No member has this number, or it is away.
    NoMember,
    /// All members serve the images at once.
    NotPassive,
    /// No other member serves these images.
    OnlyMember(Vec<String>),
    /// The change did not end in time, or another one was faster, for these images.
    Failed(Vec<String>),
}

impl Gateway {
    /// Changes the access of a member to one image, or to all. It waits for the cluster and for the other members. Returns
    /// the number of images.
    ///
    /// # Errors
    /// [`AccessChangeError`].
    pub fn change_access(
        &self,
        id: MemberId,
        change: AccessChange,
        image: Option<&str>,
    ) -> Result<usize, AccessChangeError> {
        let mut units = self.shared_units();
        units.retain(|unit| image.is_none_or(|name| unit.name() == name));
        if units.is_empty() {
            return Err(AccessChangeError::NoImage);
        }
        if change == AccessChange::Activate {
            units.retain(|unit| unit.is_passive());
        }
        if units.is_empty() {
            return Err(AccessChangeError::NotPassive);
        }
        check(&units, id, change)?;
        let deadline = Instant::now() + TIMEOUT;
        let started: Vec<_> =
            units.iter().map(|unit| (unit.name(), unit.change_access(id, change))).collect();
        let count = started.len();
        let has_failed = |result: Option<flume::Receiver<_>>| {
            let ended = result.and_then(|result| result.recv_deadline(deadline).ok());
            !matches!(ended, Some(Ok(true)))
        };
        let failed = started.into_iter().filter_map(|(name, result)| has_failed(result).then_some(name));
        let failed: Vec<String> = failed.collect();
        if failed.is_empty() { Ok(count) } else { Err(AccessChangeError::Failed(failed)) }
    }
}

/// Checks that the member is there, and that another one is when it is drained.
fn check(units: &[Arc<SharedUnit>], id: MemberId, change: AccessChange) -> Result<(), AccessChangeError> {
    let groups: Vec<_> = units.iter().filter_map(|unit| Some((unit.name(), unit.group()?))).collect();
    let must_serve = change == AccessChange::Activate;
    let is_known = groups.iter().any(|(_, group)| match must_serve {
        true => group.members.contains_key(&id),
        false => group.ports.contains_key(&id),
    });
    if !is_known {
        return Err(AccessChangeError::NoMember);
    }
    let is_only = |group: &crate::SharedView| group.candidates(Some(id)).next().is_none();
    let only = groups.iter().filter(|(_, group)| change == AccessChange::Drain && is_only(group));
    let only: Vec<String> = only.map(|(name, _)| name.clone()).collect();
    if only.is_empty() { Ok(()) } else { Err(AccessChangeError::OnlyMember(only)) }
}
