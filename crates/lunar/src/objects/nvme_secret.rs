//! `lunar chap add --nvme`: a secret for DH-HMAC-CHAP, or a key for TLS.

use super::chap::no_random_number;
use crate::args::{NvmeSecretArgs, SecretHash, SecretOwner};
use crate::exit::{Exit, Failure};
use crate::{output, private_file};
use lunar_block::shell_word;
use lunar_proto::nvme::auth::{DhChapHash, DhChapSecret};
use lunar_proto::nvme::tls::{TlsKey, TlsKeyHash};
use lunar_server::config::{host_nqn, subsystem_nqn};
use std::io;
use std::path::{Path, PathBuf};

/// Makes the secret of this owner in a new file. Returns what to write into the configuration and on the host.
pub(super) fn add(nqn: &str, owner: SecretOwner, args: &NvmeSecretArgs) -> Result<String, Failure> {
    check_name(nqn, owner)?;
    let path = args.output.as_deref().unwrap_or(Path::new(""));
    let secret = match owner {
        SecretOwner::Tls => tls_key(args)?.to_text(),
        SecretOwner::Host | SecretOwner::Subsystem => secret(args)?.to_text(),
    };
    private_file::write_new(path, format!("{}\n", *secret).as_bytes()).map_err(|e| unwritable(path, &e))?;
    let shown = args.show_secret.then_some(secret.as_str());
    let written = output::success(format!("{}: the secret of {nqn}\n\n", path.display()));
    Ok(written + &instructions(nqn, owner, path, shown))
}

/// Checks the name as the configuration does, which would reject the lines with it.
fn check_name(nqn: &str, owner: SecretOwner) -> Result<(), Failure> {
    let checked = match owner {
        SecretOwner::Subsystem => subsystem_nqn(nqn),
        SecretOwner::Host | SecretOwner::Tls => host_nqn(nqn),
    };
    checked.map(drop).map_err(|fault| Failure::new(Exit::Invalid, fault.what, fault.hint))
}

/// A random key for TLS with the hash of the options.
fn tls_key(args: &NvmeSecretArgs) -> Result<TlsKey, Failure> {
    let hash = match (args.hash, args.key_length) {
        (SecretHash::None | SecretHash::Sha256, None | Some(32)) => TlsKeyHash::Sha256,
        (SecretHash::Sha384, None | Some(48)) => TlsKeyHash::Sha384,
        _ => {
            let what = "a key for TLS has the hash sha256 with 32 bytes, or sha384 with 48";
            return Err(Failure::new(Exit::Invalid, what, "choose one with --hash, without --key-length"));
        }
    };
    TlsKey::generate(hash).map_err(|e| no_random_number(&e).into())
}

/// A random secret with the hash and the length of the options.
fn secret(args: &NvmeSecretArgs) -> Result<DhChapSecret, Failure> {
    let hash = match args.hash {
        SecretHash::None => None,
        SecretHash::Sha256 => Some(DhChapHash::Sha256),
        SecretHash::Sha384 => Some(DhChapHash::Sha384),
        SecretHash::Sha512 => Some(DhChapHash::Sha512),
    };
    let made = match args.key_length {
        Some(len) => DhChapSecret::generate_with_len(hash, len),
        None => DhChapSecret::generate(hash),
    };
    made.map_err(|e| match e.kind() {
        io::ErrorKind::InvalidInput => {
            let hint = "sha256 takes 32 bytes, sha384 48, sha512 64, and none any of them";
            Failure::new(Exit::Invalid, format!("--key-length: {e}"), hint)
        }
        _ => no_random_number(&e).into(),
    })
}

