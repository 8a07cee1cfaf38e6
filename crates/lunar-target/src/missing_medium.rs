//! Logical units whose medium is missing from its path. Initiators can continue, can only read, or find the unit not
//! ready.

use crate::LogicalUnit;
use lunar_block::{Backend, MissingMedium};
use lunar_scsi::Withheld;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// The behaviour while the file of a medium is deleted or replaced, or its device is missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnMissing {
    /// Initiators continue to read and write the open file.
    #[default]
    Continue,
    /// Initiators can read. Writes are rejected.
    ReadOnly,
    /// The logical unit is not ready.
    NotReady,
}

impl OnMissing {
    /// All settings.
    pub const ALL: [OnMissing; 3] = [OnMissing::Continue, OnMissing::ReadOnly, OnMissing::NotReady];

    /// The value in a configuration.
    pub fn name(self) -> &'static str {
        match self {
            OnMissing::Continue => "continue",
            OnMissing::ReadOnly => "read-only",
            OnMissing::NotReady => "not-ready",
        }
    }

    fn withheld(self) -> Withheld {
        match self {
            OnMissing::Continue => Withheld::Nothing,
            OnMissing::ReadOnly => Withheld::Writes,
            OnMissing::NotReady => Withheld::All,
        }
    }

    fn consequence(self) -> &'static str {
        match self {
            OnMissing::Continue => "hosts continue to read and write the open file",
            OnMissing::ReadOnly => "writes are rejected",
            OnMissing::NotReady => "the LUN is not ready",
        }
    }
}

/// Interval at which the log repeats an error.
const REPEAT_INTERVAL: Duration = Duration::from_secs(60);

/// The last known state of a medium's path.
#[derive(Default)]
pub(crate) struct MediumWatch {
    /// An index in [`OnMissing::ALL`].
    on_missing: AtomicU8,
    seen: Mutex<Option<LoggedMissing>>,
    is_checking: AtomicBool,
}

/// The right to check a medium, which only one thread has at a time.
pub(crate) struct MediumCheck<'a>(&'a AtomicBool);

impl Drop for MediumCheck<'_> {
    fn drop(&mut self) {
        self.0.store(false, SeqCst);
    }
}

struct LoggedMissing {
    /// The medium that was missing. The logical unit may have another one at the next check.
    medium: Weak<dyn Backend>,
    missing: MissingMedium,
    /// When it was logged.
    logged: Instant,
}

/// The result of a check.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum MediumChange {
    /// Nothing to log.
    None,
    /// The medium is missing. This is new, has changed, or is due to be logged again.
    Missing(MissingMedium),
    /// The same medium is at its path again.
    Back,
}

impl MediumWatch {
    fn on_missing(&self) -> OnMissing {
        OnMissing::ALL[usize::from(self.on_missing.load(Relaxed)) % OnMissing::ALL.len()]
    }

    /// Records the result of a check, and returns the change to log.
    fn change(&self, medium: &Arc<dyn Backend>, found: Option<MissingMedium>, now: Instant) -> MediumChange {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let before = seen.take().filter(|seen| std::ptr::addr_eq(seen.medium.as_ptr(), Arc::as_ptr(medium)));
        let Some(missing) = found else {
            return if before.is_some() { MediumChange::Back } else { MediumChange::None };
        };
        let is_known = |seen: &LoggedMissing| {
            seen.missing == missing && now.duration_since(seen.logged) < REPEAT_INTERVAL
        };
        if before.as_ref().is_some_and(is_known) {
            *seen = before;
            return MediumChange::None;
        }
        *seen = Some(LoggedMissing { medium: Arc::downgrade(medium), missing: missing.clone(), logged: now });
        MediumChange::Missing(missing)
    }
}

impl LogicalUnit {
    /// Sets the behaviour while the medium is missing.
    pub fn set_on_missing(&self, on_missing: OnMissing) {
        self.watch.on_missing.store(on_missing as u8, Relaxed);
    }

