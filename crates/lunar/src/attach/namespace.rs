//! An NVMe namespace as the disk of an attachment.

use super::disk::OPERATION_MARGIN;
use crate::exit::{Failure, invalid};
use crate::{host_id, output};
use lunar_initiator::nvme::{self, NvmeNamespace, NvmeUrl};
use lunar_initiator::{Error, with_retry};
use lunar_server::Diagnostic;
use lunar_server::attached::AttachedPath;
use lunar_server::config::attachment::Attachment;
use lunar_server::folders;
use std::sync::Arc;
use std::time::Duration;

/// Checks the URL of a namespace before it is attached.
///
/// # Errors
/// The URL is invalid, or has several paths.
pub fn check(text: &str) -> Result<(), Failure> {
    let url: NvmeUrl = text.parse()?;
    if url.paths().len() > 1 {
        let what = format!("{}: an attached namespace has one path, so `paths=` does not apply", url.plain());
        return Err(invalid(Diagnostic::new(what, "remove `paths=` from the URL")));
    }
    Ok(())
}

/// Opens the namespace of an attachment, inside an event loop. Also returns how long I/O waits for a lost connection.
/// `missing` receives the error of each attempt.
///
/// # Errors
/// Those of the URL, and of its last attempt.
pub async fn open(
    attachment: &Attachment,
    url: &str,
    missing: impl Fn(&Error),
) -> Result<(Arc<NvmeNamespace>, Duration), Failure> {
    let url = identified(attachment, url)?;
    let mut options = url.options()?;
    let timeouts = &mut options.timeouts;
    let tries = std::mem::replace(&mut timeouts.login_tries, 1);
    let recovery = attachment.recovery_timeout.unwrap_or(timeouts.recovery);
    timeouts.recovery = recovery;
    timeouts.operation = timeouts.operation.max(recovery.saturating_add(OPERATION_MARGIN));
    let namespace = with_retry(tries, missing, async || nvme::open_with(&url, options.clone()).await).await?;
    Ok((namespace, recovery))
}

/// The URL with an identifier of this host that the next process has too, if it attaches the same disk in the same way. Only
/// then can a target find the controller of a killed process, and end its writes. Other attachments have other ones.
fn identified(attachment: &Attachment, url: &str) -> Result<NvmeUrl, Failure> {
    let url = url.parse::<NvmeUrl>()?;
    // Two users, or two folders, may attach the same disk at the same time.
    let folder = folders::attached()?;
    let user = rustix::process::getuid().as_raw();
    let purpose = format!("attach {} {user} {} {}", attachment.how.name(), folder.display(), url.plain());
    Ok(host_id::identified(url, &purpose)?)
}

/// The failure at a detach: writes of the host failed, and the target may still execute them.
pub fn unfinished(failed: u64) -> Failure {
    let writes = output::count(failed as usize, "write");
    Diagnostic::new(
        format!("{writes} failed; the target may still execute them"),
        "attach the namespace again in the same way before anything else writes to it; docs/late-writes.md shows which targets \
         then end the old writes",
    )
    .into()
}

/// The only path of a namespace: its controller.
pub fn path(namespace: &NvmeNamespace) -> AttachedPath {
    let info = namespace.controller().info();
    let state = if info.connected { "connected" } else { "lost" };
    let url = format!("nvme://{}/{}/{}", info.portal, info.subsystem, namespace.id());
    AttachedPath { url, state: state.into(), connected: info.connected, recoveries: info.recoveries }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_server::config::attachment::How;

    #[test]
    fn several_paths_are_refused() {
        let url = "nvme://h/nqn.2026-11.org.example:a/1";
        assert!(check(url).is_ok());
        let refused = check(&format!("{url}?paths=i")).expect_err("two paths");
        assert!(refused.problems[0].what.contains("`paths=` does not apply"), "{refused:?}");
        assert!(check("nvme://").is_err());
    }

    #[test]
    fn identifier_is_that_of_the_disk_and_the_kind_of_device() {
        let id = |url: &str, name: &str, how| {
            let (urls, place, read_only) = (vec![url.to_owned()], None, false);
            let (recovery_timeout, policy) = (None, None);
            let attachment =
                Attachment { name: name.into(), urls, how, place, read_only, recovery_timeout, policy };
            identified(&attachment, url).and_then(|url| Ok(url.options()?)).expect("a URL").host_id
        };
        let url = "nvme://h/nqn.2026-11.org.example:a/1";
        let one = id(url, "a", How::Nbd);
        assert!(one.is_some());
        assert_eq!(id("nvme://h:4420/nqn.2026-11.org.example:a/1?queue_len=7", "b", How::Nbd), one);
        assert_ne!(id(url, "a", How::Ublk), one);
        assert_ne!(id("nvme://h/nqn.2026-11.org.example:a/2", "a", How::Nbd), one);
    }
}
