//! Servers and other programs that use one image or one identity.

use interop::tool::{self, Tool};
use interop::{Folder, Server, TARGET};
use rustix::fs::FlockOperation;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const QEMU_IO: Tool = Tool { program: "qemu-io", package: "qemu-utils" };
const LOSETUP: Tool = Tool { program: "losetup", package: "mount" };
const OTHER: &str = "iqn.2026-11.org.example:other";

fn configuration(target: &str, path: &Path, keys: &str) -> String {
    format!(
        "[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\"]\n[[target]]\nname = \"{target}\"\n\
         [[target.lun]]\nlun = 0\nbackend = \"file\"\npath = \"{}\"\n{keys}\n",
        path.display()
    )
}

/// A file of 1 MiB.
fn image(folder: &Folder, name: &str) -> std::path::PathBuf {
    let path = folder.join(name);
    File::create(&path).and_then(|file| file.set_len(1 << 20)).expect("an image");
    path
}

/// The exit status of `lunar`, and its output.
fn lunar(arguments: &[&str]) -> (i32, String) {
    let (out, err, status) = interop::command::lunar(arguments);
    (status, out + &err)
}

/// qemu-io with an image open, until it is dropped.
struct QemuIo(Child);

impl QemuIo {
    fn open(path: &Path, how: &[&str]) -> QemuIo {
        let mut command = Command::new("qemu-io");
        let command = command.args(how).args(["-f", "raw"]).arg(path);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("qemu-io");
        let end = Instant::now() + Duration::from_secs(30);
        while !fdinfo(child.id()).contains("OFDLCK") {
            assert!(Instant::now() < end, "qemu-io takes no lock");
            std::thread::sleep(Duration::from_millis(5));
        }
        QemuIo(child)
    }
}

impl Drop for QemuIo {
    fn drop(&mut self) {
        _ = self.0.stdin.take().map(|mut stdin| stdin.write_all(b"quit\n"));
        _ = self.0.wait();
    }
}

fn fdinfo(pid: u32) -> String {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten();
    entries.filter_map(|entry| std::fs::read_to_string(entry.path()).ok()).collect()
}

/// A loop device over an image, detached on drop.
struct Loop(String);

impl Loop {
    fn over(path: &str) -> Loop {
        let device = tool::must("losetup", &["--find", "--show", "--read-only", path]);
        Loop(device.trim().into())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        _ = tool::run(Command::new("losetup").args(["--detach", &self.0]), Duration::from_secs(30));
    }
}

#[test]
fn image_that_qemu_writes_is_refused_by_name() {
    if !tool::have(&[QEMU_IO]) {
        return;
    }
    let folder = Folder::fresh();
    let (disk, other) = (image(&folder, "vm.img"), image(&folder, "other.img"));
    let qemu = QemuIo::open(&disk, &[]);
    let by = format!("by another program: qemu-io (process {})", qemu.0.id());
    let toml = configuration(TARGET, &disk, "");
    let said = Server::refused(&folder, &toml);
    assert!(said.contains(&format!("is in use {by}")), "{said}");
    let said = Server::refused(&folder, &configuration(TARGET, &disk, "read_only = true"));
    assert!(said.contains(&format!("is being written {by}")), "{said}");
    let [disk, other] = [&disk, &other].map(|path| path.to_str().expect("a path"));
    std::fs::write(folder.join("check.toml"), &toml).expect("written");
    let check = folder.join("check.toml");
    let commands: [&[&str]; 4] = [
        &["copy", other, disk, "--force"],
        &["copy", disk, other, "--force"],
        &["bench", "randwrite", disk, "--runtime", "1s"],
        &["check", "--media", check.to_str().expect("a path")],
    ];
    for command in commands {
        let (status, said) = lunar(command);
        assert!(said.contains(&by), "{command:?}: {said}");
        assert_ne!(status, 0, "{command:?}: {said}");
    }
    drop(qemu);
    Server::start_in(folder, &toml);
}

/// Locks an image.
type Lock = fn(&File) -> std::io::Result<()>;