    /// Whether the last check did not find the medium at its path.
    pub fn is_medium_missing(&self) -> bool {
        self.watch.seen.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// The medium that the last check did not find at its path.
    pub fn missing_medium(&self) -> Option<MissingMedium> {
        self.watch
            .seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .as_ref()
            .map(|seen| seen.missing.clone())
    }

    /// Begins a check. None: the previous check is still blocked.
    pub(crate) fn begin_check(&self) -> Option<MediumCheck<'_>> {
        let is_checking = &self.watch.is_checking;
        (!is_checking.swap(true, SeqCst)).then_some(MediumCheck(is_checking))
    }

    /// Checks whether the medium is at its path, and applies the setting if it is not.
    pub(crate) fn check_path(&self, now: Instant) -> MediumChange {
        let backend = self.backend();
        let found = backend.missing();
        if !Arc::ptr_eq(&backend, &self.backend()) {
            return MediumChange::None;
        }
        let on_missing = self.watch.on_missing();
        self.lu.withhold(found.as_ref().map_or(Withheld::Nothing, |_| on_missing.withheld()));
        self.watch.change(&backend, found, now)
    }

    /// Like [`LogicalUnit::check_path`], and logs the result.
    pub(crate) fn watch_path(&self, target: &str, lun: u16) {
        let on_missing = self.watch.on_missing();
        match self.check_path(Instant::now()) {
            MediumChange::None => {}
            MediumChange::Back => {
                tracing::info!(name: "medium.back", target, lun, "LUN {lun} of {target}: its medium is at its path again")
            }
            MediumChange::Missing(missing) => {
                let lost = if missing.is_unlinked {
                    "; the data of the file is lost when this server ends"
                } else {
                    ""
                };
                let hint = missing.remedy();
                tracing::error!(name: "medium.missing", target, lun, "LUN {lun} of {target}: {missing}{lost}; hint: {hint}");
                tracing::warn!(
                    "LUN {lun} of {target}: {}: {} (on_missing_file = \"{}\")",
                    missing.path.display(),
                    on_missing.consequence(),
                    on_missing.name()
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_block::FileId;

    fn missing(there: Option<FileId>) -> MissingMedium {
        MissingMedium {
            path: "a.img".into(),
            is_device: false,
            served: Some(FileId::File(1, 2)),
            there,
            is_link: false,
            is_unlinked: true,
            name_now: None,
            descriptor: 3,
        }
    }

    #[test]
    fn missing_medium_is_logged_once_a_minute() {
        let (watch, now, disk) = (MediumWatch::default(), Instant::now(), lunar_block::nothing());
        let change = |found, now| watch.change(&disk, found, now);
        assert_eq!(change(None, now), MediumChange::None);
        let deleted = || Some(missing(None));
        assert_eq!(change(deleted(), now), MediumChange::Missing(missing(None)));
        assert_eq!(change(deleted(), now + REPEAT_INTERVAL / 2), MediumChange::None);
        assert_eq!(change(deleted(), now + REPEAT_INTERVAL), MediumChange::Missing(missing(None)));
        let replaced = || missing(Some(FileId::File(1, 3)));
        assert_eq!(change(Some(replaced()), now + REPEAT_INTERVAL), MediumChange::Missing(replaced()));
        assert_eq!(change(None, now + REPEAT_INTERVAL), MediumChange::Back);
        assert_eq!(change(None, now + REPEAT_INTERVAL), MediumChange::None);
    }

    #[test]
    fn other_medium_does_not_count_as_returned() {
        let (watch, now) = (MediumWatch::default(), Instant::now());
        let [one, other] = [(); 2].map(|()| lunar_block::nothing());
        assert_eq!(watch.change(&one, Some(missing(None)), now), MediumChange::Missing(missing(None)));
        assert_eq!(watch.change(&other, None, now), MediumChange::None);
        assert_eq!(watch.change(&other, Some(missing(None)), now), MediumChange::Missing(missing(None)));
        assert_eq!(watch.change(&other, None, now), MediumChange::Back);
    }

    #[test]
    fn on_missing_settings_have_name_and_effect() {
        let watch = MediumWatch::default();
        for (at, (name, withheld)) in
            [("continue", Withheld::Nothing), ("read-only", Withheld::Writes), ("not-ready", Withheld::All)]
                .into_iter()
                .enumerate()
        {
            watch.on_missing.store(at as u8, Relaxed);
            assert_eq!((watch.on_missing().name(), watch.on_missing().withheld()), (name, withheld));
        }
    }
}
