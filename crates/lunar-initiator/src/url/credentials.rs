//! The iSCSI name of this initiator, and CHAP secrets.

use super::Url;
use super::error::wrong;
use super::settings::Texts;
use crate::options::Transport;
use crate::{Error, ErrorCode, Options};
use lunar_proto::chap::{Secret, SecretError, secret_of_text};
use lunar_proto::initiator::login::Credentials;
use lunar_proto::initiator::login::LoginParams;
use lunar_proto::login::SessionType;
use lunar_proto::name;
use std::path::Path;

/// The file in which Linux distributions keep the initiator name.
const NAME_FILE: &str = "/etc/iscsi/initiatorname.iscsi";
/// The maximum number of bytes read from that file.
const NAME_FILE_LEN: u64 = 64 << 10;
/// The maximum length of a secret in bytes. A file may contain it in hexadecimal.
const SECRET_LEN: usize = 255;

/// Looks up an environment variable. An empty one counts as unset.
pub type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// An environment variable of this process.
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The initiator name for a URL.
pub fn name(url: &Url, env: Env<'_>) -> Result<String, Error> {
    initiator(url.settings.texts.initiator.as_deref(), env, &|| std::fs::File::open(NAME_FILE).ok())
}

/// The options of a URL.
pub fn options(url: &Url, env: Env<'_>) -> Result<Options, Error> {
    let s = &url.settings;
    let mut offer = s.offer.clone();
    // RFC 7143 section 13.14.
    offer.first_burst_length = offer.first_burst_length.min(offer.max_burst_length);
    let options = Options {
        initiator: name(url, env)?,
        // SRP has no CHAP: credentials in the environment are for other transports.
        credentials: if url.transport == Transport::Srp { None } else { credentials(url, env)? },
        transport: url.transport,
        provider: s.provider,
        offer,
        crc32c_first: s.crc32c_first,
        timeouts: s.timeouts.clone(),
        commands: s.commands,
        window: s.window,
        isid: s.isid,
        initiator_ext: s.initiator_ext,
        initiator_guid: s.initiator_guid,
        channels: s.channels,
        late_writes: s.late_writes,
        hooks: None,
    };
    check(url, &options)?;
    Ok(options)
}

/// Checks the login parameters before the first connection.
fn check(url: &Url, options: &Options) -> Result<(), Error> {
    let target = url.target.clone();
    let session_type = if target.is_some() { SessionType::Normal } else { SessionType::Discovery };
    let wish = LoginParams {
        initiator: options.initiator.clone(),
        initiator_alias: None,
        target,
        session_type,
        isid: [0; 6],
        tsih: 0,
        cid: 0,
        cmd_sn: 0,
        itt: 0,
        offer: options.offer.clone(),
        crc32c_first: options.crc32c_first,
        credentials: options.credentials.clone(),
    };
    wish.check()
        .map_err(|why| wrong(why, "check the URL, and the LUNAR_ and LIBISCSI_ variables of the environment"))
}

/// The initiator name: from the URL, the environment, the file, or derived from the host name.
fn initiator(
    given: Option<&str>,
    env: Env<'_>,
    file: &dyn Fn() -> Option<std::fs::File>,
) -> Result<String, Error> {
    let (name, source) = match (given.map(str::to_owned), env("LUNAR_INITIATOR")) {
        (Some(name), _) => (name, "initiator= in the URL"),
        (None, Some(name)) => (name, "LUNAR_INITIATOR"),
        (None, None) => {
            return Ok(file().and_then(kept).unwrap_or_else(|| name::of_host(&lunar_runtime::host::name())));
        }
    };
    let Err(why) = name::check(&name) else { return Ok(name) };
    let what = format!("{source}: \"{}\" is not an iSCSI name: {why}", name.escape_debug());
    Err(wrong(what, "write iqn.YEAR-MONTH.DOMAIN:NAME, or eui. or naa. and hexadecimal digits"))
}

/// The name in Open-iSCSI's file. An unusable file is logged: access lists and reservations of the target may contain
/// that name.
fn kept(file: std::fs::File) -> Option<String> {
    use std::io::Read;
    let mut bytes = Vec::new();
    let read = file.take(NAME_FILE_LEN).read_to_end(&mut bytes);
    let found = match read {
        Ok(_) => name_in(&bytes),
        Err(e) => Err(e.to_string()),
    };
    let report = |why| {
        let ours = name::of_host(&lunar_runtime::host::name());
        tracing::warn!(
            "{NAME_FILE}: {why}; this host logs in as {ours}; hint: add InitiatorName=IQN to {NAME_FILE}"
        );
    };
    found.map_err(report).ok()
}

/// The value of InitiatorName in such a file.
fn name_in(text: &[u8]) -> Result<String, String> {
    let text = std::str::from_utf8(text).map_err(|_| "the file with InitiatorName is not UTF-8 text")?;
    let value = |line: &str| {
        let (key, value) = line.trim().trim_start_matches('\u{feff}').split_once('=')?;
        (key.trim() == "InitiatorName").then(|| value.trim().to_owned())
    };
    match text.lines().find_map(value) {
        Some(name) => match name::check(&name) {
            Ok(_) => Ok(name),
            Err(why) => Err(format!("InitiatorName \"{}\" is not an iSCSI name: {why}", name.escape_debug())),
        },
        None => Err("the file has no InitiatorName".into()),
    }
}

