//! `lunar attach`: attaches a LUN to this host. A process for each attachment serves it.
//!
//! 1. `launch.rs` starts this program again, writes the settings to its stdin, and waits for one line on its stdout.
//! 2. `process.rs` claims the name (`claim.rs`): it holds the lock of the folder, reads all records, and locks a file of
//!    its own. That lock shows that the process is alive.
//! 3. It opens the disk. `attachment_record.rs` records each session before the session sends a command.
//! 4. It exports the disk. Its main thread, which may block, watches disk and export. It sends its state to each client of
//!    its socket.
//!
//! A record without a locked file was left by a dead process. If its block device still exists, the next process compares
//! the identity of the logical unit, and takes the device over.

mod attachment_record;
mod claim;
pub mod detach;
mod disk;
mod export;
mod launch;
pub mod list;
mod namespace;
mod path;
mod process;
mod unfinished_writes;
mod write_tracker;

use crate::client::{ClientArgs, json};
use crate::exit::{Exit, Failure, invalid};
use crate::{output, service_manager};
use clap::{Args, Subcommand};
use lunar_block::RbdLocation;
use lunar_initiator::nvme::{self, NvmeUrl};
use lunar_initiator::{LateWrites, Url};
use lunar_server::attached::{Attached, Record};
use lunar_server::config::attachment::{self, Attachment, How, PathPolicy};
use lunar_server::{Diagnostic, folders};
use process::AttachObserver;
use std::path::{Path, PathBuf};
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  lunar attach iscsi://192.0.2.10/iqn.2026-11.org.example:disks/0            NBD on a Unix socket
  lunar attach iscsi://192.0.2.10/iqn.2026-11.org.example:disks/0 --ublk     a block device, as root
  lunar attach iscsi://192.0.2.10/iqn.2026-11.org.example:disks/0 --fuse d   a file in the folder d
  lunar attach iscsi://192.0.2.10/iqn.2026-11.org.example:disks/0 \\
      --path iscsi://192.0.2.11/iqn.2026-11.org.example:disks/0              over two paths
  lunar attach 'nvme://192.0.2.10/nqn.2026-11.org.example:disks/1?paths=192.0.2.11'
  lunar attach rbd:rbd/disk1 --ublk        an image of Ceph RBD
  lunar attach URL --save --name data      save it; later: lunar attach data
  lunar attach --all                       attach every saved attachment

Prints the device, the file or the NBD URI to stdout. See also lunar attach list and lunar detach.";

/// Arguments of `lunar attach`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(disable_help_subcommand = true)]
pub struct Attach {
    #[command(subcommand)]
    command: Option<AttachCommand>,

    /// URL of the LUN or namespace, rbd:POOL/IMAGE, or name of a saved attachment
    #[arg(value_name = "URL|NAME", required_unless_present = "all", conflicts_with = "all")]
    lun: Option<String>,

    /// URL of another path to the same LUN; repeatable. An nvme:// URL has its other paths in paths=
    #[arg(long = "path", value_name = "URL")]
    paths: Vec<String>,

    /// Path selection for the next I/O [default: least-queue, the path with the fewest I/Os in flight]
    #[arg(long, value_name = "failover|round-robin|least-queue", value_parser = policy)]
    policy: Option<PathPolicy>,

    /// Attach as an NBD server at this address [default: a Unix socket in the runtime folder]
    #[arg(long, value_name = "unix:PATH|ADDR:PORT", conflicts_with_all = ["ublk", "fuse"])]
    nbd: Option<String>,

    /// Attach as a block device, /dev/ublkbN; requires root and Linux 6.1
    #[arg(long, conflicts_with = "fuse")]
    ublk: bool,

    /// Attach as a file in this folder
    #[arg(long, value_name = "DIR")]
    fuse: Option<PathBuf>,

    /// Name of the attachment [default: derived from target and LUN]
    #[arg(long)]
    name: Option<String>,

    /// Reject writes
    #[arg(long)]
    read_only: bool,

    /// Time that I/O waits for a lost connection before it fails (30, 30s, 2m) [default: 120]
    #[arg(long, value_name = "TIME", value_parser = attachment::recovery_timeout)]
    recovery_timeout: Option<Duration>,

