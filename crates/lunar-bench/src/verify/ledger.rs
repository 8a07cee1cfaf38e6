//! What every unit of a target must hold: the last generation that was acknowledged, or one begun after it.

use super::journal::{JournalError, JournalHeader, JournalRecord, VerifyJournal, WriteEvent};
use super::unit::{LONGEST, SHORTEST, Stamp, UnitContent, parse_unit};
use std::collections::BTreeMap;
use std::io::Read;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Units that are kept account of, at most: with eight bytes for each, 2 GiB of memory.
pub const MAX_UNITS: u64 = 1 << 28;

/// What is known of a unit: the generation of the last acknowledged write, and of the last one begun.
type Generations = [u32; 2];

/// What was found when units were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifyCounts {
    /// Units that hold what was acknowledged.
    pub sound: u64,
    /// Units with a write that was begun and never acknowledged: they hold what was there before, or that write.
    pub unsure: u64,
    /// Of those, units that are part of the one and part of the other.
    pub torn: u64,
}

/// The account of one target. Sessions on several cores share it.
pub struct WriteLedger {
    header: JournalHeader,
    book: Mutex<LedgerState>,
}

struct LedgerState {
    /// For each unit, from the first byte that is used.
    known: Vec<Generations>,
    /// Units that a command is at: first, and behind the last.
    busy: BTreeMap<u64, u64>,
    /// Where reading back goes on.
    cursor: u64,
    counts: VerifyCounts,
    journal: Option<VerifyJournal>,
}

/// The right to be at some units, until it is dropped. No other command is there at the same time.
pub(crate) struct UnitClaim {
    ledger: Arc<WriteLedger>,
    /// From the first that is used.
    units: Range<u64>,
    /// That of a write that was begun.
    generation: u32,
}

impl WriteLedger {
    /// Of nothing yet.
    ///
    /// # Errors
    /// In words, when units and span cannot be kept account of.
    pub(crate) fn new(
        header: JournalHeader,
        journal: Option<VerifyJournal>,
    ) -> Result<WriteLedger, JournalError> {
        let unit = u64::from(header.unit);
        if !(SHORTEST..=LONGEST).contains(&unit) || !unit.is_power_of_two() {
            return Err(format!("blocks of {unit} bytes cannot be verified"));
        }
        if !header.first.is_multiple_of(unit) || header.first.checked_add(header.span).is_none() {
            return Err(format!("byte {} is not the first of a block of {unit} bytes", header.first));
        }
        let units = header.span / unit;
        if units > MAX_UNITS {
            return Err(format!("{units} blocks of {unit} bytes are more than {MAX_UNITS}"));
        }
        let known = vec![[0; 2]; units as usize];
        let book =
            LedgerState { known, busy: BTreeMap::new(), cursor: 0, counts: VerifyCounts::default(), journal };
        Ok(WriteLedger { header, book: Mutex::new(book) })
    }

    /// From a file that a run left behind; besides, how many bytes of it are whole records.
    ///
    /// # Errors
    /// In words, when it is no such file, or damaged elsewhere than in its last record.
    pub fn read(from: &mut impl Read) -> Result<(WriteLedger, u64), JournalError> {
        let ledger = WriteLedger::new(JournalHeader::read(from)?, None)?;
        let mut book = ledger.book();
        let good = super::journal::replay(from, |record| book.apply(&ledger.header, record))?;
        drop(book);
        Ok((ledger, good))
    }

    /// From now on what happens is written there.
    pub(crate) fn set_journal(&self, journal: VerifyJournal) {
        self.book().journal = Some(journal);
    }

    /// What it is about.
    pub(crate) fn header(&self) -> &JournalHeader {
        &self.header
    }

    /// Bytes of units that were written, or may have been.
    pub fn known_bytes(&self) -> u64 {
        let units = self.book().known.iter().filter(|known| known[1] > 0).count();
        units as u64 * u64::from(self.header.unit)
    }

    /// What was found since [`WriteLedger::rewind`].
    pub(crate) fn counts(&self) -> VerifyCounts {
        self.book().counts
    }

    /// Reading back begins at the first unit, and nothing was found yet.
    pub(crate) fn rewind(&self) {
        let mut book = self.book();
        (book.cursor, book.counts) = (0, VerifyCounts::default());
    }

