//! What the tests against scripted targets share.
#![allow(dead_code, reason = "each test takes what it needs")]

use interop::script::Target;
use interop::{Pdu, op};
use lunar_initiator::{Lun, Url};
use lunar_runtime::Cores;
use std::sync::Arc;
use std::time::Duration;

pub const READ_10: u8 = 0x28;
pub const WRITE_10: u8 = 0x2a;

/// Does something on an event loop of its own; what takes longer than `limit` hangs.
pub fn run<T: Send + 'static, W: Future<Output = T> + 'static>(
    limit: Duration,
    work: impl FnOnce() -> W + Send + 'static,
) -> T {
    let limited = move || async move { compio::time::timeout(limit, work()).await.expect("it hangs") };
    Cores::one().expect("an event loop").wait(0, limited).expect("an event loop")
}

/// The same with the disk of a target.
pub fn with_disk<T: Send + 'static, W: Future<Output = T> + 'static>(
    limit: Duration,
    target: &Target,
    settings: &str,
    work: impl FnOnce(Arc<Lun>) -> W + Send + 'static,
) -> T {
    let url = Url::parse(&target.url(settings)).expect("a URL");
    run(limit, move || async move { work(lunar_initiator::open(&url).await.expect("a LUN")).await })
}

/// It is a command with this operation code.
pub fn is(pdu: &Pdu, code: u8) -> bool {
    pdu.opcode() == op::SCSI && pdu.bhs[32] == code
}
