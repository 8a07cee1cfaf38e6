//! Sends a command as a host does: again while the logical unit is not ready for it.

use super::verdict::{Verdict, is_in_transition, judge};
use crate::command::is_repeatable;
use crate::{Command, Completion, Direction, Error, Finished, Kind, Session};
use net::Buf;
use std::time::{Duration, Instant};
use wire::scsi::cdb::Cdb;

/// How long a logical unit that is not ready is asked again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// It is busy, or becoming ready.
    busy: Duration,
    /// It is between two access states (ALUA).
    transition: Duration,
}

impl Patience {
    /// Its first answer counts.
    pub const NONE: Patience = Patience { busy: Duration::ZERO, transition: Duration::ZERO };

    /// As the session was opened.
    pub fn of(session: &Session) -> Patience {
        let timeouts = &session.options().timeouts;
        let transition = timeouts.transition.unwrap_or(timeouts.busy);
        Patience { busy: timeouts.busy, transition }
    }

    /// To learn what it is: no other path can tell that of this one.
    pub fn to_look(session: &Session) -> Patience {
        let busy = session.options().timeouts.busy;
        Patience { busy, transition: busy }
    }

    fn with(self, answer: &Completion) -> Duration {
        if is_in_transition(answer) { self.transition } else { self.busy }
    }
}

/// Sends a command as a host does; see [`Lun::perform`].
#[inline]
pub(crate) fn perform(
    session: &Session,
    lun: u64,
    cdb: Cdb,
    data: Direction,
) -> impl Future<Output = Finished> {
    let out = matches!(data, Direction::Out(_));
    let since = session.about_now();
    // Sent before anybody waits: the future holds what it waits for, not what it was made of.
    let sent = session.submit(Command::new(lun, cdb, data));
    async move {
        let (result, buf) = sent.await;
        if let Ok(Completion { status: 0, .. }) = result {
            return (result, buf);
        }
        // Boxed, so that a success carries none of it about.
        Box::pin(perform_again(session, (lun, cdb, out), since, result, buf)).await
    }
}

/// What [`perform`] does once there is an answer to the first try, which began at `since`.
pub(super) async fn perform_again(
    session: &Session,
    what: (u64, Cdb, bool),
    since: Instant,
    result: Result<Completion, Error>,
    buf: Option<Buf>,
) -> Finished {
    finished(resettle(session, what, (since, Patience::of(session)), result, buf).await)
}

/// The same as [`perform`] for who has more patience, or less.
pub(crate) async fn perform_within(
    patience: Patience,
    session: &Session,
    lun: u64,
    cdb: Cdb,
    data: Direction,
) -> Finished {
    finished(settle_within(patience, session, lun, cdb, data).await)
}

fn finished((result, buf): Settled) -> Finished {
    (result.and_then(|(completion, refused)| refused.map_or(Ok(completion), Err)), buf)
}

/// The answer that stays, and what a host makes of it when it is no success.
type Settled = (Result<(Completion, Option<Error>), Error>, Option<Buf>);

/// Sends a command until it has an answer that stays.
pub(crate) async fn settle(session: &Session, lun: u64, cdb: Cdb, data: Direction) -> Settled {
    settle_within(Patience::of(session), session, lun, cdb, data).await
}

async fn settle_within(
    patience: Patience,
    session: &Session,
    lun: u64,
    cdb: Cdb,
    data: Direction,
) -> Settled {
    let out = matches!(data, Direction::Out(_));
    let since = session.about_now();
    let (result, buf) = session.submit(Command::new(lun, cdb, data)).await;
    resettle(session, (lun, cdb, out), (since, patience), result, buf).await
}

/// The same, with the answer to the first try, which began at `since`.
async fn resettle(
    session: &Session,
    (lun, cdb, out): (u64, Cdb, bool),
    (since, patience): (Instant, Patience),
    mut result: Result<Completion, Error>,
    mut buf: Option<Buf>,
) -> Settled {
    let (mut tries, answered) = (1, Instant::now());
    let operation = session.options().timeouts.operation;
    loop {
        let completion = match result {
            Ok(c) if c.status == 0 => return (Ok((c, None)), buf),
            Ok(c) => c,
            Err(e) => return (Err(e), buf),
        };
        let left = operation.saturating_sub(since.elapsed());
        let late = |pause| answered.elapsed() >= patience.with(&completion) || left <= pause;
        match judge(&completion, tries, is_repeatable(&cdb), |sense| session.attention(lun, sense)) {
            Verdict::Done => return (Ok((completion, None)), buf),
            Verdict::Failed(e) => return (Ok((completion, Some(e))), buf),
            Verdict::Later(pause) if late(pause) => {
                let why = unready(&completion, "it stays busy or not ready");
                return (Ok((completion, Some(why))), buf);
            }
            Verdict::Again if left.is_zero() => {
                let why = unready(&completion, "it did not end in time");
                return (Ok((completion, Some(why))), buf);
            }
            Verdict::Later(pause) => compio::time::sleep(pause).await,
            Verdict::Again => {}
        }
        tries += 1;
        let data = match buf {
            None => Direction::None,
            Some(buf) if out => Direction::Out(buf),
            Some(buf) => Direction::In(buf),
        };
        let again = Command { since: Some(since), ..Command::new(lun, cdb, data) };
        (result, buf) = session.submit(again).await;
    }
}

fn unready(c: &Completion, what: &str) -> Error {
    let why = c.sense().map_or_else(|| format!("SCSI status {:02x}", c.status), |s| s.to_string());
    let error = Error::new(Kind::TimedOut, format!("{what}: {why}"));
    error.with_status(c.status).with_sense(c.sense())
}
