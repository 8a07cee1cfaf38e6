//! The journal file: writes that started, and writes that were acknowledged. It survives the process.
//!
//! It has a header and records of 24 bytes. Each record is appended with one write(2). After a process is
//! killed, the page cache holds all of its records; at most the last one is torn. The file is not flushed: a
//! crash of this host may lose records.

use lunar_runtime::iscsi::digest::crc32c;
use std::fs::{File, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

const MAGIC: [u8; 8] = *b"LUNARVFY";
const VERSION: u32 = 1;
/// Bytes of the header before the target's name.
const FIXED: usize = 48;
/// The maximum length of a target's name in characters, and in bytes.
const NAME: usize = 1024;
const LONGEST_NAME: usize = NAME * 4;
/// Bytes of a record.
const RECORD: usize = 24;

/// The header of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalHeader {
    /// The owner of the units.
    pub owner: u64,
    /// Bytes of a unit.
    pub unit: u32,
    /// The first byte of the disk in use.
    pub first: u64,
    /// Bytes from there.
    pub span: u64,
    /// The name of the target when the file was created.
    pub target: String,
}

/// An event of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteEvent {
    /// The write is about to be sent.
    Begun,
    /// The write was acknowledged.
    Done,
}

/// A record of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalRecord {
    /// The event.
    pub event: WriteEvent,
    /// The first block: units from the first byte of the disk.
    pub block: u64,
    /// Blocks.
    pub count: u32,
    /// The generation of the blocks.
    pub generation: u32,
}

/// The reason why a file cannot be used.
pub type JournalError = String;

/// The file, open for appending and locked.
pub struct VerifyJournal {
    file: File,
    path: PathBuf,
    /// The reason why no more records can be appended: a reader would not find records after a torn one.
    broken: Option<JournalError>,
}

fn append_crc(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.extend(crc32c(&[&bytes]).to_le_bytes());
    bytes
}

/// The bytes without their checksum, if it matches.
fn strip_crc(bytes: &[u8]) -> Option<&[u8]> {
    let (bytes, crc) = bytes.split_last_chunk()?;
    (crc32c(&[bytes]).to_le_bytes() == *crc).then_some(bytes)
}

fn le64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

impl JournalHeader {
    /// The header as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let name: String = self.target.chars().take(NAME).collect();
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(self.unit.to_le_bytes());
        for number in [self.owner, self.first, self.span, name.len() as u64] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(name.as_bytes());
        append_crc(bytes)
    }

    /// Reads the header from the start of a file.
    ///
    /// # Errors
    /// If it is not a journal, or has another version.
    pub fn read(from: &mut impl Read) -> Result<JournalHeader, JournalError> {
        let fixed = exactly(from, FIXED)?;
        if fixed[..8] != MAGIC {
            return Err("the file was not created by --verify-state".into());
        }
        if le32(&fixed, 8) != VERSION {
            return Err(format!(
                "the file has format version {}, and only version {VERSION} is supported",
                le32(&fixed, 8)
            ));
        }
        let len = usize::try_from(le64(&fixed, 40)).ok().filter(|len| *len <= LONGEST_NAME);
        let rest = exactly(from, len.ok_or("the header of the file is damaged")? + 4)?;
        let whole = [fixed, rest].concat();
        let bytes = strip_crc(&whole).ok_or("the header of the file is damaged")?;
        let target = std::str::from_utf8(&bytes[FIXED..]).map_err(|_| "the header of the file is damaged")?;
        Ok(JournalHeader {
            unit: le32(bytes, 12),
            owner: le64(bytes, 16),
            first: le64(bytes, 24),
            span: le64(bytes, 32),
            target: target.into(),
        })
    }
}

fn exactly(from: &mut impl Read, len: usize) -> Result<Vec<u8>, JournalError> {
    let mut bytes = vec![0; len];
    from.read_exact(&mut bytes).map_err(|e| match e.kind() {
        io::ErrorKind::UnexpectedEof => "the file ends within its header".into(),
        _ => e.to_string(),
    })?;
    Ok(bytes)
}

impl JournalRecord {
    /// The record as bytes.
    pub fn encode(self) -> Vec<u8> {
        let event: u32 = match self.event {
            WriteEvent::Begun => 1,
            WriteEvent::Done => 2,
        };
        let mut bytes = self.block.to_le_bytes().to_vec();
        for number in [self.count, self.generation, event] {
            bytes.extend(number.to_le_bytes());
        }
        append_crc(bytes)
    }

    fn decode(bytes: &[u8]) -> Option<JournalRecord> {
        // An empty record with its checksum is four zero bytes: valid, but not a record.
        let bytes = strip_crc(bytes).filter(|bytes| bytes.len() + 4 == RECORD)?;
        let event = match le32(bytes, 16) {
            1 => WriteEvent::Begun,
            2 => WriteEvent::Done,
            _ => return None,
        };
        Some(JournalRecord {
            event,
            block: le64(bytes, 0),
            count: le32(bytes, 8),
            generation: le32(bytes, 12),
        })
    }
}

