//! The command line.

use crate::attach::{Attach, detach::Detach, list::List};
use crate::bench::Bench;
use crate::copy;
use crate::discover::Discover;
use crate::doctor::Doctor;
use crate::exit;
use crate::info::Info;
use crate::ls::Ls;
use crate::pr::Pr;
use crate::rdma::Rdma;
use crate::router;
use crate::scsi::Scsi;
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  lunar serve                                  a 1 GiB disk, kept in your state folder
  lunar serve disk.img --size 10G              a file, created if it is missing
  lunar serve /dev/sdb debian.iso null:1T      a block device, a CD and a null disk
  lunar serve --listen 0.0.0.0:3260 disk.img   to other hosts too
  lunar serve --iser disk.img                  over RDMA, too; --srp ADDR:PORT for SRP
  lunar serve --config lunar.toml              access lists, CHAP, several targets
  lunar copy disk.img copy.img                 holes stay holes, and it is stable when it is done
  lunar check lunar.toml                       is it right?
  lunar check --media lunar.toml               and could it be served now?
  lunar session show                           what was negotiated, and how much was moved
  lunar discover 192.0.2.10                    which targets are there
  lunar ls 192.0.2.10                          and which LUNs
  lunar doctor iscsi://192.0.2.10/IQN/0        what is wrong, what is slow
  lunar bench randread iscsi://192.0.2.10/IQN/0 --depth 32   how fast is it
  lunar attach iscsi://192.0.2.10/IQN/0 --ublk a disk for this host; lunar attached, lunar detach

Environment:
  LUNAR_LOG   what is logged to stderr: error, warn, info (default), debug, trace
  NO_COLOR    no colours, on terminals too";

const SERVE_EXAMPLES: &str = "\
Examples:
  lunar serve
  lunar serve disk.img --size 10G
  lunar serve memory:1G --listen [::1]:3260 --listen 127.0.0.1:3260
  lunar serve null:1T --run 'qemu-img info $LUNAR_URL'
  lunar serve disk.img --srp 192.0.2.10:5555
  lunar serve --config lunar.toml --cores 0,2-3

SIGINT and SIGTERM stop it in good order; SIGHUP reads the configuration file again. It never takes
another file at the path of a served one: for that, stop and start.
Once it serves, it prints `ready`.";

fn after_help() -> String {
    format!("{EXAMPLES}\n\n{}", exit::help())
}

/// A SCSI storage network in user space: serves disks over iSCSI, uses them, and measures them.
#[derive(Debug, Parser)]
#[command(name = "lunar", version, after_help = after_help(), arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve disks over iSCSI, iSER and SRP
    Serve(Serve),
    /// Copy a disk
    Copy(copy::Args),
    /// Measure disks and targets
    Bench(Box<Bench>),
    /// List the targets of a portal
    Discover(Discover),
    /// List targets, their LUNs and sizes
    Ls(Ls),
    /// Look for what is wrong or slow between here and a LUN
    Doctor(Doctor),
    /// Show all that a logical unit says of itself
    Info(Info),
    /// Read and change persistent reservations
    Pr(Pr),
    /// Send a SCSI command to a logical unit
    Scsi(Scsi),
    /// Give this host a disk of a target: over NBD, as a block device, or as a file
    Attach(Attach),
    /// List what is attached
    Attached(List),
    /// Take away what was attached
    Detach(Detach),
    /// Check a configuration file
    Check {
        /// The file, such as lunar.toml
        file: PathBuf,

        /// Look at files, devices, saved state, portals and cores too, and report what `serve` would refuse now.
        /// Things that a server of this file has in use are warnings. Nothing is changed
        #[arg(long)]
        media: bool,
    },
    /// Look at the sessions of a running server
    #[command(subcommand)]
    Session(Session),
    /// Show what carries RDMA on this host
    #[command(subcommand)]
    Rdma(Rdma),
    /// Look at the routers of a running server, and steer them
    #[command(subcommand)]
    Router(Router),
    /// Show what a configuration would change in the running server
    #[command(after_help = DIFF_EXAMPLES)]
    Diff {
        /// The file [default: the one that the server was started with]
        file: Option<PathBuf>,
        #[command(flatten)]
        asked: Asked,
    },
    /// Let a running server use a configuration
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
    #[command(after_help = "Example:\n  lunar man serve | man -l -")]
    Man {
        /// The command that it is about; lunar itself if none is named
        command: Option<String>,
    },
}

/// Arguments of `lunar serve`.
#[derive(Args, Debug)]
#[command(after_help = SERVE_EXAMPLES)]
pub struct Serve {
    /// LUN 0, 1, ...: a file or a block device, null:SIZE or memory:SIZE [default: a disk in your state
    /// folder]
    #[arg(value_name = "LUN")]
    pub luns: Vec<String>,

    /// Create files that are missing, sparse, at this size; one that was served before is not created again
    #[arg(long, value_name = "SIZE")]
    pub size: Option<String>,

