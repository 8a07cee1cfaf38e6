//! STGT as a server under test.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::ceph::{Cluster, POOL};
use super::server::{BenchServer, CORE, START, TARGET, fresh_dir, pinned};

/// The store of LUN 1 of STGT; its LUN 0 is a controller.
#[derive(Clone, Copy, Debug)]
pub enum StgtStore<'a> {
    /// `bs_null`
    Null,
    /// A file by `bs_rdwr`
    File(&'a Path),
    /// An image of a Ceph cluster by `bs_rbd`, with a number of threads
    Rbd(&'a Cluster, &'a str, u32),
}

impl StgtStore<'_> {
    /// The daemon on its cores: librbd has threads of its own, which use all.
    fn command(self) -> Command {
        let StgtStore::Rbd(_, _, threads) = self else { return pinned(Path::new("tgtd")) };
        let mut command = Command::new("tgtd");
        command.args(["-t", &threads.to_string()]);
        command
    }

    /// The options of tgtadm.
    fn options(self) -> Vec<String> {
        let options = |kind: &str, path: String| vec!["-E".into(), kind.into(), "-b".into(), path];
        match self {
            StgtStore::Null => options("null", "/dev/null".into()),
            StgtStore::File(path) => options("rdwr", path.display().to_string()),
            StgtStore::Rbd(cluster, image, _) => {
                let conf = format!("conf={};id=admin", cluster.conf().display());
                [options("rbd", format!("{POOL}/{image}")), vec!["-S".into(), conf]].concat()
            }
        }
    }
}

/// Starts STGT.
pub fn start(store: StgtStore) -> Result<BenchServer> {
    let dir = fresh_dir("stgt")?;
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
    let portal = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let admin = Tgtadm { control: (port % 30_000 + 1000).to_string(), socket: dir.join("control") };
    let mut command = store.command();
    command.args(["-f", "-C", &admin.control, "--iscsi", &format!("portal={portal}")]);
    command.env("TGT_IPC_SOCKET", &admin.socket).stdout(Stdio::null()).stderr(Stdio::null());
    let child = command.spawn().context("cannot run tgtd")?;
    let server = BenchServer { child, dir, portal, target: TARGET.into(), lun: 1, cores: CORE };
    admin.wait()?;
    admin.run(&["--mode", "target", "--op", "new", "--tid", "1", "-T", TARGET])?;
    let (lun, options) =
        (["--mode", "logicalunit", "--op", "new", "--tid", "1", "--lun", "1"], store.options());
    admin.run(&[&lun[..], &options.iter().map(String::as_str).collect::<Vec<_>>()].concat())?;
    admin.run(&["--mode", "target", "--op", "bind", "--tid", "1", "-I", "ALL"])?;
    Ok(server)
}

/// Runs tgtadm for one tgtd.
struct Tgtadm {
    control: String,
    socket: PathBuf,
}

impl Tgtadm {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("tgtadm");
        command
            .args(["-C", &self.control, "--lld", "iscsi"])
            .args(arguments)
            .env("TGT_IPC_SOCKET", &self.socket);
        command
    }

    fn run(&self, arguments: &[&str]) -> Result<()> {
        let output = self.command(arguments).output()?;
        ensure!(output.status.success(), "tgtadm {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    fn wait(&self) -> Result<()> {
        let end = Instant::now() + START;
        while Instant::now() < end {
            if self.run(&["--mode", "target", "--op", "show"]).is_ok() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        bail!("tgtd does not respond")
    }
}
