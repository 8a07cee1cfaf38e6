//! Saved attachments for `lunar attach NAME`, one small file each.

mod policy;

use crate::{Diagnostic, ErrorCode, folders, io_text};
pub use lunar_admin::attachment::{How, PathPolicy};
use lunar_block::{RBD_PREFIX, RbdLocation};
use lunar_config::Section;
use lunar_config::{Diagnostics, InvalidValue, invalid, unknown};
use lunar_initiator::nvme::{self, NvmeUrl};
use lunar_initiator::{LateWrites, Url};
use lunar_proto::duration::{self, NotationError};
pub use policy::of_paths;
use serde::{Deserialize, Serialize};
use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A disk of a target and how to attach it. Its URLs may hold secrets.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// Its name; see [`check_name`].
    pub name: String,
    /// The URL of each path, at least one.
    pub urls: Vec<String>,
    /// The kind of device.
    pub how: How,
    /// The address of an NBD server, as written, or the folder of a file.
    pub place: Option<String>,
    /// Whether to reject writes.
    pub read_only: bool,
    /// How long to wait for a lost network; None: as the URL states, or 120 s.
    pub recovery_timeout: Option<Duration>,
    /// The policy that selects one of several paths; None: the default.
    #[serde(default)]
    pub policy: Option<PathPolicy>,
}

/// Omits secrets.
impl fmt::Debug for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A URL that cannot be parsed may hold a secret.
        let shown = |url: &String| match is_lun(url) {
            true => format!("{:?}", Url::parse(url)),
            false => url.clone(),
        };
        let urls: Vec<_> = self.urls.iter().map(shown).collect();
        let (how, place) = (self.how, &self.place);
        write!(f, "Attachment({}, {how:?}, {place:?}, {}, {urls:?})", self.name, self.read_only)
    }
}

/// The longest name, which must fit into the paths of sockets.
const MAX_NAME: usize = 48;
/// The longest time for recovery: thirty days.
const MAX_RECOVERY: Duration = Duration::from_secs(30 * 86400);

/// Checks that a name can be a file name and no command: letters, digits, `.`, `_` and `-`, not starting with `.` or
/// `-`, at most 48 bytes.
///
/// # Errors
/// The fault in the name.
pub fn check_name(name: &str) -> Result<(), Diagnostic> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    // `lunar attach list` is a command.
    let is_free = !name.is_empty() && name != "list";
    if is_free && name.len() <= MAX_NAME && name.chars().all(good) && !name.starts_with(['.', '-']) {
        return Ok(());
    }
    let hint = "use at most 48 letters, digits, `.`, `_` and `-`, starting with a letter or digit";
    let what = format!("\"{}\" cannot be the name of an attachment", name.escape_debug());
    Err(Diagnostic::new(what, hint).with_code(ErrorCode::InvalidArgument))
}

/// A valid name derived from any text.
pub fn name_of(text: &str) -> String {
    let fit = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_') { c } else { '-' };
    let name: String = text.chars().map(fit).collect();
    let name = name.trim_start_matches(['.', '-']);
    // The end of a long name distinguishes it better than the start. It is ASCII.
    let name = name[name.len().saturating_sub(MAX_NAME)..].trim_start_matches(['.', '-']);
    if name.is_empty() { "disk".into() } else { name.into() }
}

/// The folder of saved attachments: `$XDG_CONFIG_HOME/lunar/attach`, `/etc/lunar/attach` for root, or
/// `~/.config/lunar/attach`.
///
/// # Errors
/// When neither variable for the folder is set.
pub fn folder() -> Result<PathBuf, Diagnostic> {
    folders::config().map(|folder| folder.join("attach"))
}

/// The names of all saved attachments, sorted.
///
/// # Errors
/// When the folder cannot be read.
pub fn names() -> Result<Vec<String>, Diagnostic> {
    names_in(&folder()?)
}

