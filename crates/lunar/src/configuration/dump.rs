//! `lunar config dump`.

use super::dump_file::{self, Dump, DumpedFile, FileKind};
use super::file_or_default;
use crate::exit::{Exit, Failure};
use crate::output::{self, count};
use crate::private_file;
use clap::Args;
use lunar_admin::rows;
use lunar_server::config::{self, Config, attachment};
use lunar_server::{Diagnostic, ErrorCode, folders};
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Suffixes of the files of a logical unit: reservations and mode pages, and the record of its medium.
const OF_STATE: [&str; 2] = ["state", "medium"];

/// Arguments of `lunar config dump`.
#[derive(Args, Debug)]
pub struct DumpArgs {
    /// Configuration file [default: lunar.toml in /etc/lunar for root, or in your configuration folder]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Write the dump to this new file, with mode 0600 [default: print it]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Include CHAP secrets and passwords; stdout must be a pipe, if there is no --output
    #[arg(long)]
    secrets: bool,
}

/// The dump as text, or the summary of the written file.
pub(super) fn dump(args: &DumpArgs) -> Result<String, Failure> {
    if args.secrets && args.output.is_none() && !output::is_pipe() {
        let what = "stdout is no pipe, and the secrets would be shown or stored for others";
        return Err(Failure::new(Exit::Invalid, what, "add --output FILE"));
    }
    let config = config::load_without_secrets(&file_or_default(args.config.as_deref())?)?;
    let mut collector = Collector::new(&config, args.secrets);
    collector.configuration(&config);
    collector.attachments();
    collector.named_files(&config);
    let state_dir = config.server.state_dir.clone().map_or_else(folders::state, Ok)?;
    collector.state(&state_dir);
    let (dump, summary) = collector.finished(&config)?;
    let text = dump_file::text(dump)?;
    let Some(path) = &args.output else { return Ok(text) };
    private_file::write_new(path, text.as_bytes()).map_err(|e| unwritable(path, &e))?;
    Ok(output::success(format!("{}: {summary}\n", path.display())))
}

fn unwritable(path: &Path, e: &io::Error) -> Failure {
    let what = format!("cannot write {}: {}", path.display(), lunar_config::io_text(e));
    if e.kind() == io::ErrorKind::AlreadyExists {
        return Failure::new(Exit::Exists, what, "move it away, or name another file with --output");
    }
    // A part of a dump is none.
    _ = std::fs::remove_file(path);
    Failure::new(Exit::General, what, "check the folder, its permissions and its space")
}

/// Collects the files of a dump.
struct Collector {
    with_secrets: bool,
    /// The folder of the configuration.
    folder: PathBuf,
    files: Vec<DumpedFile>,
    /// The absolute paths of files with secrets.
    secret_files: BTreeSet<PathBuf>,
    problems: Vec<Diagnostic>,
}

impl Collector {
    fn new(config: &Config, with_secrets: bool) -> Collector {
        Collector {
            with_secrets,
            folder: config.sources.whole.parent().unwrap_or(Path::new("/")).to_path_buf(),
            files: Vec::new(),
            secret_files: BTreeSet::new(),
            problems: Vec::new(),
        }
    }

    fn configuration(&mut self, config: &Config) {
        let main = config.sources.files.first().map(|file| file.path.clone()).unwrap_or_default();
        let folder = main.parent().unwrap_or(Path::new(""));
        for file in config.sources.files.iter() {
            let name = file.path.strip_prefix(folder).unwrap_or(&file.path).to_path_buf();
            self.add(FileKind::Config, &name, &file.path, Ok(file.text.clone().into_bytes()));
        }
        for one in config::secret_uses(&config.sources) {
            match one.secret_file {
                Some(file) => _ = self.secret_files.insert(file),
                None => self.inline_secret(&one.file, Some(one.line)),
            }
        }
    }

    /// The saved attachments beside the configuration.
    fn attachments(&mut self) {
        let folder = self.folder.join("attach");
        let names = attachment::names_in(&folder).unwrap_or_else(|problem| {
            self.problems.push(problem);
            Vec::new()
        });
        for name in names {
            let path = folder.join(format!("{name}.toml"));
            let read = lunar_config::read(&path).map_err(|problem| vec![problem]);
            match read.and_then(|text| attachment::parse(&name, &text, &path).map(|parsed| (text, parsed))) {
                Ok((text, parsed)) => {
                    for url in &parsed.urls {
                        self.secret_files.extend(attachment::secret_files(url));
                        if attachment::holds_secret(url) {
                            self.inline_secret(&path, None);
                        }
                    }
                    let name = Path::new("attach").join(format!("{name}.toml"));
                    self.add(FileKind::Attachment, &name, &path, Ok(text.into_bytes()));
                }
                Err(problems) => self.problems.extend(problems),
            }
        }
    }

