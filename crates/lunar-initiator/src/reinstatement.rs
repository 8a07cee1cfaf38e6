//! Ends commands of sessions that are gone: the target may still carry them out after newer ones. A login as the same nexus
//! ends them (RFC 7143 section 6.3.5), and so does LOGICAL UNIT RESET over any nexus (SAM-5 section 7.7).

use crate::session::is_done;
use crate::{Error, Session, Url, open};
use lunar_wire::scsi::TaskManagementFunction;
use lunar_wire::scsi::lun::shown;
use std::time::Instant;

/// The initiator port of a session that is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OldInitiatorPort<'a> {
    /// The name of the initiator; None is the name that the URL gives now.
    pub initiator: Option<&'a str>,
    /// Our part of the session's identifier.
    pub isid: [u8; 6],
}

/// Logs in as this port, with one try. The target has then ended what it had of that nexus: of the port of the target that the
/// session has, and of no other.
///
/// # Errors
/// As [`connect`](crate::connect).
pub async fn log_in(url: &Url, port: OldInitiatorPort<'_>) -> Result<Session, Error> {
    let mut url = url.clone();
    url.take_port(port.initiator, port.isid);
    url.timeouts_mut().login_tries = 1;
    open::connect(&url).await
}

/// Logs in as this port and out again. Returns the port of the target, as
/// [`SessionInfo::target_port`](crate::SessionInfo::target_port) names it.
///
/// # Errors
/// As [`log_in`].
pub async fn replace(url: &Url, port: OldInitiatorPort<'_>) -> Result<Option<String>, Error> {
    let session = log_in(url, port).await?;
    let at = session.facts().target_port();
    // Without an answer it ends with its connection: it has done nothing.
    _ = session.close().await;
    Ok(at)
}

/// Resets a logical unit over this session: that ends the commands of all nexuses. When the function was sent, if the target has
/// carried it out. The log says why it is sent, and that it has failed.
pub async fn reset(through: &Session, lun: u64, why: &str) -> Option<Instant> {
    let (path, sent) = (through.place(lun), Instant::now());
    tracing::warn!(path, "{why}: the logical unit is reset");
    is_done(through.manage(TaskManagementFunction::LunReset, lun).await, &path).then_some(sent)
}

impl Session {
    /// Where a logical unit of it is, for people.
    pub(crate) fn place(&self, lun: u64) -> String {
        let facts = self.facts();
        format!("{}://{}/{}/{}", self.transport().scheme(), facts.portal, facts.target, shown(lun))
    }
}
