//! `lunar import`: converts the configuration of another target, or of open-iscsi.

mod attachments;
mod secrets;
mod tree;

use crate::client::json;
use crate::exit::{Exit, Failure};
use crate::staged_files::FileOwner;
use crate::{output, private_file};
use clap::{Args, ValueEnum};
use lunar_import::{Found, ImportError, Imported, Outcome};
use lunar_runtime::error::text as io_text;
use lunar_server::config;
use serde::Serialize;
use std::fs;
use std::io;
use std::os::unix::fs::lchown;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use utoipa::ToSchema;

/// The folder of secrets, beside the new file.
const SECRETS: &str = "secrets";
/// Limit of a configuration to import, in bytes.
const MAX_BYTES: u64 = 64 << 20;

/// Arguments of `lunar import`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Import {
    /// The kind of the configuration
    format: Format,

    /// The configuration; for nvmet also a folder; for open-iscsi /etc/iscsi, a folder below it, or a record
    file: PathBuf,

    /// Write the new configuration to this file, and its secrets to the folder `secrets` beside it. For open-iscsi,
    /// write the attachments and `secrets` to this folder. Nothing replaces an existing file [default: print the
    /// configuration, without secrets]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Read the files to which the configuration refers below this folder, which stands for `/`
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,

    /// Print the report as JSON
    #[arg(long, requires = "output")]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  lunar import lio /etc/target/saveconfig.json                  # print the configuration, and the report to stderr
  lunar import lio /etc/target/saveconfig.json -o lunar.toml    # write it with its secrets
  lunar check --media lunar.toml                                # then check what it would open";

/// The kind of a configuration.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// saveconfig.json of targetcli (Linux kernel)
    Lio,
    /// targets.conf of tgt, or the output of tgt-admin --dump
    Tgt,
    /// ietd.conf of IET, with initiators.allow, initiators.deny and targets.allow
    Iet,
    /// istgt.conf of istgt, with its AuthFile
    Istgt,
    /// scst.conf of scstadmin (SCST)
    Scst,
    /// ctl.conf of ctld (FreeBSD), also in UCL
    Ctld,
    /// config.json of nvmetcli (Linux kernel, NVMe), or the folder /sys/kernel/config/nvmet
    Nvmet,
    /// The saved configuration of SPDK (JSON), with its NVMe subsystems
    Spdk,
    /// Records of open-iscsi, which become saved attachments
    OpenIscsi,
}

/// Imports a configuration.
pub fn import(args: Import) -> Result<ExitCode, Failure> {
    let source = || read(&args.file);
    let reader = |path: &Path| found(&args, path);
    let imported = match args.format {
        Format::Lio => lunar_import::lio(&source()?),
        Format::Tgt => lunar_import::tgt(&source()?, &reader),
        Format::Iet => lunar_import::iet(&source()?, &reader),
        Format::Istgt => lunar_import::istgt(&source()?, &reader),
        Format::Scst => lunar_import::scst(&source()?),
        Format::Ctld => lunar_import::ctld(&source()?),
        Format::Nvmet if args.file.is_dir() => {
            lunar_import::nvmet_tree(&|path| tree::found(&args.file, path))
        }
        Format::Nvmet => lunar_import::nvmet(&source()?),
        Format::Spdk => lunar_import::spdk(&source()?, &reader),
        Format::OpenIscsi => lunar_import::open_iscsi(&|path| attachments::found(&args.file, path)),
    };
    let imported = imported.map_err(|e| invalid(&args.file, e))?;
    let is_attachment = matches!(args.format, Format::OpenIscsi);
    let new = match is_attachment {
        true => attachments::text(&imported.configuration),
        false => lunar_import::toml(&imported.configuration, SECRETS),
    };
    match &args.output {
        None => {
            output::stdout(&new)?;
            output::stderr(success(&imported));
        }
        Some(path) => {
            if is_attachment {
                attachments::write(path, &imported.configuration)?;
            } else {
                // First, so that no secrets are left beside a file that exists already.
                let owner = server_owner(path);
                write_new(path, new.as_bytes(), owner)?;
                secrets::write(path, &imported.configuration, owner)?;
            }
            output::stdout(if args.json { json(&ImportReport::of(&imported))? } else { success(&imported) })?;
            if !is_attachment {
                check(path)?;
            }
        }
    }
    if imported.notes.has_lost() {
        let what = format!("{} was not imported whole", args.file.display());
        return Err(Failure::new(Exit::NotCarried, what, "the report lists what is lost"));
    }
    Ok(ExitCode::SUCCESS)
}

/// The report, which is no mere success if it lists what is lost.
fn success(imported: &Imported) -> String {
    let text = report(imported);
    if imported.notes.has_lost() { text } else { output::success(text) }
}

