//! `lunar check --media`: checks everything that a configuration would open, and changes nothing.

use crate::build::{
    HeldLocks, LockConflict, MediumHistory, UnitName, can_create, cannot_open, configuration, has_identity,
    has_path, identifier_twice, load, lockable, notes_of_size, of_lun, serial_twice, settings, spec,
    state_path, wanted,
};
use crate::config::router::UpstreamSource;
use crate::config::{Config, LunConfig, RouterConfig};
use crate::routes::{Found, expand};
use crate::standby::{self, Promoted};
use crate::{Diagnostic, ErrorCode, folders, io_text, listeners};
use lunar_block::{BackendInfo, BackendSpec, DataLifetime, ExamineReport, InUse};
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// The result of the check.
#[derive(Debug, Default)]
pub struct Examined {
    /// Faults that prevent a server from starting.
    pub problems: Vec<Diagnostic>,
    /// Notes.
    pub notes: Vec<String>,
    /// The running server of this configuration. Media and locks that it uses are in use as expected.
    pub server: Option<u32>,
    /// All processes that may be that server, including those started with this configuration.
    servers: Vec<u32>,
}

impl Examined {
    /// Records a portal that is in use. It is a fault, unless the server of this configuration listens there.
    pub fn portal_in_use(&mut self, portal: SocketAddr, problem: Diagnostic) {
        self.in_use(listeners::are_of(portal, &self.servers), problem);
    }

    fn in_use(&mut self, is_own: bool, problem: Diagnostic) {
        match is_own {
            true => self.notes.push(problem.what),
            false => self.problems.push(problem),
        }
    }
}

/// Examines the media, the state files, the admin socket and the metrics of a configuration. State is below `state_dir`. Of the
/// upstreams, only those of this host are examined. `file` is the path of the configuration.
pub fn examine(config: &Config, state_dir: &Path, file: &Path) -> Examined {
    let mut whole = match expand(config, &Found::default()) {
        Ok(whole) => whole,
        Err(problems) => return Examined { problems, ..Examined::default() },
    };
    standby::close(&mut whole, &Promoted::new());
    let luns = wanted(&whole);
    let (max_registrants, file) = (config.max_registrants, file.canonicalize().unwrap_or(file.to_path_buf()));
    let held = HeldLocks::of(state_dir);
    let mut look = MediaCheck { state_dir, held, file, max_registrants, found: Examined::default() };
    look.found.problems = config.routers.iter().flat_map(devices).collect();
    look.found.problems.extend(serial_twice(&luns).err().into_iter().flatten());
    look.found.problems.extend(identifier_twice(&whole).err().into_iter().flatten());
    for (name, lun) in luns {
        if let Err(problem) = look.at(&name, lun) {
            look.found.problems.push(of_lun(&name, problem));
        }
    }
    let mut found = look.found;
    found.servers = started_with(&look.file).into_iter().chain(found.server).collect();
    let socket = config.server.admin_socket.as_deref();
    if let Some((path, problem)) = socket.and_then(|path| Some((path, lunar_admin::can_bind(path).err()?))) {
        match problem.code {
            ErrorCode::InUse => {
                let is_own = lunar_admin::listener(path).is_some_and(|pid| found.servers.contains(&pid));
                found.in_use(is_own, problem);
            }
            _ => found.problems.push(problem),
        }
    }
    examine_metrics(config, &mut found);
    found
}

/// Examines the address of the metrics.
fn examine_metrics(config: &Config, found: &mut Examined) {
    let Some(address) = config.server.metrics else { return };
    let Err(problem) = lunar_admin::metrics_listener(address) else { return };
    match problem.code {
        ErrorCode::InUse => found.portal_in_use(address, problem),
        _ => found.problems.push(problem),
    }
}

/// The faults of the SCSI devices of a router.
fn devices(router: &RouterConfig) -> Vec<Diagnostic> {
    let look = |(name, path): (&String, &Path)| {
        let of_upstream = |what: String, hint: &str| {
            let place = format!("upstream {name} of router {}: {}", router.name, path.display());
            Diagnostic::new(format!("{place}: {what}"), hint)
        };
        match path.metadata() {
            Ok(found) if found.file_type().is_char_device() => None,
            Ok(_) => Some(of_upstream(
                "the path is no SCSI generic device".into(),
                "`lsscsi -g` lists the SCSI generic devices: /dev/sg0 and so on",
            )),
            Err(e) => {
                let hint = "`lsscsi -g` lists the devices; `modprobe sg` creates them";
                Some(of_upstream(io_text(&e), hint).with_code(ErrorCode::from(e.kind())))
            }
        }
    };
    let upstreams = router.upstreams.iter().filter_map(|(name, upstream)| match &upstream.source {
        UpstreamSource::Sg { path } => Some((name, path.as_path())),
        _ => None,
    });
    upstreams.filter_map(look).collect()
}

