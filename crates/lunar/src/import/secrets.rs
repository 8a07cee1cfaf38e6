//! Secrets of an import, one file each.

use super::{SECRETS, give, unwritable, write_new};
use crate::exit::{Exit, Failure};
use crate::private_file;
use crate::staged_files::FileOwner;
use lunar_import::Configuration;
use lunar_proto::chap::secret_of_text;
use std::path::Path;

/// Writes a secret file for each CHAP user, and the secret files of NVMe. A user without a secret gets a random one.
pub(super) fn write(
    output: &Path,
    configuration: &Configuration,
    owner: Option<FileOwner>,
) -> Result<(), Failure> {
    let folder = output.with_file_name(SECRETS);
    let (users, files) = (&configuration.chap_users, &configuration.secret_files);
    if users.is_empty() && files.is_empty() {
        return Ok(());
    }
    let is_new = !folder.exists();
    private_file::create_folder(&folder)
        .and_then(|()| give(&folder, owner.filter(|_| is_new)))
        .map_err(|e| unwritable(&folder, &e))?;
    for user in users {
        let path = folder.join(format!("{}.secret", user.id));
        match &user.secret {
            Some(secret) if is_literal(secret) => write_new(&path, secret.as_bytes(), owner)?,
            Some(secret) => write_new(&path, hexadecimal(secret).as_bytes(), owner)?,
            None => write_new(&path, random_secret()?.as_bytes(), owner)?,
        }
    }
    for file in files {
        write_new(&folder.join(&file.name), format!("{}\n", *file.text).as_bytes(), owner)?;
    }
    Ok(())
}

/// Whether a secret file with this text has these bytes as its secret. Other targets take a text such as `0x12` as it
/// is.
fn is_literal(secret: &str) -> bool {
    secret_of_text(secret.as_bytes()).is_ok_and(|read| read[..] == *secret.as_bytes())
}

fn hexadecimal(secret: &str) -> String {
    secret.bytes().fold("0x".to_owned(), |text, byte| text + &format!("{byte:02x}"))
}

/// A secret of 16 random bytes, in the hexadecimal form that secret files may have.
fn random_secret() -> Result<String, Failure> {
    let random = getrandom::u64().and_then(|high| Ok(format!("0x{high:016x}{:016x}", getrandom::u64()?)));
    random.map_err(|e| {
        let what = format!("cannot generate a secret: {e}");
        Failure::new(Exit::General, what, "run the command again when the system has random numbers")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_that_looks_like_digits_keeps_its_bytes() {
        for secret in ["plain secret", "0x000102030405", "0xyz", "a\n"] {
            let text = if is_literal(secret) { secret.to_owned() } else { hexadecimal(secret) };
            assert_eq!(secret_of_text(text.as_bytes()).expect(secret)[..], *secret.as_bytes());
            assert_eq!(text == secret, secret == "plain secret");
        }
    }
}
