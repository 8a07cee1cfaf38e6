//! Certificates for tests of the API over HTTPS.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A certificate authority.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its private key, as PEM.
pub struct Pair {
    /// The certificate.
    pub certificate: String,
    /// The key.
    pub key: String,
}

fn parameters(common_name: &str, names: &[&str]) -> CertificateParams {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let mut parameters = CertificateParams::new(names).expect("names of certificates");
    parameters.distinguished_name.push(DnType::CommonName, common_name);
    parameters
}

impl Authority {
    /// A new authority.
    pub fn new(common_name: &str) -> Authority {
        let mut parameters = parameters(common_name, &[]);
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("a key");
        Authority(CertifiedIssuer::self_signed(parameters, key).expect("a certificate"))
    }

    /// Its certificate, as PEM.
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate of a server with these names and addresses.
    pub fn server(&self, names: &[&str]) -> Pair {
        self.issue("server", names, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// A certificate of a client.
    pub fn client(&self, common_name: &str) -> Pair {
        self.issue(common_name, &[], ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn issue(&self, common_name: &str, names: &[&str], usage: ExtendedKeyUsagePurpose) -> Pair {
        let mut parameters = parameters(common_name, names);
        parameters.extended_key_usages = vec![usage];
        let key = KeyPair::generate().expect("a key");
        let certificate = parameters.signed_by(&key, &self.0).expect("a certificate");
        Pair { certificate: certificate.pem(), key: key.serialize_pem() }
    }
}

impl Pair {
    /// Writes NAME.pem and NAME.key.
    pub fn write(&self, folder: &Path, name: &str) -> (PathBuf, PathBuf) {
        let certificate = write(folder, &format!("{name}.pem"), &self.certificate);
        (certificate, write(folder, &format!("{name}.key"), &self.key))
    }
}

/// Writes a file that only its owner can read.
pub fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, text).expect("write a file");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("set a mode");
    path
}
