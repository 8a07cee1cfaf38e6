//! `[[subsystem]]`: an NVMe subsystem with its namespaces.

use super::chap::{SecretSource, secret_text, unknown_key};
use super::lun::{LunConfig, Source, UniqueValues, lun};
use super::namespace_ids::given_ids;
use super::router::{Map, Mode};
use super::target::{Context, tags};
use super::value::network;
use super::{RouterConfig, Target, disk};
use crate::ErrorCode;
use lunar_block::shell_word;
use lunar_config::{Diagnostics, InvalidValue, invalid, iscsi_name};
use lunar_config::{Section, UniqueKeys};
use lunar_scsi::PeripheralDeviceType;
use lunar_target::config::{
    AccessRule, DISCOVERY_NQN, DhChapSecret, GivenNamespaceIds, MAX_NAMESPACES, NvmeSecret, NvmeTlsKey,
    TlsKey, check_nqn,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// The settings that only an NVMe subsystem has.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SubsystemConfig {
    /// Serial number; None: derived from the NQN.
    pub serial: Option<String>,
    /// Model number; None: that of all subsystems.
    pub model: Option<String>,
    /// Namespaces that are LUNs of targets too: target and LUN by NSID.
    pub shared: BTreeMap<u16, (String, u16)>,
    /// The identifiers that are given to namespaces, by NSID.
    pub given_ids: BTreeMap<u16, GivenNamespaceIds>,
    /// The secrets of hosts that must authenticate themselves, by NQN.
    pub hosts: BTreeMap<String, NvmeSecret>,
    /// The secret of the subsystem, for hosts that ask for its proof.
    pub secret: Option<NvmeSecret>,
    /// The keys of hosts that must use TLS, by NQN.
    pub tls_keys: BTreeMap<String, NvmeTlsKey>,
    /// Whether a router has not found one of its namespaces yet.
    pub is_awaited: bool,
}

/// A namespace that names a LUN, with its place in the file.
pub(super) struct NamedLun {
    subsystem: String,
    nsid: u16,
    target: String,
    lun: u16,
    at: Range<usize>,
}

/// All `[[subsystem]]`, and their namespaces that name LUNs.
pub(super) fn subsystems(
    p: &mut Diagnostics<'_>,
    root: &mut Section<'_>,
    around: &Context<'_>,
    unique: &mut UniqueValues,
) -> (Vec<Target>, Vec<NamedLun>) {
    let sections = root.sections(p, "subsystem", "[[subsystem]]");
    let mut shared = Vec::new();
    let all = sections.into_iter().filter_map(|s| subsystem(p, s, around, unique, &mut shared)).collect();
    (all, shared)
}

fn subsystem(
    p: &mut Diagnostics<'_>,
    mut s: Section<'_>,
    around: &Context<'_>,
    unique: &mut UniqueValues,
    shared: &mut Vec<NamedLun>,
) -> Option<Target> {
    if s.find("nqn").is_none() {
        s.missing(p, "nqn", "\"nqn.2026-11.org.example:disks\"");
    }
    let name = s.parsed(p, "nqn", nqn);
    if let (Some(name), Some(value)) = (&name, s.find("nqn")) {
        unique.names.first(p, name.clone(), &value.span());
    }
    let serial = s.parsed(p, "serial", |text| ascii(text, 20));
    let model = s.parsed(p, "model", |text| ascii(text, 40));
    let portal_groups = tags(p, &mut s, around.tags).unwrap_or_else(|| around.tags.to_vec());
    let offline = s.flag(p, "offline", false);
    let maker = maker("--nvme=subsystem", name.as_deref());
    let secret = s.parsed(p, "secret_file", |text| secret_in(text, around, &maker));
    let shown = name.clone().unwrap_or_default();
    // A subsystem without namespaces protects nothing anyway: its hosts can be added, and removed last.
    let has_hosts =
        s.find("host").is_some_and(|list| list.get_ref().as_array().is_none_or(|list| !list.is_empty()));
    let named = hosts(p, &mut s, around, &shown);
    let have_keys_alone = !named.is_empty() && named.values().all(|host| host.secret.is_none());
    if let (Some(value), true, Some(_)) =
        (s.find("secret_file"), !has_hosts || have_keys_alone, s.find("namespace"))
    {
        let what = "`secret_file` of a subsystem protects nothing without hosts that must prove themselves";
        p.add(&value.span(), what, "add [[subsystem.host]] with a `secret_file` for each host");
    }
    let access = access(p, &mut s, &named);
    let secrets = named.iter().filter_map(|(name, host)| Some((name.clone(), host.secret.clone()?)));
    let tls_keys = named.iter().filter_map(|(name, host)| Some((name.clone(), host.tls_key.clone()?)));
    let (hosts, tls_keys) = (secrets.collect(), tls_keys.collect());
    let Namespaces { luns, shared: own, given_ids } = namespaces(p, &mut s, around, unique, &shown);
    s.done(p);
    let refs = own.iter().map(|one| (one.nsid, (one.target.clone(), one.lun))).collect();
    shared.extend(own);
    Some(Target {
        luns: Arc::new(luns),
        access,
        offline,
        subsystem: Some(SubsystemConfig {
            serial,
            model,
            shared: refs,
            given_ids,
            hosts,
            secret,
            tls_keys,
            is_awaited: false,
        }),
        ..Target::new(name?, portal_groups)
    })
}

