//! The URL of an NVMe/TCP namespace.

use super::error::{NVME_FORM as FORM, NVME_SCHEME as SCHEME, wrong};
use super::srp::names_port;
use crate::nvme::options::{AuthSecrets, DhChapSecret, Nqn, parse_uuid};
use crate::nvme::{NamespaceName, NvmeOptions};
use crate::{Error, ErrorCode, Hint, Portal, Remedy};
use lunar_proto::duration;
use lunar_proto::initiator::targets::PortalAddress;
use lunar_proto::nearest::nearest;
use lunar_proto::percent;
use lunar_wire::nvme::{DISCOVERY_PORT, IO_PORT};
use std::fmt;
use std::ops::RangeInclusive;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

/// The maximum length of a URL in bytes.
const LONGEST: usize = 8192;
/// The longest file with a secret, in bytes.
const SECRET_LEN: usize = 255;
/// The range of the number of I/O queues.
const IO_QUEUES: RangeInclusive<u32> = 1..=128;
/// The range of the entries of a queue.
const ENTRIES: RangeInclusive<u32> = 2..=65536;
/// The range of times.
const TIMES: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(30 * 86400);

/// Sets an option from its text.
type Setter = fn(&mut NvmeOptions, &str) -> Result<(), String>;
/// Keys that read a file, when the options are made.
const SECRET_FILES: [&str; 2] = ["secret_file", "subsystem_secret_file"];

/// The fix for a missing file.
const NO_SECRET: Hint = Hint::with_remedy(
    "copy the file with the secret that the target has for this host, in the form DHHC-1:HH:BASE64:",
    Remedy::NoDhChapSecret,
);

/// The key that names further portals.
const PATHS: &str = "paths";

/// All other keys.
const KEYS: &[(&str, Setter)] = &[
    ("host_nqn", |o, v| Nqn::new(v).map(|nqn| o.host = nqn).map_err(|e| e.to_string())),
    ("host_id", |o, v| {
        parse_uuid(v).map(|id| o.host_id = Some(id)).ok_or_else(|| "the value must be a UUID".into())
    }),
    ("header_digest", |o, v| digest(v).map(|on| o.header_digest = on)),
    ("data_digest", |o, v| digest(v).map(|on| o.data_digest = on)),
    ("io_queues", |o, v| number(v, &IO_QUEUES).map(|n| o.io_queues = Some(n as u16))),
    ("queue_len", |o, v| number(v, &ENTRIES).map(|n| o.queue_len = n)),
    ("keep_alive", |o, v| time(v, true).map(|t| o.keep_alive = t)),
    ("login_timeout", |o, v| time(v, false).map(|t| o.timeouts.login = t)),
    ("command_timeout", |o, v| time(v, false).map(|t| o.timeouts.command = t)),
    ("recovery_timeout", |o, v| time(v, false).map(|t| o.timeouts.recovery = t)),
    ("operation_timeout", |o, v| time(v, false).map(|t| o.timeouts.operation = t)),
    ("login_tries", |o, v| number(v, &(1..=1_000_000)).map(|n| o.timeouts.login_tries = n)),
];

/// `nvme://HOST[:PORT]/NQN[/NAMESPACE][?KEY=VALUE&...]`
///
/// HOST is a name, an IPv4 address, or an IPv6 address in brackets. The port defaults to 4420. NQN and values are
/// percent-encoded. NAMESPACE is a number (NSID), `uuid.UUID`, `eui.NGUID` or `eui.EUI64`. Without it, the subsystem must have
/// one namespace. Without NQN, the URL names a discovery service,
/// and the port defaults to 8009.
///
/// # Keys
///
/// | key | meaning |
/// |---|---|
/// | `host_nqn` | name of this host; default: the one in `/etc/nvme/hostnqn`, or derived from the host name |
/// | `host_id` | identifier of this host; default: a random one for each controller |
/// | `secret_file` | file with the secret of this host for DH-HMAC-CHAP, `DHHC-1:HH:BASE64:` |
/// | `subsystem_secret_file` | file with the secret with which the controller proves itself |
/// | `header_digest`, `data_digest` | `crc32c` or `none` |
/// | `io_queues` | I/O queues, each with a connection; default: one for each CPU of the process, up to 4 |
/// | `queue_len` | entries of an I/O queue, 128 by default |
/// | `keep_alive` | time after which a controller drops a silent host; 0 turns it off |
/// | `login_timeout`, `command_timeout` | limits of a connection and of an answer |
/// | `operation_timeout` | time after which a command that has failed is not tried again |
/// | `recovery_timeout` | time to reconnect before commands fail (controller-loss time-out) |
/// | `login_tries` | attempts of the first connection |
/// | `paths` | further portals of the subsystem, `HOST[:PORT],...`: see [`NvmeUrl::paths`] |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvmeUrl {
    /// The portal.
    pub portal: Portal,
    /// The subsystem.
    pub subsystem: Option<Nqn>,
    /// The namespace.
    pub namespace: Option<NamespaceName>,
    /// Keys and values, in order.
    settings: Vec<(&'static str, String)>,
}

