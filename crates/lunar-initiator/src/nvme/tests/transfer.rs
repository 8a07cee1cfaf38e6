//! A limit of data in a command (MDTS) that changes when the host connects again.

use super::reconnect::{futures_poll, until};
use super::scripted::{ScriptedController, on_a_core, options};
use crate::nvme::{NvmeController, NvmeNamespace, NvmeOptions};
use crate::{Backend, Buf};
use std::future::poll_fn;
use std::time::{Duration, Instant};

const KIB: usize = 1 << 10;

/// The controller does not answer, until it connects with this limit.
fn reconnect_with(script: &ScriptedController, transfer: u8) {
    let mut script = script.script();
    (script.transfer, script.silent_from) = (transfer, usize::MAX);
    script.seen.clear();
    script.cut();
}

#[test]
fn waiting_commands_are_split_for_a_smaller_limit() {
    for io_queues in [1, 2] {
        let controller = ScriptedController::start();
        (controller.script().transfer, controller.script().queues) = (2, (2, 2));
        let script = controller.clone();
        on_a_core(move || async move {
            // With room for one command, the others wait, also on the second queue.
            let options = NvmeOptions { io_queues: Some(io_queues), queue_len: 2, ..options() };
            let namespace =
                NvmeNamespace::open(&NvmeController::open(script.address(), options).await?, 1).await?;
            script.script().medium[64 * KIB..80 * KIB].fill(5);
            script.script().silent_from = 0;
            let (one, other) = (namespace.clone(), namespace.clone());
            let mut write =
                Box::pin(async move { one.write(0, Buf::copy_of(&[1; 16 * KIB]), false).await.0 });
            let mut read = Box::pin(async move { other.read(64 * KIB as u64, Buf::zeroed(16 * KIB)).await });
            let mut queue = namespace.clone().queue().expect("this is its core");
            assert!(futures_poll(&mut write).is_pending() && futures_poll(&mut read).is_pending());
            queue.write(0, 32 * KIB as u64, Buf::copy_of(&[3; 16 * KIB]), false);
            queue.read(1, 64 * KIB as u64, Buf::zeroed(16 * KIB));
            until(&script, "a command arrives", |script| !script.seen_on.is_empty()).await;
            // The script rejects commands that are too long.
            reconnect_with(&script, 1);
            write.await.expect("written");
            let (result, data) = read.await;
            assert!(result.is_ok() && data[..] == [5; 16 * KIB]);
            for _ in 0..2 {
                let (lane, (result, data)) = poll_fn(|cx| queue.poll_ended(cx)).await;
                assert!(result.is_ok() && data[..] == [[3; 16 * KIB], [5; 16 * KIB]][lane], "lane {lane}");
            }
            namespace.controller().close().await;
            Ok(())
        });
        let script = controller.script();
        assert!(script.medium[..16 * KIB] == [1; 16 * KIB]);
        assert!(script.medium[32 * KIB..48 * KIB] == [3; 16 * KIB]);
        assert_eq!((script.count(1), script.count(2)), (4, 4), "{io_queues}: two commands each");
    }
}

#[test]
fn larger_limit_is_used_after_a_reconnection() {
    let controller = ScriptedController::start();
    let script = controller.clone();
    on_a_core(move || async move {
        let namespace =
            NvmeNamespace::open(&NvmeController::open(script.address(), options()).await?, 1).await?;
        namespace.write(0, Buf::copy_of(&[1; 16 * KIB]), false).await.0.expect("written");
        assert_eq!(script.script().count(1), 2);
        reconnect_with(&script, 2);
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            script.script().seen.clear();
            namespace.write(0, Buf::copy_of(&[2; 16 * KIB]), false).await.0.expect("written");
            if script.script().count(1) == 1 {
                return Ok(());
            }
            assert!(Instant::now() < end, "the larger limit is used");
        }
    });
    assert!(controller.script().medium[..16 * KIB] == [2; 16 * KIB]);
}
