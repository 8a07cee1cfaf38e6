//! Data-Out: from the command that announces it to the last byte, and the R2Ts in between.

use super::connection::{Connection, Life, Session};
use super::places::{PIECE, Places};
use super::receive::Data;
use super::task::{Aborted, Command, Receiving, Task};
use lunar_proto::transfer::{self, Incoming, Verdict};
use lunar_runtime::{Buf, Pool};
use lunar_scsi::{Answer, Failure};
use lunar_wire::iscsi::status::RejectReason;
use lunar_wire::iscsi::{Bhs, NONE, pdu};
use lunar_wire::scsi::{Sense, Status};
use std::rc::Weak;
use std::time::{Duration, Instant};

/// Parts of the time that data may take, after each of which it is looked whether some have come.
const PARTS: u32 = 6;
/// The data of a command may be missing for so many times that time, and for one more with each [`STRETCH`] of what the
/// session lacked at the first look: a few bytes now and then are no excuse.
const TIMES: u32 = 4;
const STRETCH: u64 = 1 << 20;

/// Bits of a Target Transfer Tag that name one of the open R2Ts of a task.
const INDEX_BITS: u32 = 5;

fn sense_of(failure: transfer::Failure) -> Sense {
    let (asc, ascq) = failure.additional_sense();
    Sense::new(0x0b, asc, ascq)
}

impl Session {
    /// Makes ready for a command's Data-Out.
    pub fn receive_for(
        &mut self,
        c: &Command,
        answer: &mut Option<Answer>,
        data: Data<'_>,
        in_pieces: bool,
    ) -> Receiving {
        let needed = match answer {
            Some(Ok(plan)) => plan.data_out_len(),
            Some(Err(_)) => 0,
            None => u32::MAX,
        };
        let wanted = needed.min(c.offered());
        let immediate = data.bytes().len();
        let mut incoming = Incoming::new(c.offered(), wanted, immediate as u32, c.is_final, &self.parameters);
        // What comes unasked comes to the first piece.
        let in_pieces = in_pieces && incoming.asked() <= PIECE;
        let first = if in_pieces { PIECE } else { wanted };
        let buf = self.buffer_for(data, first as usize).unwrap_or_else(|failure| {
            // What the initiator sends unasked still comes, and is dropped, before it hears of it.
            incoming.stop();
            *answer = Some(Err(failure));
            None
        });
        self.ttt_base = (self.ttt_base + 1) % (NONE >> INDEX_BITS);
        let places = Places::first(buf);
        if in_pieces {
            incoming.in_pieces(PIECE);
            incoming.allow(places.end());
        }
        let mut receiving = Receiving {
            incoming,
            places,
            wanted,
            ttt_base: self.ttt_base,
            damaged: false,
            full: false,
            moved: true,
            late: 0,
            looks: 0,
            max_looks: 0,
            asked: self.r2ts,
            in_pieces,
            is_launched: false,
            is_left: false,
        };
        // It has its first buffer.
        if immediate > 0 || self.out.mover().is_some() {
            receiving.grow(&self.pool);
        }
        receiving
    }

    fn buffer_for(&self, data: Data<'_>, wanted: usize) -> Result<Option<Buf>, Failure> {
        match data {
            _ if wanted == 0 => Ok(None),
            _ if wanted > Pool::MAX_BUFFER => Err(Sense::INVALID_FIELD_IN_CDB.into()),
            Data::Buf(b) if b.len() == wanted && b.is_pooled() => Ok(Some(b)),
            // Who only announces data has no memory for it. What a data mover asks for it fetches itself.
            data if data.bytes().is_empty() && self.out.mover().is_none() => {
                self.pool.promise(wanted).map(Some).ok_or(Status::TaskSetFull.into())
            }
            data => {
                let mut buf = self.pool.try_get(wanted).ok_or(Status::TaskSetFull)?;
                let n = data.bytes().len().min(wanted);
                buf[..n].copy_from_slice(&data.bytes()[..n]);
                Ok(Some(buf))
            }
        }
    }

