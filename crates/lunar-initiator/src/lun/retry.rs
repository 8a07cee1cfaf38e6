//! Sends a command, with retries while the logical unit is busy or not ready.

use super::disposition::{Disposition, disposition, is_in_transition};
use crate::command::ExtendedCdb;
use crate::{Command, CommandResult, Completion, Direction, Error, ErrorCode, Session, hints};
use lunar_block::range_lock::RangeLock;
use lunar_runtime::{Buf, PipedBytes};
use lunar_wire::be;
use lunar_wire::scsi::TaskAttribute;
use lunar_wire::scsi::cdb::Cdb;
use std::time::{Duration, Instant};

/// The time limit of retries on a logical unit that is not ready.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BusyRetry {
    /// While it is busy or becoming ready.
    busy: Duration,
    /// While it is in an ALUA transition.
    transition: Duration,
}

impl BusyRetry {
    /// No retries.
    pub const NONE: BusyRetry = BusyRetry { busy: Duration::ZERO, transition: Duration::ZERO };

    /// The limits in the options of the session.
    pub fn of(session: &Session) -> BusyRetry {
        let timeouts = &session.options().timeouts;
        let transition = timeouts.transition.unwrap_or(timeouts.busy);
        BusyRetry { busy: timeouts.busy, transition }
    }

    /// The limits for reading properties: no other path can take over.
    pub fn for_inspection(session: &Session) -> BusyRetry {
        let busy = session.options().timeouts.busy;
        BusyRetry { busy, transition: busy }
    }

    fn with(self, answer: &Completion) -> Duration {
        if is_in_transition(answer) { self.transition } else { self.busy }
    }
}

/// A command that may be sent several times.
pub(super) struct Repeatable<'h> {
    pub lun: u64,
    pub cdb: Cdb,
    /// The CDB bytes after the first 16.
    pub extended_cdb: Option<Box<ExtendedCdb>>,
    /// Whether the data are Data-Out.
    pub out: bool,
    pub repeatable: bool,
    pub attribute: TaskAttribute,
    /// The range lock of a write.
    pub hold: Option<&'h RangeLock>,
}

impl Repeatable<'_> {
    fn of(command: &Command) -> Repeatable<'static> {
        Repeatable {
            lun: command.lun,
            cdb: command.cdb,
            extended_cdb: command.extended_cdb.clone(),
            out: matches!(command.data, Direction::Out(_)),
            repeatable: command.repeatable,
            attribute: command.attribute,
            hold: None,
        }
    }

    /// Builds the command from the buffer that the last attempt returned.
    fn again(&self, buf: Option<Buf>, started_at: Instant) -> Command {
        let data = match buf {
            None => Direction::None,
            Some(buf) if self.out => Direction::Out(buf),
            Some(buf) => Direction::In(buf),
        };
        let mut command = Command::new(self.lun, self.cdb, data);
        (command.started_at, command.extended_cdb) = (Some(started_at), self.extended_cdb.clone());
        (command.repeatable, command.attribute) = (self.repeatable, self.attribute);
        command.hold = self.hold.map(RangeLock::add_holder);
        command
    }
}

/// Sends a command to a block device with retries; see [`Lun::perform`].
#[inline]
pub(crate) fn perform(
    session: &Session,
    lun: u64,
    cdb: Cdb,
    data: Direction,
) -> impl Future<Output = CommandResult> {
    perform_holding(session, lun, cdb, data, None)
}

/// The same for a write with a range lock.
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
    let started_at = session.about_now();
    // Submitted before the first poll, so that the future does not contain the command.
    let sent = session.submit(command);
    async move {
        let (result, buf) = sent.await;
        if let Ok(Completion { status: 0, .. }) = result {
            return (result, buf);
        }
        // Boxed, so that the future of a successful command stays small.
        Box::pin(perform_again(session, what, started_at, result, buf)).await
    }
}

/// As [`perform`] for a read whose data may stay in a pipe, in case the first attempt succeeds.
pub(super) fn perform_piped(
    session: &Session,
    lun: u64,
    cdb: Cdb,
    buf: Buf,
) -> impl Future<Output = (CommandResult, Option<PipedBytes>)> {
    let command = Command::on_blocks(lun, cdb, Direction::In(buf));
    let (what, started_at) = (Repeatable::of(&command), session.about_now());
    let sent = session.submit(command).or_piped();
    async move {
        let ((result, buf), piped) = sent.await;
        if let Ok(Completion { status: 0, .. }) = result {
            return ((result, buf), piped);
        }
        (perform_again(session, what, started_at, result, buf).await, None)
    }
}

/// Continues [`perform`] after the response to the first attempt, which began at `started_at`.
pub(super) async fn perform_again(
    session: &Session,
    what: Repeatable<'_>,
    started_at: Instant,
    result: Result<Completion, Error>,
    buf: Option<Buf>,
) -> CommandResult {
    as_error(repeat_until_settled(session, what, (started_at, BusyRetry::of(session)), result, buf).await)
}

