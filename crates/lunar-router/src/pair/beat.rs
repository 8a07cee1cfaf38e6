//! Heartbeats: the peer is asked what it is, over a discovery session with one of its portals.

use super::{KEY, Pair, Spec, Told};
use lunar_initiator::{Discovery, Error, Kind, Url};
use std::sync::Weak;
use std::time::Duration;

/// Between two questions.
const PAUSE: Duration = Duration::from_millis(500);
/// An answer that takes longer is none.
const PATIENCE: Duration = Duration::from_secs(1);

/// Asks for as long as the pair is there.
pub async fn listen(pair: Weak<Pair>) {
    let (mut line, mut was) = (None, None);
    loop {
        let Some(pair) = pair.upgrade() else { return };
        let told = ask(&mut line, &pair.spec).await;
        let is = told.as_ref().ok().map(|told| (told.role, told.eligible));
        match told {
            Ok(told) => pair.heard(told),
            Err(e) => {
                line = None;
                tracing::debug!(router = pair.spec.router, peer = %pair.spec.peer, "no heartbeat: {e}");
            }
        }
        if is != was {
            was = is;
            pair.bell.notify(usize::MAX);
            (pair.changed)();
        }
        drop(pair);
        compio::time::sleep(PAUSE).await;
    }
}

async fn ask(line: &mut Option<Discovery>, spec: &Spec) -> Result<Told, Error> {
    let open = match line {
        Some(open) => open,
        None => line.insert(connect(spec).await?),
    };
    let answer = open.text(&[(KEY, &spec.router)]).await?;
    let told = answer.iter().find(|(key, _)| key == KEY).and_then(|(_, value)| Told::decode(value));
    told.ok_or_else(|| Error::new(Kind::Protocol, "the answer is no heartbeat"))
}

async fn connect(spec: &Spec) -> Result<Discovery, Error> {
    let url = Url::parse(&format!("iscsi://{}", spec.peer))
        .map_err(|e| Error::new(Kind::Invalid, e.to_string()))?;
    let mut options = url.options()?;
    let times = &mut options.timeouts;
    (times.login, times.logout, times.login_tries) = (PATIENCE, PATIENCE, 1);
    Discovery::open(spec.peer.clone(), &options).await
}
