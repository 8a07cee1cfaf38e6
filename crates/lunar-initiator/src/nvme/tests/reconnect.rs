//! Lost connections, time-outs, and events.

use super::scripted::{OddNamespace, Script, ScriptedController, on_a_core, options};
use super::within_time;
use crate::nvme::{NvmeController, NvmeNamespace, NvmeOptions};
use crate::{Backend, Buf, Error, ErrorCode};
use std::future::poll_fn;
use std::sync::Arc;
use std::time::{Duration, Instant};

async fn open(controller: &ScriptedController, options: NvmeOptions) -> Result<Arc<NvmeNamespace>, Error> {
    NvmeNamespace::open(&NvmeController::open(controller.address(), options).await?, 1).await
}

/// Waits until the script is in a state.
pub async fn until(controller: &ScriptedController, what: &str, is: impl Fn(&Script) -> bool) {
    within_time(what, || is(&controller.script())).await;
}

pub fn code(result: std::io::Result<()>) -> Option<ErrorCode> {
    result.err().as_ref().and_then(Error::of).map(|e| e.code)
}

#[test]
fn unanswered_write_is_repeated_before_newer_ones() {
    let controller = ScriptedController::start();
    let script = controller.clone();
    on_a_core(move || async move {
        let namespace = open(&script, options()).await?;
        {
            let mut script = script.script();
            (script.silent_from, script.cuts) = (0, true);
        }
        let write = |at: u64, byte: u8| namespace.write(at * 512, Buf::copy_of(&[byte; 512]), false);
        let (mut first, mut second) = (Box::pin(write(0, 1)), Box::pin(write(1, 2)));
        // Both are in the queue before the connection is cut.
        assert!(futures_poll(&mut first).is_pending() && futures_poll(&mut second).is_pending());
        until(&script, "the connection is cut", |script| script.silent_from == usize::MAX).await;
        let third = write(2, 3);
        let (first, second, third) = (first.await, second.await, third.await);
        assert!(first.0.is_ok() && second.0.is_ok() && third.0.is_ok());
        assert_eq!(namespace.controller().info().recoveries, 1);
        Ok(())
    });
    assert_eq!(controller.script().writes, [1, 2, 3]);
}

/// Polls a future once.
pub fn futures_poll<F: Future + Unpin>(future: &mut F) -> std::task::Poll<F::Output> {
    std::pin::Pin::new(future).poll(&mut std::task::Context::from_waker(std::task::Waker::noop()))
}

#[test]
fn abandoned_write_is_repeated_and_newer_ones_wait_for_it() {
    let controller = ScriptedController::start();
    let script = controller.clone();
    on_a_core(move || async move {
        let namespace = open(&script, options()).await?;
        {
            let mut script = script.script();
            (script.silent_from, script.cuts) = (0, true);
        }
        let mut old = Box::pin(namespace.write(0, Buf::copy_of(&[1; 512]), false));
        assert!(futures_poll(&mut old).is_pending());
        until(&script, "the connection is cut", |script| script.silent_from == usize::MAX).await;
        drop(old);
        namespace.write(0, Buf::copy_of(&[2; 512]), false).await.0.expect("written");
        Ok(())
    });
    let script = controller.script();
    assert_eq!((&script.writes[..], script.medium[0]), (&[1, 2][..], 2));
}

#[test]
fn command_without_an_answer_makes_the_host_reconnect() {
    let controller = ScriptedController::start();
    let script = controller.clone();
    on_a_core(move || async move {
        let mut options = options();
        options.timeouts.command = Duration::from_millis(200);
        let namespace = open(&script, options).await?;
        script.script().silent_from = 0;
        let mut read = Box::pin(namespace.read(0, Buf::zeroed(512)));
        assert!(futures_poll(&mut read).is_pending());
        until(&script, "the read arrives", |script| script.count(2) == 1).await;
        script.script().silent_from = usize::MAX;
        assert!(read.await.0.is_ok());
        let info = namespace.controller().info();
        assert!(info.recoveries == 1 && info.lost_by.is_some_and(|why| why.contains("no answer")));
        Ok(())
    });
}

