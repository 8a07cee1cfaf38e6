//! What this host says of itself, and files that only their owner can read.

use std::fmt::Display;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use zeroize::Zeroizing;

/// The name of this host.
pub fn name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Why a secret is not taken: what is wrong, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretError {
    /// What is wrong.
    pub what: String,
    /// What to do.
    pub hint: String,
}

fn refused<T>(what: String, hint: String) -> Result<T, SecretError> {
    Err(SecretError { what, hint })
}

/// What to do about a secret that cannot be read. One that is there is not to be lost.
fn for_unread(kind: ErrorKind, shown: &impl Display) -> String {
    match kind {
        ErrorKind::NotFound => format!("create it with: (umask 077; openssl rand -hex 16 > {shown})"),
        ErrorKind::PermissionDenied => {
            format!("let the user who runs lunar read it, and nobody else; ls -l {shown} tells who may")
        }
        _ => format!("look at what is there: ls -l {shown}"),
    }
}

/// Reads a secret, at most one byte more than `most`: a regular file of this user that nobody else can touch.
///
/// # Errors
/// When it cannot be read, or others could have read or written it.
pub fn secret_file(path: &Path, most: usize) -> Result<Zeroizing<Vec<u8>>, SecretError> {
    let shown = path.display();
    let cannot = |e: std::io::Error| {
        let why = crate::error::text(&e).to_lowercase();
        SecretError {
            what: format!("cannot read the secret {shown}: {why}"),
            hint: for_unread(e.kind(), &shown),
        }
    };
    // Not to block on a FIFO, which is refused below.
    let nonblock = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let file = File::options().read(true).custom_flags(nonblock).open(path).map_err(cannot)?;
    let metadata = file.metadata().map_err(cannot)?;
    if !metadata.is_file() {
        return refused(
            format!("the secret {shown} is no regular file"),
            "put the secret into a file".into(),
        );
    }
    let us = rustix::process::geteuid().as_raw();
    if metadata.uid() != us {
        return refused(
            format!("the secret {shown} belongs to user {}, not to the user who runs lunar", metadata.uid()),
            format!("run: chown {us} {shown}"),
        );
    }
    // 0400 is as good.
    if metadata.mode() & 0o7177 != 0 {
        return refused(
            format!("the secret {shown} has mode {:04o}", metadata.mode() & 0o7777),
            format!("run: chmod 0600 {shown}"),
        );
    }
    // With room for all: a vector that grows leaves its bytes behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(most + 64));
    file.take(most as u64 + 1).read_to_end(&mut bytes).map_err(cannot)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_secret_that_is_missing_is_to_be_made() {
        let hint = |path: &Path| secret_file(path, 16).unwrap_err().hint;
        let missing = Path::new("/no/such/secret");
        assert!(hint(missing).starts_with("create it with: "));
        // Behind a file that is no folder.
        assert_eq!(hint(Path::new("/proc/version/x")), "look at what is there: ls -l /proc/version/x");
        let denied = for_unread(ErrorKind::PermissionDenied, &missing.display());
        assert!(denied.starts_with("let the user") && !denied.contains('>'), "{denied}");
    }
}