/// Whether a text has the scheme of NVMe/TCP, in any letter case.
pub fn is_url(text: &str) -> bool {
    text.split_once("://").is_some_and(|(scheme, _)| scheme.eq_ignore_ascii_case(SCHEME))
}

impl FromStr for NvmeUrl {
    type Err = Error;

    fn from_str(text: &str) -> Result<NvmeUrl, Error> {
        let shown: String = text.chars().take(100).collect();
        let Some((_, rest)) = text.split_once("://").filter(|_| is_url(text) && text.len() <= LONGEST) else {
            return Err(wrong(format!("\"{}\" is not an NVMe URL", shown.escape_debug()), FORM));
        };
        if rest.contains(char::is_control) {
            return Err(wrong(
                format!("the URL \"{}\" contains control characters", shown.escape_debug()),
                FORM,
            ));
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let portal = PortalAddress::parse(authority);
        let portal = portal.map_err(|why| wrong(format!("host and port of the URL: {why}"), FORM))?;
        let (subsystem, namespace) = path_of(path)?;
        let port = match (names_port(authority), &subsystem) {
            (true, _) => portal.port,
            (false, Some(_)) => IO_PORT,
            (false, None) => DISCOVERY_PORT,
        };
        let portal = Portal { host: portal.host, port };
        let mut url = NvmeUrl { portal, subsystem, namespace, settings: Vec::new() };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = percent::decode(value).ok_or_else(|| badly_encoded(key))?;
            url.set(key, value)?;
        }
        Ok(url)
    }
}

fn badly_encoded(what: &str) -> Error {
    let what = format!("{} in the URL has an invalid percent-encoding", what.escape_debug());
    wrong(what, "write a percent sign as %25")
}

/// Splits the path into subsystem and namespace.
fn path_of(path: &str) -> Result<(Option<Nqn>, Option<NamespaceName>), Error> {
    let (name, namespace) = path.split_once('/').unwrap_or((path, ""));
    let namespace = match namespace.trim_end_matches('/') {
        "" => None,
        text => Some(text.parse::<NamespaceName>().map_err(|e| e.during("the URL"))?),
    };
    if name.is_empty() && namespace.is_none() {
        return Ok((None, None));
    }
    let name = percent::decode(name).ok_or_else(|| badly_encoded("the subsystem"))?;
    let subsystem = Nqn::new(&name).map_err(|e| {
        let what = format!("\"{}\" in the URL is not the name of a subsystem: {e}", name.escape_debug());
        wrong(what, "use a name such as nqn.YEAR-MONTH.DOMAIN:NAME")
    })?;
    Ok((Some(subsystem), namespace))
}

/// The portals of the key `paths`.
fn portals(value: &str) -> Result<Vec<Portal>, String> {
    let portal = |text: &str| {
        let portal = PortalAddress::parse(text)?;
        let port = if names_port(text) { portal.port } else { IO_PORT };
        Ok(Portal { host: portal.host, port })
    };
    value.split(',').filter(|text| !text.is_empty()).map(portal).collect()
}

fn digest(value: &str) -> Result<bool, String> {
    match value.to_ascii_lowercase().as_str() {
        "crc32c" => Ok(true),
        "none" => Ok(false),
        _ => Err("the value must be none or crc32c".into()),
    }
}

fn number(value: &str, range: &RangeInclusive<u32>) -> Result<u32, String> {
    let read = value.parse().ok().filter(|n| range.contains(n) && !value.starts_with('+'));
    read.ok_or_else(|| format!("the value must be a number from {} to {}", range.start(), range.end()))
}

