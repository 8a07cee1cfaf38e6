//! An NVMe namespace as the disk of an attachment.

use super::disk::path_settings;
use crate::exit::Failure;
use crate::info::namespace::MISSING;
use crate::{host_id, output};
use lunar_initiator::Error;
use lunar_initiator::multipath::PathState;
use lunar_initiator::nvme::{NvmeDisk, NvmeNamespace, NvmeUrl};
use lunar_server::Diagnostic;
use lunar_server::attached::AttachedPath;
use lunar_server::config::attachment::Attachment;
use lunar_server::folders;
use std::sync::Arc;
use std::time::Duration;

/// The fix where the target may still execute writes.
const UNFINISHED: &str = "attach the namespace again in the same way before anything else writes to it; docs/late-writes.md \
    shows which targets then end the old writes";

/// Opens the namespace of an attachment on all paths, inside an event loop. Also returns how long I/O waits while no path
/// works. `missing` receives the error of each attempt.
///
/// # Errors
/// Those of the URL, and of its last attempt.
pub async fn open(
    attachment: &Attachment,
    url: &str,
    missing: impl Fn(&Error) + Clone + 'static,
) -> Result<(NvmeDisk, Duration), Failure> {
    let url = identified(attachment, url)?;
    let timeouts = url.options()?.timeouts;
    let recovery = attachment.recovery_timeout.unwrap_or(timeouts.recovery);
    let settings = path_settings(timeouts.operation, recovery, attachment.policy.unwrap_or_default());
    Ok((NvmeDisk::open_with(&url, settings, missing).await?, recovery))
}

/// The URL with an identifier of this host, for all paths. The next process has it too, if it attaches the same disk on the
/// same paths in the same way. Only then can a target find the controllers of a killed process, and end their writes. Other
/// attachments have other ones.
fn identified(attachment: &Attachment, url: &str) -> Result<NvmeUrl, Failure> {
    let url = url.parse::<NvmeUrl>()?;
    // Two users, or two folders, may attach the same disk at the same time.
    let folder = folders::attached()?;
    let user = rustix::process::getuid().as_raw();
    let purpose = format!("attach {} {user} {} {}", attachment.how.name(), folder.display(), place(&url));
    Ok(host_id::identified(url, &purpose)?)
}

/// The namespace of a URL at all of its portals, whatever their order.
fn place(url: &NvmeUrl) -> String {
    let mut paths: Vec<String> = url.paths().iter().map(NvmeUrl::plain).collect();
    paths.sort_unstable();
    paths.join(" ")
}

/// The failure at a detach: writes of the host failed, and the target may still execute them.
pub fn unfinished(failed: u64) -> Failure {
    let writes = output::count(failed as usize, "write");
    late_writes(format!("{writes} failed; the target may still execute them")).into()
}

/// A fault that may leave writes at the target, with the fix.
pub fn late_writes(what: impl Into<String>) -> Diagnostic {
    Diagnostic::new(what, UNFINISHED)
}

/// The paths of a namespace: the controller of each.
pub fn paths(disk: &NvmeDisk) -> Vec<AttachedPath> {
    let Some(paths) = disk.paths() else {
        let namespace = disk.namespace();
        let info = namespace.controller().info();
        return vec![path(
            format!("nvme://{}/{}/{}", info.portal, info.subsystem, namespace.id()),
            Some(namespace),
            None,
        )];
    };
    let states = paths.joined().paths().into_iter().map(|(_, state, _)| state);
    let all = paths.paths().iter().zip(states);
    all.map(|(at, state)| path(at.url().plain(), at.opened(), Some(state))).collect()
}

/// Whether a path was open, and has no connection now.
pub fn is_lost(path: &AttachedPath) -> bool {
    !path.connected && path.state != MISSING
}

/// Logs the paths that are lost at a detach.
pub fn warn_of_lost_paths(disk: &NvmeDisk) {
    for path in paths(disk).iter().filter(|path| is_lost(path)) {
        tracing::warn!(
            "the path {} is lost: its target may still execute writes of the last connection; attach the namespace again in the \
             same way before anything else writes to it",
            path.url
        );
    }
}

/// The state of a path. None: the path is not open yet, or it is the only one.
fn path(url: String, opened: Option<&Arc<NvmeNamespace>>, state: Option<PathState>) -> AttachedPath {
    let Some(namespace) = opened else {
        return AttachedPath { url, state: MISSING.into(), connected: false, recoveries: 0 };
    };
    let info = namespace.controller().info();
    let alone = if info.connected { "connected" } else { "lost" };
    let state = state.map_or(alone.to_owned(), |state| state.to_string());
    AttachedPath { url, state, connected: info.connected, recoveries: info.recoveries }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_server::config::attachment::How;

    #[test]
    fn identifier_is_that_of_the_disk_and_the_kind_of_device() {
        let ids = |url: &str, name: &str, how| {
            let (urls, place, read_only) = (vec![url.to_owned()], None, false);
            let (recovery_timeout, policy) = (None, None);
            let attachment =
                Attachment { name: name.into(), urls, how, place, read_only, recovery_timeout, policy };
            let paths = identified(&attachment, url).expect("a URL").paths();
            paths.iter().map(|path| path.options().expect("options").host_id).collect::<Vec<_>>()
        };
        let id = |url: &str, name: &str, how| ids(url, name, how)[0];
        let url = "nvme://h/nqn.2026-11.org.example:a/1";
        let one = id(url, "a", How::Nbd);
        assert!(one.is_some());
        assert_eq!(id("nvme://h:4420/nqn.2026-11.org.example:a/1?queue_len=7", "b", How::Nbd), one);
        assert_ne!(id(url, "a", How::Ublk), one);
        assert_ne!(id("nvme://h/nqn.2026-11.org.example:a/2", "a", How::Nbd), one);
        let several = ids(&format!("{url}?paths=i,j"), "a", How::Nbd);
        assert_eq!(several, [several[0]; 3], "one on all paths");
        let turned = "nvme://j/nqn.2026-11.org.example:a/1?paths=h:4420,i";
        assert_eq!(ids(turned, "a", How::Nbd), several, "the order of the portals does not count");
        assert_ne!(several[0], one, "another set of portals");
    }
}
