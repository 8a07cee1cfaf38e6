//! The parts of a configuration that other targets have too. Each importer makes one, and [`crate::write`] turns it into
//! `lunar.toml`.

use crate::{Imported, NewAttachment, NewSubsystem, SecretFile};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use zeroize::Zeroizing;

/// A configuration.
#[derive(Debug, Default, PartialEq)]
pub struct Configuration {
    /// The portal groups.
    pub portal_groups: Vec<NewPortalGroup>,
    /// Access to discovery.
    pub discovery: Discovery,
    /// The disks. LUNs refer to them by index.
    pub disks: Vec<Disk>,
    /// The targets.
    pub targets: Vec<NewTarget>,
    /// The CHAP users. Access entries refer to them by `id`.
    pub chap_users: Vec<ChapUser>,
    /// Other NVMe discovery services to which Lunar refers hosts, `ADDR:PORT`.
    pub nvme_referrals: Vec<String>,
    /// The NVMe subsystems.
    pub subsystems: Vec<NewSubsystem>,
    /// The secrets of NVMe hosts and subsystems. These refer to them by the name of the file.
    pub secret_files: Vec<SecretFile>,
    /// The saved attachments, if it is the configuration of an initiator.
    pub attachments: Vec<NewAttachment>,
}

/// A portal group.
#[derive(Debug, Default, PartialEq)]
pub struct NewPortalGroup {
    /// Its tag.
    pub tag: u16,
    /// Its portals.
    pub portals: Vec<NewPortal>,
}

/// A portal: an address and a transport.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NewPortal {
    /// `ADDR:PORT`.
    pub listen: String,
    /// How hosts connect to it.
    pub transport: NewTransport,
}

/// The transport of a portal. Of two for one address, the greater one serves all its hosts, or demands TLS of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum NewTransport {
    /// iSCSI over TCP.
    #[default]
    Tcp,
    /// iSCSI over TCP, and iSER.
    Iser,
    /// Discovery of NVMe/TCP only.
    NvmeDiscovery,
    /// NVMe/TCP.
    NvmeTcp,
    /// NVMe/TCP with TLS.
    NvmeTls,
}

impl NewTransport {
    /// The transport of an iSCSI portal.
    pub fn iscsi(iser: bool) -> NewTransport {
        if iser { NewTransport::Iser } else { NewTransport::Tcp }
    }
}

/// Access to discovery.
#[derive(Debug, Default, PartialEq)]
pub struct Discovery {
    /// Whether discovery is rejected.
    pub disabled: bool,
    /// Ids of the users, one of which must log in; empty: no CHAP.
    pub chap: Vec<String>,
    /// Id of the target's user for mutual CHAP.
    pub mutual: Option<String>,
}

/// A disk: its medium, its settings and its identity.
#[derive(Clone, Debug, PartialEq)]
pub struct Disk {
    /// Its name, if several targets show it.
    pub name: String,
    /// Its medium.
    pub medium: DiskMedium,
    /// Whether it is a CD.
    pub cdrom: bool,
    /// Logical block size in bytes; None: the default.
    pub block_size: Option<u32>,
    /// Physical block size in bytes; None: the default.
    pub physical_block_size: Option<u32>,
    /// Whether writes are rejected.
    pub read_only: bool,
    /// Whether the medium can be ejected.
    pub removable: bool,
    /// Whether a write is acknowledged before it is stable.
    pub write_cache: bool,
    /// Whether the page cache is bypassed.
    pub direct: bool,
    /// Whether UNMAP is offered.
    pub thin: bool,
    /// The values by which hosts identify it.
    pub identity: Identity,
}

/// The medium of a disk.
#[derive(Clone, Debug, PartialEq)]
pub enum DiskMedium {
    /// A file.
    File(String),
    /// A block device.
    Device(String),
    /// Memory of this many bytes.
    Memory(u64),
    /// No medium: reads return zeros. Bytes.
    Null(u64),
}

impl fmt::Display for DiskMedium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DiskMedium::File(path) => write!(f, "the file {path}"),
            DiskMedium::Device(path) => write!(f, "the device {path}"),
            DiskMedium::Memory(size) => write!(f, "memory of {size} bytes"),
            DiskMedium::Null(size) => write!(f, "a null disk of {size} bytes"),
        }
    }
}

/// The values by which hosts identify a disk. None: the default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Identity {
    /// Unit serial number.
    pub serial: Option<String>,
    /// NAA designator in hexadecimal digits.
    pub naa: Option<String>,
    /// EUI-64 based designator in hexadecimal digits.
    pub eui64: Option<String>,
    /// The text after the vendor in the T10 vendor ID designator.
    pub t10_id: Option<String>,
    /// SCSI name string.
    pub scsi_name: Option<String>,
    /// All designation descriptors in hexadecimal digits, which replace the four above.
    pub designators: Vec<String>,
    /// T10 vendor identification.
    pub vendor: Option<String>,
    /// Product identification.
    pub product: Option<String>,
    /// Product revision level.
    pub revision: Option<String>,
}

impl Disk {
    /// A disk with the defaults of Lunar, without a write cache.
    pub fn new(name: impl Into<String>, medium: DiskMedium) -> Disk {
        Disk {
            name: name.into(),
            medium,
            cdrom: false,
            block_size: None,
            physical_block_size: None,
            read_only: false,
            removable: false,
            write_cache: false,
            direct: false,
            thin: true,
            identity: Identity::default(),
        }
    }
}

