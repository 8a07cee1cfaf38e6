//! Logs that cannot be written: the server continues, commands exit with their usual status, and no process panics.

use crate::NO_ANSWER;
use crate::streams::{self, StderrKind};
use crate::tally::Tally;
use interop::tool::ToolOutput;
use interop::{Folder, Login, Random, Raw, Server, TARGET};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const ACTIONS: u32 = 100;
const ACTIONS_SHORT: u32 = 8;
const CELLS: u32 = 16;
const EXTRA: &str = "iqn.2026-11.org.example:extra-";
const SIGHUP: i32 = 1;
const SIGTERM: i32 = 15;

/// The fault of the server's stderr.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// A full pipe that is not read.
    Unread,
    /// A pipe whose reader has gone.
    Closed,
    /// /dev/full.
    FullDevice,
    /// A file system of 64 KiB.
    FullDisk,
    /// RLIMIT_FSIZE.
    FileLimit,
}

const FAULTS: [Fault; 5] =
    [Fault::Unread, Fault::Closed, Fault::FullDevice, Fault::FullDisk, Fault::FileLimit];

/// Shell commands before the server's start, and the redirection of its stderr.
impl Fault {
    fn prelude(self) -> &'static str {
        match self {
            Fault::Unread => "mkfifo \"$1.pipe\"; exec 3<>\"$1.pipe\"",
            Fault::Closed => "mkfifo \"$1.pipe\"; exec 3<>\"$1.pipe\" 4>\"$1.pipe\" 3<&-",
            Fault::FullDevice | Fault::FullDisk => ":",
            // 16 blocks of 512 bytes, most of which the file already uses.
            Fault::FileLimit => "head -c 7000 /dev/zero > \"$1.limited\"; ulimit -f 16",
        }
    }

    fn redirection(self, disk: &Path) -> String {
        match self {
            Fault::Unread => "2>&3 3<&-".into(),
            Fault::Closed => "2>&4 4>&-".into(),
            Fault::FullDevice => "2>/dev/full".into(),
            Fault::FullDisk => format!("2>>'{}/log'", disk.display()),
            Fault::FileLimit => "2>>\"$1.limited\"".into(),
        }
    }
}

pub fn round(seed: u64, tally: &mut Tally) -> Result<(), String> {
    let mut random = Random::new(seed);
    let fault = *random.pick(&FAULTS);
    let Some(mut stage) = LogStage::set(fault, &mut random, tally) else {
        eprintln!("logs: skipped: a full disk: mounting a file system needs root");
        tally.add("full disks skipped", 1);
        return Ok(());
    };
    for number in 0..if tally.is_short() { ACTIONS_SHORT } else { ACTIONS } {
        let (name, action) = *random.pick(&ACTIONS_OF_A_ROUND);
        action(&mut stage, &mut random).map_err(|why| format!("{fault:?}, {number}: {name}: {why}"))?;
        stage
            .input_and_output(&mut random)
            .map_err(|why| format!("{fault:?}, {number}, after {name}: {why}"))?;
        tally.add(name, 1);
        if !stage.server.lives() {
            return Err(format!("{fault:?}, {number}: {name}: the server has ended"));
        }
    }
    tally.add("reads checked", u64::from(CELLS) * u64::from(stage.checks));
    stage.end().map_err(|why| format!("{fault:?}: {why}"))
}

type Action = fn(&mut LogStage, &mut Random) -> Result<(), String>;

const ACTIONS_OF_A_ROUND: [(&str, Action); 9] = [
    ("logins", |stage, _| stage.logs_in()),
    ("logins", |stage, _| stage.logs_in()),
    ("refused logins", |stage, _| stage.is_refused()),
    ("reloads", |stage, _| stage.reloads()),
    ("bad reloads", |stage, random| stage.reloads_badly(random)),
    ("applied files", |stage, _| stage.applies()),
    ("bad files applied", |stage, _| stage.applies_badly()),
    ("commands", |stage, random| stage.commands(random)),
    ("changes of the log's state", |stage, _| stage.changes()),
];

/// A file system of 64 KiB, unmounted on drop.
struct SmallFileSystem(PathBuf);

impl SmallFileSystem {
    fn mount(folder: &Path) -> Option<SmallFileSystem> {
        mount("tmpfs", folder, "tmpfs", MountFlags::empty(), Some(c"size=64k")).ok()?;
        Some(SmallFileSystem(folder.to_owned()))
    }