/// An NQN of a subsystem.
///
/// # Errors
/// Its fault.
pub fn nqn(text: &str) -> Result<String, InvalidValue> {
    let hint = "a name looks like nqn.2026-11.org.example:disks";
    match check_nqn(text) {
        Ok(()) if text == DISCOVERY_NQN => {
            invalid(format!("{text} is the name of the discovery service"), hint)
        }
        // It separates the names in an identity of TLS, and words of the commands of hosts.
        Ok(()) if text.contains(char::is_whitespace) => {
            invalid(format!("\"{}\" is no usable NQN: the name has a blank", text.escape_debug()), hint)
        }
        Ok(()) => Ok(text.to_owned()),
        Err(why) => invalid(format!("\"{}\" is no NQN: {why}", text.escape_debug()), hint),
    }
}

fn ascii(text: &str, max: usize) -> Result<String, InvalidValue> {
    let is_fine = |byte: u8| byte == b' ' || byte.is_ascii_graphic() && byte != b':';
    match !text.is_empty() && text.len() <= max && text.bytes().all(is_fine) {
        true => Ok(text.to_owned()),
        false => invalid(
            format!("\"{}\" cannot be a serial or model number", text.escape_debug()),
            format!("use 1 to {max} printable ASCII characters without a colon"),
        ),
    }
}

/// The proofs that a host must give.
struct NamedHost {
    secret: Option<NvmeSecret>,
    tls_key: Option<NvmeTlsKey>,
}

/// All `[[subsystem.host]]`: the hosts that may connect, each with a secret, a key of TLS, or both.
fn hosts(
    p: &mut Diagnostics<'_>,
    s: &mut Section<'_>,
    around: &Context<'_>,
    subsystem: &str,
) -> BTreeMap<String, NamedHost> {
    let (mut hosts, mut once) = (BTreeMap::new(), UniqueKeys::new("host"));
    for mut s in s.sections(p, "host", "[[subsystem.host]]") {
        if s.find("nqn").is_none() {
            s.missing(p, "nqn", "\"nqn.2014-08.org.nvmexpress:uuid:...\"");
        }
        if s.find("secret_file").is_none() && s.find("tls_key_file").is_none() {
            s.missing(p, "secret_file", "\"host.key\", or tls_key_file = \"host.tls\"");
        }
        let at = s.find("nqn").map(|value| value.span());
        let name = s.parsed(p, "nqn", host_nqn);
        let by = maker("--nvme", name.as_deref());
        let secret = s.parsed(p, "secret_file", |text| secret_in(text, around, &by));
        let tls_key = s.parsed(p, "tls_key_file", |text| {
            tls_key_in(text, around, name.as_deref().unwrap_or_default(), subsystem)
        });
        if let (Some(at), Some(name)) = (at, name)
            && once.first(p, name.clone(), &at)
            && (secret.is_some() || tls_key.is_some())
        {
            hosts.insert(name, NamedHost { secret, tls_key });
        }
        s.done(p);
    }
    hosts
}

/// The NQN of a host, which is no pattern.
///
/// # Errors
/// Its fault.
pub fn host_nqn(text: &str) -> Result<String, InvalidValue> {
    match text.contains(['*', '?']) {
        true => invalid(
            format!("\"{}\" is a pattern", text.escape_debug()),
            "write the name of one host: each has its own secret",
        ),
        false => nqn(text),
    }
}