/// A target.
#[derive(Debug, Default, PartialEq)]
pub struct NewTarget {
    /// iSCSI name.
    pub name: String,
    /// TargetAlias.
    pub alias: Option<String>,
    /// Tags of its portal groups; empty: all.
    pub portal_groups: BTreeSet<u16>,
    /// Redirected logins: portal group and address.
    pub redirects: Vec<(u16, String)>,
    /// Relative target port identifiers by portal group tag, where they are not the tag.
    pub relative_ports: BTreeMap<u16, u16>,
    /// Whether logins are rejected.
    pub offline: bool,
    /// Id of its user for mutual CHAP.
    pub mutual: Option<String>,
    /// Its LUNs: indices of [`Configuration::disks`].
    pub luns: BTreeMap<u16, usize>,
    /// Its access entries; the first match decides. Empty: every host.
    pub access: Vec<Access>,
}

/// An access entry.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Access {
    /// Patterns of initiator names; empty: all.
    pub initiators: Vec<String>,
    /// Networks of initiators; empty: all.
    pub networks: Vec<String>,
    /// Addresses and networks of this host to which the initiators connect; empty: all.
    pub portals: Vec<String>,
    /// Whether these hosts must not log in.
    pub deny: bool,
    /// Ids of the users, one of which must log in; empty: no CHAP.
    pub chap: Vec<String>,
    /// Id of the target's user for mutual CHAP with these hosts.
    pub mutual: Option<String>,
    /// The LUN of the target for each LUN that these hosts use; None: all LUNs.
    pub luns: Option<BTreeMap<u16, u16>>,
    /// The LUNs that these hosts only read.
    pub read_only: ReadOnly,
}

/// LUNs that hosts only read.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ReadOnly {
    /// None.
    #[default]
    None,
    /// All.
    All,
    /// These, by the numbers that the hosts use.
    Luns(BTreeSet<u16>),
}

/// A CHAP user.
#[derive(Debug, PartialEq)]
pub struct ChapUser {
    /// The name by which entries refer to it, which is also that of its secret file.
    pub id: String,
    /// The name that is sent.
    pub name: String,
    /// The secret; None if it is unknown or must not be used, and a new one is needed.
    pub secret: Option<Zeroizing<String>>,
}

impl Identity {
    /// Whether hosts would take two disks with these identities for paths to one disk.
    fn clashes(&self, other: &Identity) -> bool {
        let same = |a: &Option<String>, b: &Option<String>| a.is_some() && a == b;
        same(&self.naa, &other.naa)
            || same(&self.eui64, &other.eui64)
            || same(&self.scsi_name, &other.scsi_name)
            || self.designators.iter().any(|one| other.designators.contains(one))
    }
}

impl Imported {
    /// Takes the designators of disks that have the same as an earlier disk: hosts would mix the data of both.
    pub(crate) fn keep_identities_apart(mut self) -> Imported {
        let disks = &mut self.configuration.disks;
        for at in 1..disks.len() {
            let (before, rest) = disks.split_at_mut(at);
            let disk = &mut rest[0];
            if let Some(first) = before.iter().find(|first| first.identity.clashes(&disk.identity)) {
                let what =
                    format!("the designators of disk {}, which disk {} has too", disk.name, first.name);
                self.notes.lost("disks", what);
                let Identity { serial, vendor, product, revision, .. } = std::mem::take(&mut disk.identity);
                disk.identity = Identity { serial, vendor, product, revision, ..Identity::default() };
            }
        }
        self
    }
}

impl Configuration {
    /// A name for a disk that no other disk has.
    pub(crate) fn free_disk_name(&self, name: &str) -> String {
        free_name(name, |word| self.disks.iter().all(|disk| disk.name != word))
    }

    /// A name for an attachment that no other attachment has.
    pub(crate) fn free_attachment_name(&self, name: &str) -> String {
        free_name(name, |word| self.attachments.iter().all(|attachment| attachment.name != word))
    }

    /// The id of a CHAP user, which is added if it is new. A name that has another secret already gets another id.
    pub fn chap_user(&mut self, name: &str, secret: Option<&str>) -> String {
        let same = |user: &&ChapUser| user.name == name && user.secret.as_ref().map(|s| s.as_str()) == secret;
        if let Some(user) = self.chap_users.iter().find(same) {
            return user.id.clone();
        }
        let id = free_name(name, |id| self.chap_users.iter().all(|user| user.id != id));
        let secret = secret.map(|secret| Zeroizing::new(secret.to_owned()));
        self.chap_users.push(ChapUser { id: id.clone(), name: name.into(), secret });
        id
    }
}

/// A safe name that is free, with a number if needed.
pub(crate) fn free_name(name: &str, is_free: impl Fn(&str) -> bool) -> String {
    let word = file_name(name);
    let numbered = (2..).map(|n| format!("{word}-{n}"));
    std::iter::once(word.clone()).chain(numbered).find(|word| is_free(word)).unwrap_or(word)
}

/// A name in characters that are safe in the name of a file and of a disk.
pub fn file_name(name: &str) -> String {
    const MAX: usize = 40;
    let safe = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '_' };
    let word: String = name.chars().map(safe).take(MAX).collect();
    match word.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        true => word,
        false => format!("x{word}"),
    }
}