/// The names of the saved attachments in a folder, sorted.
///
/// # Errors
/// When the folder cannot be read.
pub fn names_in(folder: &Path) -> Result<Vec<String>, Diagnostic> {
    let entries = match std::fs::read_dir(folder) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|e| cannot("read", folder, &e))?,
    };
    let name = |path: PathBuf| {
        let is_toml = path.extension().is_some_and(|extension| extension == "toml");
        path.file_stem().and_then(|stem| stem.to_str()).filter(|_| is_toml).map(str::to_owned)
    };
    let names = entries.flatten().filter_map(|entry| name(entry.path()));
    let mut names: Vec<String> = names.filter(|name| check_name(name).is_ok()).collect();
    names.sort_unstable();
    Ok(names)
}

/// The saved attachment of this name, if there is one.
///
/// # Errors
/// The faults in its file.
pub fn load(name: &str) -> Result<Option<Attachment>, Vec<Diagnostic>> {
    let one = |problem| vec![problem];
    check_name(name).map_err(one)?;
    let path = path(name).map_err(one)?;
    if !path.exists() {
        return Ok(None);
    }
    let source = lunar_config::read(&path).map_err(one)?;
    let attachment = parse(name, &source, &path)?;
    let mode = path.metadata().map_or(0, |metadata| metadata.mode());
    if mode & 0o077 != 0 && attachment.urls.iter().any(|url| holds_secret(url)) {
        let what =
            format!("the file holds a secret, but other users can access it: mode {:04o}", mode & 0o7777);
        let hint = format!("run chmod 0600 {}, or keep the secret in a password_file=", path.display());
        return Err(vec![Diagnostic { file: Some(path), ..Diagnostic::new(what, hint) }]);
    }
    Ok(Some(attachment))
}

/// Checks whether an attachment can be saved under its name.
///
/// # Errors
/// When a different attachment with this name exists.
pub fn check_save(attachment: &Attachment) -> Result<(), Vec<Diagnostic>> {
    is_saved(attachment).map(drop)
}

/// The path of the attachment if it is saved already; None if there is none of this name.
fn is_saved(attachment: &Attachment) -> Result<Option<PathBuf>, Vec<Diagnostic>> {
    let Some(before) = load(&attachment.name)? else { return Ok(None) };
    let path = path(&attachment.name).map_err(|problem| vec![problem])?;
    if before == *attachment {
        return Ok(Some(path));
    }
    let what = format!("{} already exists with other settings", attachment.name);
    let hint = format!("change or remove {}, or use --name", path.display());
    Err(vec![Diagnostic::new(what, hint).with_code(ErrorCode::AlreadyExists)])
}

/// Saves an attachment and returns the path. A file with a secret is readable by its owner only.
///
/// # Errors
/// When a different attachment with this name exists, or the file cannot be written.
pub fn save(attachment: &Attachment) -> Result<PathBuf, Vec<Diagnostic>> {
    match is_saved(attachment)? {
        Some(path) => Ok(path),
        None => write(attachment).map_err(|problem| vec![problem]),
    }
}

fn write(attachment: &Attachment) -> Result<PathBuf, Diagnostic> {
    let path = path(&attachment.name)?;
    let folder = folder()?;
    crate::create_folder_or(&folder, "set XDG_CONFIG_HOME to a folder that this user can write")?;
    let is_secret = attachment.urls.iter().any(|url| holds_secret(url));
    let mode = if is_secret { 0o600 } else { 0o644 };
    let mut file = std::fs::File::options();
    let file = file.write(true).create_new(true).mode(mode).open(&path);
    let written = file.and_then(|mut file| {
        file.write_all(text(attachment).as_bytes())?;
        file.sync_all()
    });
    written.map_err(|e| cannot("write", &path, &e))?;
    Ok(path)
}

/// Whether this URL contains a password.
pub fn holds_secret(url: &str) -> bool {
    Url::parse(url).is_ok_and(|url| url.holds_secret())
}