/// Sends a command to any device type. Retries it for the time limits in `busy`.
pub(crate) async fn perform_within(
    patience: BusyRetry,
    session: &Session,
    lun: u64,
    cdb: Cdb,
    data: Direction,
) -> CommandResult {
    as_error(send_until_settled(patience, session, Command::new(lun, cdb, data)).await)
}

/// Parameter data whose first four bytes hold the length of the list after the header.
pub(crate) struct List<C> {
    /// The CDB with this allocation length.
    pub cdb: C,
    /// The length of the header in bytes.
    pub head: u32,
}

/// The first allocation length. A longer list is read again with its own length.
const FIRST: u32 = 4096;
/// The maximum length of a list.
const LONGEST: u32 = 16 << 20;

impl<C: Fn(u32) -> Cdb> List<C> {
    /// Reads the whole list.
    ///
    /// # Errors
    /// The errors of the command.
    pub async fn read(&self, patience: BusyRetry, session: &Session, lun: u64) -> Result<Vec<u8>, Error> {
        let mut len = FIRST;
        loop {
            let data = Direction::In(Buf::zeroed(len as usize));
            let (result, buf) = perform_within(patience, session, lun, (self.cdb)(len), data).await;
            let got = result?.transferred;
            let list = buf.map(|b| b[..got.min(b.len())].to_vec()).unwrap_or_default();
            let list_len = list.get(..self.head as usize).map_or(0, be::get32);
            let whole = list_len.saturating_add(self.head).min(LONGEST);
            if whole <= len {
                return Ok(list);
            }
            len = whole;
        }
    }
}

/// Converts every outcome other than success to an error.
fn as_error((result, buf): Settled) -> CommandResult {
    (result.and_then(|(completion, refused)| refused.map_or(Ok(completion), Err)), buf)
}

/// The final response, and its error if it reports a failure.
type Settled = (Result<(Completion, Option<Error>), Error>, Option<Buf>);

/// A command that was sent again. It ends when this is dropped.
struct Repeated<'s>(&'s Session);

impl Drop for Repeated<'_> {
    fn drop(&mut self) {
        self.0.record_repeat(None);
    }
}

/// Sends a command to any device type, with retries, until there is a final response.
pub(crate) async fn send_until_settled(patience: BusyRetry, session: &Session, command: Command) -> Settled {
    let (what, started_at) = (Repeatable::of(&command), session.about_now());
    let (result, buf) = session.submit(command).await;
    repeat_until_settled(session, what, (started_at, patience), result, buf).await
}

/// The same, with the response to the first attempt, which began at `started_at`.
async fn repeat_until_settled(
    session: &Session,
    what: Repeatable<'_>,
    (started_at, patience): (Instant, BusyRetry),
    mut result: Result<Completion, Error>,
    mut buf: Option<Buf>,
) -> Settled {
    let (mut tries, answered) = (1, Instant::now());
    let operation = session.options().timeouts.operation;
    let mut repeated = None;
    loop {
        let completion = match result {
            Ok(c) if c.status == 0 => return (Ok((c, None)), buf),
            Ok(c) => c,
            Err(e) => return (Err(e), buf),
        };
        let left = operation.saturating_sub(started_at.elapsed());
        let late = |pause| answered.elapsed() >= patience.with(&completion) || left <= pause;
        match disposition(&completion, tries, what.repeatable, |sense| session.attention(what.lun, sense)) {
            Disposition::Done => return (Ok((completion, None)), buf),
            Disposition::Failed(e) => return (Ok((completion, Some(e))), buf),
            Disposition::RetryAfter(pause) if late(pause) => {
                let why = unready(&completion, "the LUN stays busy or not ready");
                return (Ok((completion, Some(why))), buf);
            }
            Disposition::Retry if left.is_zero() => {
                let why = unready(&completion, "the command did not end within the operation timeout")
                    .with_hint(hints::OPERATION_TIMEOUT);
                return (Ok((completion, Some(why))), buf);
            }
            Disposition::RetryAfter(pause) => {
                session.record_repeat(Some((what.lun, response(&completion))));
                repeated.get_or_insert_with(|| Repeated(session));
                compio::time::sleep(pause).await;
            }
            Disposition::Retry => {}
        }
        tries += 1;
        (result, buf) = session.submit(what.again(buf, started_at)).await;
    }
}

fn unready(c: &Completion, what: &str) -> Error {
    let error = Error::new(ErrorCode::TimedOut, format!("{what}: {}", response(c)));
    error.with_status(c.status).with_sense(c.sense())
}

fn response(c: &Completion) -> String {
    c.sense().map_or_else(|| format!("SCSI status {:02x}h", c.status), |s| s.to_string())
}