    /// After the loss of a path, retry its writes only when the target can no longer execute the lost ones (wait),
    /// or at once, at the risk that a lost write overwrites a newer one (risk) [default: wait]
    #[arg(long, value_name = "wait|risk", value_parser = late_writes)]
    late_writes: Option<&'static str>,

    /// Save the attachment, so that it can be attached by name
    #[arg(long, conflicts_with = "all")]
    save: bool,

    /// Run in the foreground until SIGINT or SIGTERM
    #[arg(long, conflicts_with = "all")]
    foreground: bool,

    /// Attach every saved attachment that is not attached yet
    #[arg(long, conflicts_with_all = ["paths", "policy", "nbd", "ublk", "fuse", "name", "read_only", "recovery_timeout"])]
    #[arg(conflicts_with = "late_writes")]
    all: bool,

    /// Internal: read the settings from stdin, and report the result on stdout
    #[arg(long, hide = true)]
    handed: bool,

    #[command(flatten)]
    common: ClientArgs,
}

impl Attach {
    /// Whether the command only lists attachments.
    pub fn is_list(&self) -> bool {
        matches!(self.command, Some(AttachCommand::List(_)))
    }
}

/// Subcommands of `lunar attach`.
#[derive(Debug, Subcommand)]
enum AttachCommand {
    /// List attached disks
    List(list::ListArgs),
}

/// Attaches LUNs, and prints the device of each.
///
/// # Errors
/// [`Exit::Exists`] if the LUN is already attached; errors of opening and exporting the disk.
pub fn attach(args: Attach) -> Result<(), Failure> {
    if let Some(AttachCommand::List(args)) = args.command {
        return Ok(output::stdout(list::list(args)?)?);
    }
    if args.handed {
        return launch::run_launched();
    }
    let timeout = args.common.timeout;
    if args.all {
        return all(args.common);
    }
    let attachment = requested(&args)?;
    if args.save {
        // A file that cannot be saved is reported before anything is attached.
        attachment::check_save(&attachment)?;
    }
    if args.foreground {
        let mut print_failure = None;
        let ready = |record: &Record| {
            if let Err(failure) = print_attached(record, args.common.json, None) {
                print_failure = Some(failure);
                return false;
            }
            if let Err(failure) = save_if_requested(args.save, &attachment) {
                failure.problems.iter().for_each(|problem| tracing::error!("{problem}"));
            }
            service_manager::ready();
            true
        };
        let watch = AttachObserver {
            claimed: |_: &_| Ok(()),
            missing: |_: &str| {},
            ready,
            ends_with_terminal: true,
        };
        process::serve(&attachment, timeout, watch)?;
        return print_failure.map_or(Ok(()), Err);
    }
    let record = launch::launch(attachment.clone(), timeout)?;
    let print_attached = print_attached(&record, args.common.json, Some(STILL_LISTED));
    save_if_requested(args.save, &attachment).and(print_attached)
}

/// Saves the attachment if `--save` is given.
fn save_if_requested(asked: bool, attachment: &Attachment) -> Result<(), Failure> {
    if asked { save(attachment) } else { Ok(()) }
}

/// Attaches every saved attachment that is not attached yet. The exit status is that of the last failure.
fn all(common: ClientArgs) -> Result<(), Failure> {
    let names = attachment::names()?;
    if names.is_empty() {
        let folder = attachment::folder()?;
        let what = format!("no attachment is saved in {}", folder.display());
        return Err(Failure::new(Exit::NotFound, what, "save an attachment: lunar attach URL --save"));
    }
    let attached = open_attached()?;
    let mut failures: Vec<Failure> = Vec::new();
    for name in names {
        match one_of_all(&attached, &name, common) {
            Ok(Some(record)) => {
                failures.extend(print_attached(&record, common.json, Some(STILL_LISTED)).err())
            }
            Ok(None) => {}
            Err(failure) => failures.push(with_attachment_name(&name, failure)),
        }
    }
    let Some(exit) = failures.last().map(|failure| failure.exit) else { return Ok(()) };
    Err(Failure { exit, problems: failures.into_iter().flat_map(|failure| failure.problems).collect() })
}

