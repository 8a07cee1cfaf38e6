//! Two servers in network namespaces of their own, a device that one of them may write, and a volume that one of them has
//! mounted. The device stands for DRBD: a file with one loop device for each server, of which all but one are
//! write-protected. DRBD rejects the open itself on the side that is secondary.

use crate::namespace::Namespace;
use crate::server::{Folder, Server};
use crate::tool::{self, Tool, must};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const TOOLS: [Tool; 7] = [
    Tool { program: "ip", package: "iproute2" },
    Tool { program: "nsenter", package: "util-linux" },
    Tool { program: "losetup", package: "mount" },
    Tool { program: "blockdev", package: "util-linux" },
    Tool { program: "fsfreeze", package: "util-linux" },
    Tool { program: "mkfs.ext4", package: "e2fsprogs" },
    Tool { program: "mount", package: "mount" },
];
const LIMIT: Duration = Duration::from_secs(60);

/// The shared media, and the places of two servers. Dropping it removes all of them.
pub struct TwoServers {
    dir: Folder,
    namespaces: [Namespace; 2],
    /// The loop devices of the two servers.
    devices: Vec<String>,
    mounted_at: Option<usize>,
}

impl TwoServers {
    /// Makes namespaces, devices and the volume. None: not possible here, which is printed.
    pub fn new() -> Option<TwoServers> {
        if !tool::have(&TOOLS) {
            return None;
        }
        let namespaces = Namespace::new(1).and_then(|one| Ok([one, Namespace::new(1)?]));
        let namespaces = namespaces
            .map_err(|what| println!("skipped: needs root with network namespaces: {}", what.trim()))
            .ok()?;
        if !Path::new("/dev/loop-control").exists() {
            println!("skipped: needs loop devices");
            return None;
        }
        let mut two = TwoServers { dir: Folder::fresh(), namespaces, devices: Vec::new(), mounted_at: None };
        two.make_media();
        Some(two)
    }

    fn make_media(&mut self) {
        let (array, volume) = (self.dir.join("array.img"), self.dir.join("volume.img"));
        for (path, bytes) in [(&array, 96 << 20), (&volume, 16 << 20)] {
            image(path, bytes);
            must("mkfs.ext4", &["-q", "-F", &shown(path)]);
        }
        fs::create_dir(self.array()).expect("a mount point");
        mount(&array, &self.array());
        let disk = self.array().join("disk.img");
        image(&disk, 64 << 20);
        for side in 0..2 {
            self.devices.push(loop_device(&disk));
            fs::create_dir_all(self.volume(side)).expect("a mount point");
        }
        self.fence();
        // The state is in a folder of the volume, which exists only while it is mounted.
        self.mount(0);
        fs::create_dir(self.volume(0).join("state")).expect("a folder");
        self.unmount();
    }

    /// The name of the network namespace of a server.
    pub fn namespace(&self, side: usize) -> &str {
        self.namespaces[side].name()
    }

    /// An address of the link of a server: 1 is that of this host, and 2 that of the server.
    pub fn address(&self, side: usize, end: u8) -> String {
        self.namespaces[side].address(0, end)
    }

    /// The device of a server.
    pub fn device(&self, side: usize) -> &str {
        &self.devices[side]
    }

    /// The mount point of the volume at a server.
    pub fn volume(&self, side: usize) -> PathBuf {
        self.dir.join(format!("volume-{side}"))
    }

    /// The file system with the file of the devices.
    fn array(&self) -> PathBuf {
        self.dir.join("array")
    }

    /// Lets the devices answer no write and no flush until the result is dropped. Drop it before the servers.
    pub fn freeze(&self) -> FrozenArray {
        must("fsfreeze", &["--freeze", &shown(&self.array())]);
        FrozenArray(self.array())
    }

    /// Lets no server write.
    pub fn fence(&self) {
        self.devices.iter().for_each(|device| _ = must("blockdev", &["--setro", device]));
    }

    /// Gives device and volume to one server. It fails if another one still has them open.
    pub fn give(&mut self, side: usize) {
        self.unmount();
        self.fence();
        must("blockdev", &["--setrw", &self.devices[side]]);
        self.mount(side);
    }

    fn mount(&mut self, side: usize) {
        mount(&self.dir.join("volume.img"), &self.volume(side));
        self.mounted_at = Some(side);
    }

    /// Unmounts the volume, which fails while a server has a file of it open.
    pub fn unmount(&mut self) {
        if let Some(side) = self.mounted_at.take() {
            must("umount", &[&shown(&self.volume(side))]);
        }
    }

    /// Starts the server of a side with this configuration, in its network namespace and in a folder of its own.
    pub fn start(&self, side: usize, dir: Folder, toml: &str) -> Server {
        Server::start_by(self.namespaces[side].command(), dir, toml)
    }

    /// The descriptors of a process that lead to the shared media, except those of its log.
    pub fn opened_by(&self, pid: u32) -> Vec<PathBuf> {
        let all = fs::read_dir(format!("/proc/{pid}/fd")).expect("the process lives").flatten();
        let paths = all.filter_map(|entry| fs::read_link(entry.path()).ok());
        let is_shared = |path: &PathBuf| {
            self.devices.iter().any(|device| path == Path::new(device)) || path.starts_with(&*self.dir)
        };
        paths.filter(is_shared).collect()
    }
}

/// Devices that answer nothing.
pub struct FrozenArray(PathBuf);

impl Drop for FrozenArray {
    fn drop(&mut self) {
        must("fsfreeze", &["--unfreeze", &shown(&self.0)]);
    }
}

impl Drop for TwoServers {
    fn drop(&mut self) {
        // A missing object is not an error here.
        let quietly = |program: &str, arguments: &[&str]| {
            tool::run(Command::new(program).args(arguments), LIMIT);
        };
        for side in 0..2 {
            quietly("umount", &[&shown(&self.volume(side))]);
        }
        // A loop device keeps its write protection for its next user.
        for device in &self.devices {
            quietly("blockdev", &["--setrw", device]);
            quietly("losetup", &["--detach", device]);
        }
        quietly("umount", &[&shown(&self.array())]);
    }
}

/// A new loop device of a file. Another process may take the device that is free.
fn loop_device(file: &Path) -> String {
    let end = Instant::now() + LIMIT;
    loop {
        match try_run("losetup", &["--find", "--show", &shown(file)]) {
            Ok(device) => {
                let device = device.trim().to_owned();
                must("blockdev", &["--setrw", &device]);
                return device;
            }
            Err(what) => assert!(Instant::now() < end, "{what}"),
        }
    }
}

/// Makes a sparse file of this size.
fn image(path: &Path, bytes: u64) {
    fs::File::create(path).and_then(|file| file.set_len(bytes)).expect("an image");
}

/// Mounts a file system that is in a file. `mount -o loop` would accept a loop device with the write protection of its
/// former user.
fn mount(image: &Path, place: &Path) {
    let device = loop_device(image);
    must("mount", &["-w", &device, &shown(place)]);
    // It is free after the unmount.
    must("losetup", &["--detach", &device]);
}

fn try_run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let ran = tool::run(Command::new(program).args(arguments), LIMIT);
    if ran.ok() { Ok(ran.said) } else { Err(format!("{program} {}: {}", arguments.join(" "), ran.said)) }
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}
