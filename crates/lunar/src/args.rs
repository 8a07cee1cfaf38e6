//! The command line.

mod disk;
mod gateway;
mod nvme_secret;
mod objects;
mod server_choice;
mod subsystem;

pub use disk::{DiskAdd, DiskCommand};
pub use gateway::{ChosenGateway, GatewayCommand};
pub use nvme_secret::{NvmeSecretArgs, SecretHash, SecretOwner};
pub use server_choice::ServerChoice;
pub use subsystem::{
    HostCommand, HostPlace, NamespaceAdd, NamespaceCommand, NamespacePlace, SubsystemCommand,
};

pub use objects::{
    AccessCommand, ChangeArgs, ChapCommand, EntryArgs, LunAdd, LunCommand, LunPlace, ObjectArgs,
    PortalCommand, ReloadArgs, ServerArgs, Stop, TargetCommand,
};

use crate::adopt::Adopt;
use crate::attach::{Attach, detach::Detach};
use crate::bench::Bench;
use crate::configuration::ConfigCommand;
use crate::copy;
use crate::discover::Discover;
use crate::doctor::Doctor;
use crate::events::{EVENTS_EXAMPLES, EventsArgs};
use crate::exit;
use crate::import::Import;
use crate::info::Info;
use crate::log::LogFormat;
use crate::ls::Ls;
use crate::man::ManArgs;
use crate::page::PageArgs;
use crate::pr::Pr;
use crate::rdma::Rdma;
use crate::router;
use crate::scsi::Scsi;
use crate::top::TopArgs;
use clap::{Args, Parser, Subcommand};
use lunar_admin::{HistoryPoint, InvalidHistoryPoint};
use std::path::PathBuf;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  lunar serve                                  serve a 1 GiB disk, kept in your state folder
  lunar serve disk.img --size 10G              serve a file, created if it is missing
  lunar serve /dev/sdb debian.iso null:1T      serve a block device, a CD and a null disk
  lunar serve --listen 0.0.0.0:3260 disk.img   accept other hosts too
  lunar serve --iser disk.img                  accept iSER too; --srp ADDR:PORT for SRP
  lunar serve --config lunar.toml              access lists, CHAP, several targets
  lunar copy disk.img copy.img                 preserve holes, and flush before it ends
  lunar check lunar.toml                       check a configuration file
  lunar check --media lunar.toml               check its disks and portals too
  lunar status                                 show running servers
  lunar top                                    show rates and latencies live
  lunar lun add IQN new.img --size 10G         add a LUN to a running server
  lunar session show                           show parameters and counters of sessions
  lunar discover 192.0.2.10                    list targets
  lunar ls 192.0.2.10                          list targets and LUNs
  lunar doctor iscsi://192.0.2.10/IQN/0        find faults and bottlenecks
  lunar bench randread iscsi://192.0.2.10/IQN/0 --depth 32   measure random reads
  lunar attach iscsi://192.0.2.10/IQN/0 --ublk attach it as a block device

Environment:
  LUNAR_LOG                  log level of stderr: error, warn, info (default), debug, trace
  LUNAR_INITIATOR            initiator name
  LUNAR_CHAP_USER            CHAP user
  LUNAR_CHAP_PASSWORD        its secret; LUNAR_CHAP_PASSWORD_FILE names a file
  LUNAR_CHAP_TARGET_USER     user of the target, for mutual CHAP
  LUNAR_CHAP_TARGET_PASSWORD its secret; LUNAR_CHAP_TARGET_PASSWORD_FILE names a file
  LUNAR_RUN_DIR              folder of sockets and of attached disks
  LUNAR_SERVER               HTTPS URL of a server of another host, for commands with --server
  LUNAR_TOKEN_FILE           file with its token; LUNAR_CA_FILE, LUNAR_CERT_FILE, LUNAR_KEY_FILE
  NO_COLOR                   disable colours on terminals";

const SERVE_EXAMPLES: &str = "\
Examples:
  lunar serve
  lunar serve disk.img --size 10G
  lunar serve memory:1G --listen [::1]:3260 --listen 127.0.0.1:3260
  lunar serve null:1T --run 'qemu-img info $LUNAR_URL'
  lunar serve disk.img --srp 192.0.2.10:5555
  lunar serve --nvme=192.0.2.10:4420 disk.img
  lunar serve --config lunar.toml --cores 0,2-3

SIGINT and SIGTERM shut it down gracefully. SIGHUP reloads the configuration file. A reload never
replaces a served file by another one at its path: stop and start the server for that.
The server prints `ready` when it accepts logins.";