fn path(name: &str) -> Result<PathBuf, Diagnostic> {
    Ok(folder()?.join(format!("{name}.toml")))
}

fn cannot(what: &str, path: &Path, e: &std::io::Error) -> Diagnostic {
    let what = format!("cannot {what} {}: {}", path.display(), io_text(e));
    Diagnostic::new(what, "check the path and its permissions, or set XDG_CONFIG_HOME")
        .with_code(ErrorCode::from(e.kind()))
}

/// The text of its file.
fn text(attachment: &Attachment) -> String {
    let quoted = |text: &str| toml::Value::String(text.to_owned()).to_string();
    let (first, paths) = attachment.urls.split_first().map_or(("", &[][..]), |(a, b)| (a.as_str(), b));
    let mut text = format!("url = {}\n", quoted(first));
    if !paths.is_empty() {
        let paths: Vec<String> = paths.iter().map(|path| quoted(path)).collect();
        _ = writeln!(text, "paths = [{}]", paths.join(", "));
    }
    if let Some(policy) = attachment.policy {
        _ = writeln!(text, "policy = {}", quoted(policy.name()));
    }
    match (attachment.how, &attachment.place) {
        (How::Ublk, _) => text += "ublk = true\n",
        (how, Some(place)) => _ = writeln!(text, "{} = {}", how.name(), quoted(place)),
        (..) => {}
    }
    if attachment.read_only {
        text += "read_only = true\n";
    }
    if let Some(time) = attachment.recovery_timeout {
        _ = match time.subsec_nanos() {
            0 => writeln!(text, "recovery_timeout = {}", time.as_secs()),
            _ => writeln!(text, "recovery_timeout = {}", quoted(&duration::show(time))),
        };
    }
    text
}

/// Parses the text of a saved attachment. `path` is the file for diagnostics, and relative paths start at its folder.
///
/// # Errors
/// All faults, in file order.
pub fn parse(name: &str, source: &str, path: &Path) -> Result<Attachment, Vec<Diagnostic>> {
    let mut problems = Diagnostics::new(path, source);
    let Some([root]) = lunar_config::parse(&mut problems).and_then(|tables| <[_; 1]>::try_from(tables).ok())
    else {
        return Err(problems.into_list());
    };
    let section = Section::of("the file", &root, 0..0);
    let attachment = attachment(&mut problems, section, name, path.parent().unwrap_or(Path::new("")));
    let list = problems.into_list();
    attachment.filter(|_| list.is_empty()).ok_or(list)
}

