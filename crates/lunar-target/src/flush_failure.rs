//! The flush of all media when the server stops.

use crate::config::TargetConfig;
use std::io;

/// A medium that could not be flushed when the server stopped.
#[derive(Debug)]
pub struct FlushFailure {
    /// The target and the LUN; None: the event loop that flushes ended.
    pub lun: Option<(String, u16)>,
    /// The failure.
    pub error: io::Error,
}

impl FlushFailure {
    pub(crate) fn event_loop_ended() -> FlushFailure {
        FlushFailure { lun: None, error: io::Error::other("the thread of an event loop ended") }
    }
}

/// Flushes every medium, or those of one target.
///
/// # Errors
/// The media that could not be flushed. A medium whose completed writes are stable is not among them.
pub(crate) async fn flush_all(config: &TargetConfig, only: Option<&str>) -> Result<(), Vec<FlushFailure>> {
    let mut failures = Vec::new();
    let targets = config.targets.iter().filter(|(name, _)| only.is_none_or(|only| only == *name));
    let all = targets.flat_map(|(name, t)| t.luns.iter().map(move |(lun, u)| (name, *lun, u)));
    for (name, lun, unit) in all {
        let backend = unit.backend();
        if let Err(error) = backend.flush().await
            && !backend.is_unwritten()
            && !backend.info().write_through
        {
            tracing::error!(name: "medium.error", %error, "cannot flush the medium of LUN {lun} of {name}");
            failures.push(FlushFailure { lun: Some((name.clone(), lun)), error });
        }
    }
    if failures.is_empty() { Ok(()) } else { Err(failures) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LogicalUnit;
    use crate::test_target::{NAME, config, on_core};
    use lunar_block::filter::{self, FilterOp};
    use std::sync::Arc;

    #[test]
    fn failed_flush_names_target_and_lun() {
        on_core(|| async {
            let mut config = config();
            let luns = &mut config.targets.get_mut(NAME).expect("the target").luns;
            let good = luns[&1].clone();
            let failing = filter::error(good.backend(), FilterOp::Flush, 1.0, Some(1));
            luns.insert(1, Arc::new(LogicalUnit::new(good.lu.clone(), failing, None)));
            let failures = flush_all(&config, None).await.expect_err("a flush fails");
            let luns: Vec<_> = failures.into_iter().map(|failure| failure.lun).collect();
            assert_eq!(luns, [Some((NAME.to_owned(), 1))]);
        });
    }
}