    /// The right to be at these bytes of the disk, if no other command is; they are whole units.
    pub(crate) fn claim(self: &Arc<Self>, offset: u64, len: u32) -> Option<UnitClaim> {
        let unit = u64::from(self.header.unit);
        let first = (offset - self.header.first) / unit;
        let units = first..first + u64::from(len) / unit;
        self.book().occupy(&units).then(|| UnitClaim { ledger: self.clone(), units, generation: 0 })
    }

    /// The next units that were written, side by side and at most `longest` bytes; each once.
    pub(crate) fn claim_known(self: &Arc<Self>, longest: u32) -> Option<UnitClaim> {
        let most = u64::from(longest / self.header.unit).max(1);
        let mut book = self.book();
        let is_known = |known: &Generations| known[1] > 0;
        let rest = &book.known[book.cursor as usize..];
        let first = book.cursor + rest.iter().position(is_known)? as u64;
        let count =
            book.known[first as usize..].iter().take(most as usize).take_while(|k| is_known(k)).count();
        let units = first..first + count as u64;
        book.cursor = units.end;
        book.occupy(&units).then(|| UnitClaim { ledger: self.clone(), units, generation: 0 })
    }

    fn book(&self) -> MutexGuard<'_, LedgerState> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LedgerState {
    fn occupy(&mut self, units: &Range<u64>) -> bool {
        let before = self.busy.range(..units.end).next_back();
        let is_free = before.is_none_or(|(_, end)| *end <= units.start);
        if is_free {
            self.busy.insert(units.start, units.end);
        }
        is_free
    }

    fn of(&mut self, units: &Range<u64>) -> &mut [Generations] {
        &mut self.known[units.start as usize..units.end as usize]
    }

    fn write(&mut self, record: JournalRecord) -> Result<(), JournalError> {
        self.journal.as_mut().map_or(Ok(()), |journal| journal.append(record))
    }

    /// A record of the past.
    fn apply(&mut self, header: &JournalHeader, record: JournalRecord) -> Result<(), JournalError> {
        let JournalRecord { event, block, count, generation } = record;
        let start = block.checked_sub(header.first / u64::from(header.unit));
        let end = start.and_then(|start| start.checked_add(count.into()));
        let units = match (start, end) {
            (Some(start), Some(end)) if count > 0 && end <= self.known.len() as u64 => start..end,
            _ => return Err(format!("{count} blocks from {block} on are not within its span")),
        };
        for known in self.of(&units) {
            match event {
                WriteEvent::Begun if generation > known[1] => known[1] = generation,
                WriteEvent::Done if generation == known[1] => known[0] = generation,
                _ => return Err(format!("generation {generation} of block {block} is out of turn")),
            }
        }
        Ok(())
    }
}

impl UnitClaim {
    /// First byte on the disk.
    pub(crate) fn offset(&self) -> u64 {
        self.ledger.header.first + self.units.start * u64::from(self.ledger.header.unit)
    }

    /// Bytes.
    pub(crate) fn len(&self) -> u32 {
        (self.units.end - self.units.start) as u32 * self.ledger.header.unit
    }

    /// A write begins: `buf` becomes what is to be written.
    ///
    /// # Errors
    /// In words, when the journal cannot be written.
    pub(crate) fn begin(&mut self, buf: &mut [u8]) -> Result<(), JournalError> {
        let mut book = self.ledger.book();
        let newest = book.of(&self.units).iter().map(|known| known[1]).max().unwrap_or(0);
        self.generation = newest.checked_add(1).ok_or("a block was written as often as can be counted")?;
        book.write(self.record(WriteEvent::Begun))?;
        book.of(&self.units).iter_mut().for_each(|known| known[1] = self.generation);
        drop(book);
        let header = &self.ledger.header;
        for (block, bytes) in self.blocks().zip(buf.chunks_exact_mut(header.unit as usize)) {
            Stamp { owner: header.owner, block, generation: self.generation }.write_to(bytes);
        }
        Ok(())
    }

    /// The write was acknowledged.
    ///
    /// # Errors
    /// As [`UnitClaim::begin`].
    pub(crate) fn acknowledge(&self) -> Result<(), JournalError> {
        let mut book = self.ledger.book();
        book.of(&self.units).iter_mut().for_each(|known| known[0] = self.generation);
        book.write(self.record(WriteEvent::Done))
    }

