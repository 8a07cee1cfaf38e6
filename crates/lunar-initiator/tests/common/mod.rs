//! Shared helpers of the tests with scripted targets.
#![allow(dead_code, reason = "each test takes what it needs")]

use interop::script::Target;
use interop::{Pdu, op};
use lunar_initiator::{Lun, Url};
use lunar_runtime::Cores;
use std::sync::Arc;
use std::time::Duration;

pub const READ_10: u8 = 0x28;
pub const WRITE_10: u8 = 0x2a;

/// Runs `work` on its own event loop. Panics after `limit`.
pub fn run<T: Send + 'static, W: Future<Output = T> + 'static>(
    limit: Duration,
    work: impl FnOnce() -> W + Send + 'static,
) -> T {
    let limited = move || async move { compio::time::timeout(limit, work()).await.expect("the test hangs") };
    Cores::one().expect("an event loop").wait(0, limited).expect("an event loop")
}

/// The same with a LUN of a target.
pub fn with_disk<T: Send + 'static, W: Future<Output = T> + 'static>(
    limit: Duration,
    target: &Target,
    settings: &str,
    work: impl FnOnce(Arc<Lun>) -> W + Send + 'static,
) -> T {
    let url = Url::parse(&target.url(settings)).expect("a URL");
    run(limit, move || async move { work(lunar_initiator::open(&url).await.expect("a LUN")).await })
}

/// Whether a PDU is a command with this operation code.
pub fn is(pdu: &Pdu, code: u8) -> bool {
    pdu.opcode() == op::SCSI && pdu.bhs[32] == code
}
