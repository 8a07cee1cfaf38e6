//! Joins paths to one logical unit.

use super::path_checker::check_path;
use super::path_counters::PathCounters;
use super::path_selector::PathSelector;
use super::{LunPath, Multipath, MultipathOptions};
use crate::{Error, ErrorCode, hints};
use event_listener::Event;
use lunar_runtime::latency::LatencyCounter;
use std::sync::{Arc, Mutex};
use std::time::Instant;

impl Multipath {
    /// Joins paths, in order of preference where ALUA does not rank them. Call it inside an event loop, which then
    /// runs the path checkers. The sessions should have a recovery timeout of zero, so that their commands fail over
    /// at once.
    ///
    /// # Errors
    /// [`ErrorCode::IdentityMismatch`] when the paths lead to different logical units, or the logical unit has no
    /// identity.
    pub async fn join(
        lun_paths: Vec<Arc<dyn LunPath>>,
        settings: MultipathOptions,
    ) -> Result<Arc<Multipath>, Error> {
        same_unit(&lun_paths)?;
        let paths = PathSelector::new(lun_paths.len(), settings.policy);
        let (doubts, doubted): (Vec<_>, Vec<_>) = lun_paths.iter().map(|_| flume::bounded(1)).unzip();
        let counters = lun_paths.iter().map(|_| PathCounters::default()).collect();
        let joined = Arc::new(Multipath {
            lun_paths,
            paths,
            settings,
            state_changed: Event::new(),
            doubts,
            outage: Mutex::new(Some(Instant::now())),
            gives_up: false.into(),
            queued: LatencyCounter::default(),
            served: LatencyCounter::default(),
            counters,
            ranges: Arc::default(),
        });
        for (at, doubts) in doubted.into_iter().enumerate() {
            joined.set(at, joined.lun_paths[at].check().await);
            lunar_runtime::spawn(check_path(Arc::downgrade(&joined), at, doubts));
        }
        Ok(joined)
    }
}

/// Checks that all paths lead to the same logical unit. It must have an identity.
fn same_unit(lun_paths: &[Arc<dyn LunPath>]) -> Result<(), Error> {
    let wrong = |what: String, hint| Err(Error::new(ErrorCode::IdentityMismatch, what).with_hint(hint));
    let Some((first, others)) = lun_paths.split_first() else {
        return Err(Error::new(ErrorCode::InvalidArgument, "the list of paths to the logical unit is empty"));
    };
    for other in others {
        let (a, b) = (first.name(), other.name());
        if first.identity().is_empty() || other.identity().is_empty() {
            let what = format!(
                "paths {a} and {b}: the disk has no identity to compare (VPD page 83h, UUID, NGUID or EUI64)"
            );
            return wrong(what, hints::NO_IDENTITY);
        }
        let (f, o) = (first.info(), other.info());
        if first.identity() != other.identity() || f.capacity != o.capacity {
            return wrong(format!("paths {a} and {b} lead to different logical units"), hints::PATHS_DIFFER);
        }
    }
    Ok(())
}