struct MediaCheck<'a> {
    state_dir: &'a Path,
    held: HeldLocks<'a>,
    /// The path of the configuration.
    file: PathBuf,
    max_registrants: usize,
    found: Examined,
}

impl MediaCheck<'_> {
    /// Examines a LUN, in the order in which a server opens it.
    fn at(&mut self, name: &UnitName, lun: &LunConfig) -> Result<(), Diagnostic> {
        let Some(spec) = spec(lun) else { return Ok(()) };
        let server = self.locks(name, lun)?;
        self.found.server = self.found.server.or(server);
        let state_file = self.state_file(name, lun)?;
        let past = MediumHistory::read(&state_file)?;
        past.check_there(lun)?;
        let spec = BackendSpec { raw: spec.raw || past.is_raw(lun), ..spec };
        let medium = self.medium(name, lun, &spec, server)?;
        self.replaced(name, lun, &past, server)?;
        // A file to create gets the configured size.
        let capacity = medium.size.or(spec.size).unwrap_or_default();
        self.note(name, past.shrunk(lun, capacity).iter().map(Diagnostic::line));
        let info = BackendInfo {
            capacity,
            read_only: spec.read_only,
            unmap: true,
            null: false,
            remote: false,
            write_through: false,
        };
        let blocks = past.blocks(lun, medium.block_size);
        let lun = &LunConfig { block_size: blocks.bytes(), ..lun.clone() };
        let settings = settings(name, lun, info, self.max_registrants)?;
        self.note(name, blocks.note().into_iter().chain(notes_of_size(lun, capacity)));
        load(settings, &state_file).map(drop)
    }

    fn note(&mut self, name: &UnitName, texts: impl IntoIterator<Item = String>) {
        let of_lun = |text| format!("{name}: {text}");
        self.found.notes.extend(texts.into_iter().map(of_lun));
    }

    /// Checks the locks of a LUN. Returns the server of this configuration, if it holds one.
    fn locks(&mut self, name: &UnitName, lun: &LunConfig) -> Result<Option<u32>, Diagnostic> {
        let mut server = None;
        for held in self.held.conflicts(name, lun) {
            match server_of(&self.file, &held) {
                // A null disk without a serial number has no data that two servers could mix.
                None if lun.source.data_lifetime() == DataLifetime::None && lun.serial.is_none() => {}
                None => return Err(held.problem),
                Some(pid) => server = Some(pid),
            }
            self.note(name, [held.problem.what]);
        }
        Ok(server)
    }

    /// Checks that the state of a LUN can be saved. Returns the path of its file.
    fn state_file(&mut self, name: &UnitName, lun: &LunConfig) -> Result<PathBuf, Diagnostic> {
        let file = state_path(self.state_dir, name, lun);
        if has_identity(lun) {
            self.note(name, lockable(self.state_dir, name, lun)?);
            can_create(file.parent().unwrap_or(self.state_dir))?;
        }
        Ok(file)
    }

    /// Examines the medium. Use by the server of this configuration is a note.
    fn medium(
        &mut self,
        name: &UnitName,
        lun: &LunConfig,
        spec: &BackendSpec,
        server: Option<u32>,
    ) -> Result<ExamineReport, Diagnostic> {
        let journal = folders::atomic(self.state_dir);
        if has_path(lun) {
            can_create(&journal)?;
        }
        let spec = BackendSpec { journal: Some(journal), ..spec.clone() };
        let mut report = lunar_block::examine(&spec).map_err(|e| cannot_open(lun, e))?;
        match report.in_use.take() {
            Some(in_use) if is_of(&in_use, server) => {
                self.note(name, [format!("{} {}", in_use.error.subject, in_use.error.what)]);
            }
            Some(in_use) => return Err(cannot_open(lun, in_use.error)),
            None => {}
        }
        Ok(report)
    }

    /// Checks whether the path leads to another medium than before.
    fn replaced(
        &mut self,
        name: &UnitName,
        lun: &LunConfig,
        past: &MediumHistory,
        server: Option<u32>,
    ) -> Result<(), Diagnostic> {
        match past.replaced(lun) {
            Some(problem) if server.is_some() && past.is_newest(lun) => Err(refused_by_reload(problem)),
            problem => {
                self.note(name, problem.iter().map(Diagnostic::line));
                Ok(())
            }
        }
    }
}

