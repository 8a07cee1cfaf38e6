//! The configuration: `lunar.toml`, read and checked as a whole. docs/lunar.example.toml lists all keys, and
//! docs/router.example.toml those of a router.

mod access;
mod access_lint;
mod access_shadow;
mod adopt;
mod adopting;
mod api;
pub mod attachment;
mod change_warnings;
mod chap;
mod disk;
mod document;
mod edit;
mod exposed;
mod extend;
mod files;
mod gateway;
mod lax_names;
mod limits;
mod lun;
mod namespace_ids;
mod portal;
mod relative_ports;
mod rollback;
pub mod router;
mod secrets;
mod shown;
mod standby;
mod subsystem;
mod subsystem_lint;
mod target;
mod trial_record;
mod unused;
mod upstream_secrets;
mod value;

pub use access_lint::access_lint;
pub use access_shadow::access_shadow;
pub use adopt::{AdoptStep, adopt, adoptable, all_adoptable};
pub use adopting::Adopting;
pub use change_warnings::change_warnings;
pub use chap::GivenSecrets;
pub use edit::{EditedFiles, FileWrite, TransientFiles, edit, file_name};
pub use exposed::{exposed, is_open};
pub use files::{api_folder, drop_in_files, drop_in_folder, is_drop_in_of, read_files, server_owner};
pub use gateway::GatewayConfig;
pub(crate) use gateway::is_shared;
pub use lax_names::lax_names;
pub use lun::{Fail, Filter, IdentityKeys, LunConfig, Share, Source};
pub(crate) use lun::{OneFile, hex, one_name};
pub(crate) use lunar_config::iscsi_name;
pub(crate) use namespace_ids::NONE;
pub use rollback::{TreeRollback, roll_back, tree};
pub use router::RouterConfig;
pub use secrets::{SecretUse, certificate_files, secret_uses};
pub use shown::shown;
pub use standby::state_left_behind;
pub use subsystem::{SubsystemConfig, host_nqn, nqn as subsystem_nqn, unfit};
pub use subsystem_lint::subsystem_lint;
pub use trial_record::TrialRecord;
pub use unused::unused;
pub use upstream_secrets::upstream_secrets;
pub(crate) use value::listen;
pub use value::{NVME_DISCOVERY_PORT, NVME_PORT, PORT};

use chap::SecretSource;
use lunar_admin::{Document, ObjectId};
use lunar_config::{ConfigFile, Diagnostic, Diagnostics, InvalidValue, Section, invalid, number};
use lunar_runtime::CoreSelection;
use lunar_target::config::GivenNamespaceIds;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use toml::de::DeTable;

/// A valid configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Settings of the process.
    pub server: ServerConfig,
    /// The control API over HTTPS.
    pub api: Option<lunar_api::https::HttpsSettings>,
    /// The place of this server in a group of gateways.
    pub gateway: Option<GatewayConfig>,
    /// Limits on the resources that peers can use.
    pub limits: lunar_target::config::TargetLimits,
    /// Maximum number of persistent reservation registrants of a LUN.
    pub max_registrants: usize,
    /// Negotiation and keepalive.
    pub session: lunar_target::config::SessionConfig,
    /// Access to discovery.
    pub discovery: lunar_target::config::DiscoveryConfig,
    /// The portals.
    pub portal_groups: Vec<lunar_target::config::PortalGroup>,
    /// The disks that LUNs of several targets may show, by name.
    pub disks: BTreeMap<String, LunConfig>,
    /// The targets.
    pub targets: Vec<Target>,
    /// The routers. [`crate::routes::expand`] makes targets of them after discovery.
    pub routers: Vec<RouterConfig>,
    /// Tags of portal groups that will get further targets, with names that are not known yet.
    pub awaited: BTreeSet<u16>,
    /// The names of all `[access.NAME]`.
    pub access_lists: Vec<String>,
    /// The files, and the objects in them.
    pub sources: Sources,
}

/// The files of a configuration, and their objects.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// The path of the configuration; empty without a file.
    pub whole: PathBuf,
    /// Its files in order.
    pub files: Arc<Vec<ConfigFile>>,
    /// The objects that the API can show.
    pub document: Arc<Document>,
}