    /// Whether what was read there is what must be there.
    ///
    /// # Errors
    /// What is wrong with the first unit that is not as it must be.
    pub(crate) fn check(&self, bytes: &[u8]) -> Result<(), String> {
        let header = &self.ledger.header;
        let known = self.ledger.book().of(&self.units).to_vec();
        let mut counts = VerifyCounts::default();
        let units = bytes.chunks_exact(header.unit as usize);
        for ((block, known), bytes) in self.blocks().zip(known).zip(units) {
            judge(known, block, parse_unit(header.owner, bytes), &mut counts)
                .map_err(|why| format!("block {block} (byte {}): {why}", block * u64::from(header.unit)))?;
        }
        let mut book = self.ledger.book();
        book.counts.sound += counts.sound;
        book.counts.unsure += counts.unsure;
        book.counts.torn += counts.torn;
        Ok(())
    }

    /// Numbers of its blocks.
    fn blocks(&self) -> Range<u64> {
        let first = self.ledger.header.first / u64::from(self.ledger.header.unit);
        first + self.units.start..first + self.units.end
    }

    fn record(&self, event: WriteEvent) -> JournalRecord {
        let blocks = self.blocks();
        JournalRecord {
            event,
            block: blocks.start,
            count: (blocks.end - blocks.start) as u32,
            generation: self.generation,
        }
    }
}

impl Drop for UnitClaim {
    fn drop(&mut self) {
        self.ledger.book().busy.remove(&self.units.start);
    }
}

