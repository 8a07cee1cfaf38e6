//! Ends commands of lost sessions, which the target could execute after newer ones. A login of the same nexus ends
//! them (RFC 7143 section 6.3.5). So does LOGICAL UNIT RESET through any nexus (SAM-5 section 7.7).

use crate::session::is_done;
use crate::{Error, Session, Url, open};
use lunar_wire::scsi::TaskManagementFunction;
use lunar_wire::scsi::lun::shown;
use std::time::Instant;

/// The initiator port of a lost session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OldInitiatorPort<'a> {
    /// The initiator name. None means the name that the URL gives.
    pub initiator: Option<&'a str>,
    /// The ISID.
    pub isid: [u8; 6],
}

/// Logs in as this port, with one attempt. This ends the old commands of the nexus at the target port of the new
/// session, but at no other target port.
///
/// # Errors
/// Those of [`connect`](crate::connect).
pub async fn log_in(url: &Url, port: OldInitiatorPort<'_>) -> Result<Session, Error> {
    let mut url = url.clone();
    url.take_port(port.initiator, port.isid);
    url.timeouts_mut().login_tries = 1;
    open::connect(&url).await
}

/// Logs in as this port and logs out. Returns the name of the target port, as in
/// [`SessionInfo::target_port`](crate::SessionInfo::target_port).
///
/// # Errors
/// Those of [`log_in`].
pub async fn replace(url: &Url, port: OldInitiatorPort<'_>) -> Result<Option<String>, Error> {
    let session = log_in(url, port).await?;
    let at = session.info().target_port();
    // Without a response, the session ends with its connection. It has sent no commands.
    _ = session.close().await;
    Ok(at)
}

/// Resets a logical unit through this session, which ends the commands of all nexuses. Returns the time when the
/// request was sent, if the target has executed it. Logs the reason and any failure.
pub async fn reset(through: &Session, lun: u64, why: &str) -> Option<Instant> {
    let (path, sent) = (through.place(lun), Instant::now());
    tracing::warn!(path, "{why}: the initiator resets the logical unit");
    is_done(through.manage(TaskManagementFunction::LunReset, lun).await, &path).then_some(sent)
}

impl Session {
    /// The URL of a logical unit of this session, for messages.
    pub(crate) fn place(&self, lun: u64) -> String {
        let info = self.info();
        format!("{}://{}/{}/{}", self.transport().scheme(), info.portal, info.target, shown(lun))
    }
}
