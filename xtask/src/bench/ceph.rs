//! A Ceph cluster of one node, started by `interop/src/bin/ceph.rs`.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::initiator::after;
use super::load::BlastLoad;

/// The pool of the cluster.
pub const POOL: &str = "rbd";

/// A running cluster, whose clients have no cache of librbd. It ends on drop.
#[derive(Debug)]
pub struct Cluster {
    child: Child,
    conf: PathBuf,
}

impl Cluster {
    /// Starts the cluster.
    pub fn start(program: &Path) -> Result<Cluster> {
        let mut command = Command::new(program);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("piped")?).read_line(&mut line)?;
        let cluster = Cluster { child, conf: line.trim().into() };
        ensure!(cluster.conf.is_file(), "the cluster of Ceph does not start");
        Ok(cluster)
    }

    /// The configuration file.
    pub fn conf(&self) -> &Path {
        &self.conf
    }

    /// The image as a target of `lunar bench`.
    pub fn target(&self, image: &str) -> String {
        format!("rbd:{POOL}/{image}:conf={}", self.conf.display())
    }

    /// Creates an image of `mib` MiB with the feature layering.
    pub fn create(&self, image: &str, mib: u32) -> Result<()> {
        let size = format!("{mib}M");
        self.rbd(image, &["create", "--size", &size, "--image-feature", "layering"])?;
        Ok(())
    }

    /// Writes all of the image.
    pub fn fill(&self, image: &str, mib: u32) -> Result<()> {
        let total = format!("{mib}M");
        let write =
            ["bench", "--io-type", "write", "--io-pattern", "seq", "--io-size", "4M", "--io-threads", "4"];
        self.rbd(image, &[&write[..], &["--io-total", &total]].concat())?;
        Ok(())
    }

    /// The rate of `rbd bench` for a number of random commands. It knows no time limit.
    pub fn rbd_bench(&self, image: &str, load: &BlastLoad, ios: u64) -> Result<f64> {
        let [depth, bytes, total] =
            [load.depth.into(), load.bytes.into(), ios * u64::from(load.bytes)].map(|n: u64| n.to_string());
        let work = ["bench", "--io-type", load.op, "--io-pattern", "rand", "--io-size", &bytes];
        let said = self.rbd(image, &[&work[..], &["--io-threads", &depth, "--io-total", &total]].concat())?;
        // The last line: elapsed: N   ops: N   ops/sec: N   bytes/sec: N
        after(said.lines().last().unwrap_or_default(), "ops/sec:")
    }

    fn rbd(&self, image: &str, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new("rbd");
        command.arg("-c").arg(&self.conf).args(arguments).arg(format!("{POOL}/{image}"));
        let output = command.output().context("cannot run rbd")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "rbd {arguments:?}: {said}");
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}