/// Attaches one saved attachment. None: its name or its LUN is already attached.
fn one_of_all(attached: &Attached, name: &str, common: ClientArgs) -> Result<Option<Record>, Failure> {
    if attached.lock()?.is_alive(name) {
        return Ok(None);
    }
    let attachment = saved(name)?;
    if let Some(other) = claim::alive(&attached.lock()?, &attachment)? {
        output::stderr_line(format_args!("{name} is already attached as {}", other.name));
        return Ok(None);
    }
    launch::launch(attachment, common.timeout).map(Some)
}

/// Adds the name of the attachment to problems that name no file.
fn with_attachment_name(name: &str, failure: Failure) -> Failure {
    let named = |problem: Diagnostic| match problem.file {
        Some(_) => problem,
        None => Diagnostic { what: format!("{name}: {}", problem.what), ..problem },
    };
    Failure { problems: failure.problems.into_iter().map(named).collect(), ..failure }
}

/// The attachment that the arguments describe: a URL with options, or the name of a saved one.
fn requested(args: &Attach) -> Result<Attachment, Failure> {
    let what = args.lun.as_deref().unwrap_or_default();
    if what.contains("://") || attachment::is_image(what) {
        return attachment_of_url(args, what);
    }
    let more = !args.paths.is_empty() || args.nbd.is_some() || args.ublk || args.fuse.is_some();
    if more
        || args.policy.is_some()
        || args.name.is_some()
        || args.late_writes.is_some()
        || args.read_only
        || args.recovery_timeout.is_some()
        || args.save
    {
        let hint =
            "change the file of the saved attachment, or give the URL of the LUN: iscsi://HOST/TARGET/LUN";
        let what = "lunar attach NAME takes no other options";
        return Err(Failure::new(Exit::Invalid, what, hint));
    }
    saved(what)
}

fn attachment_of_url(args: &Attach, first: &str) -> Result<Attachment, Failure> {
    let here = std::env::current_dir().map_err(|e| cannot("find the working directory", &e))?;
    let mut urls = Vec::new();
    if args.late_writes.is_some() && (attachment::is_image(first) || nvme::is_url(first)) {
        let what = format!("--late-writes has no meaning for {first}");
        return Err(Failure::new(Exit::Invalid, what, "leave --late-writes out"));
    }
    for text in std::iter::once(first).chain(args.paths.iter().map(String::as_str)) {
        let url = if attachment::is_image(text) {
            attachment::absolute_image(text, &here).map_err(invalid)?
        } else {
            match nvme::is_url(text) {
                true => text.parse::<NvmeUrl>().map(drop)?,
                false => Url::parse(text).map(drop)?,
            }
            attachment::absolute(text, &here)
        };
        urls.push(
            args.late_writes.map_or(url.clone(), |late| attachment::with_setting(&url, "late_writes", late)),
        );
    }
    attachment::check_paths(&urls).map_err(invalid)?;
    if args.policy.is_some() && !attachment::has_several_paths(&urls) {
        let hint = "add --path URL, or paths=HOST[:PORT] to an nvme:// URL, or leave --policy out";
        return Err(Failure::new(Exit::Invalid, "--policy requires several paths", hint));
    }
    let (how, place) = match (&args.nbd, args.ublk, &args.fuse) {
        (_, true, _) => (How::Ublk, None),
        (_, _, Some(dir)) => (How::Fuse, Some(here.join(dir).display().to_string())),
        (Some(listen), ..) => (How::Nbd, Some(attachment::listen_argument(listen).map_err(invalid)?)),
        _ => (How::Nbd, None),
    };
    let name = args.name.clone().unwrap_or_else(|| default_name(first));
    attachment::check_name(&name).map_err(invalid)?;
    let (read_only, recovery_timeout, policy) = (args.read_only, args.recovery_timeout, args.policy);
    Ok(Attachment { name, urls, how, place, read_only, recovery_timeout, policy })
}

/// Parses the value of `--late-writes`.
fn late_writes(text: &str) -> Result<&'static str, String> {
    let named = LateWrites::NAMES.into_iter().find(|(name, _)| *name == text);
    named.map(|(name, _)| name).ok_or_else(|| "write wait or risk".into())
}

