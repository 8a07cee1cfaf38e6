//! Arguments of the commands that change a running server through its API.

use super::{NvmeSecretArgs, ServerChoice};
use crate::objects::keys::{self, Pair};
use clap::{Args, Subcommand};
use serde_json::Value;
use std::path::PathBuf;
use std::time::Duration;

/// Options of every command that may change a server.
#[derive(Args, Debug)]
pub struct ServerArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub choice: ServerChoice,

    /// Fail with exit status 8 after this time (5, 5s, 2m); a change waits until commands of hosts end
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = lunar_proto::duration::positive)]
    pub timeout: Duration,
}

/// Arguments of `lunar reload`.
#[derive(Args, Debug)]
pub struct ReloadArgs {
    /// Apply the files even if hosts lose targets, LUNs or portals that they use
    #[arg(long)]
    pub force: bool,

    #[command(flatten)]
    pub server: ServerArgs,
}

/// Options of a change.
#[derive(Args, Debug)]
pub struct ChangeArgs {
    /// Print what would change, and change nothing
    #[arg(long)]
    pub dry_run: bool,

    #[command(flatten)]
    pub server: ServerArgs,
}

/// Options of a change that may be temporary.
#[derive(Args, Debug)]
pub struct ObjectArgs {
    /// Keep the change until the next start of the server only
    #[arg(long)]
    pub transient: bool,

    #[command(flatten)]
    pub change: ChangeArgs,
}

/// Arguments of `lunar stop`.
#[derive(Args, Debug)]
pub struct Stop {
    /// Print JSON
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub choice: ServerChoice,

    /// Fail with exit status 8 if the server still runs after this time (5, 5s, 2m)
    #[arg(long, value_name = "TIME", default_value = "120s", value_parser = lunar_proto::duration::positive)]
    pub timeout: Duration,
}

const TARGET_EXAMPLES: &str = "Examples:
  lunar target add iqn.2026-11.org.example:new alias=backup
  lunar target set iqn.2026-11.org.example:new alias= portal_groups=[1]    an empty value removes the key
  lunar target promote iqn.2026-11.org.example:new    on the server that has its media now
  lunar target remove iqn.2026-11.org.example:new";

