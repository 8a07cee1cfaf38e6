//! Sends a command as a host does: again while the logical unit is not ready for it.

use super::disposition::{Disposition, disposition, is_in_transition};
use crate::command::Rest;
use crate::{Command, CommandResult, Completion, Direction, Error, ErrorCode, Session, hints};
use lunar_block::range_lock::RangeLock;
use lunar_runtime::Buf;
use lunar_wire::be;
use lunar_wire::scsi::TaskAttribute;
use lunar_wire::scsi::cdb::Cdb;
use std::time::{Duration, Instant};

/// How long a logical unit that is not ready is asked again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BusyRetry {
    /// It is busy, or becoming ready.
    busy: Duration,
    /// It is between two access states (ALUA).
    transition: Duration,
}

impl BusyRetry {
    /// Its first answer counts.
    pub const NONE: BusyRetry = BusyRetry { busy: Duration::ZERO, transition: Duration::ZERO };

    /// As the session was opened.
    pub fn of(session: &Session) -> BusyRetry {
        let timeouts = &session.options().timeouts;
        let transition = timeouts.transition.unwrap_or(timeouts.busy);
        BusyRetry { busy: timeouts.busy, transition }
    }

    /// To read what it is: no other path can answer for this one.
    pub fn for_inspection(session: &Session) -> BusyRetry {
        let busy = session.options().timeouts.busy;
        BusyRetry { busy, transition: busy }
    }

    fn with(self, answer: &Completion) -> Duration {
        if is_in_transition(answer) { self.transition } else { self.busy }
    }
}

/// What is sent, and sent again.
pub(super) struct Repeatable<'h> {
    pub lun: u64,
    pub cdb: Cdb,
    /// Of a longer CDB.
    pub rest: Option<Box<Rest>>,
    /// Its data are Data-Out.
    pub out: bool,
    pub repeatable: bool,
    pub attribute: TaskAttribute,
    /// Of a write: the bytes that no other command may write meanwhile.
    pub hold: Option<&'h RangeLock>,
}

impl Repeatable<'_> {
    fn of(command: &Command) -> Repeatable<'static> {
        Repeatable {
            lun: command.lun,
            cdb: command.cdb,
            rest: command.rest.clone(),
            out: matches!(command.data, Direction::Out(_)),
            repeatable: command.repeatable,
            attribute: command.attribute,
            hold: None,
        }
    }

    /// With the buffer that the try before gave back.
    fn again(&self, buf: Option<Buf>, since: Instant) -> Command {
        let data = match buf {
            None => Direction::None,
            Some(buf) if self.out => Direction::Out(buf),
            Some(buf) => Direction::In(buf),
        };
        let mut command = Command::new(self.lun, self.cdb, data);
        (command.since, command.rest) = (Some(since), self.rest.clone());
        (command.repeatable, command.attribute) = (self.repeatable, self.attribute);
        command.hold = self.hold.map(RangeLock::add_holder);
        command
    }
}

/// Sends a command of a logical unit with blocks as a host does; see [`Lun::perform`].
#[inline]
pub(crate) fn perform(
    session: &Session,
    lun: u64,
    cdb: Cdb,
    data: Direction,
) -> impl Future<Output = CommandResult> {
    perform_holding(session, lun, cdb, data, None)
}

/// The same of what writes bytes that are held.
#[inline]
pub(super) fn perform_holding<'a>(
    session: &'a Session,
    lun: u64,
    cdb: Cdb,
    data: Direction,
    hold: Option<&'a RangeLock>,
) -> impl Future<Output = CommandResult> + use<'a> {
    let mut command = Command::on_blocks(lun, cdb, data);
    command.hold = hold.map(RangeLock::add_holder);
    let what = Repeatable { hold, ..Repeatable::of(&command) };
    let since = session.about_now();
    // Sent before anybody waits: the future holds what it waits for, not what it was made of.
    let sent = session.submit(command);
    async move {
        let (result, buf) = sent.await;
        if let Ok(Completion { status: 0, .. }) = result {
            return (result, buf);
        }
        // Boxed, so that a success carries none of it about.
        Box::pin(perform_again(session, what, since, result, buf)).await
    }
}

