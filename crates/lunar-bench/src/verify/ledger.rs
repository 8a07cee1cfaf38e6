//! Tracks the valid content of each unit of a target: the last acknowledged generation, or one started after it.

use super::journal::{JournalError, JournalHeader, JournalRecord, VerifyJournal, WriteEvent};
use super::unit::{LONGEST, SHORTEST, Stamp, UnitContent, parse_unit};
use std::collections::BTreeMap;
use std::io::Read;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The maximum number of units: at eight bytes each, 2 GiB of memory.
pub const MAX_UNITS: u64 = 1 << 28;

/// The generations of a unit: the last acknowledged write, and the last started one.
type Generations = [u32; 2];

/// The results of reading units back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifyCounts {
    /// Units that hold acknowledged data.
    pub sound: u64,
    /// Units with an unacknowledged write: they may hold the previous data or that write.
    pub unsure: u64,
    /// Of these, units that hold parts of both.
    pub torn: u64,
}

/// The ledger of one target. Sessions on several cores share it.
pub struct WriteLedger {
    header: JournalHeader,
    book: Mutex<LedgerState>,
}

struct LedgerState {
    /// The generations of each unit, from the first byte in use.
    known: Vec<Generations>,
    /// Units claimed by commands: start, and end (exclusive).
    busy: BTreeMap<u64, u64>,
    /// The position of the read-back.
    cursor: u64,
    counts: VerifyCounts,
    journal: Option<VerifyJournal>,
}

/// The exclusive right to use some units, until it is dropped.
pub(crate) struct UnitClaim {
    ledger: Arc<WriteLedger>,
    /// Relative to the first unit in use.
    units: Range<u64>,
    /// The generation of a started write.
    generation: u32,
}

impl WriteLedger {
    /// Creates an empty ledger.
    ///
    /// # Errors
    /// If units or span are not supported.
    pub(crate) fn new(
        header: JournalHeader,
        journal: Option<VerifyJournal>,
    ) -> Result<WriteLedger, JournalError> {
        let unit = u64::from(header.unit);
        if !(SHORTEST..=LONGEST).contains(&unit) || !unit.is_power_of_two() {
            return Err(format!("invalid size of verified blocks: {unit} bytes"));
        }
        if !header.first.is_multiple_of(unit) || header.first.checked_add(header.span).is_none() {
            return Err(format!(
                "offset {} is not a multiple of the verified block of {unit} bytes",
                header.first
            ));
        }
        let units = header.span / unit;
        if units > MAX_UNITS {
            return Err(format!(
                "cannot verify {units} blocks of {unit} bytes: the maximum is {MAX_UNITS} blocks"
            ));
        }
        let known = vec![[0; 2]; units as usize];
        let book =
            LedgerState { known, busy: BTreeMap::new(), cursor: 0, counts: VerifyCounts::default(), journal };
        Ok(WriteLedger { header, book: Mutex::new(book) })
    }

    /// Reads the ledger that a run left behind, and returns the length of its valid records in bytes.
    ///
    /// # Errors
    /// If it is not such a file, or is damaged elsewhere than in its last record.
    pub fn read(from: &mut impl Read) -> Result<(WriteLedger, u64), JournalError> {
        let ledger = WriteLedger::new(JournalHeader::read(from)?, None)?;
        let mut book = ledger.book();
        let good = super::journal::replay(from, |record| book.apply(&ledger.header, record))?;
        drop(book);
        Ok((ledger, good))
    }

    /// Records further events in a journal.
    pub(crate) fn set_journal(&self, journal: VerifyJournal) {
        self.book().journal = Some(journal);
    }

    /// The header.
    pub(crate) fn header(&self) -> &JournalHeader {
        &self.header
    }

    /// Bytes of units that were written, or may have been.
    pub fn known_bytes(&self) -> u64 {
        let units = self.book().known.iter().filter(|known| known[1] > 0).count();
        units as u64 * u64::from(self.header.unit)
    }

    /// The results since [`WriteLedger::rewind`].
    pub(crate) fn counts(&self) -> VerifyCounts {
        self.book().counts
    }

    /// Restarts the read-back at the first unit, without results.
    pub(crate) fn rewind(&self) {
        let mut book = self.book();
        (book.cursor, book.counts) = (0, VerifyCounts::default());
    }