fn after_help() -> String {
    format!("{EXAMPLES}\n\n{}", exit::help())
}

/// A storage network in user space: serves, routes, attaches and measures disks over iSCSI, iSER, SRP and NVMe/TCP.
#[derive(Debug, Parser)]
#[command(name = "lunar", version, after_help = after_help(), arg_required_else_help = true)]
pub struct Cli {
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
    /// The amount of output.
    #[command(flatten)]
    pub verbosity: Verbosity,
}

/// Options of every command: the amount of output. A benchmark with the options of another tool keeps the
/// letters of that tool.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct Verbosity {
    /// Print errors only: no warnings, no progress, and no text of a success
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,

    /// Log more on stderr: info, and with each further -v debug and trace. Overrides LUNAR_LOG
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

/// The subcommand.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve disks over iSCSI, iSER, SRP and NVMe/TCP
    Serve(Serve),
    /// Copy between files, block devices, LUNs and NBD exports
    Copy(copy::Args),
    /// Measure the speed of disks and targets
    Bench(Box<Bench>),
    /// List the targets of a portal
    Discover(Discover),
    /// List targets, their LUNs and sizes
    Ls(Ls),
    /// Find faults and bottlenecks between this host and a LUN
    Doctor(Doctor),
    /// Show the properties and pages that a logical unit reports
    Info(Info),
    /// Read and change persistent reservations
    Pr(Pr),
    /// Send a SCSI command to a logical unit
    Scsi(Scsi),
    /// Attach a LUN to this host: over NBD, as a block device, or as a file
    Attach(Attach),
    /// Detach a disk
    Detach(Detach),
    /// Check a configuration file
    Check(CheckArgs),
    /// Convert the configuration of another target
    Import(Import),
    /// Show a configuration, or keep it with its state in one file
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Move objects from your files to those of the API, so that commands can change them
    Adopt(Adopt),
    /// Show version, uptime and counts of running servers
    Status(AdminArgs),
    /// Show the events of a running server: logins, changes, failures
    #[command(after_help = EVENTS_EXAMPLES)]
    Events(EventsArgs),
    /// Show rates, latencies and depth of LUNs, sessions and paths live
    Top(TopArgs),
    /// Show the live page of a running server to a browser of this host
    Page(PageArgs),
    /// Read the configuration files of a running server again, and apply them
    Reload(ReloadArgs),
    /// Stop a running server, and wait until it has ended
    Stop(Stop),
    /// Show and change the targets of a running server
    #[command(subcommand)]
    Target(TargetCommand),
    /// Show and change the LUNs of a running server
    #[command(subcommand)]
    Lun(LunCommand),
    /// Show and change the disks that LUNs of several targets show
    #[command(subcommand)]
    Disk(DiskCommand),
    /// Show and change the access entries of a target
    #[command(subcommand)]
    Access(AccessCommand),
    /// Show and change the CHAP users of a running server
    #[command(subcommand)]
    Chap(ChapCommand),
    /// Show and change the portal groups of a running server
    #[command(subcommand)]
    Portal(PortalCommand),
    /// Show and change the NVMe subsystems of a running server
    #[command(subcommand)]
    Subsystem(SubsystemCommand),
    /// Show and change the namespaces of NVMe subsystems
    #[command(subcommand)]
    Namespace(NamespaceCommand),
    /// Show and change the hosts that an NVMe subsystem admits with a secret
    #[command(subcommand)]
    Host(HostCommand),
    /// Show and end the sessions of a running server
    #[command(subcommand)]
    Session(SessionCommand),
    /// Show the RDMA devices and software providers of this host
    #[command(subcommand)]
    Rdma(Rdma),
    /// Monitor and control the routers of a running server
    #[command(subcommand)]
    Router(RouterCommand),
    /// Show the group of gateways of a running server
    #[command(subcommand)]
    Gateway(GatewayCommand),
    /// Show what a configuration would change in the running server, or what has changed
    #[command(after_help = DIFF_EXAMPLES)]
    Diff {
        /// Configuration file [default: the file that the server was started with]
        file: Option<PathBuf>,

        /// Show what has changed since this entry of `lunar history`, or since a time such as 2026-11-28T10:00:00Z
        #[arg(long, value_name = "NUMBER|TIME", conflicts_with = "file", value_parser = history_point)]
        since: Option<String>,

        #[command(flatten)]
        common: AdminArgs,
    },
    /// Show the last applied configurations of a running server
    History(AdminArgs),
    /// Return to an applied configuration: the objects of the API, and not your files
    #[command(after_help = ROLLBACK_EXAMPLES)]
    Rollback(RollbackArgs),
    /// Apply a configuration to a running server
    #[command(after_help = APPLY_EXAMPLES)]
    Apply(Apply),
    /// Print a completion script for a shell
    #[command(
        after_help = "Example:\n  lunar completions bash > ~/.local/share/bash-completion/completions/lunar"
    )]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print a manual page
    Man(ManArgs),
}

