//! The name and the validity of a certificate (RFC 5280).

use std::time::SystemTime;
use x509_cert::Certificate;
use x509_cert::der::Decode;

/// The common name of the subject; without one, the whole subject. None if the subject cannot be read, or is empty.
pub fn common_name(certificate: &[u8]) -> Option<String> {
    let certificate = Certificate::from_der(certificate).ok()?;
    let subject = certificate.tbs_certificate().subject();
    let name = match subject.common_name() {
        Ok(Some(name)) => name.into(),
        _ => subject.to_string(),
    };
    Some(lunar_admin::rows::shown(&name)).filter(|name| !name.is_empty())
}

/// The end of the validity.
pub fn expiry(certificate: &[u8]) -> Option<SystemTime> {
    let certificate = Certificate::from_der(certificate).ok()?;
    Some(certificate.tbs_certificate().validity().not_after.to_system_time())
}