/// Checks the new configuration as a server does.
fn check(path: &Path) -> Result<(), Failure> {
    let Err(problems) = config::load(path) else { return Ok(()) };
    problems.iter().for_each(|problem| output::stderr_line(format_args!("error: {problem}")));
    let what = format!("a server does not accept {} as it is", path.display());
    Err(Failure::new(Exit::NotCarried, what, "correct it, and run lunar check"))
}

fn read(path: &Path) -> Result<String, Failure> {
    let file = fs::File::open(path).map_err(|e| unreadable(path, &e))?;
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(file, MAX_BYTES + 1), &mut bytes)
        .map_err(|e| unreadable(path, &e))?;
    if bytes.len() as u64 > MAX_BYTES {
        let what = format!("{} is larger than 64 MiB", path.display());
        return Err(Failure::new(Exit::Invalid, what, "give the configuration of a target"));
    }
    String::from_utf8(bytes).map_err(|_| {
        Failure::new(
            Exit::Invalid,
            format!("{} is no text", path.display()),
            "give the configuration of a target",
        )
    })
}

/// A file or folder that the configuration refers to: an absolute path below the root, or a path relative to the
/// configuration.
fn found(args: &Import, path: &Path) -> io::Result<Found> {
    let path = match path.strip_prefix("/") {
        Ok(below) => args.root.join(below),
        Err(_) => args.file.with_file_name("").join(path),
    };
    read_found(&path)
}

/// A file, or the names in a folder.
fn read_found(path: &Path) -> io::Result<Found> {
    let metadata = fs::metadata(path)?;
    if metadata.is_dir() {
        let names = fs::read_dir(path)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        return Ok(Found::Folder(names.collect::<io::Result<_>>()?));
    }
    if !metadata.is_file() || metadata.len() > MAX_BYTES {
        return Err(io::Error::other("it is no file, or larger than 64 MiB"));
    }
    fs::read_to_string(path).map(Found::File)
}

fn unreadable(path: &Path, e: &io::Error) -> Failure {
    let exit = if e.kind() == io::ErrorKind::NotFound { Exit::NotFound } else { Exit::General };
    Failure::new(
        exit,
        format!("cannot read {}: {}", path.display(), io_text(e)),
        "check the path and its permissions",
    )
}

fn invalid(path: &Path, e: ImportError) -> Failure {
    Failure::new(Exit::Invalid, format!("{}: {}", path.display(), e.what), e.hint)
}

/// The user of the server, if this process may give it files: the server must be able to read its configuration.
fn server_owner(output: &Path) -> Option<FileOwner> {
    config::server_owner(output).filter(|_| rustix::process::geteuid().is_root())
}

/// Writes a file that only its owner can read. An existing file is an error.
fn write_new(path: &Path, bytes: &[u8], owner: Option<FileOwner>) -> Result<(), Failure> {
    private_file::write_new(path, bytes).and_then(|()| give(path, owner)).map_err(|e| unwritable(path, &e))
}

fn give(path: &Path, owner: Option<FileOwner>) -> io::Result<()> {
    owner.map_or(Ok(()), |(user, group)| lchown(path, Some(user), Some(group)))
}

fn unwritable(path: &Path, e: &io::Error) -> Failure {
    let what = format!("cannot write {}: {}", path.display(), io_text(e));
    match e.kind() {
        io::ErrorKind::AlreadyExists => {
            Failure::new(Exit::Exists, what, "move it away, or name another file with -o")
        }
        _ => Failure::new(Exit::General, what, "check the folder and its permissions"),
    }
}

/// The report as a table.
fn report(imported: &Imported) -> String {
    let notes = imported.notes.list();
    let width = notes.iter().map(|note| note.place.chars().count()).max().unwrap_or(0);
    let line = |note: &lunar_import::Note| {
        format!(
            "{:<7}  {:<width$}  {}\n",
            note.outcome.to_string(),
            note.place,
            note.text.replace(char::is_control, "?")
        )
    };
    let count = |outcome| notes.iter().filter(|note| note.outcome == outcome).count();
    let [carried, changed, lost] = [Outcome::Carried, Outcome::Changed, Outcome::Lost].map(count);
    notes.iter().map(line).collect::<String>()
        + &format!("{carried} carried, {changed} changed, {lost} lost\n")
}

/// The report, for `--json`.
#[derive(Serialize, ToSchema)]
pub struct ImportReport {
    notes: Vec<ImportNote>,
}

/// A line of the report.
#[derive(Serialize, ToSchema)]
struct ImportNote {
    /// `carried`, `changed` or `lost`.
    outcome: String,
    /// The place in the imported file: a line, or the path of a key.
    place: String,
    /// The object, and the reason if it was not carried over.
    text: String,
}