fn attachment(p: &mut Diagnostics<'_>, mut s: Section<'_>, name: &str, base: &Path) -> Option<Attachment> {
    let url = |text: &str| checked(text, base);
    let first = s.parsed(p, "url", url);
    if s.find("url").is_none() {
        s.missing(p, "url", "\"iscsi://192.0.2.10/iqn.2026-11.org.example:disks/0\"");
    }
    let paths = s.parsed_list(p, "paths", url).unwrap_or_default();
    let policy = s.parsed(p, "policy", policy::policy);
    let is_alone = |url: &String| !has_several_paths(std::slice::from_ref(url));
    let is_only_path = s.find("paths").is_none() && first.as_ref().is_none_or(is_alone);
    if let Some(at) = s.find("policy").filter(|_| is_only_path) {
        p.add(
            &at.span(),
            "`policy` requires several paths",
            "add the other paths: paths = [\"iscsi://...\"], or paths=HOST[:PORT] to an nvme:// URL",
        );
    }
    let nbd = s.parsed(p, "nbd", |text| listen(text, base));
    let ublk = s.flag(p, "ublk", false);
    let fuse = s.parsed(p, "fuse", |text| super::path(text, base));
    let several = [s.find("nbd"), s.find("ublk").filter(|_| ublk), s.find("fuse")];
    if let Some(second) = several.into_iter().flatten().nth(1) {
        p.add(
            &second.span(),
            "`nbd`, `ublk` and `fuse` exclude each other",
            "keep one of `nbd`, `ublk` and `fuse`",
        );
    }
    let fuse = fuse.map(|dir| dir.display().to_string());
    let (how, place) = match (ublk, fuse) {
        (true, _) => (How::Ublk, None),
        (_, Some(dir)) => (How::Fuse, Some(dir)),
        _ => (How::Nbd, nbd),
    };
    let read_only = s.flag(p, "read_only", false);
    let recovery_timeout = s.time(p, "recovery_timeout", Duration::ZERO..=MAX_RECOVERY);
    let late = s.parsed(p, "late_writes", late_writes);
    if let (Some(at), Some(image)) = (s.find("late_writes"), first.as_deref().filter(|url| !is_lun(url))) {
        p.add(&at.span(), format!("`late_writes` has no meaning for {image}"), "remove `late_writes`");
    }
    let with_late = |url: String| late.map_or(url.clone(), |late| with_setting(&url, "late_writes", late));
    let urls: Vec<String> = first.into_iter().chain(paths).map(with_late).collect();
    if let (Err(e), Some(at)) = (check_paths(&urls), s.find("paths")) {
        p.add(&at.span(), e.what, e.hint.unwrap_or_default());
    }
    s.done(p);
    if urls.is_empty() {
        return None;
    }
    Some(Attachment { name: name.into(), urls, how, place, read_only, recovery_timeout, policy })
}

/// Whether it is an image of Ceph RBD instead of a LUN: `rbd:POOL/IMAGE`.
pub fn is_image(url: &str) -> bool {
    url.starts_with(RBD_PREFIX)
}

/// Whether it is the URL of a SCSI logical unit.
fn is_lun(url: &str) -> bool {
    !is_image(url) && !nvme::is_url(url)
}

/// Whether these URLs name several paths.
pub fn has_several_paths(urls: &[String]) -> bool {
    let names_more = |url: &String| url.parse::<NvmeUrl>().is_ok_and(|url| url.paths().len() > 1);
    urls.len() > 1 || urls.iter().any(names_more)
}

/// Checks that an image of Ceph RBD, whose client has all paths to the cluster, or an NVMe namespace, whose URL has all paths,
/// is the only URL.
///
/// # Errors
/// There is another path.
pub fn check_paths(urls: &[String]) -> Result<(), Diagnostic> {
    if urls.len() > 1 && urls.iter().any(|url| !is_lun(url)) {
        let (what, hint) = match urls.iter().any(|url| is_image(url)) {
            true => (
                "an image of Ceph RBD takes no other path: its client has all paths to the cluster",
                "leave the other paths out",
            ),
            false => (
                "an NVMe namespace has one URL, which names all of its paths",
                "add paths=HOST[:PORT],... to the nvme:// URL instead",
            ),
        };
        return Err(Diagnostic::new(what, hint).with_code(ErrorCode::InvalidArgument));
    }
    Ok(())
}

/// An image with absolute paths of its files; relative ones start at `base`.
///
/// # Errors
/// The fault in its text.
pub fn absolute_image(text: &str, base: &Path) -> Result<String, Diagnostic> {
    let base = std::path::absolute(base).unwrap_or_else(|_| base.to_path_buf());
    let location = RbdLocation::parse(text).map_err(|(what, hint)| Diagnostic::new(what, hint))?;
    Ok(location.whole(&base))
}

/// Checks a URL or an image, and makes the paths of its files absolute.
fn checked(text: &str, base: &Path) -> Result<String, InvalidValue> {
    if is_image(text) {
        return absolute_image(text, base)
            .or_else(|e| invalid(e.what.as_str(), e.hint.as_deref().unwrap_or_default()));
    }
    let parsed = match nvme::is_url(text) {
        true => text.parse::<NvmeUrl>().map(drop),
        false => Url::parse(text).map(drop),
    };
    match parsed {
        Ok(()) => Ok(absolute(text, base)),
        Err(e) => invalid(e.what.as_str(), e.hint.as_deref().unwrap_or_default()),
    }
}