/// Subcommands of `lunar target`.
#[derive(Debug, Subcommand)]
#[command(after_help = TARGET_EXAMPLES)]
pub enum TargetCommand {
    /// List the targets
    List(ServerArgs),
    /// Show a target with its LUNs and access entries
    Show {
        /// iSCSI name of the target
        target: String,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Add a target
    Add {
        /// iSCSI name of the target
        target: String,
        /// Keys of a [[target]], such as alias=backup
        #[arg(value_name = "KEY=VALUE", value_parser = keys::pair)]
        keys: Vec<Pair>,
        #[command(flatten)]
        object: ObjectArgs,
    },
    /// Change keys of a target
    Set {
        /// iSCSI name of the target
        target: String,
        /// Keys of a [[target]]; an empty value removes the key
        #[arg(value_name = "KEY=VALUE", required = true, value_parser = keys::change)]
        keys: Vec<Pair>,
        #[command(flatten)]
        object: ObjectArgs,
    },
    /// Open the media of a target on standby, and accept logins
    Promote {
        /// iSCSI name of the target
        target: String,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// End the sessions of a target, flush its media, and close them: it is on standby then
    Demote {
        /// iSCSI name of the target
        target: String,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Remove a target with its LUNs and access entries
    Remove {
        /// iSCSI name of the target
        target: String,
        /// Remove it even if hosts use it
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        object: ObjectArgs,
    },
}

const LUN_EXAMPLES: &str = "Examples:
  lunar lun add iqn.2026-11.org.example:disks new.img --size 10G
  lunar lun add iqn.2026-11.org.example:disks /dev/sdb --lun 7 read_only=true
  lunar lun add iqn.2026-11.org.example:disks disk:data
  lunar lun set iqn.2026-11.org.example:disks 7 read_only=false vendor=    an empty value removes the key
  lunar lun resize iqn.2026-11.org.example:disks 1 20G
  lunar lun move iqn.2026-11.org.example:disks 7 iqn.2026-11.org.example:new --lun 0
  lunar lun remove iqn.2026-11.org.example:disks 7";

/// A LUN of a target.
#[derive(Args, Debug)]
pub struct LunPlace {
    /// iSCSI name of the target
    pub target: String,
    /// Number of the LUN
    pub lun: u16,
}

/// Arguments of `lunar lun add`.
#[derive(Args, Debug)]
pub struct LunAdd {
    /// iSCSI name of the target
    pub target: String,
    /// A file, a block device, null:SIZE, memory:SIZE, or disk:NAME for a disk of `lunar disk`
    #[arg(value_name = "MEDIUM")]
    pub medium: String,
    /// Keys of a LUN, such as `read_only=true`
    #[arg(value_name = "KEY=VALUE", value_parser = keys::pair)]
    pub keys: Vec<Pair>,
    /// Its number [default: the lowest free number]
    #[arg(long, value_name = "N")]
    pub lun: Option<u16>,
    /// Create a missing file, sparse, at this size
    #[arg(long, value_name = "SIZE")]
    pub size: Option<String>,
    #[command(flatten)]
    pub object: ObjectArgs,
}

/// Subcommands of `lunar lun`.
#[derive(Debug, Subcommand)]
#[command(after_help = LUN_EXAMPLES)]
pub enum LunCommand {
    /// List the LUNs
    List {
        /// iSCSI name of the target [default: all targets]
        target: Option<String>,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Show the keys of a LUN
    Show {
        #[command(flatten)]
        place: LunPlace,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Add a LUN to a target
    Add(LunAdd),
    /// Change keys of a LUN
    Set {
        #[command(flatten)]
        place: LunPlace,
        /// Keys of a LUN, such as `read_only=true`; an empty value removes the key
        #[arg(value_name = "KEY=VALUE", required = true, value_parser = keys::change)]
        keys: Vec<Pair>,
        /// Give it another medium even if hosts use its target
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        object: ObjectArgs,
    },
    /// Grow a LUN or the disk that it shows: its file, or the size of a null disk
    Resize {
        #[command(flatten)]
        place: LunPlace,
        /// The new size
        size: String,
        #[command(flatten)]
        object: ObjectArgs,
    },
    /// Move a LUN to another target or number; for hosts it stays the same disk
    Move {
        #[command(flatten)]
        place: LunPlace,
        /// iSCSI name of the new target
        #[arg(value_name = "NEW_TARGET")]
        new_target: String,
        /// Its new number [default: the same]
        #[arg(long = "lun", value_name = "N")]
        new_lun: Option<u16>,
        /// Move it even if hosts use its target
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        object: ObjectArgs,
    },
    /// Remove a LUN; its file stays
    Remove {
        #[command(flatten)]
        place: LunPlace,
        /// Remove it even if hosts use its target
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        object: ObjectArgs,
    },
}

const ACCESS_EXAMPLES: &str = "Examples:
  lunar access add iqn.2026-11.org.example:disks --initiator 'iqn.1994-05.com.redhat:*' --luns 0,1
  lunar access add iqn.2026-11.org.example:disks --network 192.0.2.0/24 --chap alice --read-only
  lunar access add iqn.2026-11.org.example:disks --at 0 --initiator 'iqn.*:guest*' --deny
  lunar access set iqn.2026-11.org.example:disks 1 --luns 0 chap=    an empty value removes the key
  lunar access remove iqn.2026-11.org.example:disks 0";

/// The options of an access entry.
#[derive(Args, Debug)]
pub struct EntryArgs {
    /// Pattern of initiator names; repeatable [default: all initiators]
    #[arg(long = "initiator", value_name = "PATTERN")]
    pub initiators: Vec<String>,
    /// Network of initiators, such as 192.0.2.0/24; repeatable [default: all networks]
    #[arg(long = "network", value_name = "ADDR/BITS")]
    pub networks: Vec<String>,
    /// Address of the server to which the initiators connect; repeatable [default: all portals]
    #[arg(long = "portal", value_name = "ADDR")]
    pub portals: Vec<String>,
    /// CHAP user as which the initiators must log in; repeatable
    #[arg(long, value_name = "USER")]
    pub chap: Vec<String>,
    /// CHAP user as which the target authenticates itself
    #[arg(long, value_name = "USER")]
    pub mutual: Option<String>,
    /// LUNs that the initiators see: 0,1, or with other numbers 0=5,1=6 [default: all LUNs]
    #[arg(long, value_name = "LIST", value_parser = keys::luns)]
    pub luns: Option<Value>,
    /// The initiators cannot write
    #[arg(long)]
    pub read_only: bool,
    /// The initiators cannot log in
    #[arg(long, conflicts_with_all = ["chap", "mutual", "luns", "read_only"])]
    pub deny: bool,
}

/// Arguments of `lunar access add`.
#[derive(Args, Debug)]
pub struct AccessAdd {
    /// iSCSI name of the target
    pub target: String,
    #[command(flatten)]
    pub entry: EntryArgs,
    /// Insert it before the entry of this index [default: after the last entry]
    #[arg(long, value_name = "N")]
    pub at: Option<usize>,
    #[command(flatten)]
    pub object: ObjectArgs,
}

/// The options of [`EntryArgs`], one of which `lunar access set` needs if it has no key.
const ENTRY_OPTIONS: [&str; 8] =
    ["initiators", "networks", "portals", "chap", "mutual", "luns", "read_only", "deny"];

/// Arguments of `lunar access set`.
#[derive(Args, Debug)]
pub struct AccessSet {
    /// iSCSI name of the target
    pub target: String,
    /// Index of the entry, as `lunar access list` shows it
    pub index: usize,
    /// Keys of an access entry, such as deny=true; an empty value removes the key
    #[arg(value_name = "KEY=VALUE", required_unless_present_any = ENTRY_OPTIONS, value_parser = keys::change)]
    pub keys: Vec<Pair>,
    #[command(flatten)]
    pub entry: EntryArgs,
    #[command(flatten)]
    pub object: ObjectArgs,
}

/// Subcommands of `lunar access`.
#[derive(Debug, Subcommand)]
#[command(after_help = ACCESS_EXAMPLES)]
pub enum AccessCommand {
    /// List the access entries of a target, in their order: the first matching entry decides
    List {
        /// iSCSI name of the target
        target: String,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Show the keys of an access entry
    Show {
        /// iSCSI name of the target
        target: String,
        /// Index of the entry, as `lunar access list` shows it
        index: usize,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Add an access entry to a target. The first entry excludes all other initiators
    Add(AccessAdd),
    /// Change keys of an access entry; an option replaces the whole key
    Set(AccessSet),
    /// Remove an access entry
    Remove {
        /// iSCSI name of the target
        target: String,
        /// Index of the entry, as `lunar access list` shows it
        index: usize,
        /// Remove the last entry too, so that all initiators have access
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        object: ObjectArgs,
    },
}

const CHAP_EXAMPLES: &str = "Examples:
  lunar chap add alice
  lunar chap add bob --secret-file bob.secret
  lunar chap add --nvme nqn.2026-11.org.example:ann --output ann.key
  lunar chap set alice    a new random secret, for the next login of each host";

/// Subcommands of `lunar chap`.
#[derive(Debug, Subcommand)]
#[command(after_help = CHAP_EXAMPLES)]
pub enum ChapCommand {
    /// List the CHAP users
    List(ServerArgs),
    /// Show a CHAP user, without its secret
    Show {
        /// Name of the user
        user: String,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Add a CHAP user, or make a secret for NVMe
    Add {
        /// Name of the user; with --nvme, the NQN of the owner
        user: String,
        #[command(flatten)]
        nvme: NvmeSecretArgs,
        /// File with its secret [default: a random secret, which is printed once]
        #[arg(long, value_name = "FILE")]
        secret_file: Option<PathBuf>,
        #[command(flatten)]
        change: ChangeArgs,
    },
    /// Give a CHAP user another secret. Access entries and sessions stay; the next login needs the new secret
    Set {
        /// Name of the user
        user: String,
        /// File with its new secret [default: a random secret, which is printed once]
        #[arg(long, value_name = "FILE")]
        secret_file: Option<PathBuf>,
        #[command(flatten)]
        change: ChangeArgs,
    },
    /// Remove a CHAP user
    Remove {
        /// Name of the user
        user: String,
        #[command(flatten)]
        change: ChangeArgs,
    },
}

const PORTAL_EXAMPLES: &str = "Examples:
  lunar portal add 2 192.0.2.10:3260 --iser
  lunar portal add 3 192.0.2.10:4420 192.0.2.10:8009 --nvme
  lunar portal remove 2 --force    asks the hosts that use it to log out";

/// Subcommands of `lunar portal`.
#[derive(Debug, Subcommand)]
#[command(after_help = PORTAL_EXAMPLES)]
pub enum PortalCommand {
    /// List the portal groups
    List(ServerArgs),
    /// Show the keys of a portal group
    Show {
        /// Portal group tag
        tag: u16,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Add a portal group, which listens at once
    Add {
        /// Portal group tag
        tag: u16,
        /// Addresses on which it listens
        #[arg(value_name = "ADDR:PORT", required = true)]
        portals: Vec<String>,
        /// Accept iSER (iSCSI over RDMA) too, with software iWARP
        #[arg(long)]
        iser: bool,
        /// Accept SRP instead of iSCSI, with software iWARP
        #[arg(long, conflicts_with = "iser")]
        srp: bool,
        /// Accept NVMe/TCP instead of iSCSI; at port 8009, its discovery
        #[arg(long, conflicts_with_all = ["iser", "srp"])]
        nvme: bool,
        /// Demand TLS 1.3 from hosts of --nvme
        #[arg(long, requires = "nvme")]
        tls: bool,
        #[command(flatten)]
        object: ObjectArgs,
    },
    /// Remove a portal group, and close its sockets
    Remove {
        /// Portal group tag
        tag: u16,
        /// Remove it although hosts use it: their sessions end
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        object: ObjectArgs,
    },
}