/// By flock, and by fcntl over the whole file, as other programs lock images.
#[test]
fn image_locked_by_another_is_neither_copied_nor_benched() {
    let flock = |file: &File| file.lock();
    let fcntl = |file: &File| Ok(rustix::fs::fcntl_lock(file, FlockOperation::NonBlockingLockExclusive)?);
    let kinds: [(&str, Lock); 2] = [("flock", flock), ("fcntl", fcntl)];
    for (kind, lock) in kinds {
        let folder = Folder::fresh();
        let [disk, other] = ["disk.img", "other.img"].map(|name| image(&folder, name));
        let file = File::options().read(true).write(true).open(&disk).expect("the image");
        lock(&file).expect("a lock");
        let [disk, other] = [&disk, &other].map(|path| path.to_str().expect("a path"));
        let commands: [&[&str]; 4] = [
            &["copy", other, disk, "--force"],
            &["copy", disk, other, "--force"],
            &["bench", "randwrite", disk, "--runtime", "50ms"],
            &["bench", "randread", disk, "--runtime", "50ms"],
        ];
        for command in commands {
            let (status, said) = lunar(command);
            assert_ne!(status, 0, "{kind}: {command:?}: {said}");
            assert!(said.contains(&format!("process {}", std::process::id())), "{kind}: {command:?}: {said}");
        }
        drop(file);
        for command in commands {
            let (status, said) = lunar(command);
            assert_eq!(status, 0, "{kind}: {command:?}: {said}");
        }
    }
}

#[test]
fn image_that_qemu_reads_is_served_to_read() {
    if !tool::have(&[QEMU_IO]) {
        return;
    }
    let folder = Folder::fresh();
    let disk = image(&folder, "vm.img");
    let _qemu = QemuIo::open(&disk, &["-r"]);
    Server::start_in(folder, &configuration(TARGET, &disk, "read_only = true"));
}

/// Backup programs and databases hold such a lock while they read.
#[test]
fn whole_file_read_lock_leaves_readers_alone() {
    let folder = Folder::fresh();
    let disk = image(&folder, "disk.img");
    let reader = File::open(&disk).expect("an image");
    rustix::fs::fcntl_lock(&reader, FlockOperation::NonBlockingLockShared).expect("a lock");
    let qemu = tool::have(&[QEMU_IO]).then(|| image(&folder, "qemu.img"));
    let said = Server::refused(&folder, &configuration(TARGET, &disk, ""));
    assert!(said.contains("is in use by another program: "), "a writer: {said}");
    let (path, check) = (disk.to_str().expect("a path"), folder.join("check.toml"));
    let toml = configuration(TARGET, &disk, "read_only = true");
    std::fs::write(&check, &toml).expect("written");
    for command in [["copy", path, "null:1M"], ["check", "--media", check.to_str().expect("a path")]] {
        let (status, said) = lunar(&command);
        assert_eq!(status, 0, "{command:?}: {said}");
    }
    if let Some(image) = qemu {
        let _qemu = QemuIo::open(&image, &[]);
        let locked = File::open(&image).expect("an image");
        rustix::fs::fcntl_lock(&locked, FlockOperation::NonBlockingLockShared).expect("a lock");
        let said = Server::refused(&folder, &configuration(TARGET, &image, "read_only = true"));
        assert!(said.contains("is being written by another program"), "QEMU writes: {said}");
    }
    Server::start_in(folder, &toml);
    drop(reader);
}

#[test]
fn qemu_finds_that_a_served_image_is_locked() {
    if !tool::have(&[QEMU_IO]) {
        return;
    }
    let folder = Folder::fresh();
    let disk = image(&folder, "disk.img");
    let server = Server::start_in(folder, &configuration(TARGET, &disk, ""));
    let mut write = Command::new("qemu-io");
    write.args(["-f", "raw", "-c", "write 0 512"]).arg(&disk);
    let ran = tool::run(&mut write, Duration::from_secs(30));
    assert!(!ran.ok() && ran.said.contains("Failed to get \"write\" lock"), "{}", ran.said);
    drop(server);
}

#[test]
fn image_below_a_loop_device_is_refused() {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root || !Path::new("/dev/loop-control").exists() {
        return println!("skipped: needs root and loop devices");
    }
    if !tool::have(&[LOSETUP]) {
        return;
    }
    let folder = Folder::fresh();
    let disk = image(&folder, "disk.img");
    let path = disk.to_str().expect("a path");
    // The file name of the loop device is gone, but the kernel still knows the file.
    let alias = folder.join("alias.img");
    std::fs::hard_link(&disk, &alias).expect("create another name");
    let device = Loop::over(alias.to_str().expect("a path"));
    std::fs::remove_file(alias).expect("remove that name");
    let said = Server::refused(&folder, &configuration(TARGET, &disk, ""));
    let copied = lunar(&["copy", path, "null:1M"]);
    assert!(said.contains(&format!("is in use by the loop device {}", device.0)), "{said}");
    assert!(said.contains(&format!("losetup -d {}", device.0)), "{said}");
    assert_eq!(copied.0, 0, "two readers: {}", copied.1);
}

/// A mount, unmounted on drop.
struct Mount(String);

impl Drop for Mount {
    fn drop(&mut self) {
        _ = tool::run(Command::new("umount").arg(&self.0), Duration::from_secs(30));
    }
}

