//! Arguments of `lunar chap add --nvme`.

use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Options of a secret for DH-HMAC-CHAP.
#[derive(Args, Debug)]
pub struct NvmeSecretArgs {
    /// Make a secret for NVMe (DH-HMAC-CHAP) in a new file, for a host or for a subsystem, or the key of a host for TLS. No
    /// server takes part
    #[arg(
        long,
        value_name = "OWNER",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "host",
        requires = "output",
        conflicts_with_all = ["secret_file", "dry_run", "json", "socket", "server"],
    )]
    pub nvme: Option<SecretOwner>,

    /// The new file of --nvme, with mode 0600
    #[arg(short, long, value_name = "FILE", requires = "nvme")]
    pub output: Option<PathBuf>,

    /// Hash with which the owner transforms the key of --nvme
    #[arg(long, value_name = "HASH", default_value = "none", requires = "nvme")]
    pub hash: SecretHash,

    /// Bytes of the key of --nvme: 32, 48 or 64 [default: those of a digest of the hash, or 32]
    #[arg(long, value_name = "BYTES", requires = "nvme")]
    pub key_length: Option<usize>,

    /// Print the secret of --nvme too
    #[arg(long, requires = "nvme")]
    pub show_secret: bool,
}

/// The side that has a secret of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SecretOwner {
    /// A host, which must prove itself
    Host,
    /// A subsystem, whose proof hosts may ask for
    Subsystem,
    /// TLS of a host: with --hash sha256, the default, or sha384
    Tls,
}

/// The hash in the text of a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SecretHash {
    /// The key is used as it is
    None,
    /// SHA-256
    Sha256,
    /// SHA-384
    Sha384,
    /// SHA-512
    Sha512,
}