    /// A file that holds a secret itself.
    fn inline_secret(&mut self, file: &Path, line: Option<usize>) {
        if self.with_secrets {
            return;
        }
        let line = line.map_or(String::new(), |line| format!(":{line}"));
        let what = format!("{}{line}: the URL holds a secret", file.display());
        let problem = Diagnostic::new(what, "add --secrets, or keep the secret in a password_file=");
        if self.problems.last() != Some(&problem) {
            self.problems.push(problem);
        }
    }

    fn named_files(&mut self, config: &Config) {
        for path in config::certificate_files(&config.sources) {
            self.named_file(FileKind::Certificate, &path);
        }
        if !self.with_secrets {
            return;
        }
        for path in self.secret_files.clone() {
            self.named_file(FileKind::Secret, &path);
        }
    }

    fn named_file(&mut self, kind: FileKind, path: &Path) {
        let name = path.strip_prefix(&self.folder).unwrap_or(path).to_path_buf();
        self.add(kind, &name, path, std::fs::read(path));
    }

    /// The files of all logical units. Locks, journals and the records of routers belong to running processes.
    fn state(&mut self, state_dir: &Path) {
        let mut found = Vec::new();
        if let Err((path, e)) = files_of_state(&state_dir.join("lu"), &mut found) {
            self.problems.push(unreadable(&path, &e));
        }
        found.sort_unstable();
        for path in found {
            let name = path.strip_prefix(state_dir).unwrap_or(&path).to_path_buf();
            match std::fs::read(&path) {
                // A server has removed it since.
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                content => self.add(FileKind::State, &name, &path, content),
            }
        }
    }

    fn add(&mut self, kind: FileKind, name: &Path, path: &Path, content: io::Result<Vec<u8>>) {
        let Some(name) = name.to_str() else {
            let what = format!("the path {} is not UTF-8", path.display());
            return self.problems.push(Diagnostic::new(what, "rename the file"));
        };
        match content.and_then(|content| DumpedFile::new(kind, name.to_owned(), path, content)) {
            Ok(file) => self.files.push(file),
            Err(e) => self.problems.push(unreadable(path, &e)),
        }
    }

    /// The dump, and its summary.
    fn finished(self, config: &Config) -> Result<(Dump, String), Vec<Diagnostic>> {
        if !self.problems.is_empty() {
            return Err(self.problems);
        }
        let number = |kind| self.files.iter().filter(|file| file.kind == kind).count();
        let secrets = match (self.secret_files.len(), self.with_secrets) {
            (0, _) | (_, true) => count(number(FileKind::Secret), "secret"),
            (left_out, false) => format!("without {}", count(left_out, "secret")),
        };
        let summary = format!(
            "{} of the configuration, {}, {secrets}, {} of state",
            count(number(FileKind::Config), "file"),
            count(number(FileKind::Attachment), "attachment"),
            count(number(FileKind::State), "file"),
        );
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let dump = Dump {
            created: rows::utc(now),
            lunar: env!("CARGO_PKG_VERSION").into(),
            config_file: config.sources.whole.display().to_string(),
            has_secrets: self.with_secrets,
            files: self.files,
        };
        Ok((dump, summary))
    }
}

/// The files of state below a folder, which may be missing.
fn files_of_state(folder: &Path, found: &mut Vec<PathBuf>) -> Result<(), (PathBuf, io::Error)> {
    let failed = |e| (folder.to_path_buf(), e);
    let entries = match std::fs::read_dir(folder) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(failed)?,
    };
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let path = entry.path();
        if entry.file_type().map_err(failed)?.is_dir() {
            files_of_state(&path, found)?;
        } else if path.extension().is_some_and(|suffix| OF_STATE.iter().any(|of| suffix == *of)) {
            found.push(path);
        }
    }
    Ok(())
}

fn unreadable(path: &Path, e: &io::Error) -> Diagnostic {
    let what = format!("cannot read {}: {}", path.display(), lunar_config::io_text(e));
    Diagnostic::new(what, "run as root or as the user of the server").with_code(ErrorCode::from(e.kind()))
}