fn time(value: &str, may_be_zero: bool) -> Result<Duration, String> {
    let start = if may_be_zero { Duration::ZERO } else { *TIMES.start() };
    duration::within(value, start..=*TIMES.end()).map_err(|e| e.what)
}

impl NvmeUrl {
    fn set(&mut self, key: &str, value: String) -> Result<(), Error> {
        let names = || SECRET_FILES.into_iter().chain([PATHS]).chain(KEYS.iter().map(|(name, _)| *name));
        let Some(name) = names().find(|name| *name == key) else {
            let hint = match nearest(key, names()) {
                Some(meant) => format!("did you mean {meant}?"),
                None => format!("the keys are {}", names().collect::<Vec<_>>().join(", ")),
            };
            let key: String = key.chars().take(64).collect();
            return Err(wrong(format!("the URL has the unknown key \"{}\"", key.escape_debug()), hint));
        };
        if self.has(name) {
            return Err(wrong(format!("the URL has the key {key} twice"), "remove one of them"));
        }
        let mut probe = NvmeOptions::new(Nqn::new("nqn.2026-11.io.lunar:url").expect("a well-formed name"));
        apply(&mut probe, name, &value)?;
        self.settings.push((name, value));
        Ok(())
    }

    /// Whether the URL has this key.
    pub fn has(&self, key: &str) -> bool {
        self.settings.iter().any(|(name, _)| *name == key)
    }

    /// The same URL with another default for a key that it does not contain.
    ///
    /// # Errors
    /// [`ErrorCode::InvalidArgument`](crate::ErrorCode::InvalidArgument) when there is no such key, or it does not accept
    /// this value.
    pub fn with_default(mut self, key: &str, value: &str) -> Result<NvmeUrl, Error> {
        if !self.has(key) {
            self.set(key, value.to_owned())?;
        }
        Ok(self)
    }

    /// The number of the namespace (NSID), if the URL has it.
    pub fn nsid(&self) -> Option<u32> {
        match self.namespace {
            Some(NamespaceName::Number(number)) => Some(number),
            _ => None,
        }
    }

    /// The same URL with the namespace of this number (NSID).
    pub fn at(&self, namespace: u32) -> NvmeUrl {
        NvmeUrl { namespace: Some(NamespaceName::Number(namespace)), ..self.clone() }
    }

    /// The same URL with another portal and subsystem.
    pub fn through(&self, portal: Portal, subsystem: Nqn) -> NvmeUrl {
        NvmeUrl { portal, subsystem: Some(subsystem), namespace: None, settings: self.settings.clone() }
    }

    /// The URL of each path: this portal, and then those of the key `paths`.
    pub fn paths(&self) -> Vec<NvmeUrl> {
        let mut first = self.clone();
        first.settings.retain(|(name, _)| *name != PATHS);
        let others = self.settings.iter().find(|(name, _)| *name == PATHS).map_or("", |(_, value)| value);
        let portals = portals(others).expect("the value was checked");
        let others: Vec<NvmeUrl> =
            portals.into_iter().map(|portal| NvmeUrl { portal, ..first.clone() }).collect();
        [vec![first], others].concat()
    }

    /// The files with secrets that the URL names.
    pub fn secret_files(&self) -> impl Iterator<Item = &str> {
        let files = self.settings.iter().filter(|(name, _)| SECRET_FILES.contains(name));
        files.map(|(_, file)| file.as_str())
    }

    /// The URL without settings.
    pub fn plain(&self) -> String {
        NvmeUrl { settings: Vec::new(), ..self.clone() }.to_string()
    }

    /// The options of a controller: those of this host, with the settings of the URL and the secrets in its files.
    ///
    /// # Errors
    /// [`ErrorCode::InvalidArgument`](crate::ErrorCode::InvalidArgument) when a file cannot be read or is malformed.
    pub fn options(&self) -> Result<NvmeOptions, Error> {
        let mut options = match self.settings.iter().find(|(name, _)| *name == "host_nqn") {
            Some((_, name)) => NvmeOptions::new(Nqn::new(name).expect("the value was checked")),
            None => NvmeOptions::of_this_host()?,
        };
        for (name, value) in &self.settings {
            apply(&mut options, name, value)?;
        }
        let [host, subsystem] = SECRET_FILES.map(|key| self.secret(key));
        options.secrets = match (host?, subsystem?) {
            (Some(host), subsystem) => Some(AuthSecrets::new(host, subsystem)),
            (None, None) => None,
            (None, Some(_)) => {
                let what = "subsystem_secret_file in the URL: the secret of this host is missing";
                return Err(wrong(what, "add secret_file=FILE"));
            }
        };
        Ok(options)
    }