    /// Asks for more of a task's data, or goes on with the task when all is here.
    pub fn progress(&mut self, itt: u32) {
        let Some(task) = self.tasks.get_mut(&itt) else { return };
        let Some(receiving) = &mut task.receiving else { return };
        if receiving.is_launched {
            return self.goes_on(itt);
        }
        if receiving.may_begin() && task.aborted.is_none() {
            receiving.is_launched = true;
            self.launch(itt, None);
            return self.ask(itt);
        }
        if !receiving.incoming.is_complete() {
            return self.ask(itt);
        }
        let failure = receiving.failure();
        let buf = task.receiving.take().and_then(|mut r| r.places.take());
        match (task.aborted, failure) {
            (Some(how), _) => self.give_up(itt, how),
            (None, Some(failure)) => self.fail(itt, failure),
            (None, None) => self.launch(itt, buf),
        }
    }

    /// Some data of a task that runs have come.
    fn goes_on(&mut self, itt: u32) {
        self.ask(itt);
        let receiving = self.tasks.get(&itt).and_then(|task| task.receiving.as_ref());
        if receiving.is_some_and(Receiving::is_news) {
            self.task_ended();
        }
    }

    /// Sends the R2Ts that are due.
    pub fn ask(&mut self, itt: u32) {
        if !std::mem::replace(&mut self.expecting, true) {
            lunar_runtime::spawn(expect_data(
                self.conn.clone(),
                self.door.setup.session.data_out_timeout / PARTS,
            ));
        }
        loop {
            let Some(Task { command, receiving: Some(r), .. }) = self.tasks.get_mut(&itt) else { return };
            let Some(next) = r.incoming.next_r2t() else { return };
            let ttt = r.ttt_base << INDEX_BITS | next.ttt_index as u32;
            self.r2ts += 1;
            r.asked = self.r2ts;
            let header = pdu::r2t(command.lun, itt, ttt, next.r2t_sn, next.offset, next.len);
            self.notice(header);
        }
    }

    /// Ends a task that was not launched.
    pub fn fail(&mut self, itt: u32, failure: Failure) {
        if let Some(task) = self.remove(itt) {
            self.failure(&task.command, failure, false);
            self.task_ended();
        }
    }

    /// Ends a task that was not launched, because it was aborted.
    pub fn give_up(&mut self, itt: u32, how: Aborted) {
        if let Some(failure) = how.answer() {
            return self.fail(itt, failure);
        }
        if self.remove(itt).is_some() {
            self.task_ended();
        }
    }

    /// Looks at the tasks that wait for data. None: there is none; else whether the data of one are late.
    fn expects_data(&mut self) -> Option<bool> {
        // What the target does not receive now cannot come.
        let is_full = self.is_full();
        let mut waiting: Vec<_> = self.tasks.values_mut().filter_map(Task::waits_for_data).collect();
        let lacks = waiting.iter().map(|(_, receiving)| u64::from(receiving.lacks())).sum();
        let mut is_slow = false;
        for (_, receiving) in &mut waiting {
            receiving.moved |= is_full;
            is_slow |= receiving.is_slow(lacks, is_full);
        }
        (!waiting.is_empty()).then(|| is_late(waiting) | is_slow)
    }

    /// A task waits for the data that was asked for by this Target Transfer Tag. One of a task that has ended is not that of
    /// the next of its tag.
    pub fn awaits(&self, itt: u32, ttt: u32) -> bool {
        let receiving = self.tasks.get(&itt).and_then(|task| task.receiving.as_ref());
        receiving.is_some_and(|r| index_of(ttt, r.ttt_base).is_some())
    }

    /// Where a large Data-Out belongs: the task's buffer and the place in it, if the segment is one that is
    /// awaited.
    pub fn landing_place(&mut self, header: &Bhs) -> Option<(Buf, usize)> {
        let task = self.tasks.get_mut(&header.itt())?;
        let base = task.receiving.as_ref()?.ttt_base;
        let receiving = task.receiving.as_mut()?;
        let index = index_of(header.word20(), base)?;
        if index.is_some() && header.lun() != task.command.lun {
            return None;
        }
        let (offset, len) = (header.word(40), header.data_len() as u32);
        if !receiving.incoming.accepts(index, header) || !receiving.claim() {
            return None;
        }
        receiving.grow(&self.pool);
        receiving.places.land(offset, len)
    }