/// A pattern of NQNs of hosts, with `*` and `?`. NQNs are equal if their bytes are, so nothing is folded.
fn host_pattern(text: &str) -> Result<String, InvalidValue> {
    const PREFIX: &str = "nqn.";
    let mut chars = text.chars();
    let begins = PREFIX.chars().all(|wanted| match chars.as_str().chars().next() {
        // It stays the next character: it matches the rest of the prefix too.
        Some('*') => true,
        _ => chars.next().is_some_and(|found| found == '?' || found == wanted),
    });
    match begins && !text.contains(char::is_control) {
        true => Ok(text.to_owned()),
        false => invalid(
            format!("the pattern \"{}\" matches no NQN of a host", text.escape_debug()),
            "NQNs begin with nqn. in lower case; * and ? are wildcards: \"nqn.2014-08.org.nvmexpress:uuid:*\"",
        ),
    }
}

/// The secret in the file of this path. `maker`: the command that makes such a file, without the file.
fn secret_in(path: &str, around: &Context<'_>, maker: &str) -> Result<NvmeSecret, InvalidValue> {
    let file = super::path(path, around.base)?;
    Ok(NvmeSecret { secret: secret_made_by(&file, around.source, maker)?, file })
}

/// The command that makes the file of a secret, without the file. `option`: that of `lunar chap add`.
fn maker(option: &str, nqn: Option<&str>) -> String {
    format!("lunar chap add {option} {}", nqn.map_or_else(|| "NQN".into(), |nqn| shell_word(nqn.as_ref())))
}

/// The key of TLS in the file of this path.
fn tls_key_in(
    path: &str,
    around: &Context<'_>,
    host: &str,
    subsystem: &str,
) -> Result<NvmeTlsKey, InvalidValue> {
    let file = super::path(path, around.base)?;
    let by = maker("--nvme=tls", Some(host).filter(|host| !host.is_empty()));
    let key = in_file(&file, around.source, &by, TlsKey::parse, TlsKey::of_key)?;
    // Names with other faults are reported at their own keys.
    let [host, subsystem] = [host, subsystem].map(|name| match check_nqn(name) {
        Ok(()) => name,
        Err(_) => DISCOVERY_NQN,
    });
    NvmeTlsKey::new(key, file, host, subsystem).or_else(|fault| {
        invalid(format!("TLS: {fault}"), "rename the host or the subsystem, so that the name has no blank")
    })
}

/// The secret in a file, in the form of nvme-cli.
pub(super) fn secret(path: &Path, source: SecretSource<'_>) -> Result<DhChapSecret, InvalidValue> {
    secret_made_by(path, source, &maker("--nvme", None))
}

fn secret_made_by(path: &Path, source: SecretSource<'_>, maker: &str) -> Result<DhChapSecret, InvalidValue> {
    in_file(path, source, maker, DhChapSecret::parse, DhChapSecret::of_key)
}

/// The parsed content of a file with a secret; that of `unknown` if the file is not read.
fn in_file<T, E: std::fmt::Display>(
    path: &Path,
    source: SecretSource<'_>,
    maker: &str,
    parse: fn(&str) -> Result<T, E>,
    unknown: fn([u8; 32]) -> T,
) -> Result<T, InvalidValue> {
    let as_missing = |e: InvalidValue| match e.code {
        ErrorCode::NotFound => {
            let hint = format!("make it: {maker} --output {}", shell_word(path));
            InvalidValue { hint, ..e }
        }
        _ => e,
    };
    let hint = format!("make one in a new file: {maker} --output FILE");
    let Some(bytes) = secret_text(path, source).map_err(as_missing)? else {
        return Ok(unknown(unknown_key(path)));
    };
    let fault = |what: &dyn std::fmt::Display| {
        invalid(format!("the secret {}: {what}", path.display()), hint.clone())
    };
    let text = str::from_utf8(&bytes).map_err(|_| "it is not UTF-8");
    match text.map(|text| parse(text.trim())) {
        Ok(Ok(secret)) => Ok(secret),
        Ok(Err(why)) => fault(&why),
        Err(why) => fault(&why),
    }
}

