//! The name of this host, and secret files that only their owner can read.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use zeroize::Zeroizing;

/// The name of this host.
pub fn name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The reason why a secret file is rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretError {
    /// The fault, with the path.
    pub what: String,
    /// The fix.
    pub hint: String,
}

fn refused<T>(what: String, hint: String) -> Result<T, SecretError> {
    Err(SecretError { what, hint })
}

/// The fix for an unreadable secret. It never overwrites an existing one.
fn for_unread(kind: ErrorKind, shown: &impl Display) -> String {
    match kind {
        ErrorKind::NotFound => format!("create the file with: (umask 077; openssl rand -hex 16 > {shown})"),
        ErrorKind::PermissionDenied => {
            format!(
                "allow only the user who runs lunar to read the file; ls -l {shown} shows its permissions"
            )
        }
        ErrorKind::InvalidInput | ErrorKind::IsADirectory => "put the secret into a regular file".into(),
        _ => format!("check the file: ls -l {shown}"),
    }
}

/// Opens a regular file to read it. Other files are errors: a FIFO never blocks, and a device is not read.
///
/// # Errors
/// Those of the file system, and the kind of the file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let nonblock = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options().read(true).custom_flags(nonblock).open(path)?;
    match file.metadata()?.file_type() {
        kind if kind.is_file() => Ok(file),
        kind if kind.is_dir() => Err(rustix::io::Errno::ISDIR.into()),
        _ => Err(io::Error::new(ErrorKind::InvalidInput, "it is not a regular file")),
    }
}

/// Reads a secret, at most one byte more than `max`. It must be a regular file of this user without access for
/// others. Root also reads a file of `owner`, the user of the server whose secret it is.
///
/// # Errors
/// When it cannot be read, or its owner or mode lets others access it.
pub fn secret_file(path: &Path, max: usize, owner: Option<u32>) -> Result<Zeroizing<Vec<u8>>, SecretError> {
    let shown = path.display();
    let cannot = |e: std::io::Error| {
        let why = crate::error::text(&e);
        SecretError {
            what: format!("cannot read the secret {shown}: {why}"),
            hint: for_unread(e.kind(), &shown),
        }
    };
    let file = open_regular(path).map_err(cannot)?;
    let metadata = file.metadata().map_err(cannot)?;
    let us = rustix::process::geteuid();
    let is_of_server = us.is_root() && owner == Some(metadata.uid());
    if metadata.uid() != us.as_raw() && !is_of_server {
        return refused(
            format!("the secret {shown} belongs to user {}, not to the user who runs lunar", metadata.uid()),
            // This process need not be the server: a command with its user would take the secret from the server.
            format!("give it to the user of the server, who alone may read it: chown USER {shown}"),
        );
    }
    // 0400 is accepted too.
    if metadata.mode() & 0o7177 != 0 {
        return refused(
            format!(
                "the secret {shown} has mode {:04o}, but only 0600 and 0400 are allowed",
                metadata.mode() & 0o7777
            ),
            format!("run: chmod 0600 {shown}"),
        );
    }
    // Reserved at once: a growing vector leaves copies of its bytes in freed memory.
    let mut bytes = Zeroizing::new(Vec::with_capacity(max + 64));
    file.take(max as u64 + 1).read_to_end(&mut bytes).map_err(cannot)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hint_creates_only_a_missing_secret() {
        let hint = |path: &Path| secret_file(path, 16, None).unwrap_err().hint;
        let missing = Path::new("/no/such/secret");
        assert!(hint(missing).starts_with("create the file with: "));
        // The path continues below a regular file.
        assert_eq!(hint(Path::new("/proc/version/x")), "check the file: ls -l /proc/version/x");
        let denied = for_unread(ErrorKind::PermissionDenied, &missing.display());
        assert!(denied.starts_with("allow only") && !denied.contains('>'), "{denied}");
    }
}