    /// Claims these bytes of the disk, which are whole units, unless another command uses them.
    pub(crate) fn claim(self: &Arc<Self>, offset: u64, len: u32) -> Option<UnitClaim> {
        let unit = u64::from(self.header.unit);
        let first = (offset - self.header.first) / unit;
        let units = first..first + u64::from(len) / unit;
        self.book().occupy(&units).then(|| UnitClaim { ledger: self.clone(), units, generation: 0 })
    }

    /// Claims the next adjacent units that were written, at most `longest` bytes. Each unit is returned once.
    pub(crate) fn claim_known(self: &Arc<Self>, longest: u32) -> Option<UnitClaim> {
        let max = u64::from(longest / self.header.unit).max(1);
        let mut book = self.book();
        let is_known = |known: &Generations| known[1] > 0;
        let rest = &book.known[book.cursor as usize..];
        let first = book.cursor + rest.iter().position(is_known)? as u64;
        let count =
            book.known[first as usize..].iter().take(max as usize).take_while(|k| is_known(k)).count();
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

    /// Applies a record of an earlier run.
    fn apply(&mut self, header: &JournalHeader, record: JournalRecord) -> Result<(), JournalError> {
        let JournalRecord { event, block, count, generation } = record;
        let start = block.checked_sub(header.first / u64::from(header.unit));
        let end = start.and_then(|start| start.checked_add(count.into()));
        let units = match (start, end) {
            (Some(start), Some(end)) if count > 0 && end <= self.known.len() as u64 => start..end,
            _ => {
                return Err(format!(
                    "a record of {count} blocks from block {block} is outside the range of the file"
                ));
            }
        };
        for known in self.of(&units) {
            match event {
                WriteEvent::Begun if generation > known[1] => known[1] = generation,
                WriteEvent::Done if generation == known[1] => known[0] = generation,
                _ => {
                    return Err(format!(
                        "the record of generation {generation} of block {block} is out of order"
                    ));
                }
            }
        }
        Ok(())
    }
}

impl UnitClaim {
    /// The first byte on the disk.
    pub(crate) fn offset(&self) -> u64 {
        self.ledger.header.first + self.units.start * u64::from(self.ledger.header.unit)
    }

    /// Bytes.
    pub(crate) fn len(&self) -> u32 {
        (self.units.end - self.units.start) as u32 * self.ledger.header.unit
    }

    /// Starts a write: fills `buf` with stamped units.
    ///
    /// # Errors
    /// If the journal cannot be written.
    pub(crate) fn begin(&mut self, buf: &mut [u8]) -> Result<(), JournalError> {
        let mut book = self.ledger.book();
        let newest = book.of(&self.units).iter().map(|known| known[1]).max().unwrap_or(0);
        self.generation = newest.checked_add(1).ok_or("the generation of a block overflowed")?;
        book.write(self.record(WriteEvent::Begun))?;
        book.of(&self.units).iter_mut().for_each(|known| known[1] = self.generation);
        drop(book);
        let header = &self.ledger.header;
        for (block, bytes) in self.blocks().zip(buf.chunks_exact_mut(header.unit as usize)) {
            Stamp { owner: header.owner, block, generation: self.generation }.write_to(bytes);
        }
        Ok(())
    }

    /// Records that the write was acknowledged.
    ///
    /// # Errors
    /// As [`UnitClaim::begin`].
    pub(crate) fn acknowledge(&self) -> Result<(), JournalError> {
        let mut book = self.ledger.book();
        book.of(&self.units).iter_mut().for_each(|known| known[0] = self.generation);
        book.write(self.record(WriteEvent::Done))
    }

    /// Checks the data of a read.
    ///
    /// # Errors
    /// The fault of the first invalid unit.
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