/// A copy is allowed, as a read-only LUN would be, but it may be inconsistent.
#[test]
fn copy_of_a_device_mounted_for_writing_warns() {
    const MKFS: Tool = Tool { program: "mkfs.ext4", package: "e2fsprogs" };
    if !rustix::process::geteuid().is_root() || !tool::have(&[LOSETUP, MKFS]) {
        return;
    }
    let folder = Folder::fresh();
    let disk = image(&folder, "fs.img");
    let place = folder.join("mnt");
    std::fs::create_dir(&place).expect("a folder");
    let [path, place] = [&disk, &place].map(|path| path.to_str().expect("a path").to_owned());
    tool::must("mkfs.ext4", &["-q", &path]);
    let device = Loop(tool::must("losetup", &["--find", "--show", &path]).trim().into());
    let copy = || lunar(&["copy", &device.0, "null:1M"]);
    for (options, warns) in [("rw", true), ("ro", false)] {
        tool::must("mount", &["-o", options, &device.0, &place]);
        let mount = Mount(place.clone());
        let (status, said) = copy();
        let warning = format!("warning: {} is mounted on {place}", device.0);
        assert_eq!((status, said.contains(&warning)), (0, warns), "{options}: {said}");
        drop(mount);
    }
    assert!(!copy().1.contains("warning"));
}

fn until_logged(server: &Server, text: &str, times: usize) {
    let end = Instant::now() + Duration::from_secs(30);
    while server.log().matches(text).count() < times {
        assert!(Instant::now() < end, "{}", server.log());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Deletes a folder in which the server may create a file meanwhile.
fn delete_folder(folder: &Path) {
    let end = Instant::now() + Duration::from_secs(30);
    while let Err(error) = std::fs::remove_dir_all(folder) {
        assert!(error.kind() == ErrorKind::DirectoryNotEmpty && Instant::now() < end, "{error}");
    }
}

#[test]
fn deleted_state_folder_lets_no_second_server_in() {
    let (folder, second) = (Folder::fresh(), Folder::fresh());
    let (a, b, state) = (image(&folder, "a.img"), image(&folder, "b.img"), folder.join("state"));
    let with = |path| {
        format!("[server]\nstate_dir = \"{}\"\n", state.display())
            + &configuration(TARGET, path, "serial = \"1\"")
    };
    let server = Server::start(&with(&a));
    let process = format!("is in use by process {} (", server.pid());
    let lock = state.join("servers/0.lock");
    let refused = || {
        let said = Server::refused(&second, &with(&b));
        assert!(said.contains("is in use by "), "{said}");
    };
    delete_folder(&state);
    refused();
    until_logged(&server, "the lock file was deleted or replaced; the server has locked it again", 1);
    std::fs::remove_file(&lock).expect("deleted");
    refused();
    until_logged(&server, "the lock file was deleted or replaced; the server has locked it again", 2);
    let log = server.log();
    assert!(log.lines().any(|line| line.contains("ERROR") && line.contains("0.lock")), "{log}");
    let said = Server::refused(&second, &with(&b));
    assert!(said.contains(&process), "the message names the process again: {said}");
    drop(server);
    Server::start(&with(&b));
}

#[test]
fn two_servers_of_one_identity_are_refused_with_both_places() {
    let (folder, second) = (Folder::fresh(), Folder::fresh());
    let (a, b) = (image(&folder, "a.img"), image(&folder, "b.img"));
    let state = format!("[server]\nstate_dir = \"{}\"\n", folder.join("state").display());
    let with = |target, path, keys| state.clone() + &configuration(target, path, keys);
    let mut server = Server::start(&with(TARGET, &a, "serial = \"1\""));
    let process = format!("is in use by process {} (", server.pid());
    let first = format!("for {}, LUN 0 of {TARGET}; here it is for {}", a.display(), b.display());
    let cases = [
        (TARGET, "", "the state "),
        (TARGET, "serial = \"2\"", "the state "),
        (OTHER, "serial = \"1\"", "the serial number 1 "),
    ];
    for (target, keys, what) in cases {
        let said = Server::refused(&second, &with(target, &b, keys));
        let parts = [what, &process, &first];
        assert!(parts.iter().all(|part| said.contains(part)), "{keys}: {said}");
    }
    server.rewrite(&with(TARGET, &a, "serial = \"3\""));
    server.signal(1);
    until_logged(&server, "lunar.toml reloaded", 1);
    let said = Server::refused(&second, &with(TARGET, &b, ""));
    assert!(said.contains(&process), "a reload keeps the lock: {said}");
    let _other = Server::start(&with(OTHER, &b, "serial = \"1\""));
    server.kill9();
    let again = Server::start(&with(TARGET, &a, "serial = \"3\""));
    assert!(!again.log().contains("WARN"), "a killed server holds no lock: {}", again.log());
}