/// Adds a setting to a URL, unless the URL has it already.
pub fn with_setting(url: &str, key: &str, value: &str) -> String {
    match Url::parse(url) {
        Ok(parsed) if !parsed.has(key) => {
            let joint = if url.contains('?') { '&' } else { '?' };
            format!("{url}{joint}{key}={value}")
        }
        _ => url.to_owned(),
    }
}

/// The name of the handling of writes whose connection was lost.
pub(super) fn late_writes(text: &str) -> Result<&'static str, InvalidValue> {
    let names = LateWrites::NAMES.map(|(name, _)| name);
    let named = names.into_iter().find(|name| *name == text);
    named.ok_or_else(|| unknown("late_writes", text, names, format!("write {}", names.join(" or "))))
}

/// The keys of URLs whose values are files with secrets.
const SECRET_FILES: [&str; 4] =
    ["password_file", "target_password_file", "secret_file", "subsystem_secret_file"];

/// The files with passwords and secrets that a URL names.
pub fn secret_files(url: &str) -> Vec<PathBuf> {
    let paths = |files: &mut dyn Iterator<Item = &str>| files.map(PathBuf::from).collect();
    match nvme::is_url(url) {
        true => url.parse().map_or(Vec::new(), |url: NvmeUrl| paths(&mut url.secret_files())),
        false => Url::parse(url).map_or(Vec::new(), |url| paths(&mut url.secret_files())),
    }
}

/// A URL with absolute paths of its files with passwords and secrets; relative ones start at `base`.
pub fn absolute(url: &str, base: &Path) -> String {
    let Some((head, query)) = url.split_once('?') else { return url.into() };
    // The folder of a bare file name is the working folder.
    let base = if base.as_os_str().is_empty() { Path::new(".") } else { base };
    let base = std::path::absolute(base).unwrap_or_else(|_| base.to_path_buf());
    let whole = |pair: &str| match pair.split_once('=') {
        Some((key, file))
            if SECRET_FILES.contains(&key) && !file.starts_with('/') && !file.starts_with("%2") =>
        {
            let base: String = base.to_string_lossy().replace('%', "%25").replace('&', "%26");
            format!("{key}={base}/{file}")
        }
        _ => pair.into(),
    };
    let pairs: Vec<String> = query.split('&').map(whole).collect();
    format!("{head}?{}", pairs.join("&"))
}

/// The address of an NBD server: `unix:PATH` or `ADDR:PORT`.
fn listen(text: &str, base: &Path) -> Result<String, InvalidValue> {
    match text.strip_prefix("unix:") {
        Some(path) => Ok(format!("unix:{}", super::socket_path(path, base)?.display())),
        None if text.parse::<std::net::SocketAddr>().is_ok() => Ok(text.into()),
        None => invalid(
            format!("\"{}\" is not an address for an NBD server", text.escape_debug()),
            "write unix:PATH or ADDR:PORT, such as 127.0.0.1:10809",
        ),
    }
}

/// Parses the value of `--recovery-timeout`.
///
/// # Errors
/// When it is not a duration, or too long.
pub fn recovery_timeout(text: &str) -> Result<Duration, NotationError> {
    duration::within(text, Duration::ZERO..=MAX_RECOVERY)
}