    /// Takes a Data-Out (RFC 7143 section 11.7).
    pub fn data_out(&mut self, header: &Bhs, ahs: &[u8], data: Data<'_>, intact: bool) {
        let itt = header.itt();
        let (ttt, newest) = (header.word20(), self.ttt_base);
        let Some(Task { command, receiving: Some(r), .. }) = self.tasks.get_mut(&itt) else {
            // What was asked for before its task was aborted may still come, and harms nothing.
            if ttt == NONE || ttt >> INDEX_BITS > newest {
                self.reject(RejectReason::InvalidField, header, ahs);
            }
            return;
        };
        if let Data::Landed(buf) = data {
            if index_of(ttt, r.ttt_base).is_none() {
                // It was of another task, which ended while it was on its way, and left its tag to this one.
                return;
            }
            r.places.landed(header.word(40), buf);
            return self.data_landed(header, intact);
        }
        let index = index_of(ttt, r.ttt_base).filter(|i| i.is_none() || header.lun() == command.lun);
        let Some(index) = index else { return self.reject(RejectReason::InvalidField, header, ahs) };
        let verdict = r.incoming.data_out(index, header);
        r.moved |= has_bytes(header) && !matches!(verdict, Verdict::Reject(_));
        match verdict {
            Verdict::Accept { offset } => {
                r.claim();
                r.grow(&self.pool);
                r.places.copy(offset, data.bytes());
            }
            Verdict::Discard => {}
            Verdict::Reject(reason) => return self.reject(reason, header, ahs),
        }
        r.checked(intact);
        self.data_taken(header, ahs, intact);
    }

    /// A segment lies in its task's buffer already.
    fn data_landed(&mut self, header: &Bhs, intact: bool) {
        let Some(Task { receiving: Some(r), .. }) = self.tasks.get_mut(&header.itt()) else { return };
        if let Some(index) = index_of(header.word20(), r.ttt_base) {
            r.incoming.data_out(index, header);
            r.moved |= has_bytes(header);
        }
        r.checked(intact);
        self.data_taken(header, &[], intact);
    }

    fn data_taken(&mut self, header: &Bhs, ahs: &[u8], intact: bool) {
        if !intact {
            self.reject(RejectReason::DataDigest, header, ahs);
        }
        self.progress(header.itt());
    }
}

/// Looks at those that wait for data, with their serials, every [`PARTS`]th part of the time that they may wait. Data come in
/// the order in which they were asked for: who waits behind one that gets some is not late. One that has been asked for more
/// was getting some just then.
fn is_late(mut waiting: Vec<(u64, &mut Receiving)>) -> bool {
    waiting.sort_unstable_by_key(|(serial, receiving)| (receiving.asked, *serial));
    let (mut moves, mut late) = (false, false);
    for (_, receiving) in waiting {
        moves |= std::mem::take(&mut receiving.moved);
        receiving.late = if moves { 0 } else { receiving.late + 1 };
        late |= receiving.late >= PARTS;
    }
    late
}

/// Ends the connection of an initiator that does not send the data that it announced or was asked for. Ends when no task
/// waits for data.
async fn expect_data(conn: Weak<Connection>, part: Duration) {
    loop {
        lunar_runtime::sleep_until(Instant::now() + part).await;
        let Some(conn) = conn.upgrade() else { return };
        let mut session = conn.session.borrow_mut();
        let late = session.expects_data().filter(|_| session.life != Life::Over);
        session.expecting = late == Some(false);
        if late == Some(true) {
            session.end.get_or_insert("the initiator does not send the data of a write");
            drop(session);
            return conn.line.close();
        }
        if late.is_none() {
            return;
        }
    }
}

/// A PDU without data is no progress: it costs an initiator nothing.
fn has_bytes(header: &Bhs) -> bool {
    header.data_len() > 0
}

/// The R2T that a Target Transfer Tag names: Some(None) for unsolicited data, None for none of this task.
fn index_of(ttt: u32, base: u32) -> Option<Option<u16>> {
    if ttt == NONE {
        return Some(None);
    }
    (ttt >> INDEX_BITS == base).then_some(Some((ttt & ((1 << INDEX_BITS) - 1)) as u16))
}