/// The access rule of `allowed_hosts`, `networks` and `[[subsystem.host]]`; without them, every host may connect.
fn access(
    p: &mut Diagnostics<'_>,
    s: &mut Section<'_>,
    named: &BTreeMap<String, NamedHost>,
) -> Vec<AccessRule> {
    let at = s.find("allowed_hosts").map(|value| value.span());
    let mut hosts = s.parsed_list(p, "allowed_hosts", host_pattern);
    if let (Some(at), false) = (at, named.is_empty()) {
        p.add(&at, "`allowed_hosts` and [[subsystem.host]] exclude each other", "remove `allowed_hosts`");
    }
    if !named.is_empty() {
        hosts = Some(named.keys().cloned().collect());
    }
    let networks = s.parsed_list(p, "networks", network);
    let read_only = s.flag(p, "read_only", false);
    if hosts.is_none() && networks.is_none() && !read_only {
        return Vec::new();
    }
    // An empty list admits no host.
    let deny = hosts.as_ref().is_some_and(Vec::is_empty) || networks.as_ref().is_some_and(Vec::is_empty);
    let (initiators, networks) = (hosts.unwrap_or_default(), networks.unwrap_or_default());
    vec![AccessRule { initiators, networks, deny, read_only, ..AccessRule::default() }]
}

/// The namespaces of a subsystem.
#[derive(Default)]
struct Namespaces {
    /// Those with a medium of their own or a disk, by NSID.
    luns: BTreeMap<u16, LunConfig>,
    /// Those that are LUNs of targets.
    shared: Vec<NamedLun>,
    /// The identifiers that are given, by NSID.
    given_ids: BTreeMap<u16, GivenNamespaceIds>,
}

fn namespaces(
    p: &mut Diagnostics<'_>,
    s: &mut Section<'_>,
    around: &Context<'_>,
    unique: &mut UniqueValues,
    subsystem: &str,
) -> Namespaces {
    let mut all = Namespaces::default();
    let mut once = UniqueKeys::new("NSID");
    let mut shown = UniqueKeys::new("disk");
    for mut s in s.sections(p, "namespace", "[[subsystem.namespace]]") {
        if s.find("nsid").is_none() {
            s.missing(p, "nsid", "1");
        }
        let at = s.find("nsid").map(|value| value.span());
        let nsid: Option<u16> = s.number(p, "nsid", 1..=u64::from(MAX_NAMESPACES));
        let is_first = nsid.zip(at).is_some_and(|(nsid, at)| once.first(p, nsid, &at));
        let given_ids = given_ids(p, &mut s, unique);
        if let (Some(nsid), true, false) = (nsid, is_first, given_ids == GivenNamespaceIds::default()) {
            all.given_ids.insert(nsid, given_ids);
        }
        if let Some(value) = s.find("target") {
            let at = value.span();
            let target = s.parsed(p, "target", iscsi_name);
            let lun = s.number(p, "lun", super::target::LUN_RANGE);
            if s.find("lun").is_none() {
                s.missing(p, "lun", "0");
            }
            if let (Some(nsid), Some(target), Some(lun), true) = (nsid, target, lun, is_first) {
                all.shared.push(NamedLun { subsystem: subsystem.to_owned(), nsid, target, lun, at });
            }
            s.done(p);
            continue;
        }
        let what = match s.find("disk") {
            Some(value) => disk::named(p, &mut s, around.disks, &mut shown, &value.span()),
            None => lun(p, &mut s, around.base, unique),
        };
        let what = what.filter(|lun| check(p, &s.at, lun));
        if let (Some(nsid), Some(what), true) = (nsid, what, is_first) {
            all.luns.insert(nsid, what);
        }
        s.done(p);
    }
    all
}

const COMMANDS: &str = "a device that executes its commands itself cannot be a namespace";

/// The reason why a logical unit cannot be a namespace.
pub fn unfit(lun: &LunConfig) -> Option<&'static str> {
    match lun {
        LunConfig { kind: PeripheralDeviceType::CdRom, .. } => Some("a CD-ROM cannot be a namespace"),
        LunConfig { removable: true, .. } => Some("a removable medium cannot be a namespace"),
        LunConfig { source: Source::Routed(_), is_block: false, .. } => Some(COMMANDS),
        LunConfig { block_size, .. } if !matches!(block_size, 512 | 4096) => {
            Some("a namespace has blocks of 512 or 4096 bytes")
        }
        _ => None,
    }
}

/// Reports a logical unit that cannot be a namespace.
fn check(p: &mut Diagnostics<'_>, at: &Range<usize>, lun: &LunConfig) -> bool {
    let fault = unfit(lun);
    if let Some(fault) = fault {
        p.add(at, fault, "serve it as a LUN of a [[target]] only");
    }
    fault.is_none()
}