/// Arguments of `lunar serve`.
#[derive(Args, Debug)]
#[command(after_help = SERVE_EXAMPLES)]
#[command(override_usage = "lunar serve [OPTIONS] [LUN]...\n       lunar serve [OPTIONS] --config <FILE>")]
pub struct Serve {
    /// LUNs in command-line order from 0: a file, a block device, null:SIZE or memory:SIZE [default: a disk of
    /// 1 GiB in your state folder]
    #[arg(value_name = "LUN")]
    pub luns: Vec<String>,

    /// Create missing files, sparse, at this size; a file that was served before is not created again
    #[arg(long, value_name = "SIZE")]
    pub size: Option<String>,

    /// Serve raw bytes, even if a file or device looks like an image format (qcow2, VMDK, VHD, VHDX, VDI)
    #[arg(long)]
    pub raw: bool,

    /// Listen for iSCSI on this address; repeatable [default: 127.0.0.1:3260, with --srp too]
    #[arg(long, value_name = "ADDR:PORT")]
    pub listen: Vec<String>,

    /// Accept iSER (iSCSI over RDMA) too, with software iWARP
    #[arg(long)]
    pub iser: bool,

    /// Listen for SRP on this address too, with software iWARP; repeatable [default: no SRP]
    #[arg(long, value_name = "ADDR:PORT")]
    pub srp: Vec<String>,

    /// Serve the disks to NVMe/TCP hosts too; with =ADDR:PORT on this address; repeatable [default address: 127.0.0.1:4420]
    #[arg(long, value_name = "ADDR:PORT", num_args = 0..=1, require_equals = true, default_missing_value = "127.0.0.1:4420")]
    pub nvme: Vec<String>,

    /// iSCSI name of the target [default: derived from the host name]
    #[arg(long, value_name = "IQN")]
    pub target: Option<String>,

    /// Serve the targets of this configuration file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["luns", "size", "raw", "listen", "iser", "srp", "nvme", "target"])]
    pub config: Option<PathBuf>,

    /// Serve while this shell command runs, and exit with its status. Its environment has $LUNAR_URL and
    /// $LUNAR_PORTAL; with --iser, --srp and --nvme also $LUNAR_ISER_URL, $LUNAR_SRP_URL and $LUNAR_NVME_URL
    #[arg(long, value_name = "CMD")]
    pub run: Option<String>,

    /// Cores to run on: all, a count, or a list such as 0,2-3; 0 means core 0 [default: all]
    #[arg(long, value_name = "N|LIST")]
    pub cores: Option<String>,

    /// Form of the log: text, or json for one object a line [default: text]
    #[arg(
        long,
        value_name = "FORM",
        default_value = "text",
        hide_default_value = true,
        hide_possible_values = true
    )]
    pub log_format: LogFormat,
}

/// Subcommands of `lunar session`.
#[derive(Debug, Subcommand)]
pub enum SessionCommand {
    /// List the sessions
    List(AdminArgs),
    /// Show negotiated parameters and counters
    Show {
        /// Session ID, as `lunar session list` shows it [default: all sessions]
        id: Option<u16>,
        #[command(flatten)]
        common: AdminArgs,
    },
    /// Ask a host to log out, and close its session
    End {
        /// Session ID, as `lunar session list` shows it
        id: u16,
        #[command(flatten)]
        common: AdminArgs,
    },
}

const DIFF_EXAMPLES: &str = "Examples:
  lunar diff new.toml                       what this file would change
  lunar diff --since 12                     what has changed since entry 12 of lunar history
  lunar diff --since 2026-11-28T10:00:00Z   what has changed since then";
const ROLLBACK_EXAMPLES: &str = "Examples:
  lunar rollback --to 12 --dry-run              print what would change
  lunar rollback --to 12 --confirm-within 60s   return, and undo that after a minute
  lunar apply --confirm                         keep it";
const APPLY_EXAMPLES: &str = "Examples:
  lunar apply new.toml --dry-run              what would change, and which hosts would lose LUNs
  lunar apply new.toml --confirm-within 60s   apply, and roll back after a minute
  lunar apply --confirm                       keep the applied configuration";