    fn secret(&self, key: &str) -> Result<Option<DhChapSecret>, Error> {
        let Some((_, path)) = self.settings.iter().find(|(name, _)| *name == key) else { return Ok(None) };
        let bytes = lunar_runtime::host::secret_file(Path::new(path), SECRET_LEN, None);
        let bytes = bytes.map_err(|refused| match Path::new(path).exists() {
            true => wrong(refused.what, refused.hint),
            false => Error::new(ErrorCode::NotFound, refused.what).with_hint(NO_SECRET),
        })?;
        let secret = str::from_utf8(&bytes)
            .map_err(|_| "the file is not UTF-8".to_owned())
            .and_then(|text| DhChapSecret::parse(text).map_err(|e| e.to_string()));
        let secret = secret.map_err(|why| {
            wrong(
                format!("{key} {path}: {why}"),
                "nvme gen-dhchap-key makes a secret, and so does the target",
            )
        })?;
        Ok(Some(secret))
    }
}

/// Applies a setting. Files with secrets are read later.
fn apply(options: &mut NvmeOptions, name: &str, value: &str) -> Result<(), Error> {
    if name == PATHS && !value.is_empty() {
        return portals(value).map(drop).map_err(|why| refused(name, value, &why));
    }
    let Some((_, set)) = KEYS.iter().find(|(key, _)| *key == name) else {
        return if value.is_empty() { Err(refused(name, value, "the value is empty")) } else { Ok(()) };
    };
    set(options, value).map_err(|why| refused(name, value, &why))
}

fn refused(name: &str, value: &str, why: &str) -> Error {
    wrong(format!("{name}={} in the URL: {why}", value.escape_debug()), FORM)
}