impl Receiving {
    /// Why the command cannot run, or go on.
    pub fn failure(&self) -> Option<Failure> {
        match (self.damaged, self.incoming.failure()) {
            (true, _) => Some(Sense::CRC_ERROR.into()),
            (false, Some(failure)) => Some(sense_of(failure).into()),
            (false, None) => self.full.then(|| Status::TaskSetFull.into()),
        }
    }

    /// Bytes that have not come.
    fn lacks(&self) -> u32 {
        self.wanted.saturating_sub(self.incoming.arrived())
    }

    /// Its data have been missing for too long altogether. `lacks`: what the session waits for; `is_full`: the target does not
    /// receive.
    fn is_slow(&mut self, lacks: u64, is_full: bool) -> bool {
        if self.max_looks == 0 {
            let times = u64::from(TIMES) + lacks / STRETCH;
            self.max_looks = u32::try_from(times).unwrap_or(u32::MAX).saturating_mul(PARTS);
        }
        self.looks += u32::from(!is_full);
        self.looks >= self.max_looks
    }

    /// The first of its data is here: its buffer counts from now on. Without room for it all of them are dropped.
    fn claim(&mut self) -> bool {
        if !self.places.claim() {
            self.places = Places::default();
            self.full = true;
            self.incoming.stop();
        }
        !self.full
    }

    /// A digest was looked at. No piece behind damaged data is asked for.
    fn checked(&mut self, intact: bool) {
        self.damaged |= !intact;
        if self.damaged && self.in_pieces {
            self.incoming.stop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_proto::parameters::Parameters;

    fn receiving() -> Receiving {
        let incoming = Incoming::new(4096, 4096, 0, true, &Parameters::default());
        Receiving {
            incoming,
            places: Places::default(),
            wanted: 4096,
            ttt_base: 0,
            damaged: false,
            full: false,
            moved: true,
            late: 0,
            looks: 0,
            max_looks: 0,
            asked: 0,
            in_pieces: false,
            is_launched: false,
            is_left: false,
        }
    }

    /// Whether data are late, of which the older was announced first.
    fn look([older, younger]: &mut [Receiving; 2]) -> bool {
        is_late(vec![(2, younger), (1, older)])
    }

    #[test]
    fn data_are_late_after_all_parts_without_any() {
        let mut waiting = [receiving(), receiving()];
        for _ in 0..PARTS {
            assert!(!look(&mut waiting));
        }
        // Data of the younger one are no excuse for the older one.
        waiting[1].moved = true;
        assert!(look(&mut waiting));
        assert_eq!([waiting[0].late, waiting[1].late], [PARTS, 0]);
    }

    /// A byte now and then is no excuse for ever; what the target cannot receive is one.
    #[test]
    fn data_that_drip_are_late_after_all_times() {
        let mut waiting = receiving();
        for _ in 1..TIMES * PARTS {
            waiting.moved = true;
            assert!(!waiting.is_slow(4096, false) && !waiting.is_slow(4096, true));
        }
        assert!(waiting.is_slow(4096, false));
        let mut much = receiving();
        let looks = (1..).find(|_| much.is_slow(3 << 20, false));
        assert_eq!(looks, Some((TIMES + 3) * PARTS));
    }

    #[test]
    fn data_behind_data_that_come_are_not_late() {
        let mut waiting = [receiving(), receiving()];
        for _ in 0..=2 * PARTS {
            waiting[0].moved = true;
            assert!(!look(&mut waiting));
        }
    }

    /// The initiator sends what it was asked for first, of whatever write.
    #[test]
    fn older_write_waits_for_what_was_asked_for_before() {
        let mut waiting = [receiving(), receiving()];
        (waiting[0].asked, waiting[1].asked) = (9, 5);
        for _ in 0..=2 * PARTS {
            waiting[1].moved = true;
            assert!(!look(&mut waiting));
        }
        waiting[0].moved = true;
        assert!(!look(&mut waiting));
        assert_eq!(waiting[1].late, 1);
    }

    #[test]
    fn a_target_transfer_tag_names_an_r2t_of_its_task() {
        assert_eq!(index_of(NONE, 7), Some(None));
        assert_eq!(index_of(7 << INDEX_BITS | 3, 7), Some(Some(3)));
        assert_eq!(index_of(8 << INDEX_BITS | 3, 7), None);
    }
}
