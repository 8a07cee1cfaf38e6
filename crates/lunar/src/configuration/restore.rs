//! `lunar config restore`: checks a dump as a whole, then writes its files.

use super::dump_file::{self, Dump, DumpedFile, FileKind};
use super::owner;
use crate::exit::Failure;
use crate::output::{self, count};
use crate::staged_files::{FileOwner, NewFile, commit, stage};
use clap::Args;
use lunar_config::{ConfigFile, io_text};
use lunar_server::config::{self, Config, GivenSecrets, attachment};
use lunar_server::{Diagnostic, ErrorCode, folders};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

/// Arguments of `lunar config restore`.
#[derive(Args, Debug)]
pub struct RestoreArgs {
    /// A file that `lunar config dump` wrote
    file: PathBuf,

    /// Folder of the configuration [default: that of the dump]
    #[arg(long, value_name = "DIR")]
    config_folder: Option<PathBuf>,

    /// Restore no state: reservations and mode pages stay as they are
    #[arg(long)]
    without_state: bool,

    /// Print what would be written, and write nothing
    #[arg(long)]
    dry_run: bool,

    /// Replace existing files, and remove drop-in files that the dump does not have
    #[arg(long)]
    force: bool,
}

/// The action of the restore on a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    Create,
    Replace,
    Remove,
    Same,
}

/// A file of the plan.
struct PlannedFile {
    path: PathBuf,
    content: Option<Vec<u8>>,
    mode: u32,
    owner: Option<FileOwner>,
    kind: FileKind,
    effect: Effect,
}

/// The text to print.
pub(super) fn restore(args: &RestoreArgs) -> Result<String, Failure> {
    let dump = dump_file::read(&args.file)?;
    let places = Places::of(&dump, args)?;
    let contents = contents(&dump, &args.file)?;
    let config = places.checked(&dump, &contents)?;
    let plan = places.plan(&dump, contents, &config)?;
    check(&plan, &state_dir(&config)?, args.force)?;
    places.notes(&dump).iter().for_each(|note| output::stderr_line(format_args!("warning: {note}")));
    if !args.dry_run {
        write(&plan).map_err(|(path, e)| unwritable(&path, &e))?;
    }
    let text = text(&plan, args.dry_run);
    Ok(if args.dry_run { text } else { output::success(text) })
}

/// Where the files of a dump belong.
struct Places<'a> {
    args: &'a RestoreArgs,
    /// The absolute path of the first file of the configuration, and of its folder.
    whole: PathBuf,
    folder: PathBuf,
    /// The folder when the dump was written.
    before: PathBuf,
}