/// Settings of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerConfig {
    /// The cores of the event loops.
    pub cores: CoreSelection,
    /// How long an event loop looks for work before it sleeps.
    pub busy_poll: Duration,
    /// The folder of state; None: the user's state folder.
    pub state_dir: Option<PathBuf>,
    /// The path of the admin socket; None: in the user's runtime or state folder.
    pub admin_socket: Option<PathBuf>,
    /// The address of the metrics over TCP; None: only the admin socket has them.
    pub metrics: Option<SocketAddr>,
}

/// A target and its logical units, which are not open yet.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// iSCSI name.
    pub name: String,
    /// TargetAlias.
    pub alias: Option<String>,
    /// Tags of its portal groups.
    pub portal_groups: Vec<u16>,
    /// Relative target port identifiers by tag, where they are not the tag.
    pub relative_ports: BTreeMap<u16, u16>,
    /// Redirections of logins, by portal group.
    pub redirects: Vec<lunar_target::config::LoginRedirect>,
    /// Whether logins are rejected with 03/01.
    pub offline: bool,
    /// Whether it has its media only while it is promoted ([`crate::standby`]).
    pub standby: bool,
    /// The folder of the state of its LUNs; None: that of the server.
    pub state_dir: Option<PathBuf>,
    /// The account for mutual CHAP.
    pub mutual: Option<lunar_target::config::ChapAccount>,
    /// Its logical units. A change of the configuration copies it several times, so the copies share them.
    pub luns: Arc<BTreeMap<u16, LunConfig>>,
    /// The access rules of initiators and LUNs.
    pub access: Vec<lunar_target::config::AccessRule>,
    /// The instance whose mappings created it; None for a `[[target]]` of the file.
    pub router: Option<String>,
    /// Limit of commands in flight for a session, if below the global limit; None: the global limit.
    pub depth: Option<u32>,
    /// Set if it is an NVMe subsystem: its name is the NQN, and its LUNs are namespaces.
    pub subsystem: Option<SubsystemConfig>,
}

impl Config {
    /// The target or subsystem with this name.
    pub fn target(&self, name: &str) -> Option<&Target> {
        self.targets.iter().find(|target| target.name == name)
    }
}

impl Target {
    /// Whether it is this target, or a subsystem with a LUN of this target.
    pub fn has_luns_of(&self, name: &str) -> bool {
        let mut shared = self.subsystem.iter().flat_map(|subsystem| subsystem.shared.values());
        self.name == name || shared.any(|(target, _)| target == name)
    }

    /// The object of the configuration.
    pub fn id(&self) -> ObjectId {
        match self.subsystem {
            Some(_) => ObjectId::Subsystem(self.name.clone()),
            None => ObjectId::Target(self.name.clone()),
        }
    }

    /// The object of the LUN or namespace with this number.
    pub fn unit_id(&self, number: u16) -> ObjectId {
        match self.subsystem {
            Some(_) => ObjectId::Namespace(self.name.clone(), number),
            None => ObjectId::Lun(self.name.clone(), number),
        }
    }

    /// The identifiers that are given to the namespace with this number.
    pub fn given_ids(&self, number: u16) -> GivenNamespaceIds {
        self.subsystem.as_ref().and_then(|own| own.given_ids.get(&number)).copied().unwrap_or_default()
    }

    /// The number of its LUNs or namespaces.
    pub fn disks(&self) -> usize {
        self.luns.len() + self.subsystem.as_ref().map_or(0, |subsystem| subsystem.shared.len())
    }

    /// The number of hosts that need a secret or a key of TLS.
    pub fn secrets(&self) -> usize {
        self.subsystem.as_ref().map_or(0, |subsystem| {
            let keys_alone = subsystem.tls_keys.keys().filter(|host| !subsystem.hosts.contains_key(*host));
            subsystem.hosts.len() + keys_alone.count()
        })
    }