    /// The numbers of its blocks.
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
        // A unit that was never written may hold anything.
        _ if acked == 0 => {}
        UnitContent::Foreign => return Err("the data was not written by this run".into()),
        UnitContent::Damaged if is_unsure => counts.torn += 1,
        UnitContent::Damaged => return Err("the data does not match its CRC".into()),
        UnitContent::Whole { block, .. } if block != place => {
            return Err(format!("misplaced data that was written to block {block}"));
        }
        UnitContent::Whole { generation, .. } if generation < acked => {
            return Err(format!(
                "stale data of generation {generation}, although generation {acked} was acknowledged"
            ));
        }
        UnitContent::Whole { generation, .. } if generation > begun => {
            return Err(format!(
                "data of generation {generation}, although the last write started was generation {begun}"
            ));
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

    /// Writes these bytes; returns the data.
    fn write(ledger: &Arc<WriteLedger>, offset: u64, len: u32, is_acknowledged: bool) -> Vec<u8> {
        let mut claim = ledger.claim(offset, len).expect("free units");
        let mut bytes = vec![0; len as usize];
        claim.begin(&mut bytes).expect("begun");
        if is_acknowledged {
            claim.acknowledge().expect("acknowledged");
        }
        bytes
    }

    fn check(ledger: &Arc<WriteLedger>, offset: u64, bytes: &[u8]) -> Result<(), String> {
        ledger.claim(offset, bytes.len() as u32).expect("free units").check(bytes)
    }

    #[test]
    fn each_kind_of_damage_is_reported() {
        let ledger = ledger();
        let old = write(&ledger, 2048, 1024, true);
        write(&ledger, 2048, 512, true);
        let good = write(&ledger, 2048, 1024, true);
        assert_eq!(check(&ledger, 2048, &good), Ok(()));
        assert_eq!(ledger.counts(), VerifyCounts { sound: 2, ..VerifyCounts::default() });
        let wrong = |bytes: &[u8]| check(&ledger, 2048, bytes).unwrap_err();
        assert_eq!(
            wrong(&old),
            "block 4 (byte 2048): stale data of generation 1, although generation 3 was acknowledged"
        );
        let swapped = [&good[UNIT..], &good[..UNIT]].concat();
        assert_eq!(wrong(&swapped), "block 4 (byte 2048): misplaced data that was written to block 5");
        let mut flipped = good.clone();
        flipped[UNIT + 300] ^= 4;
        assert_eq!(wrong(&flipped), "block 5 (byte 2560): the data does not match its CRC");
        flipped[UNIT..].fill(0);
        assert_eq!(wrong(&flipped), "block 5 (byte 2560): the data was not written by this run");
        let mut newer = good.clone();
        Stamp { owner: 9, block: 4, generation: 4 }.write_to(&mut newer[..UNIT]);
        assert!(
            wrong(&newer).ends_with("data of generation 4, although the last write started was generation 3")
        );
    }

    #[test]
    fn unacknowledged_write_may_be_old_new_or_torn() {
        let ledger = ledger();
        let old = write(&ledger, 4096, 512, true);
        let new = write(&ledger, 4096, 512, false);
        let torn = [&new[..256], &old[256..]].concat();
        for bytes in [&old, &new, &torn] {
            assert_eq!(check(&ledger, 4096, bytes), Ok(()));
        }
        assert_eq!(ledger.counts(), VerifyCounts { sound: 0, unsure: 3, torn: 1 });
        assert!(
            check(&ledger, 4096, &[0; UNIT]).unwrap_err().contains("the data was not written by this run")
        );
        // A unit with only unacknowledged writes may hold anything.
        write(&ledger, 1024, 512, false);
        assert_eq!(check(&ledger, 1024, &[0; UNIT]), Ok(()));
    }

    #[test]
    fn overlapping_claim_is_refused() {
        let ledger = ledger();
        let claim = ledger.claim(2048, 1024).expect("a free range");
        for (offset, len) in [(2048, 1024), (1536, 1024), (2560, 512), (1024, 4096)] {
            assert!(ledger.claim(offset, len).is_none(), "{len} bytes at {offset}");
        }
        let beside = (ledger.claim(1536, 512), ledger.claim(3072, 512));
        assert!(beside.0.is_some() && beside.1.is_some());
        drop(claim);
        assert!(ledger.claim(2048, 1024).is_some());
    }

    #[test]
    fn written_units_are_read_back_once() {
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
    fn impossible_journal_records_are_rejected() {
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
            assert!(said.contains("outside the range of the file"), "{said}");
        }
        for wrong in [(WriteEvent::Begun, 2, 1, 5), (WriteEvent::Done, 2, 1, 4), (WriteEvent::Done, 2, 1, 6)]
        {
            assert!(of(&[begun, wrong]).unwrap_err().contains("out of order"));
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