impl<'a> Places<'a> {
    fn of(dump: &Dump, args: &'a RestoreArgs) -> Result<Places<'a>, Failure> {
        let main = Path::new(&dump.config_file);
        let (Some(before), Some(name)) = (main.parent(), main.file_name()) else {
            return Err(foreign(&args.file, &dump.config_file));
        };
        let folder = args.config_folder.as_deref().unwrap_or(before);
        let folder = std::path::absolute(folder).map_err(|e| unreadable(folder, &e))?;
        Ok(Places { args, whole: folder.join(name), folder, before: before.to_path_buf() })
    }

    /// The path of a file of the configuration, which must be a name that the configuration reads.
    fn path(&self, file: &DumpedFile) -> Option<PathBuf> {
        let path = Path::new(&file.path);
        let is_below = is_plain(path) && path.is_relative();
        let whole = self.folder.join(path);
        match file.kind {
            FileKind::Config => (is_below
                && (whole == self.whole || config::is_drop_in_of(&self.whole, &whole)))
            .then_some(whole),
            FileKind::Attachment => {
                let is_named = path.file_stem().and_then(|stem| stem.to_str()).is_some_and(|stem| {
                    path == Path::new("attach").join(format!("{stem}.toml"))
                        && attachment::check_name(stem).is_ok()
                });
                is_named.then_some(whole)
            }
            FileKind::Secret | FileKind::Certificate => is_plain(path).then_some(whole),
            FileKind::State => {
                let is_state = path.extension().is_some_and(|suffix| suffix == "state" || suffix == "medium");
                (is_below && is_state && path.starts_with("lu")).then(|| path.to_path_buf())
            }
        }
    }

    /// Checks all files, and returns the configuration as a server would read it.
    fn checked(&self, dump: &Dump, contents: &[Vec<u8>]) -> Result<Config, Failure> {
        let mut secrets = GivenSecrets::new();
        let (mut files, mut named) = (Vec::new(), BTreeSet::new());
        let mut problems = Vec::new();
        for (file, content) in dump.files.iter().zip(contents) {
            let Some(path) = self.path(file) else { return Err(foreign(&self.args.file, &file.path)) };
            let text =
                || String::from_utf8(content.clone()).map_err(|_| foreign(&self.args.file, &file.path));
            match file.kind {
                FileKind::Config => {
                    let path = self.shown(&file.path);
                    files.push(ConfigFile { path, text: text()?, is_transient: false });
                }
                FileKind::Secret => {
                    secrets.insert(self.before.join(&file.path), content.clone().into());
                    secrets.insert(path, content.clone().into());
                }
                FileKind::Attachment => match self.secrets_of_attachment(&path, &text()?) {
                    Ok(more) => named.extend(more),
                    Err(more) => problems.extend(more),
                },
                FileKind::Certificate | FileKind::State => {}
            }
        }
        let config = match config::parse_files_with(files, &self.whole, Some(&secrets)) {
            Ok(config) if problems.is_empty() => config,
            parsed => {
                return Err(problems
                    .into_iter()
                    .chain(parsed.err().unwrap_or_default())
                    .collect::<Vec<_>>()
                    .into());
            }
        };
        named.extend(config::certificate_files(&config.sources));
        named.extend(config::secret_uses(&config.sources).into_iter().filter_map(|one| one.secret_file));
        let is_named = |file: &&DumpedFile| {
            [&self.before, &self.folder].iter().any(|folder| named.contains(&folder.join(&file.path)))
        };
        let of_names = |file: &&DumpedFile| matches!(file.kind, FileKind::Secret | FileKind::Certificate);
        let mut files = dump.files.iter().filter(of_names);
        match files.find(|file| !is_named(file)) {
            Some(file) => Err(foreign(&self.args.file, &file.path)),
            None => Ok(config),
        }
    }

    /// A file in messages, such as `backup.json:lunar.toml`: it is not at its place yet.
    fn shown(&self, file: &str) -> PathBuf {
        format!("{}:{file}", self.args.file.display()).into()
    }

    /// The files of secrets that an attachment names.
    fn secrets_of_attachment(&self, path: &Path, text: &str) -> Result<Vec<PathBuf>, Vec<Diagnostic>> {
        let name = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        let parsed = attachment::parse(name, text, path)?;
        Ok(parsed.urls.iter().flat_map(|url| attachment::secret_files(url)).collect())
    }

    /// The files to write and to remove, in their order: a crash leaves the old configuration, or an incomplete new one
    /// that the next restore completes.
    fn plan(
        &self,
        dump: &Dump,
        contents: Vec<Vec<u8>>,
        config: &Config,
    ) -> Result<Vec<PlannedFile>, Failure> {
        let state_dir = state_dir(config)?;
        let is_root = rustix::process::geteuid().is_root();
        let mut plan = Vec::new();
        for (file, content) in dump.files.iter().zip(contents) {
            let path = self.path(file).ok_or_else(|| foreign(&self.args.file, &file.path))?;
            let path = match file.kind {
                FileKind::State if self.args.without_state => continue,
                FileKind::State => state_dir.join(path),
                _ => path,
            };
            let mode = file.mode().ok_or_else(|| foreign(&self.args.file, &file.path))?;
            let owner = if is_root { Some(owner::of_names(&file.owner())?) } else { None };
            let effect = effect(&path, &content, mode)?;
            plan.push(PlannedFile { path, content: Some(content), mode, owner, kind: file.kind, effect });
        }
        let planned: BTreeSet<PathBuf> = plan.iter().map(|file| file.path.clone()).collect();
        let record = config::TrialRecord::path(&self.whole);
        // It would replace restored files at the next start.
        let record = record.exists().then_some(record);
        let existing = config::drop_in_files(&self.whole)?.into_iter().chain(record);
        plan.extend(existing.filter(|path| !planned.contains(path)).map(|path| PlannedFile {
            path,
            content: None,
            mode: 0,
            owner: None,
            kind: FileKind::Config,
            effect: Effect::Remove,
        }));
        let is_main = |file: &PlannedFile| file.path == self.whole;
        plan.sort_by_key(|file| {
            (is_main(file), file.kind == FileKind::Config, file.effect == Effect::Remove)
        });
        Ok(plan)
    }

    /// The gaps of the restored files.
    fn notes(&self, dump: &Dump) -> Vec<String> {
        let mut notes = Vec::new();
        if !dump.has_secrets {
            notes.push("the dump has no secrets: CHAP users and URLs need their files".to_owned());
        }
        let before = format!("{}/", self.before.display());
        let names_it = |file: &&DumpedFile| {
            let content = file.content().unwrap_or_default();
            file.kind != FileKind::Secret && String::from_utf8_lossy(&content).contains(&before)
        };
        if self.before != self.folder {
            let named = dump.files.iter().filter(names_it).map(|file| {
                format!("{} names files in {before}, and the restore does not change that", file.path)
            });
            notes.extend(named);
        }
        let is_root = rustix::process::geteuid().is_root();
        let mut owners: BTreeMap<[String; 2], usize> = BTreeMap::new();
        let own = std::fs::metadata("/proc/self").map(|own| owner::names(&own)).unwrap_or_default();
        for file in dump.files.iter().filter(|file| !is_root && file.owner() != own) {
            *owners.entry(file.owner()).or_default() += 1;
        }
        let others = owners.into_iter().map(|([user, group], files)| {
            format!("{} belonged to {user}:{group}: run as root to restore owners", count(files, "file"))
        });
        notes.extend(others);
        notes
    }
}

/// Whether a path has names only, and no `..`.
fn is_plain(path: &Path) -> bool {
    path.file_name().is_some()
        && path.components().all(|part| matches!(part, Component::Normal(_) | Component::RootDir))
}

/// The content of each file.
fn contents(dump: &Dump, path: &Path) -> Result<Vec<Vec<u8>>, Failure> {
    let content = |file: &DumpedFile| file.content().ok_or_else(|| foreign(path, &file.path));
    dump.files.iter().map(content).collect()
}

fn effect(path: &Path, content: &[u8], mode: u32) -> Result<Effect, Failure> {
    let found = match path.symlink_metadata() {
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Effect::Create);
        }
        found => found.map_err(|e| unreadable(path, &e))?,
    };
    if !found.is_file() || found.len() != content.len() as u64 || found.permissions().mode() & 0o7777 != mode
    {
        return Ok(Effect::Replace);
    }
    let is_same = std::fs::read(path).map_err(|e| unreadable(path, &e))? == content;
    Ok(if is_same { Effect::Same } else { Effect::Replace })
}