/// Parses the NBD address of an argument; relative paths start at the working folder.
///
/// # Errors
/// When it is neither form, or the path is too long.
pub fn listen_argument(text: &str) -> Result<String, Diagnostic> {
    let here = std::env::current_dir().unwrap_or_default();
    listen(text, &here).map_err(|invalid| Diagnostic::new(invalid.what, invalid.hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    const URL: &str = "iscsi://192.0.2.10/iqn.2026-11.org.example:disks/0";

    fn read(text: &str) -> Result<Attachment, Vec<String>> {
        let list = |problems: Vec<Diagnostic>| problems.iter().map(Diagnostic::to_string).collect();
        parse("disks-0", text, Path::new("/etc/lunar/attach/disks-0.toml")).map_err(list)
    }

    #[test]
    fn secret_files_of_both_families_are_found() {
        let files =
            |url: &str| secret_files(url).iter().map(|file| file.display().to_string()).collect::<Vec<_>>();
        let nvme = "nvme://h/nqn.2026-11.org.example:a?queue_len=8&secret_file=/a&subsystem_secret_file=/b";
        assert_eq!(files(nvme), ["/a", "/b"]);
        assert_eq!(files("iscsi://u@h?password_file=/c"), ["/c"]);
        assert_eq!(files("rbd:pool/image"), [""; 0]);
    }

    #[test]
    fn file_is_read_and_written_alike() {
        let least = read(&format!("url = \"{URL}\"")).unwrap();
        assert_eq!((least.how, &least.place, least.read_only), (How::Nbd, &None, false));
        for rest in [
            "",
            "ublk = true\n",
            "nbd = \"unix:/run/d.sock\"\n",
            "nbd = \"[::1]:10809\"\nread_only = true\n",
            "fuse = \"/mnt/d\"\nrecovery_timeout = 5\n",
            "recovery_timeout = \"500ms\"\n",
            "paths = [\"iscsi://192.0.2.11/iqn.2026-11.org.example:disks/0\"]\n",
            "paths = [\"iscsi://192.0.2.11/iqn.2026-11.org.example:disks/0\"]\npolicy = \"round-robin\"\n",
        ] {
            let attachment = read(&format!("url = \"{URL}\"\n{rest}")).unwrap();
            assert_eq!(read(&text(&attachment)), Ok(attachment), "{rest}");
        }
        let nvme = "url = \"nvme://h/nqn.2026-11.org.example:a/1?paths=i\"\npolicy = \"failover\"\n";
        assert_eq!(text(&read(nvme).unwrap()), nvme);
    }

    #[test]
    fn late_writes_is_a_setting_of_each_url_without_its_own() {
        let paths = "paths = [\"iscsi://h/iqn.x:a/0?late_writes=wait\"]\n";
        let attachment = read(&format!("url = \"{URL}\"\n{paths}late_writes = \"risk\"\n")).unwrap();
        let risk = format!("{URL}?late_writes=risk");
        assert_eq!(attachment.urls, [risk.as_str(), "iscsi://h/iqn.x:a/0?late_writes=wait"]);
        assert_eq!(read(&text(&attachment)), Ok(attachment), "the text parses to the same attachment");
        let invalid = read(&format!("url = \"{URL}\"\nlate_writes = \"never\"\n")).unwrap_err();
        assert!(invalid[0].contains("write wait or risk"), "{invalid:?}");
    }

    #[test]
    fn relative_paths_start_at_the_file() {
        let text = format!("url = \"{URL}?password_file=a.secret&commands=4\"\nfuse = \"d\"");
        let attachment = read(&text).unwrap();
        assert_eq!(attachment.place.as_deref(), Some("/etc/lunar/attach/d"));
        assert!(attachment.urls[0].ends_with("?password_file=/etc/lunar/attach/a.secret&commands=4"));
        let here = std::env::current_dir().unwrap();
        let found = format!("iscsi://h?password_file={}/x", here.display());
        assert_eq!(absolute("iscsi://h?password_file=x", Path::new("")), found, "a bare file name");
        assert_eq!(absolute("iscsi://h?password_file=/x", Path::new("/y")), "iscsi://h?password_file=/x");
        let nvme = absolute("nvme://h/n?secret_file=a&subsystem_secret_file=b", Path::new("/y"));
        assert_eq!(nvme, "nvme://h/n?secret_file=/y/a&subsystem_secret_file=/y/b");
        let attachment =
            read("url = \"nvme://h/nqn.2026-11.org.example:a/1?secret_file=s&queue_len=4\"").unwrap();
        assert!(attachment.urls[0].ends_with("?secret_file=/etc/lunar/attach/s&queue_len=4"));
    }

    #[test]
    fn errors_have_file_positions() {
        let errors = read(&format!("url = \"{URL}\"\nublk = true\nfuse = \"/d\"\nreadonly = true\n"));
        let errors = errors.unwrap_err();
        assert!(
            errors[0].starts_with(
                "/etc/lunar/attach/disks-0.toml:3:8: `nbd`, `ublk` and `fuse` exclude each other"
            )
        );
        assert!(errors[1].contains(":4:1: unknown key `readonly`") && errors[1].contains("`read_only`"));
        for (text, what) in [
            ("", "the file has no `url`"),
            ("url = \"http://h\"", "1:7: \"http://h\" is not a URL of iSCSI, iSER, SRP or NVMe"),
            ("url = 1", "`url` must be a string"),
            ("url = \"iscsi://h\"\nnbd = \"h\"", "2:7: \"h\" is not an address for an NBD server"),
            ("url = \"iscsi://h\"\nrecovery_timeout = -1", "out of range"),
            (
                "url = \"iscsi://h\"\nrecovery_timeout = \"5x\"",
                "2:20: `recovery_timeout`: \"5x\" is not a time",
            ),
            ("url = \"iscsi://h\"\nrecovery_timeout = \"31d\"", "is out of range"),
            ("url = \"iscsi://h\"\npaths = [\"x\"]", "2:10: \"x\" is not a URL of iSCSI, iSER, SRP or NVMe"),
            ("url = \"iscsi://h\"\npolicy = \"failover\"", "`policy` requires several paths"),
            ("url = \"iscsi://h\"\npaths = [\"iscsi://i\"]\npolicy = \"failing\"", "3:10: unknown policy"),
            ("url = \"nvme://h/x\"", "1:7: \"x\" in the URL is not the name of a subsystem"),
            (
                "url = \"nvme://h/nqn.2026-11.org.example:a/1\"\npaths = [\"iscsi://i\"]",
                "an NVMe namespace has one URL",
            ),
            (
                "url = \"nvme://h/nqn.2026-11.org.example:a/1\"\npolicy = \"failover\"",
                "`policy` requires several paths",
            ),
            (
                "url = \"nvme://h/nqn.2026-11.org.example:a/1\"\nlate_writes = \"wait\"",
                "`late_writes` has no meaning for nvme://",
            ),
            ("url =", "invalid TOML"),
        ] {
            let errors = read(text).unwrap_err();
            assert!(errors[0].contains(what), "{text}: {errors:?}");
        }
    }

    #[test]
    fn names_are_those_of_files() {
        for name in ["a", "disks-0", "a_b.c", "7"] {
            assert!(check_name(name).is_ok(), "{name}");
        }
        for name in ["", ".", "..", "-x", "a/b", "a b", "ä", &"a".repeat(49)] {
            assert!(check_name(name).is_err(), "{name}");
        }
        for text in ["disks-0", "a/b:c 0", "../..", "ä", "", &"x-".repeat(99)] {
            assert!(check_name(&name_of(text)).is_ok(), "{text} -> {}", name_of(text));
        }
        assert_eq!(name_of("disks-0"), "disks-0");
    }

    #[test]
    fn secret_is_seen() {
        assert!(holds_secret("iscsi://a%b@h") && holds_secret("iscsi://h?target_user=a&target_password=b"));
        assert!(!holds_secret("iscsi://a@h?password_file=b"));
        let shown = format!("{:?}", read("url = \"iscsi://a%secret@h\"").unwrap());
        assert!(!shown.contains("secret") && shown.contains("iscsi://a@h"), "{shown}");
    }
}
