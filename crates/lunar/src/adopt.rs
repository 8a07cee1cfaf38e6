//! `lunar adopt`: moves objects from files of an administrator to files of the API, so that the API may change them.
//!
//! Each step is a series of changes of single files. The record of the step comes first, so that the new files do not
//! count until the rename of the administrator's file. So a crash after any of them leaves an equal configuration.

use crate::client::json;
use crate::configuration::file_or_default;
use crate::exit::{Exit, Failure};
use crate::output::{self, count};
use crate::staged_files::{FileOwner, NewFile, commit, stage};
use clap::Args;
use lunar_admin::{Keys, ObjectId};
use lunar_config::{ErrorCode, io_text};
use lunar_server::config::{self, AdoptStep, Adopting, api_folder};
use lunar_server::{Diagnostic, config::Config};
use rustix::fs::{FlockOperation, flock};
use serde::Serialize;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use utoipa::ToSchema;

const EXAMPLES: &str = "\
Examples:
  lunar adopt iqn.2026-11.org.example:disks          a target with its LUNs and access entries
  lunar adopt iqn.2026-11.org.example:disks/0        a LUN
  lunar adopt nqn.2026-11.org.example:disks          a subsystem with its namespaces and hosts
  lunar adopt chap:alice disk:disk1 portal:2         a CHAP user, a disk, a portal group
  lunar adopt --all --dry-run                        print what would move";

/// Arguments of `lunar adopt`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Adopt {
    /// A target, TARGET/LUN, a subsystem, SUBSYSTEM/NSID, chap:USER, disk:NAME or portal:TAG
    #[arg(value_name = "OBJECT", value_parser = object, required_unless_present = "all", conflicts_with = "all")]
    objects: Vec<ObjectId>,

    /// Move all objects
    #[arg(long)]
    all: bool,

    /// Configuration file [default: lunar.toml in /etc/lunar for root, or in your configuration folder]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Print what would move, and move nothing
    #[arg(long)]
    dry_run: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The moved objects.
#[derive(Serialize, ToSchema)]
pub struct AdoptReport {
    items: Vec<AdoptedObject>,
    /// Whether nothing was moved, because only the effects were requested.
    dry_run: bool,
}

/// A moved object.
#[derive(Serialize, ToSchema)]
struct AdoptedObject {
    /// Its array of tables in `lunar.toml`: `portal_group`, `chap_user`, `disk`, `target`, `lun`, `access`,
    /// `subsystem`, `namespace` or `host`.
    kind: &'static str,
    /// The keys that identify it.
    #[serde(flatten)]
    #[schema(value_type = BTreeMap<String, Value>)]
    id: Keys,
    /// Its place before.
    #[schema(value_type = String)]
    file: PathBuf,
    /// The line there, from 1.
    line: usize,
    /// Its file of the API.
    #[schema(value_type = String)]
    new_file: PathBuf,
    /// The object in words.
    #[serde(skip)]
    words: String,
}

/// Parses the name of an object.
fn object(text: &str) -> Result<ObjectId, String> {
    if let Some(user) = text.strip_prefix("chap:") {
        return Ok(ObjectId::ChapUser(user.into()));
    }
    if let Some(name) = text.strip_prefix("disk:") {
        return Ok(ObjectId::Disk(name.into()));
    }
    if let Some(tag) = text.strip_prefix("portal:") {
        let tag = tag.parse().map_err(|_| format!("\"{}\" is no portal group tag", tag.escape_debug()))?;
        return Ok(ObjectId::PortalGroup(tag));
    }
    if text.starts_with("nqn.") {
        // The name itself may have slashes.
        let namespace = text.rsplit_once('/').and_then(|(nqn, nsid)| Some((nqn, nsid.parse().ok()?)));
        return Ok(match namespace {
            Some((nqn, nsid)) => ObjectId::Namespace(nqn.into(), nsid),
            None => ObjectId::Subsystem(text.into()),
        });
    }
    match text.split_once('/') {
        None => Ok(ObjectId::Target(text.into())),
        Some((target, lun)) => {
            let number = lun.parse().map_err(|_| format!("\"{}\" is no LUN", lun.escape_debug()))?;
            Ok(ObjectId::Lun(target.into(), number))
        }
    }
}

/// The text to print.
pub fn adopt(args: &Adopt) -> Result<String, Failure> {
    let file = file_or_default(args.config.as_deref())?;
    let _lock = lock(&file)?;
    if !args.dry_run {
        finish(&file)?;
    }
    let config = config::load_without_secrets(&file)?;
    let objects = match args.all {
        true => config::all_adoptable(&config),
        false => config::adoptable(&config, &args.objects)?,
    };
    let steps = config::adopt(&config, &objects)?;
    if !args.dry_run {
        for step in &steps {
            perform(&config, step)?;
        }
    }
    let report = AdoptReport { items: steps.iter().flat_map(moved).collect(), dry_run: args.dry_run };
    Ok(match (args.json, args.dry_run) {
        (true, _) => json(&report)?,
        (false, true) => report.text(),
        (false, false) => output::success(report.text()),
    })
}