    /// A target without LUNs and access rules.
    pub fn new(name: String, portal_groups: Vec<u16>) -> Target {
        Target {
            name,
            alias: None,
            portal_groups,
            relative_ports: BTreeMap::new(),
            redirects: Vec::new(),
            offline: false,
            standby: false,
            state_dir: None,
            mutual: None,
            luns: Arc::default(),
            access: Vec::new(),
            router: None,
            depth: None,
            subsystem: None,
        }
    }
}

/// Reads and checks a configuration with its drop-in files. Returns all faults that one run can find, in the order of
/// files and lines.
pub fn load(path: &Path) -> Result<Config, Vec<Diagnostic>> {
    load_with(path, &TransientFiles::new())
}

/// As [`load`], with files that exist only in the memory of a server.
///
/// # Errors
/// As [`load`].
pub fn load_with(path: &Path, transient: &TransientFiles) -> Result<Config, Vec<Diagnostic>> {
    let whole = whole(path);
    parse_files(edit::overlay(read_files(path)?, &whole, transient), &whole)
}

/// As [`load`], for tools that do not need the secrets: see [`GivenSecrets`].
///
/// # Errors
/// As [`load`].
pub fn load_without_secrets(path: &Path) -> Result<Config, Vec<Diagnostic>> {
    parse_files_with(read_files(path)?, &whole(path), Some(&GivenSecrets::new()))
}

/// The absolute path of a configuration.
fn whole(path: &Path) -> PathBuf {
    // The configuration is identified by its canonical path, so that links and other spellings lead to the same one.
    // The working folder may be unknown.
    let absolute = || std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    folder
        .canonicalize()
        .map_or_else(|_| absolute(), |folder| folder.join(path.file_name().unwrap_or_default()))
}

/// Checks the text of a configuration without drop-in files. `path` is the file for diagnostics, and relative paths
/// start at its folder.
pub fn parse(source: &str, path: &Path) -> Result<Config, Vec<Diagnostic>> {
    parse_files(
        vec![ConfigFile { path: path.to_path_buf(), text: source.to_owned(), is_transient: false }],
        path,
    )
}

/// Checks the files of the configuration at the absolute path `whole`.
///
/// # Errors
/// All faults that one run can find, in the order of files and lines.
pub fn parse_files(files: Vec<ConfigFile>, whole: &Path) -> Result<Config, Vec<Diagnostic>> {
    parse_files_with(files, whole, None)
}

/// As [`parse_files`], with these secrets instead of those of the disk.
///
/// # Errors
/// As [`parse_files`].
pub fn parse_files_with(
    files: Vec<ConfigFile>,
    whole: &Path,
    given: Option<&GivenSecrets>,
) -> Result<Config, Vec<Diagnostic>> {
    let mut problems = Diagnostics::of(&files);
    let Some(tables) = lunar_config::parse(&mut problems) else { return Err(problems.into_list()) };
    let root = extend::whole(&mut problems, tables);
    let base = whole.parent().unwrap_or(Path::new(""));
    let source = SecretSource { given, owner: server_owner(whole).map(|(user, _)| user) };
    let config = root_table(&mut problems, Section::of("the file", &root, 0..0), base, source);
    let document = Arc::new(document::document(&problems, &root, &files, whole));
    let list = problems.into_list();
    if !list.is_empty() {
        return Err(list);
    }
    drop(root);
    let sources = Sources { whole: whole.to_path_buf(), files: Arc::new(files), document };
    Ok(Config { sources, ..config })
}

/// The configuration without a file: all defaults, no target.
pub(crate) fn defaults() -> Config {
    let mut problems = Diagnostics::new(Path::new(""), "");
    root_sections(
        &mut problems,
        &mut Section::of("", &DeTable::new(), 0..0),
        Path::new(""),
        SecretSource::default(),
    )
}

fn root_table(
    p: &mut Diagnostics<'_>,
    mut root: Section<'_>,
    base: &Path,
    source: SecretSource<'_>,
) -> Config {
    let config = root_sections(p, &mut root, base, source);
    let gateway = gateway::gateway(p, &mut root);
    let config = gateway::apply(p, config, gateway);
    root.done(p);
    if config.targets.is_empty() && config.routers.is_empty() && p.is_empty() {
        p.add(&(0..0), "the configuration has no target", "add [[target]] with a name and a [[target.lun]]");
    }
    config
}

