//! Arguments of the commands that change the NVMe subsystems of a running server.

use super::{ChangeArgs, ObjectArgs, ServerArgs};
use crate::objects::keys::{self, Pair};
use clap::{Args, Subcommand};
use std::path::PathBuf;

const SUBSYSTEM_EXAMPLES: &str = "Examples:
  lunar subsystem add nqn.2026-11.org.example:new 'allowed_hosts=[\"nqn.2026-11.org.example:ann\"]'
  lunar subsystem set nqn.2026-11.org.example:new allowed_hosts= read_only=true    an empty value removes the key
  lunar subsystem remove nqn.2026-11.org.example:new";

/// Subcommands of `lunar subsystem`.
#[derive(Debug, Subcommand)]
#[command(after_help = SUBSYSTEM_EXAMPLES)]
pub enum SubsystemCommand {
    /// List the subsystems
    List(ServerArgs),
    /// Show a subsystem with its namespaces and hosts
    Show {
        /// NQN of the subsystem
        subsystem: String,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Add a subsystem
    Add {
        /// NQN of the subsystem
        subsystem: String,
        /// Keys of a [[subsystem]], such as `read_only=true`
        #[arg(value_name = "KEY=VALUE", value_parser = keys::pair)]
        keys: Vec<Pair>,
        #[command(flatten)]
        object: ObjectArgs,
    },
    /// Change keys of a subsystem
    Set {
        /// NQN of the subsystem
        subsystem: String,
        /// Keys of a [[subsystem]]; an empty value removes the key
        #[arg(value_name = "KEY=VALUE", required = true, value_parser = keys::change)]
        keys: Vec<Pair>,
        /// Change it even if that admits all hosts
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        object: ObjectArgs,
    },
    /// Remove a subsystem with its namespaces and hosts
    Remove {
        /// NQN of the subsystem
        subsystem: String,
        /// Remove it even if hosts use it
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        object: ObjectArgs,
    },
}

const NAMESPACE_EXAMPLES: &str = "Examples:
  lunar namespace add nqn.2026-11.org.example:disks lun:iqn.2026-11.org.example:disks/0
  lunar namespace add nqn.2026-11.org.example:disks disk:data --nsid 7
  lunar namespace add nqn.2026-11.org.example:disks new.img --size 10G uuid=f81d4fae-7dec-11d0-a765-00a0c91e6bf6
  lunar namespace resize nqn.2026-11.org.example:disks 2 20G
  lunar namespace remove nqn.2026-11.org.example:disks 2";

/// A namespace of a subsystem.
#[derive(Args, Debug)]
pub struct NamespacePlace {
    /// NQN of the subsystem
    pub subsystem: String,
    /// Number of the namespace (NSID)
    pub nsid: u16,
}

/// Arguments of `lunar namespace add`.
#[derive(Args, Debug)]
pub struct NamespaceAdd {
    /// NQN of the subsystem
    pub subsystem: String,
    /// lun:TARGET/LUN for a LUN of a target, disk:NAME for a disk of `lunar disk`, a file, a block device, null:SIZE or
    /// memory:SIZE
    #[arg(value_name = "MEDIUM")]
    pub medium: String,
    /// Keys of a namespace: `uuid`, `nguid` and `eui64`; with a medium of its own also those of a LUN, such as `read_only=true`
    #[arg(value_name = "KEY=VALUE", value_parser = keys::pair)]
    pub keys: Vec<Pair>,
    /// Its number [default: the lowest free number]
    #[arg(long, value_name = "N")]
    pub nsid: Option<u16>,
    /// Create a missing file, sparse, at this size
    #[arg(long, value_name = "SIZE")]
    pub size: Option<String>,
    #[command(flatten)]
    pub object: ObjectArgs,
}

/// Subcommands of `lunar namespace`.
#[derive(Debug, Subcommand)]
#[command(after_help = NAMESPACE_EXAMPLES)]
pub enum NamespaceCommand {
    /// List the namespaces
    List {
        /// NQN of the subsystem [default: all subsystems]
        subsystem: Option<String>,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Show the keys of a namespace
    Show {
        #[command(flatten)]
        place: NamespacePlace,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Add a namespace to a subsystem: a LUN of a target, a disk, or a medium of its own
    Add(NamespaceAdd),
    /// Change keys of a namespace
    Set {
        #[command(flatten)]
        place: NamespacePlace,
        /// Keys of a namespace, such as `read_only=true` or `uuid=UUID`; an empty value removes the key
        #[arg(value_name = "KEY=VALUE", required = true, value_parser = keys::change)]
        keys: Vec<Pair>,
        /// Give it another medium or other identifiers even if hosts use its subsystem
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        object: ObjectArgs,
    },
    /// Grow a namespace, or the LUN or disk that it shows: its file, or the size of a null disk
    Resize {
        #[command(flatten)]
        place: NamespacePlace,
        /// The new size
        size: String,
        #[command(flatten)]
        object: ObjectArgs,
    },
    /// Remove a namespace; its LUN, disk or file stays
    Remove {
        #[command(flatten)]
        place: NamespacePlace,
        /// Remove it even if hosts use its subsystem
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        object: ObjectArgs,
    },
}

const HOST_EXAMPLES: &str = "Examples:
  lunar host add nqn.2026-11.org.example:disks nqn.2026-11.org.example:ann
  lunar host add nqn.2026-11.org.example:disks nqn.2026-11.org.example:bob --secret-file bob.key
  lunar host set nqn.2026-11.org.example:disks nqn.2026-11.org.example:ann    a new random secret";

/// A host of a subsystem.
#[derive(Args, Debug)]
pub struct HostPlace {
    /// NQN of the subsystem
    pub subsystem: String,
    /// NQN of the host
    pub host: String,
}

/// Subcommands of `lunar host`.
#[derive(Debug, Subcommand)]
#[command(after_help = HOST_EXAMPLES)]
pub enum HostCommand {
    /// List the hosts that a subsystem admits with a secret. `allowed_hosts` of the subsystem admits hosts without one
    List {
        /// NQN of the subsystem
        subsystem: String,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Show a host, without its secret
    Show {
        #[command(flatten)]
        place: HostPlace,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Admit a host with a secret. The first host excludes all others
    Add {
        #[command(flatten)]
        place: HostPlace,
        /// File with its secret [default: a random secret, which is printed once; none with --tls-key-file]
        #[arg(long, value_name = "FILE")]
        secret_file: Option<PathBuf>,
        /// File of the server with its key for TLS
        #[arg(long, value_name = "PATH")]
        tls_key_file: Option<String>,
        #[command(flatten)]
        change: ChangeArgs,
    },
    /// Give a host another secret. Its controllers stay; the next connection needs the new secret
    Set {
        #[command(flatten)]
        place: HostPlace,
        /// File with its new secret [default: a random secret, which is printed once; none with --tls-key-file]
        #[arg(long, value_name = "FILE")]
        secret_file: Option<PathBuf>,
        /// File of the server with its new key for TLS
        #[arg(long, value_name = "PATH")]
        tls_key_file: Option<String>,
        #[command(flatten)]
        change: ChangeArgs,
    },
    /// Remove a host
    Remove {
        #[command(flatten)]
        place: HostPlace,
        /// Remove the last host too, so that hosts need no secret
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        change: ChangeArgs,
    },
}