#[test]
fn commands_fail_after_the_controller_loss_timeout_and_return() {
    let controller = ScriptedController::start();
    let script = controller.clone();
    on_a_core(move || async move {
        let mut options = options();
        options.timeouts.recovery = Duration::from_millis(300);
        let namespace = open(&script, options).await?;
        {
            let mut script = script.script();
            script.refuses = true;
            script.cut();
        }
        let first = code(namespace.read(0, Buf::zeroed(512)).await.0);
        // It may have been sent before the host noticed the loss.
        assert!(matches!(first, Some(ErrorCode::ConnectionLost | ErrorCode::Unreachable)), "{first:?}");
        let started_at = Instant::now();
        assert_eq!(code(namespace.read(0, Buf::zeroed(512)).await.0), Some(ErrorCode::Unreachable));
        assert!(started_at.elapsed() < Duration::from_secs(5), "a command fails at once now");
        script.script().refuses = false;
        let end = Instant::now() + Duration::from_secs(20);
        while namespace.read(0, Buf::zeroed(512)).await.0.is_err() {
            assert!(Instant::now() < end, "the controller is back");
            compio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    });
}

#[test]
fn other_namespace_after_a_reconnection_gets_no_command() {
    let controller = ScriptedController::start();
    let script = controller.clone();
    on_a_core(move || async move {
        let mut options = options();
        // Time for several attempts: the last one gives the reason.
        options.timeouts.recovery = Duration::from_secs(2);
        let namespace = open(&script, options).await?;
        {
            let mut script = script.script();
            script.uuid = [0xcd; 16];
            script.cut();
        }
        let (result, _) = namespace.write(0, Buf::copy_of(&[1; 512]), false).await;
        let error = result.expect_err("another namespace");
        assert!(error.to_string().contains("uuid.cdcdcdcd"), "{error}");
        Ok(())
    });
    assert_eq!(controller.script().writes, [0; 0]);
}

#[test]
fn replaced_namespace_accepts_no_operation_until_it_is_back() {
    let controller = ScriptedController::start();
    let script = controller.clone();
    on_a_core(move || async move {
        let namespace = open(&script, options()).await?;
        until(&script, "an event request", |script| script.event.is_some()).await;
        let before = script.script().uuid;
        {
            let mut script = script.script();
            script.uuid = [0xcd; 16];
            script.raise_event();
        }
        let end = Instant::now() + Duration::from_secs(20);
        while code(namespace.read(0, Buf::zeroed(512)).await.0) != Some(ErrorCode::IdentityMismatch) {
            assert!(Instant::now() < end, "reads fail");
            compio::time::sleep(Duration::from_millis(5)).await;
        }
        let mut queue = namespace.clone().queue().expect("this is its core");
        queue.write(0, 0, Buf::copy_of(&[1; 512]), false);
        let (_, (queued, _)) = poll_fn(|cx| queue.poll_ended(cx)).await;
        let written = namespace.write(0, Buf::copy_of(&[1; 512]), false).await.0;
        assert_eq!([queued, written].map(code), [Some(ErrorCode::IdentityMismatch); 2]);
        until(&script, "another event request", |script| script.event.is_some()).await;
        {
            let mut script = script.script();
            script.uuid = before;
            script.raise_event();
        }
        while namespace.read(0, Buf::zeroed(512)).await.0.is_err() {
            assert!(Instant::now() < end, "the namespace is back");
            compio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    });
    assert_eq!(controller.script().writes, [0; 0]);
}

/// Waits until reads end in this way.
async fn until_reads_end(namespace: &NvmeNamespace, expected: Option<ErrorCode>) {
    let end = Instant::now() + Duration::from_secs(20);
    while code(namespace.read(0, Buf::zeroed(512)).await.0) != expected {
        assert!(Instant::now() < end, "reads end with {expected:?}");
        compio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn replaced_namespace_is_noticed_without_events() {
    for (offered_events, refuses_events) in [(0, false), (0x900, true)] {
        let controller = ScriptedController::start();
        let script = controller.clone();
        on_a_core(move || async move {
            {
                let mut script = script.script();
                (script.offered_events, script.refuses_events) = (offered_events, refuses_events);
            }
            let namespace = open(&script, options()).await?;
            let before = std::mem::replace(&mut script.script().uuid, [0xcd; 16]);
            until_reads_end(&namespace, Some(ErrorCode::IdentityMismatch)).await;
            script.script().uuid = before;
            until_reads_end(&namespace, None).await;
            Ok(())
        });
    }
}

#[test]
fn failed_reading_of_changed_properties_is_repeated() {
    let controller = ScriptedController::start();
    let script = controller.clone();
    on_a_core(move || async move {
        let namespace = open(&script, options()).await?;
        until(&script, "an event request", |script| script.event.is_some()).await;
        let before = script.script().count(6);
        {
            // 0/82h: the namespace is not ready.
            let mut script = script.script();
            (script.uuid, script.identifiers) = ([0xcd; 16], 0x82 << 1);
            script.raise_event();
        }
        until(&script, "the reading that fails", |script| script.count(6) >= before + 2).await;
        script.script().identifiers = 0;
        until_reads_end(&namespace, Some(ErrorCode::IdentityMismatch)).await;
        Ok(())
    });
}

#[test]
fn operation_that_waits_sends_nothing_to_another_namespace() {
    let controller = ScriptedController::start();
    let script = controller.clone();
    on_a_core(move || async move {
        let mut options = options();
        options.timeouts.busy = Duration::from_secs(5);
        let namespace = open(&script, options).await?;
        until(&script, "an event request", |script| script.event.is_some()).await;
        // 0/82h, namespace not ready: the write of a part of a block reads again, and the pair waits for its range lock.
        script.script().failures = (u32::MAX, 0x82 << 1);
        let mut write = Box::pin(namespace.write(7, Buf::copy_of(&[1; 9]), false));
        assert!(futures_poll(&mut write).is_pending());
        let mut pair = Box::pin(namespace.compare_and_write(0, &[0; 1024]));
        assert!(futures_poll(&mut pair).is_pending());
        until(&script, "the read arrives", |script| script.count(2) > 0).await;
        {
            let mut script = script.script();
            script.uuid = [0xcd; 16];
            script.raise_event();
        }
        assert_eq!(code(write.await.0), Some(ErrorCode::IdentityMismatch));
        assert_eq!(pair.await.map_err(|e| e.code), Err(ErrorCode::IdentityMismatch));
        assert_eq!(code(namespace.flush().await), Some(ErrorCode::IdentityMismatch));
        Ok(())
    });
    let script = controller.script();
    assert_eq!([0, 1, 5].map(|opcode| script.count(opcode)), [0; 3]);
}

/// Inactive and invalid numbers.
const ABSENT: [OddNamespace; 2] = [OddNamespace::Absent(0), OddNamespace::Absent(0x8000 | 0x0b << 1)];

#[test]
fn deleted_namespace_does_not_block_its_siblings() {
    for odd in ABSENT {
        let controller = ScriptedController::start();
        let script = controller.clone();
        on_a_core(move || async move {
            let mut options = options();
            options.timeouts.recovery = Duration::from_secs(5);
            let namespace = open(&script, options).await?;
            let _deleted = NvmeNamespace::open(namespace.controller(), 2).await?;
            {
                let mut script = script.script();
                script.odd = Some((2, odd));
                script.cut();
            }
            namespace.read(0, Buf::zeroed(512)).await.0.expect("the other namespace is there");
            Ok(())
        });
    }
}

#[test]
fn only_namespace_is_waited_for_after_a_reconnection() {
    for odd in ABSENT {
        let controller = ScriptedController::start();
        let script = controller.clone();
        on_a_core(move || async move {
            let namespace = open(&script, options()).await?;
            let before = script.script().count(6);
            {
                let mut script = script.script();
                script.odd = Some((1, odd));
                script.cut();
            }
            let mut read = Box::pin(namespace.read(0, Buf::zeroed(512)));
            assert!(futures_poll(&mut read).is_pending());
            // Two attempts to connect, each with Identify Controller and Identify Namespace.
            until(&script, "the host looks for it", |script| script.count(6) >= before + 4).await;
            script.script().odd = None;
            read.await.0.expect("the namespace is back");
            Ok(())
        });
    }
}

#[test]
fn namespace_is_pinned_until_its_last_user_has_gone() {
    let controller = ScriptedController::start();
    let script = controller.clone();
    on_a_core(move || async move {
        let mut options = options();
        options.timeouts.recovery = Duration::from_secs(2);
        let namespace = open(&script, options).await?;
        let first = NvmeNamespace::open(namespace.controller(), 2).await?;
        let second = NvmeNamespace::open(namespace.controller(), 2).await?;
        drop(first);
        {
            let mut script = script.script();
            script.odd = Some((2, OddNamespace::Uuid([0xcd; 16])));
            script.cut();
        }
        let error = namespace.read(0, Buf::zeroed(512)).await.0.expect_err("another namespace");
        assert!(error.to_string().contains("uuid.cdcdcdcd"), "{error}");
        drop(second);
        until_reads_end(&namespace, None).await;
        Ok(())
    });
}

#[test]
fn lost_fused_pair_is_not_repeated() {
    let controller = ScriptedController::start();
    let script = controller.clone();
    on_a_core(move || async move {
        let namespace = open(&script, options()).await?;
        {
            let mut script = script.script();
            (script.silent_from, script.cuts) = (0, true);
        }
        let error = namespace.compare_and_write(0, &[0; 1024]).await.expect_err("it is unknown");
        assert_eq!(error.code, ErrorCode::ConnectionLost);
        assert!(namespace.read(0, Buf::zeroed(512)).await.0.is_ok());
        Ok(())
    });
    assert_eq!(controller.script().count(5), 1);
}

#[test]
fn idle_host_sends_keep_alive() {
    let controller = ScriptedController::start();
    let script = controller.clone();
    on_a_core(move || async move {
        let mut options = options();
        options.keep_alive = Duration::from_millis(600);
        let namespace = open(&script, options).await?;
        until(&script, "Keep Alive", |script| script.count(0x18) >= 2).await;
        assert_eq!(namespace.controller().info().recoveries, 0);
        Ok(())
    });
}

#[test]
fn event_makes_the_host_read_the_capacity_again() {
    let controller = ScriptedController::start();
    let script = controller.clone();
    on_a_core(move || async move {
        let namespace = open(&script, options()).await?;
        for blocks in [100, 200] {
            until(&script, "an event request", |script| script.event.is_some()).await;
            {
                let mut script = script.script();
                script.blocks = blocks;
                script.raise_event();
            }
            within_time("the new capacity", || namespace.info().capacity == blocks * 512).await;
            assert!(namespace.refresh() && !namespace.refresh());
        }
        Ok(())
    });
    assert_eq!(controller.script().count(2), 2, "the log page is read to clear the event");
}

#[test]
fn controller_keeps_its_host_id_and_shares_it_with_no_other() {
    let controller = ScriptedController::start();
    let script = controller.clone();
    on_a_core(move || async move {
        let options = options();
        let first = open(&script, options.clone()).await?;
        script.script().cut();
        within_time("the host reconnects", || first.controller().info().recoveries > 0).await;
        open(&script, options).await?;
        Ok(())
    });
    let hosts = controller.script().hosts.clone();
    let (first, other) = (hosts[0], hosts[4]);
    assert_eq!(hosts, [first, first, first, first, other, other], "an admin and an I/O queue each time");
    assert!(first != other && first != [0; 16] && other != [0; 16]);
}