/// The sources of the name and secret of one side.
struct Side<'a> {
    user: &'a Option<String>,
    password: &'a Option<String>,
    file: &'a Option<String>,
    /// The environment variables with the name, the secret, and the path of the secret file.
    users: [&'static str; 2],
    passwords: [&'static str; 2],
    files: &'static str,
    /// Hints for a missing name or secret.
    missing_user: &'static str,
    missing_password: &'static str,
}

fn credentials(url: &Url, env: Env<'_>) -> Result<Option<Credentials>, Error> {
    let Texts { password_file, target_user, target_password, target_password_file, .. } = &url.settings.texts;
    let ours = Side {
        user: &url.user,
        password: &url.password,
        file: password_file,
        users: ["LUNAR_CHAP_USER", "LIBISCSI_CHAP_USERNAME"],
        passwords: ["LUNAR_CHAP_PASSWORD", "LIBISCSI_CHAP_PASSWORD"],
        files: "LUNAR_CHAP_PASSWORD_FILE",
        missing_user: "write iscsi://USER@HOST..., or set LUNAR_CHAP_USER",
        missing_password: "add password_file=FILE, or set LUNAR_CHAP_PASSWORD or LUNAR_CHAP_PASSWORD_FILE",
    };
    let theirs = Side {
        user: target_user,
        password: target_password,
        file: target_password_file,
        users: ["LUNAR_CHAP_TARGET_USER", "LIBISCSI_CHAP_TARGET_USERNAME"],
        passwords: ["LUNAR_CHAP_TARGET_PASSWORD", "LIBISCSI_CHAP_TARGET_PASSWORD"],
        files: "LUNAR_CHAP_TARGET_PASSWORD_FILE",
        missing_user: "add target_user=NAME, or set LUNAR_CHAP_TARGET_USER",
        missing_password: "add target_password_file=FILE, or set LUNAR_CHAP_TARGET_PASSWORD or \
                           LUNAR_CHAP_TARGET_PASSWORD_FILE",
    };
    let (ours, mutual) = (ours.read("CHAP", env)?, theirs.read("mutual CHAP", env)?);
    match (ours, mutual) {
        (Some((name, secret)), mutual) => {
            let algorithms = url.settings.algorithms.clone();
            Ok(Some(Credentials { name, secret, mutual, algorithms, required: false }))
        }
        (None, Some(_)) => Err(wrong(
            "mutual CHAP: the user and password of this initiator are missing",
            "write iscsi://USER@HOST..., and add password_file=FILE",
        )),
        (None, None) => Ok(None),
    }
}

impl Side<'_> {
    /// The name and secret. The URL takes precedence over the environment.
    fn read(&self, what: &str, env: Env<'_>) -> Result<Option<(String, Secret)>, Error> {
        let user = self.user.clone().or_else(|| self.users.iter().find_map(|name| env(name)));
        match (user, self.secret(env)?) {
            (Some(user), Some(secret)) => Ok(Some((user, secret))),
            (None, None) => Ok(None),
            (Some(_), None) => {
                Err(wrong(format!("{what}: a user is set, but no password"), self.missing_password))
            }
            (None, Some(_)) => {
                Err(wrong(format!("{what}: a password is set, but no user"), self.missing_user))
            }
        }
    }

    fn secret(&self, env: Env<'_>) -> Result<Option<Secret>, Error> {
        if self.password.is_some() && self.file.is_some() {
            return Err(wrong("the URL has both a password and a password file", "remove one of them"));
        }
        if let Some(text) = self.password {
            return secret(text.as_bytes()).map(Some);
        }
        if let Some(file) = self.file {
            return from_file(file).map(Some);
        }
        let [first, second] = self.passwords;
        match (env(first), env(self.files), env(second)) {
            (Some(text), ..) | (None, None, Some(text)) => secret(text.as_bytes()).map(Some),
            (None, Some(file), _) => from_file(&file).map(Some),
            (None, None, None) => Ok(None),
        }
    }
}

/// Reads a secret file in the format of the target's configuration: bytes, or `0x` and hexadecimal digits.
fn from_file(path: &str) -> Result<Secret, Error> {
    let read = lunar_runtime::host::secret_file(Path::new(path), 2 * SECRET_LEN + 4, None);
    let bytes = read.map_err(|refused| match Path::new(path).exists() {
        true => wrong(refused.what, refused.hint),
        false => Error::new(ErrorCode::NotFound, refused.what).with_hint(
            "create the file with the secret that the target has for this user, and run chmod 0600 on it",
        ),
    })?;
    let bad = |bad: SecretError| {
        let (what, hint) = bad.explain();
        wrong(format!("the secret {path} contains {what}"), hint)
    };
    secret(&secret_of_text(&bytes).map_err(bad)?)
}