/// Parses back to the same URL.
impl fmt::Display for NvmeUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}://{}", self.portal)?;
        if let Some(subsystem) = &self.subsystem {
            f.write_str("/")?;
            percent::encode(f, subsystem.as_str(), |c| percent::is_plain(c) && c != '/')?;
            self.namespace.map_or(Ok(()), |id| write!(f, "/{id}"))?;
        }
        for (n, (key, value)) in self.settings.iter().enumerate() {
            write!(f, "{}{key}=", if n == 0 { '?' } else { '&' })?;
            percent::encode(f, value, percent::is_plain)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "nqn.2026-11.org.example:disks";

    #[test]
    fn url_names_portal_subsystem_and_namespace() {
        for (text, port, namespace) in [
            (format!("nvme://h/{NAME}"), 4420, None),
            (format!("NVME://h:9/{NAME}/7"), 9, Some(NamespaceName::Number(7))),
            (format!("nvme://h/{NAME}/eui.0707070707070707"), 4420, Some(NamespaceName::Eui64([7; 8]))),
            (format!("nvme://h/{NAME}/?keep_alive=0"), 4420, None),
        ] {
            let url: NvmeUrl = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!((url.portal.port, url.namespace), (port, namespace), "{text}");
            assert_eq!(url.subsystem.as_ref().map(Nqn::as_str), Some(NAME));
            assert_eq!(url.to_string().parse(), Ok(url.clone()), "{url}");
        }
        let service: NvmeUrl = "nvme://[::1]".parse().expect("a discovery service");
        assert_eq!((service.to_string().as_str(), service.subsystem), ("nvme://[::1]:8009", None));
    }

    #[test]
    fn malformed_url_is_refused_with_a_reason() {
        for (text, words) in [
            ("nvme:h", "is not an NVMe URL"),
            ("nvme://h:0/x", "port"),
            ("nvme:///x", "host"),
            ("nvme://h/iqn.2026-11.org.example:a", "is not the name of a subsystem"),
            ("nvme://h//1", "is not the name of a subsystem"),
            ("nvme://h/nqn.2026-11.org.example:a/0", "\"0\" is not a namespace"),
            ("nvme://h/nqn.2026-11.org.example:a/4294967295", "is not a namespace"),
            ("nvme://h/nqn.2026-11.org.example:a?queue=1", "unknown key \"queue\""),
            ("nvme://h/nqn.2026-11.org.example:a?queue_len=1", "number from 2 to 65536"),
            ("nvme://h/nqn.2026-11.org.example:a?io_queues=0", "number from 1 to 128"),
            ("nvme://h/nqn.2026-11.org.example:a?data_digest=yes", "none or crc32c"),
            ("nvme://h/nqn.2026-11.org.example:a?host_id=7", "must be a UUID"),
            ("nvme://h/nqn.2026-11.org.example:a?secret_file=", "the value is empty"),
            ("nvme://h/nqn.2026-11.org.example:a?keep_alive=1&keep_alive=2", "twice"),
            ("nvme://h/nqn.2026-11.org.example:a?paths=", "the value is empty"),
            ("nvme://h/nqn.2026-11.org.example:a?paths=i,j:0", "port"),
        ] {
            let error = text.parse::<NvmeUrl>().expect_err(text);
            assert!(error.what.contains(words) && error.hint.is_some(), "{text}: {error}");
        }
    }

    #[test]
    fn settings_become_options() {
        let text = format!(
            "nvme://h/{NAME}?host_nqn=nqn.2026-11.org.example:host&header_digest=crc32c&queue_len=32&io_queues=3"
        );
        let url: NvmeUrl = text.parse().expect("a URL");
        let options = url.with_default("login_tries", "1").and_then(|url| url.options()).expect("options");
        assert_eq!(options.host.as_str(), "nqn.2026-11.org.example:host");
        assert!(options.header_digest && !options.data_digest && options.queue_len == 32);
        assert_eq!(options.io_queues, Some(3));
        assert_eq!((options.timeouts.login_tries, options.host_id), (1, None));
        let url: NvmeUrl = format!("{text}&host_id={}", "07".repeat(16)).parse().expect("a URL");
        assert_eq!(url.options().expect("options").host_id, Some([7; 16]));
    }

    #[test]
    fn further_portals_are_paths_with_the_same_settings() {
        let url: NvmeUrl = format!("nvme://a/{NAME}/7?queue_len=9&paths=b,[::1]:5").parse().expect("a URL");
        assert_eq!(url.to_string().parse(), Ok(url.clone()), "{url}");
        let shown: Vec<String> = url.paths().iter().map(NvmeUrl::to_string).collect();
        let path = |portal| format!("nvme://{portal}/{NAME}/7?queue_len=9");
        assert_eq!(shown, ["a:4420", "b:4420", "[::1]:5"].map(path));
        let alone: NvmeUrl = format!("nvme://a/{NAME}").parse().expect("a URL");
        assert_eq!(alone.paths(), [alone]);
    }

    #[test]
    fn missing_secret_file_has_a_remedy() {
        let url = format!("nvme://h/{NAME}?secret_file=/no/such/secret").parse::<NvmeUrl>().expect("a URL");
        let error = url.options().expect_err("the file is missing");
        let remedy = error.hint.as_ref().and_then(Hint::remedy);
        assert_eq!((error.code, remedy), (ErrorCode::NotFound, Some(Remedy::NoDhChapSecret)), "{error}");
    }

    #[test]
    fn secrets_are_read_from_their_files() {
        let folder = std::env::temp_dir().join(format!("lunar-nvme-url-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let file = folder.join("secret");
        let secret = DhChapSecret::generate(None).expect("random numbers");
        std::fs::write(&file, &*secret.to_text()).expect("written");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&file, mode).expect("permissions");
        let with =
            |key| format!("nvme://h/{NAME}?{key}={}", file.display()).parse::<NvmeUrl>().expect("a URL");
        let options = with("secret_file").options().expect("options");
        assert_eq!(options.secrets.map(|secrets| secrets.host), Some(secret));
        let error = with("subsystem_secret_file").options().expect_err("one secret is missing");
        assert!(error.what.contains("secret of this host"), "{error}");
        std::fs::write(&file, "DHHC-1:00:x:").expect("written");
        assert!(with("secret_file").options().expect_err("malformed").what.contains("not base64"));
        std::fs::remove_dir_all(&folder).expect("removed");
    }
}