/// The objects of a step.
fn moved(step: &AdoptStep) -> impl Iterator<Item = AdoptedObject> {
    step.objects.iter().zip(&step.new_files).map(|((id, line), new)| AdoptedObject {
        kind: id.array(),
        id: id.keys(),
        file: step.file.clone(),
        line: *line,
        new_file: new.path.clone(),
        words: id.to_string(),
    })
}

impl AdoptReport {
    fn text(&self) -> String {
        let line = |object: &AdoptedObject| {
            let AdoptedObject { words, file, line, new_file, .. } = object;
            format!("{words}: {}:{line} -> {}\n", file.display(), new_file.display())
        };
        let end = match (self.dry_run, self.items.len()) {
            (_, 0) => "nothing to adopt: the API owns these objects already".to_owned(),
            (true, _) => "dry run: nothing was changed".to_owned(),
            (false, number) => format!("adopted {}; run lunar reload", count(number, "object")),
        };
        self.items.iter().map(line).collect::<String>() + &end + "\n"
    }
}

/// Excludes other adoptions of this configuration.
fn lock(file: &Path) -> Result<File, Failure> {
    let folder = folder_of(file);
    let opened = File::open(folder).map_err(|e| unreadable(folder, &e))?;
    match flock(&opened, FlockOperation::NonBlockingLockExclusive) {
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let what = format!("another lunar adopt changes {}", folder.display());
            Err(Failure::new(Exit::InUse, what, "run the command again when it has ended"))
        }
        // Some file systems have no locks.
        _ => Ok(opened),
    }
}

fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A change of one file.
struct Action {
    path: PathBuf,
    content: Option<String>,
    mode: u32,
    owner: Option<FileOwner>,
}

impl Action {
    fn perform(&self) -> Result<(), (PathBuf, io::Error)> {
        let Action { path, content, mode, owner } = self;
        let content = content.as_deref().map(str::as_bytes);
        commit(stage([NewFile { path, content, mode: *mode, owner: *owner }])?)
    }
}

/// The changes of a step, in the order that a crash may interrupt anywhere.
fn actions(config: &Config, step: &AdoptStep) -> io::Result<Vec<Action>> {
    let whole = &config.sources.whole;
    // The rename must not replace a link.
    let file = step.file.canonicalize()?;
    let metadata = file.metadata()?;
    let is_root = rustix::process::geteuid().is_root();
    // The server, which may be another user, changes the new files.
    let of_api = config::server_owner(whole).filter(|_| is_root);
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let below = step.file.strip_prefix(folder_of(whole)).unwrap_or(&step.file).to_path_buf();
    let names = step.new_files.iter().map(|new| name(&new.path)).collect();
    let record = Adopting::new(below, &step.before, names);
    let private = |path: &Path, content: Option<String>| Action {
        path: path.to_path_buf(),
        content,
        mode: 0o600,
        owner: of_api,
    };
    let mut list = vec![private(&Adopting::path(whole), Some(record.text()))];
    list.extend(step.new_files.iter().map(|new| private(&new.path, new.text.clone())));
    let owner = is_root.then_some((metadata.uid(), metadata.gid()));
    list.push(Action {
        path: file,
        content: Some(step.after.clone()),
        mode: metadata.mode() & 0o7777,
        owner,
    });
    list.push(private(&Adopting::path(whole), None));
    Ok(list)
}

/// Performs a step as a whole, or else undoes it.
fn perform(config: &Config, step: &AdoptStep) -> Result<(), Failure> {
    let failed = |(path, e): (PathBuf, io::Error)| unwritable(&path, &e);
    let actions = actions(config, step).map_err(|e| unreadable(&step.file, &e))?;
    let done = actions.iter().try_for_each(Action::perform).map_err(failed);
    if done.is_err() {
        finish(&config.sources.whole)?;
    }
    done
}

/// Ends an adoption that was interrupted: removes its record, and new files that do not count yet.
fn finish(file: &Path) -> Result<(), Failure> {
    let Some(record) = Adopting::read(file)? else { return Ok(()) };
    let changed = folder_of(file).join(&record.file);
    let text = lunar_config::read(&changed)?;
    let api = api_folder(file);
    let new = record.new_files.iter().filter(|_| record.is_before(&text)).map(|name| api.join(name));
    for path in new.chain([Adopting::path(file)]) {
        commit(stage([NewFile::private(&path, None)]).map_err(|(path, e)| unwritable(&path, &e))?)
            .map_err(|(path, e)| unwritable(&path, &e))?;
    }
    Ok(())
}

fn unreadable(path: &Path, e: &io::Error) -> Failure {
    let what = format!("cannot read {}: {}", path.display(), io_text(e));
    Diagnostic::new(what, "check the path and its permissions").with_code(ErrorCode::from(e.kind())).into()
}

fn unwritable(path: &Path, e: &io::Error) -> Failure {
    let what = format!("cannot write {}: {}", path.display(), io_text(e));
    let hint = "run as a user who may change the configuration, such as root";
    Diagnostic::new(what, hint).with_code(ErrorCode::from(e.kind())).into()
}

#[cfg(test)]
mod tests;