fn secret(bytes: &[u8]) -> Result<Secret, Error> {
    if (1..=SECRET_LEN).contains(&bytes.len()) {
        return Ok(Secret::new(bytes));
    }
    let what = format!("the CHAP secret has {} bytes, outside 1 to {SECRET_LEN}", bytes.len());
    Err(wrong(what, "use 1 to 255 bytes, preferably 16 random bytes (RFC 7143 section 9.2.1)"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn with<'a>(vars: &'a BTreeMap<&'a str, &'a str>) -> impl Fn(&str) -> Option<String> + 'a {
        |name| vars.get(name).map(|value| value.to_string())
    }

    fn credentials_of(
        url: &str,
        vars: &[(&'static str, &'static str)],
    ) -> Result<Option<Credentials>, Error> {
        let vars = vars.iter().copied().collect();
        credentials(&Url::parse(url).unwrap(), &with(&vars))
    }

    #[test]
    fn url_goes_before_the_environment() {
        let vars =
            [("LUNAR_CHAP_USER", "ann"), ("LIBISCSI_CHAP_USERNAME", "old"), ("LIBISCSI_CHAP_PASSWORD", "p")];
        let c = credentials_of("iscsi://h", &vars).unwrap().unwrap();
        assert_eq!((c.name.as_str(), c.secret == Secret::new(b"p")), ("ann", true));
        let c = credentials_of("iscsi://bob%q@h", &vars).unwrap().unwrap();
        assert_eq!((c.name.as_str(), c.secret == Secret::new(b"q")), ("bob", true));
        assert!(credentials_of("iscsi://h", &[]).unwrap().is_none());
    }

    #[test]
    fn mutual_chap_needs_both_sides() {
        let c = credentials_of("iscsi://a%b@h?target_user=t&target_password=s", &[]).unwrap().unwrap();
        assert_eq!(c.mutual, Some(("t".into(), Secret::new(b"s"))));
        for url in [
            "iscsi://h?target_user=t&target_password=s",
            "iscsi://a%b@h?target_user=t",
            "iscsi://a%b@h?target_password=s",
            "iscsi://a@h",
            "iscsi://:b@h",
            "iscsi://a%b@h?password_file=x",
            "iscsi://a@h?password_file=/nowhere/at/all",
        ] {
            let error = credentials_of(url, &[]).unwrap_err();
            assert!(error.hint.is_some(), "{url}: {error}");
        }
    }

    #[test]
    fn initiator_name_comes_from_url_environment_file_or_host() {
        let path = std::env::temp_dir().join(format!("lunar-name-{}", std::process::id()));
        std::fs::write(&path, "# made\n InitiatorName=iqn.1993-08.org.debian:01:f\n").unwrap();
        let file = || std::fs::File::open(&path).ok();
        let env: Env<'_> = &|_| Some("iqn.2026-11.org.example:env".into());
        let name = |given, env, file| initiator(given, env, file).unwrap();
        assert_eq!(name(Some("iqn.2026-11.org.example:url"), env, &file), "iqn.2026-11.org.example:url");
        assert_eq!(name(None, env, &file), "iqn.2026-11.org.example:env");
        assert_eq!(name(None, &|_| None, &file), "iqn.1993-08.org.debian:01:f");
        assert_eq!(name(None, &|_| None, &|| None), name::of_host(&lunar_runtime::host::name()));
        assert!(initiator(Some("me"), env, &file).is_err());
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn name_file_with_blanks_and_crlf_is_read() {
        const NAME: &str = "iqn.1993-08.org.debian:01:f";
        for text in
            ["InitiatorName = NAME \n", "\u{feff}InitiatorName=NAME\r\n", "#\n\tInitiatorName\t=\tNAME"]
        {
            assert_eq!(name_in(text.replace("NAME", NAME).as_bytes()), Ok(NAME.to_owned()), "{text}");
        }
    }

    #[test]
    fn name_file_without_usable_name_is_an_error() {
        for text in [
            "",
            "#InitiatorName=iqn.2026-11.a:b\n",
            "InitiatorName=iqn.2026-11.a:my host\n",
            "InitiatorName=iqn.2026-11.a:a\u{202e}b\n",
            "InitiatorName=\n",
        ] {
            assert!(name_in(text.as_bytes()).is_err(), "{text}");
        }
        assert!(name_in(b"InitiatorName=iqn.2026-11.a:\xff\n").unwrap_err().contains("InitiatorName"));
    }

    #[test]
    fn secret_file_is_read_and_must_be_private() {
        use std::os::unix::fs::PermissionsExt;
        let path = std::env::temp_dir().join(format!("lunar-secret-{}", std::process::id()));
        std::fs::write(&path, "0x616263\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let shown = path.display().to_string();
        assert!(from_file(&shown).unwrap() == Secret::new(b"abc"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(from_file(&shown).unwrap_err().hint.as_ref().unwrap().starts_with("run: chmod 0600"));
        std::fs::remove_file(path).unwrap();
        assert!(from_file(&shown).unwrap_err().hint.as_ref().unwrap().contains("that the target has"));
    }
}
