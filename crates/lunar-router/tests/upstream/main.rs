//! Logical units of other targets as storage: lost targets and paths, changed identities, and the SCSI errors that hosts
//! get.
#![forbid(unsafe_code)]

mod answers;
mod away;
mod identity;
mod seen;

use interop::{Pdu, Server, op};
use lunar_block::Backend;
use lunar_initiator::Url;
use lunar_router::loops::LoopDetector;
use lunar_router::upstream::{Health, Upstream, UpstreamLu, probe};
use lunar_runtime::{Buf, Cores};
use lunar_target::ScsiError;
use lunar_wire::scsi::{Sense, Status};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The time after which a test counts as hung.
const LIMIT: Duration = Duration::from_secs(30);
/// The length of an operation in bytes.
const LEN: usize = 4096;

/// Runs `work` on its own event loop.
fn run<T: Send + 'static, W: Future<Output = T> + 'static>(work: impl FnOnce() -> W + Send + 'static) -> T {
    let with_rate_limit =
        move || async move { compio::time::timeout(LIMIT, work()).await.expect("the test hangs") };
    Cores::one().expect("an event loop").wait(0, with_rate_limit).expect("an event loop")
}

/// An upstream with these URLs and this path loss timeout.
fn upstream(urls: &[String], hold_ms: u64) -> Upstream {
    let urls = urls.iter().map(|url| Url::parse(url).expect("a URL")).collect::<Vec<_>>();
    Upstream { path_loss_timeout: Duration::from_millis(hold_ms), ..Upstream::new("r1", "a", urls) }
}

/// The only LUN of an upstream, from a probe.
async fn open(upstream: &Upstream) -> Arc<UpstreamLu> {
    let found = probe(upstream, &LoopDetector::default()).await.expect("a reachable upstream");
    let [target] = &found[..] else { panic!("one target, not {found:?}") };
    let (lun, what) = target.luns.first_key_value().expect("a LUN");
    UpstreamLu::open(upstream, &target.name, *lun, what.clone()).expect("a disk")
}

/// A server with one disk of 16 MiB.
fn server() -> Server {
    Server::start(&format!(
        "[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\"]\n[[target]]\nname = \"{}\"\n\
         [[target.lun]]\nlun = 0\nbackend = \"file\"\npath = \"disk.img\"\nsize = \"16MiB\"\n",
        interop::TARGET
    ))
}

fn url(portal: impl std::fmt::Display) -> String {
    format!("iscsi://{portal}/{}/0", interop::TARGET)
}

/// A block that is unique to its number.
fn block(n: u64) -> Buf {
    let mut buf = Buf::zeroed(LEN);
    buf.chunks_mut(8).for_each(|c| c.copy_from_slice(&n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()));
    buf
}

async fn write(disk: &UpstreamLu, n: u64) -> io::Result<()> {
    disk.write(n * LEN as u64, block(n), false).await.0
}

async fn read(disk: &UpstreamLu, n: u64) -> io::Result<Buf> {
    let (result, buf) = disk.read(n * LEN as u64, Buf::zeroed(LEN)).await;
    result.map(|()| buf)
}

/// The status and sense data in the response to a host.
fn status_and_sense(result: io::Result<impl Sized>) -> (Status, Option<(u8, u8, u8)>) {
    let e = result.err().expect("a failure");
    let error = ScsiError::of(&e).unwrap_or_else(|| panic!("no SCSI error: {e}"));
    (error.status, error.sense.map(|s| (s.key, s.asc, s.ascq)))
}

const TRANSITION: (Status, Option<(u8, u8, u8)>) = (Status::CheckCondition, Some((2, 0x04, 0x0a)));
const MANUAL: (Status, Option<(u8, u8, u8)>) = (Status::CheckCondition, Some((2, 0x04, 0x03)));

async fn pause(ms: u64) {
    compio::time::sleep(Duration::from_millis(ms)).await;
}

fn is(pdu: &Pdu, code: u8) -> bool {
    pdu.opcode() == op::SCSI && pdu.bhs[32] == code
}