/// Arguments of `lunar apply`.
#[derive(Args, Debug)]
pub struct Apply {
    /// Configuration file [default: the file that the server was started with]
    #[arg(conflicts_with_all = ["confirm", "rollback"])]
    pub file: Option<PathBuf>,

    /// Roll back automatically unless `--confirm` follows within this time (60, 60s, 5m), at most a day
    #[arg(long, value_name = "TIME", conflicts_with_all = ["confirm", "rollback"], value_parser = router::confirm_within)]
    pub confirm_within: Option<Duration>,

    /// Apply it even if hosts lose targets, LUNs or portals that they use
    #[arg(long, conflicts_with_all = ["confirm", "rollback"])]
    pub force: bool,

    /// Print what would change, and change nothing
    #[arg(long, conflicts_with_all = ["confirm", "rollback", "confirm_within"])]
    pub dry_run: bool,

    /// Keep the applied configuration
    #[arg(long, conflicts_with = "rollback")]
    pub confirm: bool,

    /// Roll back to the previous configuration now
    #[arg(long)]
    pub rollback: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub choice: ServerChoice,

    /// Fail with exit status 8 after this time (5, 5s, 2m); a change waits until commands of hosts end
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = lunar_proto::duration::positive)]
    pub timeout: Duration,
}

/// Arguments of `lunar rollback`.
#[derive(Args, Debug)]
pub struct RollbackArgs {
    /// Entry of `lunar history`
    #[arg(long, value_name = "NUMBER")]
    pub to: u64,

    /// Print what would change, and change nothing
    #[arg(long)]
    pub dry_run: bool,

    /// Undo the rollback automatically unless `lunar apply --confirm` follows within this time (60, 60s, 5m), at most
    /// a day
    #[arg(long, value_name = "TIME", value_parser = router::confirm_within)]
    pub confirm_within: Option<Duration>,

    /// Remove targets and LUNs that hosts use, and last access entries
    #[arg(long)]
    pub force: bool,

    #[command(flatten)]
    pub server: ServerArgs,
}

/// Checks the value of `--since`.
fn history_point(text: &str) -> Result<String, InvalidHistoryPoint> {
    text.parse::<HistoryPoint>().map(|_| text.to_owned())
}

/// Subcommands of `lunar router`.
#[derive(Debug, Subcommand)]
pub enum RouterCommand {
    /// List routers
    List(AdminArgs),
    /// Show targets, LUNs and upstreams
    Show(RouterShowArgs),
    /// Show logins, failures, and the latency of each hop
    Stats(RouterShowArgs),
    /// List the sessions of a router's targets
    Sessions(RouterShowArgs),
    /// List the paths to upstreams
    Paths(RouterShowArgs),
    /// Reject new logins and ask hosts to log out; in a failover pair, the peer takes over
    Drain(RouterArgs),
    /// Accept logins again after a drain
    Resume(RouterArgs),
    /// Switch the active router of a failover pair
    Failover(RouterArgs),
    /// Let a router become active in its failover pair, or not
    Eligible {
        #[command(flatten)]
        which: RouterArgs,
        /// Whether it can become active
        #[arg(value_name = "on|off", value_parser = ["on", "off"], hide_possible_values = true)]
        may: String,
    },
}

/// One routing instance, or all.
#[derive(Args, Debug)]
pub struct RouterShowArgs {
    /// Name of the router [default: all routers]
    pub name: Option<String>,
    #[command(flatten)]
    pub common: AdminArgs,
}

/// Arguments of the commands that control a router.
#[derive(Args, Debug)]
pub struct RouterArgs {
    /// Name of the router
    pub name: String,

    #[command(flatten)]
    pub common: AdminArgs,
}

/// Options of every command that asks a running server.
#[derive(Args, Debug)]
pub struct AdminArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub choice: ServerChoice,

    /// Fail with exit status 8 if the server does not respond within this time (5, 5s, 2m, 500ms)
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = lunar_proto::duration::positive)]
    pub timeout: Duration,
}

#[cfg(test)]
mod hints;
#[cfg(test)]
mod tests;

/// Arguments of `lunar check`.
#[derive(Args, Debug)]
pub struct CheckArgs {
    /// Configuration file, such as lunar.toml
    pub file: PathBuf,
    /// Check files, devices, saved state, portals and cores too, and report what `serve` would reject now. Resources in
    /// use by a server of this file are warnings. Changes nothing. As root, it also checks what the user of the service
    /// may not open
    #[arg(long)]
    pub media: bool,
    /// Check for this user [default: for root the user of lunar.service, otherwise you]
    #[arg(long, value_name = "NAME", requires = "media")]
    pub user: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
