//! The file that survives the process: what was begun, and what was acknowledged.
//!
//! A header, then records of 24 bytes. Each record is appended with one write(2), so that what a killed process
//! has said is in the page cache, whole but for at most the last record. It is not made stable: the death of
//! this host may lose it.

use lunar_runtime::iscsi::digest::crc32c;
use std::fs::{File, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

const MAGIC: [u8; 8] = *b"LUNARVFY";
const VERSION: u32 = 1;
/// Bytes of the header in front of the target's name.
const FIXED: usize = 48;
/// Characters of a target's name that are kept, and their bytes at most.
const NAME: usize = 1024;
const LONGEST_NAME: usize = NAME * 4;
/// Bytes of a record.
const RECORD: usize = 24;

/// What the whole file is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalHeader {
    /// Who writes.
    pub owner: u64,
    /// Bytes of a unit.
    pub unit: u32,
    /// First byte of the disk that is used.
    pub first: u64,
    /// Bytes from there.
    pub span: u64,
    /// The target, as it was named when the file was made.
    pub target: String,
}

/// What happened to a command that writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteEvent {
    /// It is about to be sent.
    Begun,
    /// It was acknowledged.
    Done,
}

/// A step of a command that writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalRecord {
    /// What happened.
    pub event: WriteEvent,
    /// Its first block: units from the first byte of the disk.
    pub block: u64,
    /// Blocks.
    pub count: u32,
    /// The generation that it gives them.
    pub generation: u32,
}

/// What cannot be used of a file, in words.
pub type JournalError = String;

/// The file, open to be appended to; nobody else has it.
pub struct VerifyJournal {
    file: File,
    path: PathBuf,
    /// Why nothing more can be appended: behind half a record nothing would be found again.
    broken: Option<JournalError>,
}

fn append_crc(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.extend(crc32c(&[&bytes]).to_le_bytes());
    bytes
}

/// The bytes in front of their checksum, if it is theirs.
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
    /// As it stands in the file.
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

    /// From the begin of a file.
    ///
    /// # Errors
    /// When it is none, or of another version.
    pub fn read(from: &mut impl Read) -> Result<JournalHeader, JournalError> {
        let fixed = exactly(from, FIXED)?;
        if fixed[..8] != MAGIC {
            return Err("it is no file of --verify-state".into());
        }
        if le32(&fixed, 8) != VERSION {
            return Err(format!("it is of version {}, and this is {VERSION}", le32(&fixed, 8)));
        }
        let len = usize::try_from(le64(&fixed, 40)).ok().filter(|len| *len <= LONGEST_NAME);
        let rest = exactly(from, len.ok_or("its header is damaged")? + 4)?;
        let whole = [fixed, rest].concat();
        let bytes = strip_crc(&whole).ok_or("its header is damaged")?;
        let target = std::str::from_utf8(&bytes[FIXED..]).map_err(|_| "its header is damaged")?;
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
        io::ErrorKind::UnexpectedEof => "it ends within its header".into(),
        _ => e.to_string(),
    })?;
    Ok(bytes)
}

impl JournalRecord {
    /// As it stands in the file.
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
        // The checksum of no bytes is zero: four zero bytes are sealed, and yet no record.
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

/// Gives each record to `apply`, in their order; the length in bytes of all that are whole. The last one may be
/// torn: its process was killed.
///
/// # Errors
/// When one that is not the last is damaged, or `apply` does not take one.
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
            _ if torn => return Err(format!("its record {} is damaged", good / RECORD as u64)),
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
    /// Opens a file, for nobody else at the same time. To append to, it is made where it is missing.
    ///
    /// # Errors
    /// The operating system's, and when another process has it.
    pub fn open(path: &Path, to_append: bool) -> io::Result<VerifyJournal> {
        let file = File::options().read(true).append(to_append).create(to_append).open(path)?;
        file.try_lock().map_err(|e| match e {
            TryLockError::WouldBlock => {
                io::Error::new(io::ErrorKind::ResourceBusy, "another process uses it")
            }
            TryLockError::Error(e) => e,
        })?;
        Ok(VerifyJournal { file, path: path.into(), broken: None })
    }

    /// It holds nothing yet.
    ///
    /// # Errors
    /// The operating system's.
    pub fn is_empty(&self) -> io::Result<bool> {
        Ok(self.file.metadata()?.len() == 0)
    }

    /// Begins a file that is empty.
    ///
    /// # Errors
    /// The operating system's.
    pub fn begin(&self, header: &JournalHeader) -> io::Result<()> {
        self.write(&header.encode())
    }

    /// The file, to be read from its begin.
    ///
    /// # Errors
    /// The operating system's.
    pub fn read(&self) -> io::Result<impl Read + use<'_>> {
        let mut file = &self.file;
        file.seek(SeekFrom::Start(0))?;
        Ok(io::BufReader::new(file))
    }

    /// Cuts off what is behind this many bytes of records: a torn one.
    ///
    /// # Errors
    /// The operating system's.
    pub fn cut(&self, header: &JournalHeader, records: u64) -> io::Result<()> {
        self.file.set_len(header.encode().len() as u64 + records)
    }

    /// Appends a record, with one write.
    ///
    /// # Errors
    /// In words: when it did not go in whole. From then on none does.
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
    fn a_header_comes_back_and_any_change_of_it_is_seen() {
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
    fn records_come_back_and_a_torn_end_is_left_out() {
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
    fn damage_before_the_end_is_told() {
        let bytes: Vec<u8> = records().into_iter().flat_map(JournalRecord::encode).collect();
        for at in 0..48 {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            let expected = format!("its record {} is damaged", at / RECORD);
            assert_eq!(replayed(&damaged), Err(expected), "byte {at}");
        }
    }
}