/// Passes each record to `apply` in order, and returns the length of the valid records in bytes. The last
/// record may be torn, because its process was killed.
///
/// # Errors
/// If another record is damaged, or `apply` rejects one.
pub fn replay(
    from: &mut impl Read,
    mut apply: impl FnMut(JournalRecord) -> Result<(), JournalError>,
) -> Result<u64, JournalError> {
    let (mut good, mut torn) = (0, false);
    loop {
        let mut bytes = Vec::with_capacity(RECORD);
        from.by_ref().take(RECORD as u64).read_to_end(&mut bytes).map_err(|e| e.to_string())?;
        match JournalRecord::decode(&bytes) {
            _ if bytes.is_empty() => return Ok(good),
            _ if torn => return Err(format!("record {} of the file is damaged", good / RECORD as u64)),
            Some(record) => apply(record)?,
            None => {
                torn = true;
                continue;
            }
        }
        good += RECORD as u64;
    }
}

impl VerifyJournal {
    /// Opens and locks a file. For appending, creates it if it does not exist.
    ///
    /// # Errors
    /// An error of the operating system, or a lock held by another process.
    pub fn open(path: &Path, to_append: bool) -> io::Result<VerifyJournal> {
        let file = File::options().read(true).append(to_append).create(to_append).open(path)?;
        file.try_lock().map_err(|e| match e {
            TryLockError::WouldBlock => {
                io::Error::new(io::ErrorKind::ResourceBusy, "another process uses the file")
            }
            TryLockError::Error(e) => e,
        })?;
        Ok(VerifyJournal { file, path: path.into(), broken: None })
    }

    /// Whether the file is empty.
    ///
    /// # Errors
    /// An error of the operating system.
    pub fn is_empty(&self) -> io::Result<bool> {
        Ok(self.file.metadata()?.len() == 0)
    }

    /// Writes the header to an empty file.
    ///
    /// # Errors
    /// An error of the operating system.
    pub fn begin(&self, header: &JournalHeader) -> io::Result<()> {
        self.write(&header.encode())
    }

    /// The file, positioned at its start.
    ///
    /// # Errors
    /// An error of the operating system.
    pub fn read(&self) -> io::Result<impl Read + use<'_>> {
        let mut file = &self.file;
        file.seek(SeekFrom::Start(0))?;
        Ok(io::BufReader::new(file))
    }

    /// Truncates the file after this many bytes of records, to remove a torn one.
    ///
    /// # Errors
    /// An error of the operating system.
    pub fn cut(&self, header: &JournalHeader, records: u64) -> io::Result<()> {
        self.file.set_len(header.encode().len() as u64 + records)
    }

    /// Appends a record with one write.
    ///
    /// # Errors
    /// If the record was not written completely. All later calls fail, too.
    pub fn append(&mut self, record: JournalRecord) -> Result<(), JournalError> {
        if self.broken.is_none() {
            self.broken = self
                .write(&record.encode())
                .map_err(|e| format!("{} cannot be written: {e}", self.path.display()))
                .err();
        }
        self.broken.clone().map_or(Ok(()), Err)
    }

    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        match (&self.file).write(bytes)? {
            n if n == bytes.len() => Ok(()),
            _ => Err(io::ErrorKind::StorageFull.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> JournalHeader {
        JournalHeader { owner: 7, unit: 4096, first: 8192, span: 1 << 20, target: "memory:1M".into() }
    }

    fn records() -> Vec<JournalRecord> {
        let one = |event, generation| JournalRecord { event, block: 5, count: 2, generation };
        vec![one(WriteEvent::Begun, 1), one(WriteEvent::Done, 1), one(WriteEvent::Begun, 2)]
    }

    fn replayed(bytes: &[u8]) -> Result<(u64, Vec<JournalRecord>), JournalError> {
        let mut seen = Vec::new();
        let good = replay(&mut &*bytes, |record| {
            seen.push(record);
            Ok(())
        })?;
        Ok((good, seen))
    }

    #[test]
    fn journal_header_round_trips_and_detects_changes() {
        let bytes = header().encode();
        assert_eq!(JournalHeader::read(&mut &bytes[..]), Ok(header()));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(JournalHeader::read(&mut &damaged[..]).is_err(), "byte {at}");
            assert!(
                JournalHeader::read(&mut &bytes[..at]).unwrap_err().contains("ends within"),
                "{at} bytes"
            );
        }
    }

    #[test]
    fn journal_records_round_trip_without_torn_end() {
        let bytes: Vec<u8> = records().into_iter().flat_map(JournalRecord::encode).collect();
        assert_eq!(replayed(&bytes), Ok((72, records())));
        for len in 48..72 {
            assert_eq!(replayed(&bytes[..len]), Ok((48, records()[..2].to_vec())), "{len} bytes");
        }
        for zeros in 0..RECORD {
            let ends_in_zeros = [&bytes[..48], &vec![0; zeros]].concat();
            assert_eq!(replayed(&ends_in_zeros), Ok((48, records()[..2].to_vec())), "{zeros} zeros");
        }
        let mut damaged = bytes.clone();
        damaged[71] ^= 1;
        assert_eq!(replayed(&damaged), Ok((48, records()[..2].to_vec())));
    }

    #[test]
    fn damage_before_the_last_record_is_an_error() {
        let bytes: Vec<u8> = records().into_iter().flat_map(JournalRecord::encode).collect();
        for at in 0..48 {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            let expected = format!("record {} of the file is damaged", at / RECORD);
            assert_eq!(replayed(&damaged), Err(expected), "byte {at}");
        }
    }
}