/// Parses the value of `--policy`.
fn policy(text: &str) -> Result<PathPolicy, String> {
    let named = |policy: &PathPolicy| policy.name() == text;
    let names = || PathPolicy::ALL.map(PathPolicy::name).join(", ");
    PathPolicy::ALL.into_iter().find(named).ok_or_else(|| format!("use one of: {}", names()))
}

fn cannot(what: &str, e: &std::io::Error) -> Failure {
    Diagnostic::new(format!("cannot {what}: {e}"), crate::error_hints::process_limits(e)).into()
}

/// Target name after its last colon and LUN, or subsystem and namespace; the host if the URL has no target; pool and name
/// of an image.
fn default_name(url: &str) -> String {
    if let Ok(location) = RbdLocation::parse(url) {
        return attachment::name_of(&format!("{}-{}", location.pool, location.image));
    }
    if let Ok(NvmeUrl { portal, subsystem, namespace, .. }) = url.parse() {
        let Some(subsystem) = subsystem else { return attachment::name_of(&portal.host) };
        let tail = subsystem.as_str().rsplit(':').next().unwrap_or_default();
        return attachment::name_of(&namespace.map_or(tail.to_owned(), |name| format!("{tail}-{name}")));
    }
    let Ok(url) = Url::parse(url) else { return attachment::name_of(url) };
    let Some(target) = &url.target else { return attachment::name_of(&url.portal.host) };
    let tail = target.rsplit(':').next().unwrap_or(target);
    attachment::name_of(&url.lun.map_or(tail.to_owned(), |lun| format!("{tail}-{lun}")))
}

/// The saved attachment of this name, or else the record of one whose process is gone.
fn saved(name: &str) -> Result<Attachment, Failure> {
    if let Some(found) = attachment::load(name)? {
        return Ok(found);
    }
    let attached = open_attached()?;
    let locked = attached.lock()?;
    match locked.record(name) {
        Some(record) if locked.is_alive(name) => Err(claim::already_attached(&record)),
        Some(record) => Ok(attachment_of_record(record)),
        None => {
            let folder = attachment::folder()?;
            let what = format!("there is no saved attachment \"{}\"", name.escape_debug());
            let saved = attachment::names()?.join(", ");
            let there =
                if saved.is_empty() { "there are none".to_owned() } else { format!("there are: {saved}") };
            let hint =
                format!("saved attachments are in {}: {there}; for a LUN, give its URL", folder.display());
            Err(Failure::new(Exit::NotFound, what, hint))
        }
    }
}

/// Restores an attachment from the record of a process that is gone.
fn attachment_of_record(record: Record) -> Attachment {
    let Record { name, urls, how, place, read_only, recovery_timeout, policy, .. } = record;
    Attachment { name, urls, how, place, read_only, recovery_timeout: Some(recovery_timeout), policy }
}

fn save(attachment: &Attachment) -> Result<(), Failure> {
    let path = attachment::save(attachment)?;
    output::stderr_line(format_args!("saved in {}", path.display()));
    if attachment.urls.iter().any(|url| attachment::holds_secret(url)) {
        output::stderr_line(format_args!(
            "  hint: the file holds a secret; only you can read it. Use password_file= to keep the secret elsewhere"
        ));
    }
    Ok(())
}

/// Hint for a failed write to stdout after a successful attachment.
const STILL_LISTED: &str = "lunar attach list still lists the attachment";

/// Prints the device to stdout, and examples of its use to stderr. `print_failure` replaces the hint of a failed write.
fn print_attached(record: &Record, as_json: bool, print_failure: Option<&str>) -> Result<(), Failure> {
    let device = record.device.as_deref().unwrap_or_default();
    let text = match as_json {
        true => json(record)?,
        false => format!("{device}\n"),
    };
    if !as_json {
        output::stderr_line(format_args!("{} is attached; use it, for example, with:", record.name));
        for line in example_commands(record, device) {
            output::stderr_line(format_args!("  {line}"));
        }
    }
    let hinted = |problem: Diagnostic| match print_failure {
        Some(hint) => Diagnostic { hint: Some(hint.into()), ..problem },
        None => problem,
    };
    output::stdout(text).map_err(|problem| hinted(problem).into())
}

