//! The file of `--verify-state`. Input: the bytes of a file. They are read as they are and again with correct
//! checksums, so that the code behind the checksums runs too.

use lunar_bench::verify::WriteLedger;
use lunar_runtime::iscsi::digest::crc32c;

/// Bytes before the target's name.
const FIXED: usize = 48;
const RECORD: usize = 24;
/// Spans above this size in bytes are skipped: their block table needs more memory than a fuzzer has.
const LARGE: u64 = 1 << 30;

pub fn run(input: &[u8]) {
    read(input);
    let mut sealed = input.to_vec();
    if seal(&mut sealed).is_some() {
        read(&sealed);
    }
}

fn read(input: &[u8]) {
    let span = eight(input, 32).unwrap_or(0);
    if span > LARGE {
        return;
    }
    match WriteLedger::read(&mut &*input) {
        Ok((ledger, records)) => {
            assert!(ledger.known_bytes() <= span);
            assert!(records.is_multiple_of(RECORD as u64) && records <= input.len() as u64);
        }
        Err(why) => assert!(!why.is_empty()),
    }
}

fn eight(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn seal(bytes: &mut [u8]) -> Option<()> {
    let name = usize::try_from(eight(bytes, 40)?).ok()?;
    let (header, records) = bytes.split_at_mut_checked(FIXED.checked_add(name)?.checked_add(4)?)?;
    put(header);
    records.chunks_exact_mut(RECORD).for_each(put);
    Some(())
}

fn put(bytes: &mut [u8]) {
    if let Some((bytes, crc)) = bytes.split_last_chunk_mut::<4>() {
        *crc = crc32c(&[bytes]).to_le_bytes();
    }
}
