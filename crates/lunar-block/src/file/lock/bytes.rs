//! Byte-range locks of an open file description (fcntl).

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use std::fs::{File, read_to_string};
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::AsRawFd;

/// A lock of another holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ForeignLock {
    pub(super) first: i64,
    /// The last byte; `i64::MAX` for a lock to the end of the file.
    pub(super) last: i64,
    /// Whether it is exclusive.
    pub(super) is_write: bool,
    /// The process that holds it; None for a lock of an open file description.
    pub(super) pid: Option<i32>,
}

impl ForeignLock {
    fn new(lock: libc::flock) -> ForeignLock {
        let last = if lock.l_len == 0 { i64::MAX } else { lock.l_start + lock.l_len - 1 };
        let is_write = i32::from(lock.l_type) == libc::F_WRLCK;
        ForeignLock { first: lock.l_start, last, is_write, pid: (lock.l_pid > 0).then_some(lock.l_pid) }
    }

    /// Whether it covers only bytes of this range.
    pub(super) fn is_within(&self, bytes: &RangeInclusive<i64>) -> bool {
        bytes.contains(&self.first) && bytes.contains(&self.last)
    }
}

fn range(kind: i32, start: i64, len: i64) -> libc::flock {
    libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: start,
        l_len: len,
        // Must be 0 for locks of descriptions (fcntl(2)).
        l_pid: 0,
    }
}

pub(super) fn set(file: &File, kind: i32, byte: i64) -> io::Result<()> {
    fcntl(file, FcntlArg::F_OFD_SETLK(&range(kind, byte, 1)))?;
    Ok(())
}

/// The oldest lock that conflicts with one of this kind.
pub(super) fn conflict(file: &File, kind: i32, start: i64, len: i64) -> io::Result<Option<ForeignLock>> {
    let mut found = range(kind, start, len);
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut found))?;
    Ok((i32::from(found.l_type) != libc::F_UNLCK).then(|| ForeignLock::new(found)))
}

/// All byte locks on a file, including those behind an older one. This description must hold one of them.
pub(super) fn all(file: &File) -> io::Result<Vec<ForeignLock>> {
    let own = read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd()))?;
    // The kernel names the file by a device number that differs from that of stat on some file systems.
    let name = own.lines().find_map(|line| parse(line.strip_prefix("lock:")?)).map(|(name, _)| name);
    let name = name.ok_or_else(|| {
        io::Error::other("the holder of the lock is unknown: /proc/locks does not list this file")
    })?;
    let locks = read_to_string("/proc/locks")?;
    Ok(locks.lines().filter_map(parse).filter(|(of, _)| *of == name).map(|(_, found)| found).collect())
}

/// A line of /proc/locks (proc(5)): the file, as device and inode, and the lock.
/// `1: OFDLCK ADVISORY  READ -1 08:01:7 100 EOF`
fn parse(line: &str) -> Option<(&str, ForeignLock)> {
    let mut words = line.split_whitespace().skip(1);
    // For a waiter, this word is an arrow; for flock, another type.
    matches!(words.next()?, "OFDLCK" | "POSIX").then_some(())?;
    let is_write = words.nth(1)? == "WRITE";
    let pid = words.next()?.parse().ok().filter(|pid| *pid > 0);
    let name = words.next()?;
    let first = words.next()?.parse().ok()?;
    let last = words.next()?.parse().unwrap_or(i64::MAX);
    Some((name, ForeignLock { first, last, is_write, pid }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_proc_locks_are_parsed() {
        let found = |first, last, is_write, pid| ForeignLock { first, last, is_write, pid };
        let cases = [
            ("1: OFDLCK ADVISORY  READ  -1 08:01:7 100 101", Some(found(100, 101, false, None))),
            ("12: POSIX  ADVISORY  WRITE 34 08:01:7 0 EOF", Some(found(0, i64::MAX, true, Some(34)))),
            ("12: -> POSIX  ADVISORY  WRITE 34 08:01:7 0 EOF", None),
            ("3: FLOCK  ADVISORY  WRITE 34 08:01:7 0 EOF", None),
            ("", None),
        ];
        for (line, lock) in cases {
            assert_eq!(parse(line), lock.map(|lock| ("08:01:7", lock)), "{line}");
        }
    }
}