/// The lines for `lunar.toml`, and the command of the host.
fn instructions(nqn: &str, owner: SecretOwner, path: &Path, secret: Option<&str>) -> String {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| PathBuf::from(path));
    let absolute = toml_text(&absolute.display().to_string());
    let file = format!("secret_file = {absolute}");
    let value = secret.map_or_else(|| format!("$(cat {})", shell_word(path)), str::to_owned);
    let word = shell_word(nqn.as_ref());
    let (keys, names, option) = match owner {
        SecretOwner::Host => {
            let keys = format!("[[subsystem.host]]\nnqn = {}\n{file}\n", toml_text(nqn));
            (keys, format!("-n SUBSYSTEM -q {word}"), format!("-S \"{value}\""))
        }
        SecretOwner::Subsystem => {
            let keys = format!("[[subsystem]]\nnqn = {}\n{file}\n", toml_text(nqn));
            (keys, format!("-n {word} -q HOST -S \"$(cat HOST.key)\""), format!("-C \"{value}\""))
        }
        SecretOwner::Tls => {
            let keys = format!("[[subsystem.host]]\nnqn = {}\ntls_key_file = {absolute}\n", toml_text(nqn));
            let insert = format!("nvme check-tls-key --insert -n {word} -c SUBSYSTEM -d \"{value}\"");
            return format!(
                "In lunar.toml:\n\n{keys}\n{}, where tlshd runs:\n\n{insert}\n\
                 nvme connect -t tcp -a ADDR -s 4420 -n SUBSYSTEM -q {word} --tls\n",
                place(secret)
            );
        }
    };
    let place = place(secret);
    format!("In lunar.toml:\n\n{keys}\n{place}:\n\nnvme connect -t tcp -a ADDR -s 4420 {names} {option}\n")
}

fn place(secret: Option<&str>) -> &'static str {
    match secret {
        Some(_) => "On the host",
        None => "On the host, with a copy of the file",
    }
}

/// A text as a basic string of TOML.
fn toml_text(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn unwritable(path: &Path, e: &io::Error) -> Failure {
    let what = format!("cannot write {}: {}", path.display(), lunar_config::io_text(e));
    if e.kind() == io::ErrorKind::AlreadyExists {
        return Failure::new(Exit::Exists, what, "move it away, or name another file with --output");
    }
    // A part of a secret is none. A file that was there is not touched: it was not opened.
    _ = std::fs::remove_file(path);
    Failure::new(Exit::General, what, "check the folder, its permissions and its space")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_that_the_configuration_rejects_has_no_secret() {
        for (name, fault) in [
            ("nqn.2026-11.org.example:a b", "the name has a blank"),
            ("nqn.2026-11.org.example:*", "is a pattern"),
            ("nqn.2014-08.org.nvmexpress.discovery", "the discovery service"),
            ("iqn.2026-11.org.example:a", "is no NQN"),
        ] {
            for owner in [SecretOwner::Host, SecretOwner::Tls] {
                let failure = check_name(name, owner).expect_err(name);
                assert!(failure.problems[0].what.contains(fault), "{failure:?}");
                assert_eq!(failure.exit, Exit::Invalid);
            }
        }
        assert!(check_name("nqn.2026-11.org.example:a b", SecretOwner::Subsystem).is_err());
        assert_eq!(check_name("nqn.2026-11.org.example:a", SecretOwner::Tls), Ok(()));
    }

    #[test]
    fn instructions_show_the_secret_only_if_asked() {
        let of =
            |owner, secret| instructions("nqn.2026-11.org.example:a", owner, "/k/a.key".as_ref(), secret);
        let host = of(SecretOwner::Host, None);
        let keys = "[[subsystem.host]]\nnqn = \"nqn.2026-11.org.example:a\"\nsecret_file = \"/k/a.key\"\n";
        assert!(host.contains(keys), "{host}");
        assert!(host.contains(" -q nqn.2026-11.org.example:a -S \"$(cat /k/a.key)\"\n"), "{host}");
        assert!(of(SecretOwner::Host, Some("DHHC-1:x")).contains("-S \"DHHC-1:x\"\n"));
        let subsystem = of(SecretOwner::Subsystem, None);
        assert!(subsystem.contains("\n[[subsystem]]\nnqn = "), "{subsystem}");
        assert!(subsystem.contains("-n nqn.2026-11.org.example:a "), "{subsystem}");
        assert!(subsystem.ends_with("-C \"$(cat /k/a.key)\"\n"), "{subsystem}");
        let tls = of(SecretOwner::Tls, None);
        assert!(tls.contains("\ntls_key_file = \"/k/a.key\"\n"), "{tls}");
        assert!(tls.contains(" -c SUBSYSTEM -d \"$(cat /k/a.key)\"\n"), "{tls}");
        let odd = instructions("nqn.2026-11.org.example:a", SecretOwner::Host, "it's".as_ref(), None);
        assert!(odd.contains(r"$(cat 'it'\''s')"), "{odd}");
    }
}