/// What [`perform`] does once there is an answer to the first try, which began at `since`.
pub(super) async fn perform_again(
    session: &Session,
    what: Repeatable<'_>,
    since: Instant,
    result: Result<Completion, Error>,
    buf: Option<Buf>,
) -> CommandResult {
    as_error(repeat_until_settled(session, what, (since, BusyRetry::of(session)), result, buf).await)
}

/// Sends a command to any kind of device, and retries it while it is busy as `busy` says.
pub(crate) async fn perform_within(
    patience: BusyRetry,
    session: &Session,
    lun: u64,
    cdb: Cdb,
    data: Direction,
) -> CommandResult {
    as_error(send_until_settled(patience, session, Command::new(lun, cdb, data)).await)
}

/// A list of parameter data whose first four bytes say how many follow the head.
pub(crate) struct List<C> {
    /// Asks for so many bytes of it.
    pub cdb: C,
    /// Bytes of its head.
    pub head: u32,
}

/// Bytes of a list that are asked for first; a longer one is asked for again.
const FIRST: u32 = 4096;
/// The longest that is taken.
const LONGEST: u32 = 16 << 20;

impl<C: Fn(u32) -> Cdb> List<C> {
    /// The whole of it.
    ///
    /// # Errors
    /// Those of the command.
    pub async fn read(&self, patience: BusyRetry, session: &Session, lun: u64) -> Result<Vec<u8>, Error> {
        let mut len = FIRST;
        loop {
            let data = Direction::In(Buf::zeroed(len as usize));
            let (result, buf) = perform_within(patience, session, lun, (self.cdb)(len), data).await;
            let got = result?.transferred;
            let list = buf.map(|b| b[..got.min(b.len())].to_vec()).unwrap_or_default();
            let told = list.get(..self.head as usize).map_or(0, be::get32);
            let whole = told.saturating_add(self.head).min(LONGEST);
            if whole <= len {
                return Ok(list);
            }
            len = whole;
        }
    }
}

/// What is no success is an error.
fn as_error((result, buf): Settled) -> CommandResult {
    (result.and_then(|(completion, refused)| refused.map_or(Ok(completion), Err)), buf)
}

/// The answer that stays, and what a host makes of it when it is no success.
type Settled = (Result<(Completion, Option<Error>), Error>, Option<Buf>);

/// Sends a command to whatever kind of device until it has an answer that stays.
pub(crate) async fn send_until_settled(patience: BusyRetry, session: &Session, command: Command) -> Settled {
    let (what, since) = (Repeatable::of(&command), session.about_now());
    let (result, buf) = session.submit(command).await;
    repeat_until_settled(session, what, (since, patience), result, buf).await
}

/// The same, with the answer to the first try, which began at `since`.
async fn repeat_until_settled(
    session: &Session,
    what: Repeatable<'_>,
    (since, patience): (Instant, BusyRetry),
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
        match disposition(&completion, tries, what.repeatable, |sense| session.attention(what.lun, sense)) {
            Disposition::Done => return (Ok((completion, None)), buf),
            Disposition::Failed(e) => return (Ok((completion, Some(e))), buf),
            Disposition::RetryAfter(pause) if late(pause) => {
                let why = unready(&completion, "it stays busy or not ready");
                return (Ok((completion, Some(why))), buf);
            }
            Disposition::Retry if left.is_zero() => {
                let why = unready(&completion, "it did not end in time").with_hint(hints::OPERATION_TIMEOUT);
                return (Ok((completion, Some(why))), buf);
            }
            Disposition::RetryAfter(pause) => compio::time::sleep(pause).await,
            Disposition::Retry => {}
        }
        tries += 1;
        (result, buf) = session.submit(what.again(buf, since)).await;
    }
}

fn unready(c: &Completion, what: &str) -> Error {
    let why = c.sense().map_or_else(|| format!("SCSI status {:02x}", c.status), |s| s.to_string());
    let error = Error::new(ErrorCode::TimedOut, format!("{what}: {why}"));
    error.with_status(c.status).with_sense(c.sense())
}