/// Reports namespaces that name no LUN, or one that cannot be a namespace.
pub(super) fn check_shared(
    p: &mut Diagnostics<'_>,
    shared: &[NamedLun],
    targets: &[Target],
    routers: &[RouterConfig],
) {
    // Linux ignores a disk that it sees under a second number.
    let mut seen: BTreeSet<(String, String)> = targets.iter().flat_map(own_disks).collect();
    for NamedLun { subsystem, nsid: _, target, lun, at } in shared {
        let found = targets.iter().find(|one| one.name == *target).map(|one| one.luns.get(lun));
        match found {
            None => check_routed(p, (target, *lun), at, routers),
            Some(None) => p.add(at, format!("{target} has no LUN {lun}"), "name a [[target.lun]]"),
            Some(Some(unit)) => _ = check(p, at, unit),
        }
        let unit = match found.flatten().and_then(|unit| unit.disk.as_deref()) {
            Some(disk) => disk_name(disk),
            None => format!("LUN {lun} of {target}"),
        };
        if !seen.insert((subsystem.clone(), unit.clone())) {
            p.add(at, format!("{unit} is twice in {subsystem}"), "remove one of the namespaces");
        }
    }
}

/// The disks that are namespaces of a subsystem by the key `disk`, with its name.
fn own_disks(target: &Target) -> impl Iterator<Item = (String, String)> {
    let luns = target.luns.values().filter(|_| target.subsystem.is_some());
    luns.filter_map(|lun| Some((target.name.clone(), disk_name(lun.disk.as_deref()?))))
}

fn disk_name(disk: &str) -> String {
    format!("disk {disk}")
}