fn judge(
    [acked, begun]: Generations,
    place: u64,
    seen: UnitContent,
    counts: &mut VerifyCounts,
) -> Result<(), String> {
    let is_unsure = acked < begun;
    counts.unsure += u64::from(is_unsure);
    match seen {
        // Nobody promised that it holds anything of ours.
        _ if acked == 0 => {}
        UnitContent::Foreign => return Err("not written by this run".into()),
        UnitContent::Damaged if is_unsure => counts.torn += 1,
        UnitContent::Damaged => return Err("CRC wrong".into()),
        UnitContent::Whole { block, .. } if block != place => {
            return Err(format!("misplaced: it is block {block}"));
        }
        UnitContent::Whole { generation, .. } if generation < acked => {
            return Err(format!("stale: holds generation {generation}, {acked} was acknowledged"));
        }
        UnitContent::Whole { generation, .. } if generation > begun => {
            return Err(format!("holds generation {generation}, and {begun} was the last one begun"));
        }
        UnitContent::Whole { .. } => counts.sound += u64::from(!is_unsure),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: usize = 512;

    fn header() -> JournalHeader {
        JournalHeader { owner: 9, unit: 512, first: 1024, span: 8 << 10, target: "memory:1M".into() }
    }

    fn ledger() -> Arc<WriteLedger> {
        Arc::new(WriteLedger::new(header(), None).expect("a ledger"))
    }

    /// Writes at these bytes; what was written.
    fn write(ledger: &Arc<WriteLedger>, offset: u64, len: u32, is_acknowledged: bool) -> Vec<u8> {
        let mut claim = ledger.claim(offset, len).expect("nobody is there");
        let mut bytes = vec![0; len as usize];
        claim.begin(&mut bytes).expect("begun");
        if is_acknowledged {
            claim.acknowledge().expect("acknowledged");
        }
        bytes
    }

    fn check(ledger: &Arc<WriteLedger>, offset: u64, bytes: &[u8]) -> Result<(), String> {
        ledger.claim(offset, bytes.len() as u32).expect("nobody is there").check(bytes)
    }

    #[test]
    fn every_kind_of_damage_has_its_name() {
        let ledger = ledger();
        let old = write(&ledger, 2048, 1024, true);
        write(&ledger, 2048, 512, true);
        let good = write(&ledger, 2048, 1024, true);
        assert_eq!(check(&ledger, 2048, &good), Ok(()));
        assert_eq!(ledger.counts(), VerifyCounts { sound: 2, ..VerifyCounts::default() });
        let wrong = |bytes: &[u8]| check(&ledger, 2048, bytes).unwrap_err();
        assert_eq!(wrong(&old), "block 4 (byte 2048): stale: holds generation 1, 3 was acknowledged");
        let swapped = [&good[UNIT..], &good[..UNIT]].concat();
        assert_eq!(wrong(&swapped), "block 4 (byte 2048): misplaced: it is block 5");
        let mut flipped = good.clone();
        flipped[UNIT + 300] ^= 4;
        assert_eq!(wrong(&flipped), "block 5 (byte 2560): CRC wrong");
        flipped[UNIT..].fill(0);
        assert_eq!(wrong(&flipped), "block 5 (byte 2560): not written by this run");
        let mut newer = good.clone();
        Stamp { owner: 9, block: 4, generation: 4 }.write_to(&mut newer[..UNIT]);
        assert!(wrong(&newer).ends_with("holds generation 4, and 3 was the last one begun"));
    }

    #[test]
    fn what_was_never_acknowledged_may_be_there_or_not_or_torn() {
        let ledger = ledger();
        let old = write(&ledger, 4096, 512, true);
        let new = write(&ledger, 4096, 512, false);
        let torn = [&new[..256], &old[256..]].concat();
        for bytes in [&old, &new, &torn] {
            assert_eq!(check(&ledger, 4096, bytes), Ok(()));
        }
        assert_eq!(ledger.counts(), VerifyCounts { sound: 0, unsure: 3, torn: 1 });
        assert!(check(&ledger, 4096, &[0; UNIT]).unwrap_err().contains("not written by this run"));
        // Of what was never acknowledged at all nothing is known.
        write(&ledger, 1024, 512, false);
        assert_eq!(check(&ledger, 1024, &[0; UNIT]), Ok(()));
    }

    #[test]
    fn commands_that_overlap_do_not_run_at_once() {
        let ledger = ledger();
        let claim = ledger.claim(2048, 1024).expect("nobody is there");
        for (offset, len) in [(2048, 1024), (1536, 1024), (2560, 512), (1024, 4096)] {
            assert!(ledger.claim(offset, len).is_none(), "{len} bytes at {offset}");
        }
        let beside = (ledger.claim(1536, 512), ledger.claim(3072, 512));
        assert!(beside.0.is_some() && beside.1.is_some());
        drop(claim);
        assert!(ledger.claim(2048, 1024).is_some());
    }

    #[test]
    fn what_was_written_is_read_back_once() {
        let ledger = ledger();
        write(&ledger, 1536, 1536, true);
        write(&ledger, 8192, 512, false);
        let read_back = || {
            let claims = std::iter::from_fn(|| ledger.claim_known(1024));
            claims.map(|claim| (claim.offset(), claim.len())).collect::<Vec<_>>()
        };
        assert_eq!(ledger.known_bytes(), 2048);
        assert_eq!(read_back(), [(1536, 1024), (2560, 512), (8192, 512)]);
        assert_eq!(read_back(), []);
        ledger.rewind();
        assert_eq!(read_back().len(), 3);
    }

    #[test]
    fn a_past_that_cannot_have_been_is_refused() {
        let of = |records: &[(WriteEvent, u64, u32, u32)]| {
            let mut bytes = header().encode();
            for (event, block, count, generation) in records.iter().copied() {
                bytes.extend(JournalRecord { event, block, count, generation }.encode());
            }
            WriteLedger::read(&mut &bytes[..]).map(|(ledger, good)| (ledger.known_bytes(), good))
        };
        let begun = (WriteEvent::Begun, 2, 16, 5);
        assert_eq!(of(&[begun, (WriteEvent::Done, 2, 16, 5)]), Ok((16 * 512, 48)));
        for (block, count) in [(0, 1), (2, 17), (18, 1), (2, 0), (u64::MAX, 1), (2, u32::MAX)] {
            let said = of(&[(WriteEvent::Begun, block, count, 1)]).unwrap_err();
            assert!(said.contains("not within its span"), "{said}");
        }
        for wrong in [(WriteEvent::Begun, 2, 1, 5), (WriteEvent::Done, 2, 1, 4), (WriteEvent::Done, 2, 1, 6)]
        {
            assert!(of(&[begun, wrong]).unwrap_err().contains("out of turn"));
        }
        for odd in [
            JournalHeader { unit: 0, ..header() },
            JournalHeader { unit: 1536, ..header() },
            JournalHeader { unit: 8192, ..header() },
            JournalHeader { first: 100, ..header() },
            JournalHeader { span: u64::MAX, ..header() },
            JournalHeader { span: (MAX_UNITS + 1) * 512, ..header() },
        ] {
            assert!(WriteLedger::read(&mut &odd.encode()[..]).is_err(), "{odd:?}");
        }
    }
}