/// The process that holds a lock, if it is a server of this configuration. A server that was started by arguments is
/// identified by the medium that it serves.
fn server_of(file: &Path, held: &LockConflict) -> Option<u32> {
    let (pid, runs_by) = held.by.as_ref()?;
    runs_by.as_ref().map_or(held.is_same, |runs_by| runs_by == file).then_some(*pid)
}

/// Whether the server of this configuration is the only user, as far as this user can see.
fn is_of(in_use: &InUse, server: Option<u32>) -> bool {
    let (Some(pids), Some(server)) = (&in_use.pids, server) else { return false };
    pids.iter().all(|pid| pid.unsigned_abs() == server)
}

/// Processes that were started with this configuration, as far as this user can see.
fn started_with(file: &Path) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| configuration(*pid).is_some_and(|of| of == file)).collect()
}

fn refused_by_reload(problem: Diagnostic) -> Diagnostic {
    let hint = "a reload rejects this change: the server's log shows how to keep the old file or to serve the new one";
    Diagnostic { hint: Some(hint.into()), ..problem }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;
    use crate::config::tests::Folder;

    /// Faults and notes, without the folder.
    fn problems_and_notes(folder: &Folder, keys: &str) -> (String, String) {
        let head =
            "[[target]]\nname = \"iqn.2026-11.org.example:d\"\n[[target.lun]]\nlun = 0\nbackend = \"file\"\n";
        let config = parse(&format!("{head}{keys}"), &folder.0.join("t.toml"));
        let config = config.map_err(|list| list[0].to_string()).unwrap();
        let Examined { problems, notes, .. } =
            examine(&config, &folder.0.join("state"), &folder.0.join("t.toml"));
        let problems: Vec<String> = problems.into_iter().map(|problem| problem.what).collect();
        let plain = |list: Vec<String>| {
            let text = list.join("\n").replace("LUN 0 of iqn.2026-11.org.example:d: ", "");
            text.replace(&format!("{}/", folder.0.display()), "")
        };
        (plain(problems), plain(notes))
    }

    #[test]
    fn each_medium_is_described() {
        let folder = Folder::new("examine");
        folder.file("odd.img", vec![0; 5000], 0o600);
        folder.file("small.img", vec![0; 1000], 0o600);
        folder.file("image.vhdx", [&b"vhdxfile"[..], &[0; 4088]].concat(), 0o600);
        let cases = [
            ("path = \"image.vhdx\"", "image.vhdx: is a disk image in the format VHDX, not raw", ""),
            ("path = \"image.vhdx\"\nformat = \"raw\"", "", ""),
            ("path = \"new.img\"\nsize = \"1M\"", "", ""),
            ("path = \"none.img\"", "none.img: no such file or directory", ""),
            ("path = \"none/none.img\"\nsize = \"1M\"", "none/none.img: no such file or directory", ""),
            (
                "path = \"odd.img\"",
                "",
                "the last 392 bytes of the medium are less than a block of 512 bytes and are not served",
            ),
            (
                "path = \"small.img\"\nblock_size = 4096",
                "the medium has 1000 bytes, less than a block of 4096 bytes",
                "",
            ),
            (
                "path = \"small.img\"\nsize = \"1M\"",
                "",
                "the last 488 bytes of the medium are less than a block of 512 bytes and are not served\n\
                 small.img exists and keeps its size of 1000 bytes; the given size is 1 MiB",
            ),
        ];
        for (keys, problems, notes) in cases {
            assert_eq!(problems_and_notes(&folder, keys), (problems.into(), notes.into()), "{keys}");
        }
        assert!(!folder.0.join("new.img").exists() && !folder.0.join("state").exists(), "no file is created");
    }

    #[test]
    fn upstreams_of_this_host_are_looked_at() {
        let folder = Folder::new("examine-upstreams");
        folder.file("odd.img", vec![0; 5000], 0o600);
        let source = "[router.r.upstream]\na.file = \"none.img\"\nb.file = \"odd.img\"\n\
            c = { sg = \"odd.img\", mode = \"passthrough\" }\nd = { sg = \"none\", mode = \"passthrough\" }\n\
            e = { sg = \"/dev/null\", mode = \"passthrough\" }\nf.urls = [\"iscsi://192.0.2.1/iqn.x:t/0\"]\n\
            [[router.r.target]]\nmap = \"lun\"\nname = \"iqn.2026-11.org.example:d\"\naccess = \"all\"\n\
            lun = [{ lun = 0, upstream = \"a\" }, { lun = 1, upstream = \"b\" }, { lun = 2, upstream = \"f\" }]\n";
        let config = parse(source, &folder.0.join("t.toml")).map_err(|list| list[0].to_string()).unwrap();
        let Examined { problems, notes, .. } =
            examine(&config, &folder.0.join("state"), &folder.0.join("t.toml"));
        let plain = |text: &str| text.replace(&format!("{}/", folder.0.display()), "");
        let problems: Vec<String> = problems.iter().map(|problem| plain(&problem.what)).collect();
        let none = "LUN 0 of iqn.2026-11.org.example:d: none.img: no such file or directory";
        let [file, gone] = [
            "c of router r: odd.img: the path is no SCSI generic device",
            "d of router r: none: no such file or directory",
        ];
        assert_eq!(problems, [format!("upstream {file}"), format!("upstream {gone}"), none.to_owned()]);
        assert_eq!(notes.len(), 1, "{notes:?}");
        assert!(notes[0].starts_with("LUN 1 of iqn.2026-11.org.example:d: the last 392 bytes"), "{notes:?}");
    }

    #[test]
    fn upstream_hint_equals_the_server_hint() {
        let folder = Folder::new("examine-remedies");
        folder.file("file.img", vec![0; 4096], 0o600);
        folder.file("empty.img", "", 0o600);
        let state = folder.0.join("state");
        for (key, path, hint) in [
            ("file", "none.img", "check the path, or create the file: truncate -s 1G none.img"),
            ("file", "empty.img", "set the size of the file: truncate -s 1G empty.img"),
            ("device", "none.img", "check the path; lsblk lists the disks"),
            ("device", "file.img", "write `file` instead of `device`"),
        ] {
            let source = format!(
                "[router.r.upstream]\na.{key} = \"{path}\"\n[[router.r.target]]\nmap = \"lun\"\n\
                 name = \"iqn.2026-11.org.example:d\"\naccess = \"all\"\nlun = [{{ lun = 0, upstream = \"a\" }}]\n"
            );
            let config =
                parse(&source, &folder.0.join("t.toml")).map_err(|list| list[0].to_string()).unwrap();
            let problems = examine(&config, &state, &folder.0.join("t.toml")).problems;
            let shown_hint = problems[0].hint.as_deref().unwrap_or_default();
            assert_eq!(shown_hint.replace(&format!("{}/", folder.0.display()), ""), hint);
            let whole = expand(&config, &Found::default()).unwrap();
            let served = crate::Units::new(&state).setup(&whole, &|_| Ok(Vec::new()));
            assert_eq!(served.err().as_ref().map(|list| &list[0].what), Some(&problems[0].what));
        }
    }

    #[test]
    fn medium_in_use_and_damaged_state_are_problems() {
        let folder = Folder::new("examine-use");
        let disk = folder.file("disk.img", vec![0; 8192], 0o600);
        let held = lunar_block::open(&lunar_block::BackendSpec::path(&disk)).unwrap();
        let in_use = "disk.img: is in use by another server";
        assert_eq!(problems_and_notes(&folder, "path = \"disk.img\""), (in_use.into(), String::new()));
        drop(held);
        let lu = folder.0.join("state/lu/iqn.2026-11.org.example:d");
        crate::create_folder(&lu).unwrap();
        std::fs::write(lu.join("0.state"), "no state of ours").unwrap();
        let damaged = "the saved state state/lu/iqn.2026-11.org.example:d/0.state is damaged: \
            the file is not the saved state of a logical unit";
        assert_eq!(problems_and_notes(&folder, "path = \"disk.img\""), (damaged.into(), String::new()));
    }

    #[test]
    fn server_is_known_by_its_configuration_or_its_place() {
        let folder = Folder::new("examine-server");
        let file = folder.file("t.toml", "", 0o600);
        let other = folder.file("other.toml", "", 0o600);
        for (runs_by, is_same, is_own) in [
            (Some(&file), false, true),
            (Some(&other), true, false),
            (None, true, true),
            (None, false, false),
        ] {
            let by = Some((7, runs_by.cloned()));
            let held = LockConflict { problem: Diagnostic::new("", ""), by, is_same };
            assert_eq!(server_of(&file, &held), is_own.then_some(7), "{runs_by:?} {is_same}");
        }
        assert_eq!(
            server_of(&file, &LockConflict { problem: Diagnostic::new("", ""), by: None, is_same: true }),
            None
        );
    }
}