/// Reports a namespace whose LUN no router maps. The LUNs of most mappings are known only when their upstream is found.
fn check_routed(
    p: &mut Diagnostics<'_>,
    (target, lun): (&str, u16),
    at: &Range<usize>,
    routers: &[RouterConfig],
) {
    let mappings = routers.iter().flat_map(|router| router.targets.iter().map(move |one| (router, &one.map)));
    let (named, others): (Vec<_>, Vec<_>) = mappings.partition(|(_, map)| map.name().is_some());
    let is_block = |router: &RouterConfig, upstream: &str| {
        router.upstreams.get(upstream).is_none_or(|upstream| upstream.mode == Mode::Block)
    };
    let unknown = (
        format!("unknown target {target}"),
        "name a [[target]] of this configuration, or a target of a router",
    );
    let commands = (COMMANDS.to_owned(), "set mode = \"block\" in its upstream, or remove the namespace");
    let fault = match named.into_iter().find(|(_, map)| map.name() == Some(target)) {
        Some((_, Map::Lun { luns, .. })) if !luns.contains_key(&lun) => {
            Some((format!("{target} has no LUN {lun}"), "name a LUN of this mapping"))
        }
        Some((router, Map::Lun { luns, .. })) => {
            (!is_block(router, &luns[&lun].upstream)).then_some(commands)
        }
        Some((router, map)) => {
            (!map.upstreams().iter().all(|upstream| is_block(router, upstream))).then_some(commands)
        }
        None => {
            let can_be = |(router, map): &(&RouterConfig, &Map)| {
                map.upstreams().iter().any(|upstream| is_block(router, upstream))
            };
            (!others.iter().any(can_be)).then_some(unknown)
        }
    };
    if let Some((what, hint)) = fault {
        p.add(at, what, hint);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;
    use crate::config::tests::{Folder, problems};

    const HEAD: &str = "[[target]]\nname = \"iqn.2026-11.org.example:disks\"\n\
        [[target.lun]]\nlun = 3\nbackend = \"null\"\nsize = \"1G\"\n\
        [[target.lun]]\nlun = 4\nbackend = \"null\"\nsize = \"1G\"\nkind = \"cdrom\"\n\
        [[subsystem]]\nnqn = \"nqn.2026-11.org.example:disks\"\n";

    fn subsystem(rest: &str) -> Target {
        let config = parse(&format!("{HEAD}{rest}"), "t.toml".as_ref()).expect("a configuration");
        config.targets.into_iter().find(|target| target.subsystem.is_some()).expect("a subsystem")
    }

    #[test]
    fn namespaces_are_luns_of_targets_or_their_own() {
        let target = subsystem(
            "serial = \"s1\"\n[[subsystem.namespace]]\nnsid = 1\ntarget = \"iqn.2026-11.org.example:disks\"\nlun = 3\n\
             [[subsystem.namespace]]\nnsid = 7\nbackend = \"null\"\nsize = \"1G\"\nblock_size = 4096\n",
        );
        let subsystem = target.subsystem.expect("a subsystem");
        assert_eq!(subsystem.shared, [(1, ("iqn.2026-11.org.example:disks".into(), 3))].into());
        assert_eq!(subsystem.serial.as_deref(), Some("s1"));
        assert_eq!(target.luns.keys().collect::<Vec<_>>(), [&7]);
        assert_eq!(target.access, []);
    }

    #[test]
    fn allowed_hosts_and_networks_are_one_access_rule() {
        let keys = "allowed_hosts = [\"nqn.2026-11.org.example:a*\"]\nnetworks = [\"192.0.2.0/24\"]\n";
        let [rule] = &subsystem(keys).access[..] else { panic!("one rule") };
        assert_eq!((rule.initiators.len(), rule.networks.len(), rule.deny), (1, 1, false));
        for keys in ["allowed_hosts = []\n", "networks = []\n"] {
            let [rule] = &subsystem(keys).access[..] else { panic!("one rule") };
            assert!(rule.deny, "{keys}");
        }
    }

    #[test]
    fn pattern_that_matches_no_nqn_is_rejected() {
        for text in ["*", "nqn.*", "?qn.x", "n*", "nq?.2014-08.com.vmware:nvme:ESX_01", "n*x"] {
            assert_eq!(host_pattern(text).as_deref(), Ok(text), "as written");
        }
        for text in ["", "nqn", "iqn.*", "NQN.*", "uuid:*", "?", "nqn\n.*", "esx01"] {
            let fault = host_pattern(text).expect_err(text);
            assert!(fault.what.ends_with("matches no NQN of a host"), "{}", fault.what);
        }
        assert!(
            problems(&format!("{HEAD}allowed_hosts = [\"iqn.*\"]\n")).contains("\"iqn.*\" matches no NQN")
        );
    }

    #[test]
    fn hosts_with_secrets_are_the_only_ones() {
        let folder = Folder::new("hosts");
        let secret = DhChapSecret::generate(None).expect("random numbers");
        for (name, text) in [("host.key", secret.to_text().as_str()), ("bad.key", "DHHC-1:00:AAAA:")] {
            folder.file(name, format!("{text}\n"), 0o600);
        }
        let host = |file: &str| {
            let host = format!(
                "[[subsystem.host]]\nnqn = \"nqn.2026-11.org.example:h\"\nsecret_file = \"{file}\"\n"
            );
            folder.file("lunar.toml", format!("{HEAD}secret_file = \"host.key\"\n{host}"), 0o644)
        };
        let config = crate::config::load(&host("host.key")).expect("a configuration");
        let target =
            config.targets.into_iter().find(|target| target.subsystem.is_some()).expect("a subsystem");
        let subsystem = target.subsystem.expect("a subsystem");
        let file = folder.0.canonicalize().expect("a folder").join("host.key");
        let secret = NvmeSecret { secret, file };
        assert_eq!(subsystem.secret.as_ref(), Some(&secret));
        assert_eq!(subsystem.hosts, [("nqn.2026-11.org.example:h".into(), secret)].into());
        assert_eq!(target.access[0].initiators, ["nqn.2026-11.org.example:h"]);
        folder.file("lunar.toml", format!("{HEAD}secret_file = \"host.key\"\n"), 0o644);
        crate::config::load(&folder.0.join("lunar.toml")).expect("a subsystem that waits for its first host");
        let problems = crate::config::load(&host("bad.key")).expect_err("a fault");
        assert!(problems[0].what.contains("bad.key"), "{problems:?}");
    }

    #[test]
    fn host_has_a_secret_or_a_key_of_tls_or_both() {
        let folder = Folder::new("tls-keys");
        let key = TlsKey::parse("NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:")
            .expect("a key");
        let secret = DhChapSecret::generate(None).expect("random numbers");
        for (name, text) in
            [("t.key", key.to_text().as_str()), ("s.key", &secret.to_text()), ("bad.key", "x")]
        {
            folder.file(name, format!("{text}\n"), 0o600);
        }
        let load = |name: &str, keys: &str| {
            let host = format!("[[subsystem.host]]\nnqn = \"nqn.2026-11.org.example:{name}\"\n{keys}\n");
            let path = folder.file("lunar.toml", format!("{HEAD}{host}"), 0o644);
            crate::config::load(&path).map_err(|list| list[0].what.clone())
        };
        let (tls, secret) = ("tls_key_file = \"t.key\"", "secret_file = \"s.key\"");
        for (keys, secrets, tls_keys) in
            [(tls.to_owned(), 0, 1), (secret.to_owned(), 1, 0), (format!("{tls}\n{secret}"), 1, 1)]
        {
            let config = load("h", &keys).expect("a configuration");
            let target =
                config.targets.iter().find(|target| target.subsystem.is_some()).expect("a subsystem");
            let own = target.subsystem.as_ref().expect("a subsystem");
            assert_eq!(
                (own.hosts.len(), own.tls_keys.len(), target.secrets()),
                (secrets, tls_keys, 1),
                "{keys}"
            );
            assert_eq!(target.access[0].initiators, ["nqn.2026-11.org.example:h"]);
            assert!(own.tls_keys.values().all(|own| own.key == key));
        }
        let path = folder.file("own.toml", String::new(), 0o644);
        let own = HEAD.replace("[[subsystem]]", "[[subsystem]]\nsecret_file = \"s.key\"");
        let host = format!("[[subsystem.host]]\nnqn = \"nqn.2026-11.org.example:h\"\n{tls}\n");
        let namespace = "[[subsystem.namespace]]\nnsid = 1\nbackend = \"null\"\nsize = \"1M\"\n";
        std::fs::write(&path, format!("{own}{host}{namespace}")).expect("a file");
        let problems = crate::config::load(&path).map(drop).expect_err("no host proves a secret");
        assert!(problems[0].what.contains("protects nothing"), "{}", problems[0].what);
        for (name, keys, expected) in [
            ("h", "", "[[subsystem.host]] has no `secret_file`"),
            ("h", "tls_key_file = \"s.key\"", "the form of a key is NVMeTLSkey-1:HH:BASE64:"),
            ("h", "tls_key_file = \"bad.key\"", "the form of a key"),
            ("h", "tls_key_file = \"none.key\"", "none.key"),
            ("h h", tls, "the name has a blank"),
            ("h h", secret, "the name has a blank"),
        ] {
            let fault = load(name, keys).expect_err(expected);
            assert!(fault.contains(expected), "{fault}");
        }
    }

    const ROUTED: &str = "[router.r1]\n\
        [router.r1.upstream.u]\nurls = [\"iscsi://192.0.2.1/iqn.2026-11.org.example:up\"]\n\
        [router.r1.upstream.all]\nurls = [\"iscsi://192.0.2.2\"]\n\
        [router.r1.upstream.t]\nsg = \"/dev/sg3\"\nmode = \"passthrough\"\n\
        [[router.r1.target]]\nmap = \"target\"\nname = \"iqn.2026-11.org.example:routed\"\nupstream = \"u\"\naccess = \"all\"\n\
        [[router.r1.target]]\nmap = \"lun\"\nname = \"iqn.2026-11.org.example:mixed\"\naccess = \"all\"\n\
        lun = [{ lun = 0, upstream = \"u\", from = 3 }, { lun = 1, upstream = \"t\" }]\n";

    #[test]
    fn namespaces_are_luns_of_routers() {
        let namespace = |target: &str, lun: u16| {
            format!(
                "{HEAD}[[subsystem.namespace]]\nnsid = 1\ntarget = \"iqn.2026-11.org.example:{target}\"\nlun = {lun}\n{ROUTED}"
            )
        };
        for (target, lun) in [("routed", 5), ("mixed", 0)] {
            parse(&namespace(target, lun), "t.toml".as_ref()).expect("a configuration");
        }
        for (target, lun, expected) in [
            ("mixed", 1, "executes its commands itself"),
            ("mixed", 2, "has no LUN 2"),
            ("other", 0, "unknown target"),
        ] {
            let found = problems(&namespace(target, lun));
            assert!(found.contains(expected), "{target}: {found}");
        }
        // The names behind a portal are those of the upstream.
        let transparent =
            "[[router.r1.target]]\nmap = \"transparent\"\nupstream = \"all\"\naccess = \"all\"\n";
        parse(&(namespace("other", 0) + transparent), "t.toml".as_ref()).expect("a configuration");
    }

    #[test]
    fn unit_that_is_twice_in_a_subsystem_is_reported() {
        let disks: String = ["a", "b"]
            .map(|target| {
                format!(
                    "[[target]]\nname = \"iqn.2026-11.org.example:{target}\"\n[[target.lun]]\nlun = 0\ndisk = \"d\"\n"
                )
            })
            .concat();
        let disk = "[[disk]]\nname = \"d\"\nbackend = \"null\"\nsize = \"1G\"\n";
        let lun = |nsid: u8, target: &str, lun: u8| {
            format!(
                "[[subsystem.namespace]]\nnsid = {nsid}\ntarget = \"iqn.2026-11.org.example:{target}\"\nlun = {lun}\n"
            )
        };
        let own = |nsid: u8| format!("[[subsystem.namespace]]\nnsid = {nsid}\ndisk = \"d\"\n");
        for (namespaces, expected) in [
            ([lun(1, "disks", 3), lun(2, "disks", 3)], "LUN 3 of iqn.2026-11.org.example:disks is twice"),
            ([lun(1, "a", 0), lun(2, "b", 0)], "disk d is twice in nqn.2026-11.org.example:disks"),
            ([own(1), lun(2, "b", 0)], "disk d is twice in nqn.2026-11.org.example:disks"),
        ] {
            let found = problems(&format!("{HEAD}{}{disks}{disk}", namespaces.concat()));
            assert!(found.contains(expected), "{found}");
        }
        let other = "[[subsystem]]\nnqn = \"nqn.2026-11.org.example:other\"\n";
        let both = format!("{HEAD}{}{other}{}{disks}{disk}", lun(1, "a", 0), own(1));
        parse(&both, "t.toml".as_ref()).expect("one disk in two subsystems");
    }

    #[test]
    fn faults_of_a_subsystem_are_reported() {
        let disk = "target = \"iqn.2026-11.org.example:disks\"\n";
        for (rest, expected) in [
            ("[[subsystem.namespace]]\nnsid = 0\n", "nsid"),
            (
                "[[subsystem.namespace]]\nnsid = 1\ntarget = \"iqn.2026-11.org.example:x\"\nlun = 0\n",
                "unknown target",
            ),
            (&format!("[[subsystem.namespace]]\nnsid = 1\n{disk}lun = 9\n"), "has no LUN 9"),
            (
                &format!("[[subsystem.namespace]]\nnsid = 1\n{disk}lun = 4\n"),
                "a CD-ROM cannot be a namespace",
            ),
            (&format!("[[subsystem.namespace]]\nnsid = 1\n{disk}"), "lun"),
            (
                &format!(
                    "[[subsystem.namespace]]\nnsid = 1\n{disk}lun = 3\n[[subsystem.namespace]]\nnsid = 1\n{disk}lun = 3\n"
                ),
                "NSID 1",
            ),
            ("secret_file = \"nowhere.key\"\n", "nowhere.key"),
            (
                "[[subsystem.host]]\nnqn = \"nqn.2026-11.org.example:*\"\nsecret_file = \"x\"\n",
                "is a pattern",
            ),
            ("[[subsystem.host]]\nnqn = \"nqn.2026-11.org.example:h\"\n", "secret_file"),
            (
                "secret_file = \"nowhere.key\"\n",
                "hint: make it: lunar chap add --nvme=subsystem nqn.2026-11.org.example:disks --output ",
            ),
            (
                "[[subsystem.host]]\nnqn = \"nqn.2026-11.org.example:h\"\nsecret_file = \"nowhere.key\"\n",
                "hint: make it: lunar chap add --nvme nqn.2026-11.org.example:h --output ",
            ),
            (
                "[[subsystem.host]]\nnqn = \"nqn.2026-11.org.example:h\"\ntls_key_file = \"nowhere.key\"\n",
                "hint: make it: lunar chap add --nvme=tls nqn.2026-11.org.example:h --output ",
            ),
            ("[[subsystem]]\nnqn = \"nqn.2026-11.org.example:a b\"\n", "the name has a blank"),
            (
                &format!("secret_file = \"nowhere.key\"\n[[subsystem.namespace]]\nnsid = 1\n{disk}lun = 3\n"),
                "protects nothing",
            ),
            (
                &format!(
                    "secret_file = \"nowhere.key\"\nhost = []\n[[subsystem.namespace]]\nnsid = 1\n{disk}lun = 3\n"
                ),
                "protects nothing",
            ),
            ("serial = \"a:b\"\n", "serial or model number"),
            ("[[subsystem]]\nnqn = \"nqn.2014-08.org.nvmexpress.discovery\"\n", "discovery service"),
            ("[[subsystem]]\nnqn = \"iqn.2026-11.org.example:a\"\n", "is no NQN"),
            ("[[subsystem]]\n", "nqn"),
        ] {
            let found = problems(&format!("{HEAD}{rest}"));
            assert!(found.contains(expected), "{rest}: {found}");
        }
    }
}
