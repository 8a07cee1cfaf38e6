//! The URL of a LUN, with its settings: `iscsi://`, or `iser://` and `srp://` over RDMA.

mod credentials;
mod error;
pub mod nvme;
mod settings;
mod srp;

#[cfg(doc)]
use crate::ErrorCode;
use crate::options::{Options, Portal, Provider, Timeouts, Transport};
use crate::{Error, hints};
use error::{NVME_FORM, NVME_SCHEME, wrong};
use lunar_proto::chap::Algorithm;
use lunar_proto::initiator::targets::PortalAddress;
use lunar_proto::nearest::nearest;
use lunar_proto::{name, percent};
use settings::{Texts, UrlSettings};
use std::fmt;
use std::str::FromStr;

/// The maximum length of a URL in bytes.
const LONGEST: usize = 8192;
/// The transports. Each has its own URL scheme.
const TRANSPORTS: [Transport; 3] = [Transport::Tcp, Transport::Iser, Transport::Srp];
/// The form of a URL, for hints.
const FORM: &str = "write iscsi://[USER@]HOST[:PORT][/TARGET[/LUN]][?KEY=VALUE&...]";
/// The number of LUNs with a single level (SAM-5 section 4.7).
const LUNS: u16 = 0x4000;

/// `iscsi://[USER[%PASSWORD]@]HOST[:PORT][/TARGET[/LUN]][?KEY=VALUE&...]`, or the same with `iser://`
///
/// HOST is a name, an IPv4 address, or an IPv6 address in brackets, optionally with a zone (`[fe80::1%eth0]`).
/// Without LUN the URL identifies a target, without TARGET a portal.
///
/// `USER%PASSWORD` is the form of libiscsi: the first `%` separates, and the password is taken literally, so it
/// cannot contain `@` or `?`. In `USER:PASSWORD`, with the colon before any percent sign, the password is
/// percent-encoded, as are TARGET and values. Prefer a password in a file (`password_file=`) or in an environment
/// variable: all users of a host can see command lines.
///
/// Over SRP the form is `srp://HOST[:PORT]/ID_EXT[:IOC_GUID][/LUN][?KEY=VALUE&...]`. The target port has two halves
/// of 16 hexadecimal digits. The second half defaults to the first, the TCP port to 5555. There are no users. The
/// keys `initiator_ext` and `initiator_guid` are the halves of the initiator port. They default to values derived
/// from `isid` and `initiator`: see [`Options::srp_port`].
///
/// Neither `Display` nor `Debug` show a secret.
///
/// # Keys
#[doc = include_str!("keys.md")]
#[derive(Clone)]
pub struct Url {
    /// The transport.
    pub transport: Transport,
    /// The portal to connect to.
    pub portal: Portal,
    /// The portal whose discovery named this one.
    named_by: Option<Portal>,
    /// The name of the target.
    pub target: Option<String>,
    /// The LUN.
    pub lun: Option<u16>,
    user: Option<String>,
    password: Option<String>,
    settings: UrlSettings,
    /// The keys given in the URL.
    named: Vec<&'static str>,
    /// The given settings that are not secret.
    shown: Vec<(&'static str, String)>,
}

impl Url {
    /// Parses a URL.
    ///
    /// # Errors
    /// [`ErrorCode::InvalidArgument`], with a hint.
    pub fn parse(text: &str) -> Result<Url, Error> {
        let Some((transport, rest)) = scheme_of(text).filter(|_| text.len() <= LONGEST) else {
            return Err(no_scheme(text));
        };
        let is_srp = transport == Transport::Srp;
        let form = if is_srp { srp::FORM } else { FORM };
        if rest.contains(char::is_control) {
            return Err(wrong(
                format!("the URL \"{}\" contains control characters", without_secrets(text)),
                form,
            ));
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (user, rest) = match rest.split_once('@') {
            Some((user, rest)) => (user, rest),
            None => ("", rest),
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let portal = PortalAddress::parse(authority);
        let portal = portal.map_err(|why| wrong(format!("host and port of the URL: {why}"), form))?;
        let (mut target, lun) = path_of(path)?;
        let (user, password) = user_of(user)?;
        if is_srp {
            if user.is_some() || password.is_some() {
                return Err(srp::no_users());
            }
            target = target.map(|name| srp::target(&name)).transpose()?;
        }
        let port = if is_srp && !srp::names_port(authority) { srp::PORT } else { portal.port };
        let mut url = Url {
            transport,
            portal: Portal { host: portal.host, port },
            named_by: None,
            target,
            lun,
            user,
            password,
            settings: defaults(),
            named: Vec::new(),
            shown: Vec::new(),
        };
        url.query(query)?;
        url.check_digests()?;
        Ok(url)
    }

    fn query(&mut self, query: &str) -> Result<(), Error> {
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let row = settings::find(key).map_err(|meant| unknown(key, meant))?;
            srp::check(self.transport, row)?;
            if self.named.contains(&row.name) {
                return Err(wrong(format!("the URL has the key {key} twice"), "remove one of them"));
            }
            self.named.push(row.name);
            let value = percent::decode(value).ok_or_else(|| badly_encoded(key))?;
            let set = row.set(&mut self.settings, &value);
            let given = if row.is_secret() { String::new() } else { format!("={}", value.escape_debug()) };
            set.map_err(|no| wrong(format!("{key}{given} in the URL: {}", no.what), no.hint))?;
            if !row.is_secret() {
                self.shown.push((row.name, value));
            }
        }
        Ok(())
    }

    /// Rejects digests over an RDMA device, which has its own checksums. iSCSI and software iWARP have CRCs.
    fn check_digests(&self) -> Result<(), Error> {
        let offer = &self.settings.offer;
        let digests = [("header_digest", &offer.header_digest), ("data_digest", &offer.data_digest)];
        let idle = digests.iter().find(|(key, digests)| self.has(key) && digests.crc32c);
        match idle {
            Some((key, _)) if self.settings.provider == Provider::Verbs => Err(wrong(
                format!("{key} in the URL has no effect with provider=verbs"),
                "remove the key, or write none: RDMA devices have their own checksums",
            )),
            _ => Ok(()),
        }
    }

    /// The options of a session: those of the URL, with secrets from files and the environment, and with the
    /// initiator name. Without `initiator=`, the name is that of `LUNAR_INITIATOR`, that of
    /// `/etc/iscsi/initiatorname.iscsi`, or one derived from the host name.
    ///
    /// # Errors
    /// [`ErrorCode::InvalidArgument`] when a secret is missing or cannot be read, or a name is invalid.
    pub fn options(&self) -> Result<Options, Error> {
        credentials::options(self, &credentials::variable)
    }

    /// The initiator name, as in [`Url::options`].
    ///
    /// # Errors
    /// [`ErrorCode::InvalidArgument`] when it is invalid.
    pub fn initiator(&self) -> Result<String, Error> {
        credentials::name(self, &credentials::variable)
    }

    /// Sets the initiator name and the ISID of sessions, in place of those in the URL.
    pub(crate) fn take_port(&mut self, initiator: Option<&str>, isid: [u8; 6]) {
        self.settings.isid = Some(isid);
        if let Some(name) = initiator {
            self.settings.texts.initiator = Some(name.to_owned());
        }
    }

    /// The timeouts, which may be changed before a session is opened.
    pub fn timeouts_mut(&mut self) -> &mut Timeouts {
        &mut self.settings.timeouts
    }

    /// Whether the URL itself contains a password.
    pub fn holds_secret(&self) -> bool {
        self.password.is_some() || self.settings.texts.target_password.is_some()
    }

    /// The files with passwords that the URL names.
    pub fn secret_files(&self) -> impl Iterator<Item = &str> {
        let texts = &self.settings.texts;
        [&texts.password_file, &texts.target_password_file].into_iter().filter_map(|file| file.as_deref())
    }

    /// The same URL with this target and LUN.
    pub fn at(&self, target: impl Into<String>, lun: Option<u16>) -> Url {
        Url { target: Some(target.into()), lun, ..self.clone() }
    }

    /// The same URL with another portal.
    pub fn through(&self, portal: Portal) -> Url {
        Url { portal, named_by: None, ..self.clone() }
    }

    /// The same URL with a portal that its own portal has named in discovery.
    pub(crate) fn sent_to(&self, portal: Portal) -> Url {
        let named_by = (portal != self.portal).then(|| self.portal.clone());
        Url { portal, named_by, ..self.clone() }
    }

    /// Adds the discovering portal to the error of an unreachable portal.
    pub fn explain(&self, e: Error) -> Error {
        let Some(named_by) = self.named_by.as_ref().filter(|_| e.is_away()) else { return e };
        let e = e.during(format!("portal {}, which the portal {named_by} advertised", self.portal));
        match &e.hint {
            Some(hint) if *hint != hints::LOGIN_TIMEOUT => e,
            _ => e.with_hint(format!(
                "configure {named_by} to advertise an address that this host reaches, or name the target in the URL"
            )),
        }
    }

    /// The same URL with another default for a key that it does not contain.
    ///
    /// # Errors
    /// [`ErrorCode::InvalidArgument`] when there is no such key, or it does not accept this value.
    pub fn with_default(mut self, key: &str, value: &str) -> Result<Url, Error> {
        let row = settings::find(key).map_err(|meant| unknown(key, meant))?;
        if self.named.contains(&row.name) {
            return Ok(self);
        }
        let set = row.set(&mut self.settings, value);
        set.map_err(|no| wrong(format!("{key}: {}", no.what), no.hint))?;
        Ok(self)
    }

    /// Whether the URL has this key.
    pub fn has(&self, key: &str) -> bool {
        self.named.contains(&key)
    }

    /// The URL without user and settings.
    pub fn plain(&self) -> String {
        Url { user: None, shown: Vec::new(), ..self.clone() }.to_string()
    }

    /// Checks that paths to one logical unit have the same initiator name. Only then does LOGICAL UNIT RESET through
    /// one path also end commands of another path that the target has not read yet.
    ///
    /// # Errors
    /// [`ErrorCode::InvalidArgument`] when `initiator=` differs from that of the first path.
    pub fn check_beside(&self, first: &Url) -> Result<(), Error> {
        let named =
            |url: &Url| url.settings.texts.initiator.as_deref().map(|name| name::fold(name).into_owned());
        let (this, other) = (named(self), named(first));
        if this == other {
            return Ok(());
        }
        let show = |name: Option<String>| match name {
            Some(name) => format!("initiator={}", name.escape_debug()),
            None => "no initiator=".to_owned(),
        };
        let what = format!(
            "the URL of this path has {}, but that of the first path has {}",
            show(this),
            show(other)
        );
        Err(wrong(what, "write the same initiator= in the URL of each path, or in none"))
    }
}

/// The rest of a URL after `iscsi://`, `iser://` or `srp://`, in any letter case (RFC 3986 section 3.1). None if the
/// text has no such scheme.
pub fn without_scheme(text: &str) -> Option<&str> {
    scheme_of(text).map(|(_, rest)| rest)
}

/// Whether a text is meant as a URL: its scheme is a known one, or similar to a known one.
pub fn is_url(text: &str) -> bool {
    scheme_of(text).is_some() || meant_scheme(text).is_some()
}

fn meant_scheme(text: &str) -> Option<&'static str> {
    let (scheme, _) = text.split_once("://")?;
    match scheme.to_ascii_lowercase().strip_prefix(NVME_SCHEME) {
        Some("") => None,
        Some(_) => Some(NVME_SCHEME),
        None => nearest(scheme, TRANSPORTS.map(Transport::scheme)),
    }
}

/// The error for a text without a known scheme.
fn no_scheme(text: &str) -> Error {
    match meant_scheme(text).filter(|_| text.len() <= LONGEST) {
        Some(meant) => {
            let what = format!("the URL \"{}\" has an unknown scheme", without_secrets(text));
            wrong(what, format!("did you mean {meant}://?"))
        }
        None => wrong(
            format!("\"{}\" is not a URL of iSCSI, iSER, SRP or NVMe", without_secrets(text)),
            format!("{FORM}, the same with iser://, or {}, or {}", srp::FORM, NVME_FORM),
        ),
    }
}

/// The beginning of an invalid URL, safe to display, without what may be a user, a password or a setting.
fn without_secrets(text: &str) -> String {
    let text = text.split('?').next().unwrap_or_default();
    let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
    let shown: String = rest.rsplit('@').next().unwrap_or_default().chars().take(100).collect();
    let scheme: String = scheme.chars().take(16).collect();
    let mark = if text.contains("://") { "://" } else { "" };
    format!("{scheme}{mark}{shown}").escape_debug().to_string()
}

fn scheme_of(text: &str) -> Option<(Transport, &str)> {
    let (scheme, rest) = text.split_once("://")?;
    let transport = TRANSPORTS.into_iter().find(|one| scheme.eq_ignore_ascii_case(one.scheme()))?;
    Some((transport, rest))
}

fn defaults() -> UrlSettings {
    let options = Options::new("");
    UrlSettings {
        offer: options.offer,
        crc32c_first: options.crc32c_first,
        timeouts: Timeouts::default(),
        commands: options.commands,
        provider: options.provider,
        window: None,
        isid: None,
        initiator_ext: None,
        initiator_guid: None,
        channels: options.channels,
        late_writes: options.late_writes,
        algorithms: Algorithm::ALL.to_vec(),
        texts: Texts::default(),
    }
}

fn unknown(key: &str, meant: Option<&str>) -> Error {
    let hint = match meant {
        Some(meant) => format!("did you mean {meant}?"),
        None => "docs/use.md lists all keys".to_owned(),
    };
    let key: String = key.chars().take(64).collect();
    wrong(format!("the URL has the unknown key \"{}\"", key.escape_debug()), hint)
}

fn badly_encoded(what: &str) -> Error {
    wrong(format!("{what} in the URL has an invalid percent-encoding"), "write a percent sign as %25")
}

/// Splits the path into target and LUN.
fn path_of(path: &str) -> Result<(Option<String>, Option<u16>), Error> {
    let path = path.strip_suffix('/').unwrap_or(path);
    let (target, lun) = match path.split_once('/') {
        Some((target, lun)) => (target, Some(lun).filter(|lun| !lun.is_empty())),
        None => (path, None),
    };
    if target.is_empty() && lun.is_none() {
        return Ok((None, None));
    }
    let target = percent::decode(target).ok_or_else(|| badly_encoded("the target"))?;
    if !name::is_usable(&target) {
        let what = format!("\"{}\" in the URL is not a target name", target.escape_debug());
        return Err(wrong(what, "use a name of 1 to 223 bytes, such as iqn.YEAR-MONTH.DOMAIN:NAME"));
    }
    let number = |lun: &str| match lun.parse().ok().filter(|n| *n < LUNS && !lun.starts_with('+')) {
        Some(number) => Ok(number),
        None => Err(wrong(
            format!("\"{}\" in the URL is not a LUN", lun.escape_debug()),
            "use a number from 0 to 16383",
        )),
    };
    Ok((Some(target), lun.map(number).transpose()?))
}

/// Splits user and password, in one of two forms: see [`Url`].
fn user_of(text: &str) -> Result<(Option<String>, Option<String>), Error> {
    let some = |text: String| Some(text).filter(|text| !text.is_empty());
    match text.find([':', '%']) {
        Some(at) if text[at..].starts_with(':') => {
            let password = percent::decode(&text[at + 1..]).ok_or_else(|| badly_encoded("the password"))?;
            Ok((some(text[..at].into()), some(password)))
        }
        Some(at) => Ok((some(text[..at].into()), some(text[at + 1..].into()))),
        None => Ok((some(text.into()), None)),
    }
}

impl FromStr for Url {
    type Err = Error;

    fn from_str(text: &str) -> Result<Url, Error> {
        Url::parse(text)
    }
}

/// Parses back to the same URL, except for secrets.
impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let in_path = |c| percent::is_plain(c) && c != '/';
        write!(f, "{}://", self.transport.scheme())?;
        // The user contains no delimiters: it was parsed from such a URL.
        self.user.as_ref().map_or(Ok(()), |user| write!(f, "{user}@"))?;
        write!(f, "{}", self.portal)?;
        if let Some(target) = &self.target {
            f.write_str("/")?;
            percent::encode(f, target, in_path)?;
            self.lun.map_or(Ok(()), |lun| write!(f, "/{lun}"))?;
        }
        for (n, (key, value)) in self.shown.iter().enumerate() {
            write!(f, "{}{key}=", if n == 0 { '?' } else { '&' })?;
            percent::encode(f, value, percent::is_plain)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Url({self})")
    }
}

#[cfg(test)]
mod tests;