    /// Serve the bytes of files and devices as they are, also where they look like an image format (qcow2, VMDK, VHD,
    /// VHDX, VDI)
    #[arg(long)]
    pub raw: bool,

    /// Listen for iSCSI on this address; can be given several times [default: 127.0.0.1:3260, with --srp too]
    #[arg(long, value_name = "ADDR:PORT")]
    pub listen: Vec<String>,

    /// Take iSER, too: iSCSI over RDMA, by iWARP in software
    #[arg(long)]
    pub iser: bool,

    /// Take SRP on this address, by iWARP in software, beside what listens for iSCSI; can be given several times
    #[arg(long, value_name = "ADDR:PORT")]
    pub srp: Vec<String>,

    /// iSCSI name of the target [default: made of the host's name]
    #[arg(long, value_name = "IQN")]
    pub target: Option<String>,

    /// Serve what this file says
    #[arg(long, value_name = "FILE", conflicts_with_all = ["luns", "size", "raw", "listen", "iser", "srp", "target"])]
    pub config: Option<PathBuf>,

    /// Serve for as long as this shell command runs, and end with its exit status; it has $LUNAR_URL and
    /// $LUNAR_PORTAL, and with --iser and --srp $LUNAR_ISER_URL and $LUNAR_SRP_URL
    #[arg(long, value_name = "CMD")]
    pub run: Option<String>,

    /// Cores that serve: all, a number of them, or a list such as 0,2-3; 0 is core 0 [default: all]
    #[arg(long, value_name = "N|LIST")]
    pub cores: Option<String>,
}

/// What to do about sessions.
#[derive(Debug, Subcommand)]
pub enum Session {
    /// List the sessions
    List(Asked),
    /// Show negotiated parameters and counters
    Show {
        /// ID of the session, as `lunar session list` shows it; all if none is named
        id: Option<u16>,
        #[command(flatten)]
        asked: Asked,
    },
}

const DIFF_EXAMPLES: &str = "Example:\n  lunar diff new.toml";
const APPLY_EXAMPLES: &str = "Examples:
  lunar apply new.toml --confirm-within 60s   rolled back by itself after a minute,
  lunar apply --confirm                       unless this is said in time";

/// Arguments of `lunar apply`.
#[derive(Args, Debug)]
pub struct Apply {
    /// The file [default: the one that the server was started with]
    #[arg(conflicts_with_all = ["confirm", "rollback"])]
    pub file: Option<PathBuf>,

    /// Go back to what was before by itself, unless it is confirmed in this time (60, 60s, 5m), up to a day
    #[arg(long, value_name = "TIME", conflicts_with_all = ["confirm", "rollback"], value_parser = router::confirm_within)]
    pub confirm_within: Option<Duration>,

    /// Keep what was applied
    #[arg(long, conflicts_with = "rollback")]
    pub confirm: bool,

    /// Go back to what was before now
    #[arg(long)]
    pub rollback: bool,

    /// The server's admin socket [default: lunar.sock in the folder of what runs, /run/lunar of root]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,

    /// How long the server may take (5, 5s, 2m): commands of hosts have to end before a change; then it ends with exit
    /// status 8
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = lunar_proto::duration::positive)]
    pub timeout: Duration,
}

/// What to do about routers.
#[derive(Debug, Subcommand)]
pub enum Router {
    /// List the routing instances
    List(Asked),
    /// Show targets, LUNs and upstreams
    Show(OneRouter),
    /// Logins, refusals, and the times of each hop
    Stats(OneRouter),
    /// The sessions of their targets
    Sessions(OneRouter),
    /// The paths to their upstreams
    Paths(OneRouter),
    /// Take no new logins and ask hosts to leave; of a pair, the other one takes over
    Drain(Steered),
    /// Serve again after a drain
    Resume(Steered),
    /// Change places in a pair
    Failover(Steered),
    /// Say whether it may become active in a pair
    Eligible {
        #[command(flatten)]
        which: Steered,
        /// on or off
        #[arg(value_parser = ["on", "off"])]
        may: String,
    },
}

/// One routing instance, or all.
#[derive(Args, Debug)]
pub struct OneRouter {
    /// Its name; all if none is named
    pub name: Option<String>,
    #[command(flatten)]
    pub asked: Asked,
}

/// A routing instance that is told to do something.
#[derive(Args, Debug)]
pub struct Steered {
    /// Its name
    pub name: String,

    #[command(flatten)]
    pub asked: Asked,
}

/// How a running server is asked.
#[derive(Args, Debug)]
pub struct Asked {
    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// The server's admin socket [default: lunar.sock in the folder of what runs, /run/lunar of root]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,

    /// How long the server may take to answer (5, 5s, 2m, 500ms); then it ends with exit status 8
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = lunar_proto::duration::positive)]
    pub timeout: Duration,
}

#[cfg(test)]
mod hints;
#[cfg(test)]
mod tests;
