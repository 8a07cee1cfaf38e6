//! Changes of a logical unit while it is in use.

mod piped;

use super::*;
use crate::Url;
use interop::script::{HookAction, Script};
use lunar_block::Backend;
use lunar_runtime::Buf;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

const READ_10: u8 = 0x28;
const MODE_SENSE_10: u8 = 0x5a;

fn inside<T: 'static>(test: impl Future<Output = T>) -> T {
    let limited =
        async { compio::time::timeout(Duration::from_secs(20), test).await.expect("the test hangs") };
    compio::runtime::Runtime::new().expect("an event loop").block_on(limited)
}

async fn open(script: Script) -> (Arc<Lun>, interop::script::Target) {
    let target = script.listen();
    let url = Url::parse(&target.url("")).expect("a URL");
    (crate::open(&url).await.expect("a LUN"), target)
}

/// Here no event ends the task, only the drop of the `Lun`.
#[test]
fn event_task_of_a_lun_ends_with_it() {
    inside(async {
        let (first, _target) = open(Script::new()).await;
        let session = first.session();
        let inspected =
            Lun::inspect_and_hold(session, first.address(), first.number()).await.expect("the properties");
        let (sender, events) = flume::bounded(1);
        let lun = Lun::begin(session, first.number(), inspected, events);
        drop(lun);
        while !sender.is_disconnected() {
            compio::time::sleep(Duration::from_millis(1)).await;
        }
    });
}

/// The write cache is disabled, but not in the saved mode page: a reset enables it.
#[test]
fn reset_rereads_whether_writes_are_stable() {
    let resets = Arc::new(AtomicU64::new(0));
    let reset_count = resets.clone();
    let script = Script::new().hook(move |link, pdu| {
        match (pdu.opcode() == interop::op::SCSI).then(|| pdu.bhs[32]) {
            Some(MODE_SENSE_10) => {
                let wce = if reset_count.load(SeqCst) > 0 { 4 } else { 0 };
                let mut page = [0; 28];
                (page[1], page[8], page[9], page[10]) = (26, 0x08, 0x12, wce);
                link.data_in(pdu, &page);
            }
            Some(READ_10) if reset_count.fetch_add(1, SeqCst) == 0 => {
                link.check_condition(pdu, [6, 0x29, 0x02])
            }
            _ => return HookAction::Usual,
        }
        HookAction::Done
    });
    inside(async {
        let (lun, _target) = open(script).await;
        assert!(lun.info().write_through);
        lun.read(0, Buf::zeroed(512)).await.0.expect("a retried read");
        assert_eq!(resets.load(SeqCst), 2);
        while lun.info().write_through {
            compio::time::sleep(Duration::from_millis(1)).await;
        }
    });
}
