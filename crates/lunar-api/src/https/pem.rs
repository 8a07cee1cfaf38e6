//! Files with certificates and private keys (PEM, RFC 7468).

use lunar_config::{ErrorCode, InvalidValue, invalid, io_text};
use lunar_runtime::host::open_regular;
use rustls::RootCertStore;
use rustls::pki_types::pem::{Error, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use zeroize::Zeroizing;

/// Maximum size of a file. A bundle of all public authorities has less.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// The certificates of a file, at least one.
///
/// # Errors
/// The fault of the file.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, InvalidValue> {
    let text = read(path, "certificate", false)?;
    let list: Result<Vec<_>, Error> = CertificateDer::pem_slice_iter(&text).collect();
    match list {
        Ok(list) if !list.is_empty() => Ok(list),
        Ok(_) => no_pem(path, "certificate", "CERTIFICATE"),
        Err(e) => invalid(format!("the certificate {} is no PEM text: {e}", path.display()), PEM),
    }
}

/// The private key of a file, to which only its owner and group have access.
///
/// # Errors
/// The fault of the file.
pub fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, InvalidValue> {
    let text = read(path, "private key", true)?;
    match PrivateKeyDer::from_pem_slice(&text) {
        Ok(key) => Ok(key),
        Err(Error::NoItemsFound) => no_pem(path, "private key", "PRIVATE KEY"),
        Err(e) => invalid(format!("the private key {} is no PEM text: {e}", path.display()), PEM),
    }
}

/// The authorities of a file.
///
/// # Errors
/// The fault of the file.
pub fn authorities(path: &Path) -> Result<RootCertStore, InvalidValue> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).or_else(|e| {
            let what = format!("{} has a certificate that cannot be used: {e}", path.display());
            invalid(what, "write the certificates of authorities into the file")
        })?;
    }
    Ok(roots)
}

const PEM: &str = "convert it to PEM with `openssl x509` or `openssl pkey`";

fn no_pem<T>(path: &Path, what: &str, label: &str) -> Result<T, InvalidValue> {
    let fault = format!("the file {} has no {what}", path.display());
    invalid(fault, format!("write PEM text with -----BEGIN {label}-----"))
}

/// Reads a file.
fn read(path: &Path, what: &str, is_secret: bool) -> Result<Zeroizing<Vec<u8>>, InvalidValue> {
    let shown = path.display();
    let cannot = |e: io::Error| InvalidValue {
        what: format!("cannot read the {what} {shown}: {}", io_text(&e)),
        hint: "check the path, and that the user of the server may read it".into(),
        code: ErrorCode::from(e.kind()),
    };
    let file = open_regular(path).map_err(cannot)?;
    let metadata = file.metadata().map_err(cannot)?;
    if is_secret && metadata.mode() & 0o007 != 0 {
        let what =
            format!("the {what} {shown} has mode {:04o}: all users can access it", metadata.mode() & 0o7777);
        return invalid(what, format!("run: chmod 0600 {shown}"));
    }
    let mut bytes = Zeroizing::new(Vec::new());
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(cannot)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return invalid(format!("the {what} {shown} is larger than 4 MiB"), "name a file with PEM text");
    }
    Ok(bytes)
}