impl ImportReport {
    fn of(imported: &Imported) -> ImportReport {
        let one = |note: &lunar_import::Note| {
            let lunar_import::Note { outcome, place, text } = note.clone();
            ImportNote { outcome: outcome.to_string(), place, text }
        };
        ImportReport { notes: imported.notes.list().iter().map(one).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server accepts each configuration that an import writes.
    #[test]
    fn imported_configurations_are_valid() {
        let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lunar-import/tests/samples");
        let folder = std::env::temp_dir().join(format!("lunar-import-{}", std::process::id()));
        _ = fs::remove_dir_all(&folder);
        let all = [
            (Format::Lio, "demo-mode.json", None),
            (Format::Lio, "everything.json", Some(Exit::NotCarried)),
            (Format::Tgt, "tgt/targets.conf", Some(Exit::NotCarried)),
            (Format::Tgt, "tgt/dump.conf", Some(Exit::NotCarried)),
            (Format::Iet, "iet/ietd.conf", Some(Exit::NotCarried)),
            (Format::Istgt, "istgt/istgt.conf", Some(Exit::NotCarried)),
            (Format::Scst, "scst/simple.conf", None),
            (Format::Scst, "scst/everything.conf", Some(Exit::NotCarried)),
            (Format::Ctld, "ctld/ctl.conf", Some(Exit::NotCarried)),
            (Format::Ctld, "ctld/ctl.ucl", Some(Exit::NotCarried)),
            (Format::Nvmet, "nvmet/simple.json", None),
            (Format::Nvmet, "nvmet/config.json", Some(Exit::NotCarried)),
            (Format::Spdk, "spdk/nvmf.json", Some(Exit::NotCarried)),
        ];
        for (format, name, expected) in all {
            let folder = folder.join(name);
            fs::create_dir_all(&folder).expect("a folder");
            let (file, output) = (samples.join(name), Some(folder.join("lunar.toml")));
            let root = file.with_file_name("root");
            let args = || Import {
                format,
                file: file.clone(),
                output: output.clone(),
                root: root.clone(),
                json: false,
            };
            let exit = import(args()).err().map(|failure| failure.exit);
            assert_eq!(exit, expected, "{name}");
            let written = lunar_server::config::load(&folder.join("lunar.toml"));
            let written = written.map_err(|list| list.iter().map(|one| one.to_string()).collect::<String>());
            let config = written.unwrap_or_else(|e| panic!("{name}: {e}"));
            assert!(!config.targets.is_empty());
            assert_eq!(
                import(args()).err().map(|failure| failure.exit),
                Some(Exit::Exists),
                "nothing is replaced"
            );
        }
        fs::remove_dir_all(folder).expect("the folder");
    }

    #[test]
    fn import_that_no_server_accepts_is_reported() {
        let folder = interop::Folder::fresh();
        let sample =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../lunar-import/tests/samples/demo-mode.json");
        // Two storage objects of one file.
        let twice =
            fs::read_to_string(sample).expect("a sample").replace("/dev/vg0/mail", "/srv/iscsi/home.img");
        let (file, output) = (folder.join("lio.json"), folder.join("lunar.toml"));
        fs::write(&file, twice).expect("written");
        let (root, json) = ("/".into(), false);
        let args = Import { format: Format::Lio, file, output: Some(output.clone()), root, json };
        let failure = import(args).expect_err("the file is given twice");
        assert!(
            failure.exit == Exit::NotCarried && failure.problems[0].what.contains("does not accept"),
            "{failure:?}"
        );
        assert!(output.exists(), "the rest is written");
    }

    #[test]
    fn files_that_root_imports_belong_to_the_server() {
        use std::os::unix::fs::{MetadataExt, chown};
        if !rustix::process::geteuid().is_root() {
            return println!("skipped: needs root");
        }
        let folder = interop::Folder::fresh();
        let api = folder.join("lunar.d/api");
        fs::create_dir_all(&api).expect("a folder");
        chown(&api, Some(12345), Some(54321)).expect("root");
        let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lunar-import/tests/samples");
        let output = folder.join("lunar.toml");
        let (root, json) = ("/".into(), false);
        let file = samples.join("everything.json");
        let args = Import { format: Format::Lio, file, output: Some(output.clone()), root, json };
        assert_eq!(import(args).err().map(|failure| failure.exit), Some(Exit::NotCarried));
        let secrets = folder.join(SECRETS);
        let secret =
            fs::read_dir(&secrets).expect("a folder").next().expect("a secret").expect("a name").path();
        for (path, mode) in [(output, 0o600), (secrets, 0o700), (secret, 0o600)] {
            let found = fs::metadata(&path).expect("a file");
            let has = (found.uid(), found.gid(), found.mode() & 0o777);
            assert_eq!(has, (12345, 54321, mode), "{}", path.display());
        }
    }
}