/// Checks that nothing is lost without `force`, and that no server uses the state.
fn check(plan: &[PlannedFile], state_dir: &Path, force: bool) -> Result<(), Failure> {
    let changes = |file: &&PlannedFile| file.effect != Effect::Same;
    let state = plan.iter().filter(changes).filter(|file| file.kind == FileKind::State);
    let used = lunar_server::used_state_files(state_dir, state.map(|file| file.path.as_path()));
    if !used.is_empty() {
        return Err(used.into_iter().map(in_use).collect::<Vec<_>>().into());
    }
    let lost = plan.iter().filter(|file| matches!(file.effect, Effect::Replace | Effect::Remove));
    let lost: Vec<Diagnostic> = lost.map(would_be_lost).collect();
    if lost.is_empty() || force { Ok(()) } else { Err(lost.into()) }
}

fn state_dir(config: &Config) -> Result<PathBuf, Diagnostic> {
    config.server.state_dir.clone().map_or_else(folders::state, Ok)
}

fn in_use(file: &Path) -> Diagnostic {
    let what = format!("a server uses the state {}", file.display());
    Diagnostic::new(what, "run lunar stop first, or use --without-state").with_code(ErrorCode::InUse)
}

fn would_be_lost(file: &PlannedFile) -> Diagnostic {
    let what = match file.effect {
        Effect::Remove => "is not in the dump",
        _ => "exists with other content",
    };
    let hint = "use --force to replace or remove it, or --config-folder for another folder";
    Diagnostic::new(format!("{} {what}", file.path.display()), hint).with_code(ErrorCode::AlreadyExists)
}

fn write(plan: &[PlannedFile]) -> Result<(), (PathBuf, io::Error)> {
    let changed = plan.iter().filter(|file| file.effect != Effect::Same);
    commit(stage(changed.map(|file| NewFile {
        path: &file.path,
        content: file.content.as_deref(),
        mode: file.mode,
        owner: file.owner,
    }))?)
}

fn text(plan: &[PlannedFile], dry_run: bool) -> String {
    let line = |file: &PlannedFile| {
        let effect = match file.effect {
            Effect::Create => "create ",
            Effect::Replace => "replace",
            Effect::Remove => "remove ",
            Effect::Same => return None,
        };
        Some(format!("{effect}  {}\n", file.path.display()))
    };
    let lines: Vec<String> = plan.iter().filter_map(line).collect();
    let same = count(plan.len() - lines.len(), "file");
    let end = match (dry_run, lines.is_empty()) {
        (true, _) => format!("dry run: nothing was changed; {same} would stay as they are\n"),
        (false, true) => format!("nothing to restore: {same} are as in the dump\n"),
        (false, false) => {
            format!("restored; {same} were so already; start the server, or run lunar reload\n")
        }
    };
    lines.concat() + &end
}

/// A dump with a correct checksum that no `lunar config dump` wrote.
fn foreign(dump: &Path, file: &str) -> Failure {
    let what = format!("{}: the file {} cannot belong to a dump", dump.display(), file.escape_debug());
    let problem = Diagnostic::new(what, "use a dump that lunar config dump wrote");
    problem.with_code(ErrorCode::InvalidArgument).into()
}

fn unreadable(path: &Path, e: &io::Error) -> Failure {
    let what = format!("cannot read {}: {}", path.display(), io_text(e));
    Diagnostic::new(what, "check the path and its permissions").with_code(ErrorCode::from(e.kind())).into()
}

fn unwritable(path: &Path, e: &io::Error) -> Failure {
    let what = format!("cannot write {}: {}", path.display(), io_text(e));
    let hint = "check the folder, its permissions and its space, and run the command again";
    Diagnostic::new(what, hint).with_code(ErrorCode::from(e.kind())).into()
}
