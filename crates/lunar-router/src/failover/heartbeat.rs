//! Heartbeats: a discovery session with one of the peer's portals requests the peer's status.

use super::{KEY, Pair, PairSpec, PeerStatus};
use lunar_initiator::{Discovery, Error, ErrorCode, Url};
use std::sync::Weak;
use std::time::Duration;

/// The interval of requests.
const PAUSE: Duration = Duration::from_millis(500);
/// The time limit of a response.
const PATIENCE: Duration = Duration::from_secs(1);

/// Requests the status while the pair exists.
pub async fn listen(pair: Weak<Pair>) {
    let (mut session, mut was) = (None, None);
    loop {
        let Some(pair) = pair.upgrade() else { return };
        let status = ask(&mut session, &pair.spec).await;
        let is = status.as_ref().ok().map(|status| (status.role, status.eligible));
        match status {
            Ok(status) => pair.heard(status),
            Err(e) => {
                session = None;
                tracing::debug!(router = pair.spec.router, peer = %pair.spec.peer, "no heartbeat of the peer: {e}");
            }
        }
        if is != was {
            was = is;
            pair.notifier.notify(usize::MAX);
            (pair.changed)();
        }
        drop(pair);
        compio::time::sleep(PAUSE).await;
    }
}

async fn ask(session: &mut Option<Discovery>, spec: &PairSpec) -> Result<PeerStatus, Error> {
    let open = match session {
        Some(open) => open,
        None => session.insert(connect(spec).await?),
    };
    let answer = open.text(&[(KEY, &spec.router)]).await?;
    let status = answer.iter().find(|(key, _)| key == KEY).and_then(|(_, value)| PeerStatus::decode(value));
    status.ok_or_else(|| {
        Error::new(ErrorCode::ProtocolError, "the peer router answered with no valid heartbeat")
    })
}

async fn connect(spec: &PairSpec) -> Result<Discovery, Error> {
    let url = Url::parse(&format!("iscsi://{}", spec.peer))
        .map_err(|e| Error::new(ErrorCode::InvalidArgument, e.to_string()))?;
    let mut options = url.options()?;
    let times = &mut options.timeouts;
    (times.login, times.logout, times.login_tries) = (PATIENCE, PATIENCE, 1);
    Discovery::open(spec.peer.clone(), &options).await
}