/// Commands that use the device, for copy and paste.
fn example_commands(record: &Record, device: &str) -> Vec<String> {
    let name = &record.name;
    let mut lines = match record.how {
        How::Nbd => {
            let place = record.place.clone().unwrap_or_default();
            let client = match place.strip_prefix("unix:") {
                Some(path) => format!("nbd-client -unix {path} /dev/nbd0"),
                None => {
                    let (host, port) = place.rsplit_once(':').unwrap_or((&place, "10809"));
                    format!("nbd-client {} {port} /dev/nbd0", host.trim_matches(['[', ']']))
                }
            };
            vec![
                format!("qemu-img info '{device}'"),
                format!("nbdcopy '{device}' disk.img"),
                format!("modprobe nbd; {client}   # as root"),
            ]
        }
        How::Ublk if record.read_only => vec![format!("mount -o ro {device} /mnt")],
        How::Ublk => vec![format!("mkfs.ext4 {device}; mount {device} /mnt")],
        How::Fuse => {
            vec![format!("qemu-img info -f raw {device}"), format!("cp --sparse=always {device} copy")]
        }
    };
    lines.push(format!("lunar detach {name}"));
    lines
}

/// The absolute path, or the path itself if the working directory is unknown.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// The folder with the records of all attachments of this user.
fn open_attached() -> Result<Attached, Failure> {
    let folder = folders::attached()?;
    Ok(Attached::at(folder)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        attach: Attach,
    }

    #[test]
    fn late_writes_goes_into_each_url() {
        let url = "iscsi://h/iqn.2026-11.org.example:a/0";
        let parse = |late| Line::try_parse_from(["attach", url, "--path", url, "--late-writes", late]);
        let args = parse("risk").expect("a valid value").attach;
        let urls = attachment_of_url(&args, url).unwrap_or_else(|_| panic!("a disk")).urls;
        assert_eq!(urls, [(); 2].map(|()| format!("{url}?late_writes=risk")));
        assert!(parse("never").is_err());
    }

    #[test]
    fn policy_is_one_for_several_paths() {
        let url = "iscsi://h/iqn.2026-11.org.example:a/0";
        let parse = |more: &[&str]| Line::try_parse_from([&["attach", url], more].concat());
        let several = parse(&["--path", "iscsi://i/iqn.2026-11.org.example:a/0", "--policy", "round-robin"]);
        let attachment = requested(&several.unwrap().attach).unwrap();
        assert_eq!((attachment.policy, attachment.urls.len()), (Some(PathPolicy::RoundRobin), 2));
        let alone = parse(&["--policy", "failover"]).expect("arguments");
        assert!(requested(&alone.attach).is_err(), "a policy needs several paths");
        let url = "nvme://h/nqn.2026-11.org.example:a/1?paths=i";
        let nvme = Line::try_parse_from(["attach", url, "--policy", "failover"]).expect("arguments");
        assert_eq!(requested(&nvme.attach).expect("two paths").policy, Some(PathPolicy::Failover));
        assert!(parse(&["--path", "iscsi://i", "--policy", "alua"]).is_err(), "an unknown policy");
    }

    #[test]
    fn names_are_made_of_target_and_lun() {
        for (url, name) in [
            ("iscsi://h/iqn.2026-11.org.example:disks/3", "disks-3"),
            ("iscsi://h/iqn.2026-11.org.example:a.b:c%3ad", "c-d"),
            ("iscsi://h/iqn.2026-11.org.example/0", "iqn.2026-11.org.example-0"),
            ("iscsi://[::1]:4000", "1"),
            ("iscsi://moon", "moon"),
            ("rbd:pool/image@snap:id=x", "pool-image"),
            ("nvme://h/nqn.2026-11.org.example:disks/3", "disks-3"),
            ("nvme://h/nqn.2026-11.org.example:disks/eui.0707070707070707", "disks-eui.0707070707070707"),
            ("nvme://moon", "moon"),
        ] {
            let made = default_name(url);
            assert!(attachment::check_name(&made).is_ok(), "{made}");
            if !url.contains("%3a") {
                assert_eq!(made, name);
            }
        }
    }
}