    fn fill(&self) {
        let mut file = File::options().create(true).append(true).open(self.0.join("filler")).expect("a file");
        for part in [[0; 4096].as_slice(), &[0]] {
            while file.write(part).is_ok_and(|n| n > 0) {}
        }
    }

    fn clear(&self) {
        let _ = fs::remove_file(self.0.join("filler"));
    }
}

impl Drop for SmallFileSystem {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

struct LogStage {
    fault: Fault,
    server: Server,
    /// Declared after the server, so that it is unmounted later.
    disk: Option<SmallFileSystem>,
    /// For the files of commands.
    folder: Folder,
    session: Raw,
    cells: [u64; CELLS as usize],
    stamp: u64,
    checks: u32,
    /// Targets that reloads have added.
    extra: u32,
    is_faulty: bool,
}

/// A target with a disk, and another target unless `extra` is 0.
pub fn configuration(extra: u32) -> String {
    let mut toml = format!(
        "[session]\nnop_interval_s = 0\n[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\"]\n\
         [[target]]\nname = \"{TARGET}\"\n[[target.lun]]\nlun = 0\nbackend = \"memory\"\nsize = \"1MiB\"\n\
         serial = \"memory-0\"\n"
    );
    if extra > 0 {
        toml += &format!(
            "[[target]]\nname = \"{EXTRA}{extra}\"\n[[target.lun]]\nlun = 0\nbackend = \"null\"\nsize = \"1MiB\"\n"
        );
    }
    toml
}

/// Invalid configuration files.
pub const BAD: [&str; 3] =
    ["this is no configuration", "[[target]]\nname = \"no name\"\n", "[sever]\ncores = 1\n"];

impl LogStage {
    fn set(fault: Fault, random: &mut Random, tally: &Tally) -> Option<LogStage> {
        let folder = tally.folder();
        let place = folder.join("disk");
        fs::create_dir_all(&place).expect("a folder");
        let disk = match fault {
            Fault::FullDisk => Some(SmallFileSystem::mount(&place)?),
            _ => None,
        };
        let level = *random.pick(&["info", "debug", "trace"]);
        let prelude = format!("export LUNAR_LOG={level}\n{}", fault.prelude());
        let server = Server::start_by_shell(&configuration(0), &prelude, &fault.redirection(&place));
        let session = Login::new().on(server.portal());
        let cells = [0; CELLS as usize];
        let mut stage = LogStage {
            fault,
            server,
            disk,
            folder,
            session,
            cells,
            stamp: 0,
            checks: 0,
            extra: 0,
            is_faulty: true,
        };
        stage.session.clear_attentions(0);
        if fault == Fault::Unread {
            stage.fill_pipe();
        }
        if let Some(disk) = &stage.disk {
            disk.fill();
        }
        Some(stage)
    }

    /// The server's pipe, in non-blocking mode.
    fn pipe(&self) -> File {
        let mut options = File::options();
        options.read(true).write(true).custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed());
        options.open(self.server.dir().join("lunar.toml.pipe")).expect("the shell creates it")
    }

    fn fill_pipe(&self) {
        let mut pipe = self.pipe();
        for part in [[b'.'; 4096].as_slice(), b"."] {
            while pipe.write(part).is_ok() {}
        }
    }

