//! Log lines about failed accesses to the medium of a logical unit.

use lunar_runtime::{LogRateLimit, OncePerMinute, error};
use std::io::{self, ErrorKind};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// The failures of one logical unit.
#[derive(Default)]
pub(crate) struct IoFailures {
    /// The target and the LUN; None: no configuration in force has the logical unit yet.
    place: Mutex<Option<(String, u16)>>,
    any: LogRateLimit,
    /// Without room for data, every write fails alike until an administrator acts.
    no_room: OncePerMinute,
}

impl IoFailures {
    /// Sets the target and the LUN for the lines.
    pub fn set_place(&self, target: &str, lun: u16) {
        *self.place.lock().unwrap_or_else(PoisonError::into_inner) = Some((target.to_owned(), lun));
    }

    /// Some if a line may be logged now, with the number of lines suppressed since the last one, if any.
    pub fn may(&self, e: &io::Error, now: Instant) -> Option<Option<u64>> {
        if has_no_room(e) { self.no_room.may(now) } else { self.any.may(now) }
    }

    /// The line for a failure. `medium`: its path or kind.
    pub fn line(&self, e: &io::Error, medium: Option<&str>) -> String {
        let place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        let lun = place.as_ref().map_or_else(|| "a LUN".into(), |(name, lun)| format!("LUN {lun} of {name}"));
        format!("{lun}: access to the medium failed: {}; hint: {}", error::text(e), hint(e, medium))
    }
}

fn has_no_room(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge)
}

/// The hint for an image of RBD.
fn rbd_hint(e: &io::Error) -> &'static str {
    match e.kind() {
        ErrorKind::StorageFull => "free space in the pool, or add OSDs; see: ceph df",
        ErrorKind::QuotaExceeded => {
            "raise the quota of the pool (ceph osd pool set-quota), or free space in it"
        }
        ErrorKind::PermissionDenied => "check the rights of the user; see: ceph auth get client.USER",
        ErrorKind::NotFound => "remove the LUN, or restore the image and restart the server",
        _ => "check the cluster; see: ceph health detail",
    }
}

fn hint(e: &io::Error, medium: Option<&str>) -> String {
    if medium.is_some_and(|medium| medium.starts_with(lunar_block::RBD_PREFIX)) {
        return rbd_hint(e).into();
    }
    let medium_name = medium.unwrap_or("the medium");
    match e.kind() {
        ErrorKind::StorageFull => format!("free space in the file system of {medium_name}"),
        ErrorKind::QuotaExceeded => "raise the disk quota of the server's user, or free space in it".into(),
        ErrorKind::FileTooLarge => {
            "raise the server's limit on file sizes (ulimit -f), or move the medium to another file system"
                .into()
        }
        ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied => {
            format!("make {medium_name} writable for the server's user")
        }
        _ => match (error::hint(e), medium) {
            (Some(hint), _) => hint.to_string(),
            (None, Some(_)) => "read the system log, and check the disk".into(),
            (None, None) => "check the storage behind the LUN, and the path to it".into(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server_state::ServerState;
    use crate::test_target::{NAME, config};
    use std::time::Duration;

    const ENOSPC: i32 = 28;
    const EIO: i32 = 5;

    #[test]
    fn full_file_system_is_logged_with_lun_and_hint() {
        let state = ServerState::new(config(), std::sync::Arc::default());
        let unit = &state.config().targets[NAME].luns[&1];
        let line = unit.io_failures.line(&io::Error::from_raw_os_error(ENOSPC), Some("/srv/disk.img"));
        let wanted = "LUN 1 of iqn.2026-11.org.example:disk: access to the medium failed: no space left on device; \
                      hint: free space in the file system of /srv/disk.img";
        assert_eq!(line, wanted);
    }

    #[test]
    fn hint_for_an_image_names_its_cluster() {
        for (errno, expected) in [
            (ENOSPC, "ceph df"),
            (122, "the quota of the pool"),
            (1, "ceph auth get"),
            (2, "restore the image"),
            (EIO, "ceph health detail"),
        ] {
            let hint = hint(&io::Error::from_raw_os_error(errno), Some("rbd:rbd/disk"));
            assert!(hint.contains(expected), "{hint}");
        }
    }

    #[test]
    fn full_file_system_is_logged_once_a_minute() {
        let (failures, start) = (IoFailures::default(), Instant::now());
        let may =
            |errno, s| failures.may(&io::Error::from_raw_os_error(errno), start + Duration::from_secs(s));
        assert_eq!(may(ENOSPC, 0), Some(None));
        assert!((1..60).all(|s| may(ENOSPC, s).is_none()));
        assert_eq!(may(EIO, 59), Some(None), "another failure");
        assert_eq!(may(ENOSPC, 60), Some(Some(59)));
    }
}