fn root_sections(
    p: &mut Diagnostics<'_>,
    root: &mut Section<'_>,
    base: &Path,
    source: SecretSource<'_>,
) -> Config {
    let section = root.section(p, "server", "[server]");
    let server = server(p, section, base);
    let api = api::api(p, root, base, source);
    let section = root.section(p, "limits", "[limits]");
    let (limits, max_registrants) = limits::limits(p, section);
    let section = root.section(p, "session", "[session]");
    let session = limits::session(p, section);
    let users = chap::users(p, root, base, source);
    let section = root.section(p, "discovery", "[discovery]");
    let discovery = portal::discovery(p, section, &users);
    let mut groups = portal::portal_groups(p, root);
    let mut unique = lun::UniqueValues::new();
    let disks = disk::disks(p, root, base, &mut unique);
    let around = target::Context {
        users: &users,
        tags: &groups.tags(),
        groups: &groups.list,
        disks: &disks,
        base,
        source,
    };
    let mut targets = target::targets(p, root, &around, &mut unique);
    let (subsystems, named) = subsystem::subsystems(p, root, &around, &mut unique);
    let lists = access::lists(p, root, &users);
    targets.extend(subsystems);
    let own = router::OwnSubsystems::of(&targets, &groups.list);
    let around = router::Context { lists: &lists, base, own: &own, unique: &mut unique };
    let routers = router::routers(p, root, around, &mut groups);
    subsystem::check_shared(p, &named, &targets, &routers);
    Config {
        server,
        api,
        gateway: None,
        limits,
        max_registrants,
        session,
        discovery,
        portal_groups: groups.list,
        disks: disks.into_iter().filter_map(|(name, disk)| Some((name, disk?))).collect(),
        targets,
        routers,
        awaited: BTreeSet::new(),
        access_lists: lists.names(),
        sources: Sources::default(),
    }
}

/// The longest busy poll. A longer one only wastes CPU time.
const MAX_BUSY_POLL_US: u64 = 1_000_000;

fn server(p: &mut Diagnostics<'_>, mut s: Section<'_>, base: &Path) -> ServerConfig {
    let cores = match s.find("cores") {
        Some(v) if v.get_ref().is_integer() => {
            number(p, "cores", v, 0..=CoreSelection::MAX_CORES as u64).and_then(CoreSelection::from_number)
        }
        _ => s.parsed(p, "cores", |text| Ok(CoreSelection::parse(text)?)),
    };
    let busy_poll = Duration::from_micros(s.number(p, "busy_poll_us", 0..=MAX_BUSY_POLL_US).unwrap_or(0));
    let state_dir = s.parsed(p, "state_dir", |text| path(text, base));
    let admin_socket = s.parsed(p, "admin_socket", |text| socket_path(text, base));
    let metrics = s.parsed(p, "metrics", address);
    s.done(p);
    ServerConfig { cores: cores.unwrap_or(CoreSelection::All), busy_poll, state_dir, admin_socket, metrics }
}

/// An IP address with a port.
fn address(text: &str) -> Result<SocketAddr, InvalidValue> {
    text.parse().or_else(|_| {
        invalid(
            format!("not an IP address with a port: {text:?}"),
            "write address and port, such as 127.0.0.1:9860 or [::1]:9860",
        )
    })
}

/// A path; a relative one starts at the folder of the configuration.
fn path(text: &str, base: &Path) -> Result<PathBuf, InvalidValue> {
    if text.is_empty() || text.chars().any(char::is_control) {
        return invalid(
            format!("\"{}\" is not a valid path", text.escape_debug()),
            "use a path without control characters",
        );
    }
    Ok(base.join(text))
}

/// A path that fits into the address of a Unix socket.
fn socket_path(text: &str, base: &Path) -> Result<PathBuf, InvalidValue> {
    let path = path(text, base)?;
    let len = path.as_os_str().len();
    if len > 107 {
        return invalid(
            format!("the socket path is too long: it has {len} bytes"),
            "use a path of at most 107 bytes",
        );
    }
    Ok(path)
}

#[cfg(test)]
pub(crate) mod tests;