    /// The server's output so far, as far as it can be read.
    fn log(&self) -> String {
        let mut bytes = Vec::new();
        match self.fault {
            Fault::Unread => {
                let error =
                    self.pipe().read_to_end(&mut bytes).expect_err("the server still holds the write end");
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
            }
            Fault::Closed | Fault::FullDevice => {}
            Fault::FullDisk => bytes = fs::read(self.folder.join("disk/log")).unwrap_or_default(),
            Fault::FileLimit => {
                bytes = fs::read(self.server.dir().join("lunar.toml.limited")).unwrap_or_default();
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn has_no_panic(&self) -> Result<(), String> {
        let log = self.log();
        let line = log.lines().find(|line| line.contains("panicked"));
        line.map_or(Ok(()), |line| Err(format!("the log has: {line}")))
    }

    /// Makes the log writable, or unwritable again, where the fault permits it.
    fn changes(&mut self) -> Result<(), String> {
        self.is_faulty = !self.is_faulty;
        match (self.fault, self.is_faulty) {
            (Fault::Unread, true) => self.fill_pipe(),
            (Fault::Unread, false) => self.has_no_panic()?,
            (Fault::FullDisk, true) => self.disk.iter().for_each(SmallFileSystem::fill),
            (Fault::FullDisk, false) => self.disk.iter().for_each(SmallFileSystem::clear),
            (Fault::Closed | Fault::FullDevice | Fault::FileLimit, _) => {}
        }
        Ok(())
    }

    fn input_and_output(&mut self, random: &mut Random) -> Result<(), String> {
        let (cell, lba) = (random.below(u64::from(CELLS)) as usize, 8);
        self.stamp += 1;
        let data = self.stamp.to_be_bytes().repeat(512);
        crate::late::put(&mut self.session, 0, cell as u32 * lba, &data)?;
        self.cells[cell] = self.stamp;
        let found = self.session.read_blocks(0, 0, (CELLS * lba) as u16);
        let expected: Vec<u8> = self.cells.iter().flat_map(|stamp| stamp.to_be_bytes().repeat(512)).collect();
        self.checks += 1;
        if found == expected { Ok(()) } else { Err("the disk holds something else".into()) }
    }

    fn logs_in(&mut self) -> Result<(), String> {
        let mut raw = Login::new().on(self.server.portal());
        raw.clear_attentions(0);
        raw.ping();
        raw.logout(0, 0);
        Ok(())
    }

    fn is_refused(&mut self) -> Result<(), String> {
        let login = Login::new().key("MaxBurstLength", "1");
        match login.try_on(self.server.portal()) {
            Err(0x0200) => Ok(()),
            other => Err(format!("a wrong login: {:?}", other.map(|_| "gets in"))),
        }
    }

    /// Waits until the target of the last valid file accepts a login.
    fn has_extra(&self) -> Result<(), String> {
        let login = Login::new().target(&format!("{EXTRA}{}", self.extra));
        let end = Instant::now() + NO_ANSWER;
        while login.try_on(self.server.portal()).is_err() {
            if Instant::now() > end {
                return Err(format!("target {EXTRA}{} does not come", self.extra));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn reloads(&mut self) -> Result<(), String> {
        self.extra += 1;
        self.server.rewrite(&configuration(self.extra));
        self.server.signal(SIGHUP);
        self.has_extra()
    }

    fn reloads_badly(&mut self, random: &mut Random) -> Result<(), String> {
        let bad: &str = random.pick::<&str>(&BAD);
        self.server.rewrite(bad);
        self.server.signal(SIGHUP);
        self.logs_in()
    }

    /// Writes a configuration with another target, and returns the path of a copy.
    fn new_file(&mut self) -> String {
        self.extra += 1;
        let extra = configuration(self.extra);
        self.server.rewrite(&extra);
        let file = self.folder.join("new.toml");
        fs::copy(self.server.dir().join("lunar.toml"), &file).expect("a file");
        file.display().to_string()
    }

    fn applies(&mut self) -> Result<(), String> {
        let file = self.new_file();
        let ran = self.server.asked(&["apply", &file]);
        is_status(&ran, 0)?;
        self.has_extra()
    }

    fn applies_badly(&mut self) -> Result<(), String> {
        let file = self.folder.join("bad.toml");
        fs::write(&file, BAD[0]).expect("a file");
        is_status(&self.server.asked(&["apply", &file.display().to_string()]), 1)
    }

    fn commands(&mut self, random: &mut Random) -> Result<(), String> {
        let table = streams::table(&self.folder, &self.server);
        let (words, prints, status) = random.pick(&table);
        let stdout = *random.pick(&[StderrKind::Taken, StderrKind::Closed, StderrKind::Full]);
        let stderr =
            *random.pick(&[StderrKind::Taken, StderrKind::Closed, StderrKind::Full, StderrKind::Unread]);
        let expected = if *prints && stdout == StderrKind::Full { 1 } else { *status };
        let ran = streams::runs(&self.folder, words, stdout, stderr);
        is_status(&ran, expected)
            .map_err(|why| format!("{words:?}, stdout {stdout:?}, stderr {stderr:?}: {why}"))
    }

    /// Shuts the server down; it must exit with status 0.
    fn end(mut self) -> Result<(), String> {
        self.session.logout(0, 0);
        self.server.signal(SIGTERM);
        let status = self.server.wait(NO_ANSWER);
        self.has_no_panic()?;
        if status.code() == Some(0) { Ok(()) } else { Err(format!("the server ended with {status:?}")) }
    }
}

fn is_status(ran: &ToolOutput, expected: i32) -> Result<(), String> {
    if ran.said.contains("panicked") || ran.status.and_then(|s| s.code()) != Some(expected) {
        let ended = ran.status.map_or("no end".into(), |status| status.to_string());
        return Err(format!("{ended} instead of {expected}: {}", ran.said));
    }
    Ok(())
}
