//! Several I/O queues of a controller: how many, which commands they take, and the loss of one.

use super::reconnect::{code, futures_poll, until};
use super::scripted::{ScriptedController, on_a_core, options};
use super::within_time;
use crate::nvme::association::{SubsystemAddress, associate};
use crate::nvme::io_queue::IoQueue;
use crate::nvme::io_queues::IoQueues;
use crate::nvme::lifetime;
use crate::nvme::local_controller::{LocalController, lock};
use crate::nvme::{NvmeController, NvmeNamespace, NvmeOptions};
use crate::{Backend, Buf, Error, ErrorCode, Portal};
use lunar_block::LocalBoxFuture;
use lunar_runtime::{CoreHandle, Cores};
use std::future::{poll_fn, ready};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

/// A controller that grants this many queues and connects that many of them.
fn granting(granted: u16, connected: u16) -> ScriptedController {
    let controller = ScriptedController::start();
    controller.script().queues = (granted, connected);
    controller
}

/// Options of a host that wants this many queues. Each has room for one command, so commands spread at once.
fn wanting(io_queues: u16) -> NvmeOptions {
    NvmeOptions { io_queues: Some(io_queues), queue_len: 2, ..options() }
}

async fn open(controller: &ScriptedController, options: NvmeOptions) -> Result<Arc<NvmeNamespace>, Error> {
    NvmeNamespace::open(&NvmeController::open(controller.address(), options).await?, 1).await
}

/// A write of one block that has been submitted.
fn write(namespace: &Arc<NvmeNamespace>, at: u64, byte: u8) -> LocalBoxFuture<'static, bool> {
    let namespace = namespace.clone();
    begun(Box::pin(
        async move { namespace.write(at * 512, Buf::copy_of(&[byte; 512]), false).await.0.is_ok() },
    ))
}

/// A read of one block that has been submitted.
fn read(namespace: &Arc<NvmeNamespace>, at: u64) -> LocalBoxFuture<'static, bool> {
    let namespace = namespace.clone();
    begun(Box::pin(async move { namespace.read(at * 512, Buf::zeroed(512)).await.0.is_ok() }))
}

fn begun(mut work: LocalBoxFuture<'static, bool>) -> LocalBoxFuture<'static, bool> {
    match futures_poll(&mut work) {
        // The thread of another queue may be fast.
        Poll::Ready(result) => Box::pin(ready(result)),
        Poll::Pending => work,
    }
}

async fn must_succeed(all: impl IntoIterator<Item = LocalBoxFuture<'static, bool>>) {
    // All have begun before the first one is awaited.
    let all: Vec<_> = all.into_iter().collect();
    for (n, one) in all.into_iter().enumerate() {
        assert!(one.await, "command {n}");
    }
}

#[test]
fn granted_queues_share_the_commands() {
    let controller = granting(3, 3);
    let script = controller.clone();
    on_a_core(move || async move {
        let namespace = open(&script, wanting(8)).await?;
        assert_eq!(namespace.controller().info().io_queues, 3);
        let writes = unanswered(&script, &namespace).await;
        answer_again(&script);
        must_succeed(writes).await;
        let mut queue = namespace.clone().queue().expect("this is its core");
        (4..8).for_each(|n| queue.write(n, n as u64 * 512, Buf::copy_of(&[n as u8; 512]), false));
        for _ in 4..8 {
            poll_fn(|cx| queue.poll_ended(cx)).await.1.0.expect("written");
        }
        namespace.controller().close().await;
        Ok(())
    });
    let script = controller.script();
    assert_eq!(script.hosts.len(), 2 * 4, "an admin and three I/O queues each time");
    assert!((0..8).all(|n| script.medium[n * 512] == n as u8));
}

#[test]
fn default_works_with_a_controller_that_grants_one_queue() {
    let controller = granting(1, 1);
    let script = controller.clone();
    on_a_core(move || async move {
        let namespace = open(&script, options()).await?;
        assert_eq!(namespace.controller().info().io_queues, 1);
        must_succeed((0..9).map(|n| write(&namespace, n, 1))).await;
        Ok(())
    });
    assert_eq!(controller.script().used(), [1]);
}

#[test]
fn small_commands_of_the_own_core_use_the_first_queue() {
    let controller = granting(2, 2);
    let script = controller.clone();
    on_a_core(move || async move {
        let namespace = open(&script, NvmeOptions { queue_len: 128, ..wanting(2) }).await?;
        must_succeed((0..32).map(|n| read(&namespace, n))).await;
        assert_eq!(script.script().used(), [1]);
        must_succeed((0..512).map(|n| read(&namespace, n))).await;
        Ok(())
    });
    assert_eq!(controller.script().used(), [1, 2], "a full queue shares");
}

#[test]
fn refused_queue_leaves_the_others() {
    let controller = granting(4, 2);
    let script = controller.clone();
    on_a_core(move || async move {
        let namespace = open(&script, wanting(4)).await?;
        assert_eq!(namespace.controller().info().io_queues, 2);
        must_succeed((1..9).map(|n| write(&namespace, n, n as u8))).await;
        assert_eq!(namespace.controller().info().recoveries, 0);
        Ok(())
    });
    let script = controller.script();
    assert_eq!((script.used(), script.writes.len()), (vec![1, 2], 8));
}

#[test]
fn ignored_queues_share_a_part_of_the_keep_alive_time() {
    let controller = granting(4, 1);
    controller.script().ignores_others = true;
    let script = controller.clone();
    on_a_core(move || async move {
        // With a quarter of the time for a login, the controller would miss Keep Alive.
        let mut options = NvmeOptions { keep_alive: Duration::from_secs(1), ..wanting(4) };
        options.timeouts.login = Duration::from_secs(1000);
        let namespace = open(&script, options).await?;
        assert_eq!(namespace.controller().info().io_queues, 1);
        must_succeed((1..4).map(|n| write(&namespace, n, n as u8))).await;
        Ok(())
    });
    assert_eq!(controller.script().used(), [1]);
}

/// Waits until the controller has this many queues.
async fn grown(namespace: &Arc<NvmeNamespace>, queues: u16) {
    within_time("more queues are used", || namespace.controller().info().io_queues == queues).await;
}

#[test]
fn queue_that_connects_late_is_used_without_reconnection() {
    let controller = granting(3, 1);
    controller.script().ignores_others = true;
    let script = controller.clone();
    on_a_core(move || async move {
        let namespace =
            open(&script, NvmeOptions { keep_alive: Duration::from_secs(1), ..wanting(3) }).await?;
        assert_eq!(namespace.controller().info().io_queues, 1);
        must_succeed((1..4).map(|n| write(&namespace, n, n as u8))).await;
        assert_eq!(script.script().ignored.len(), 1, "one queue after the other");
        {
            let mut script = script.script();
            (script.queues, script.ignores_others) = ((3, 3), false);
            script.answer_ignored();
        }
        grown(&namespace, 2).await;
        let writes = unanswered_on(&script, &namespace, &[1, 2]).await;
        answer_again(&script);
        must_succeed(writes).await;
        Ok(())
    });
    // An admin queue and the I/O queues, before and after the cut.
    assert_eq!(controller.script().hosts.len(), 3 + 4);
}

#[test]
fn refused_queue_is_tried_again_without_reconnection() {
    let controller = granting(3, 1);
    let script = controller.clone();
    on_a_core(move || async move {
        let mut options = wanting(3);
        options.timeouts.pause = Duration::from_millis(10);
        let namespace = open(&script, options).await?;
        assert_eq!(namespace.controller().info().io_queues, 1);
        until(&script, "a second attempt", |script| script.hosts.len() > 4).await;
        script.script().queues = (3, 3);
        grown(&namespace, 3).await;
        assert_eq!(namespace.controller().info().recoveries, 0);
        let writes = unanswered(&script, &namespace).await;
        answer_again(&script);
        must_succeed(writes).await;
        Ok(())
    });
}

#[test]
fn io_queues_use_the_address_of_the_admin_queue() {
    let controller = granting(2, 2);
    let script = controller.clone();
    on_a_core(move || async move {
        let options = wanting(2).identified();
        let mut association = associate(&script.address(), &options).await?;
        // The name leads elsewhere now.
        let elsewhere = Portal { host: "127.0.0.1".into(), port: 1 };
        let address = SubsystemAddress { portal: elsewhere, ..script.address() };
        let io = IoQueues::start(&options).await;
        assert_eq!(io.connect(&mut association, &address, &options).await?, 2);
        Ok(())
    });
}

/// The second queue is on an event loop of its own, which panics.
#[test]
fn queue_whose_event_loop_panicked_is_used_no_more() {
    let controller = granting(2, 2);
    let other = Cores::one().expect("an event loop");
    let second = other.wait(0, || async { IoQueue::start(2) }).expect("an event loop");
    let script = controller.clone();
    on_a_core(move || async move {
        let io = IoQueues::of(vec![IoQueue::start(2), second]);
        let local = LocalController::new(script.address(), wanting(2), io.clone());
        let association = local.establish().await?;
        let (_handle, registration, _requests) = CoreHandle::<_, ()>::new(local.clone());
        lunar_runtime::spawn(lifetime::live(registration, association));
        assert_eq!(io.choose_all(2), [0, 1]);
        other.run_on(0, || std::panic::resume_unwind(Box::new("a fault, without the noise")));
        within_time("the controller connects again", || lock(&local.info).recoveries > 0).await;
        assert_eq!((lock(&local.info).io_queues, io.choose_all(2)), (1, vec![0, 0]));
        Ok(())
    });
}

#[test]
fn refused_first_queue_fails_the_controller() {
    let controller = granting(4, 0);
    let opened = on_a_core(move || async move { Ok(open(&controller, wanting(4)).await.err()) });
    let error = opened.expect("refused");
    assert!(error.code == ErrorCode::Unreachable && error.what.contains("I/O queue 1"), "{error}");
}

/// Three writes on three queues that do not answer, until they have arrived.
async fn unanswered(
    script: &ScriptedController,
    namespace: &Arc<NvmeNamespace>,
) -> Vec<LocalBoxFuture<'static, bool>> {
    unanswered_on(script, namespace, &[1, 2, 3]).await
}

/// A write on each of these queues, which do not answer, until all have arrived.
async fn unanswered_on(
    script: &ScriptedController,
    namespace: &Arc<NvmeNamespace>,
    queues: &[u16],
) -> Vec<LocalBoxFuture<'static, bool>> {
    {
        let mut script = script.script();
        script.silent_from = 0;
        (script.seen, script.seen_on) = (Vec::new(), Vec::new());
    }
    let writes = queues.iter().map(|n| write(namespace, (*n).into(), *n as u8)).collect();
    until(script, "the writes arrive", |script| script.count(1) == queues.len()).await;
    assert_eq!(script.script().used(), queues);
    writes
}

/// Answers all commands from now on, on new connections.
fn answer_again(script: &ScriptedController) {
    let mut script = script.script();
    script.silent_from = usize::MAX;
    script.cut();
}

#[test]
fn loss_of_one_queue_repeats_the_commands_of_all() {
    let controller = granting(3, 3);
    let script = controller.clone();
    on_a_core(move || async move {
        let namespace = open(&script, wanting(3)).await?;
        let writes = unanswered(&script, &namespace).await;
        {
            let mut script = script.script();
            script.silent_from = usize::MAX;
            script.cut_queue(2);
        }
        must_succeed(writes).await;
        let info = namespace.controller().info();
        assert_eq!((info.recoveries, info.io_queues), (1, 3));
        Ok(())
    });
    let mut script = controller.script();
    script.writes.sort_unstable();
    assert_eq!((&script.writes[..], script.count(1), script.hosts.len()), (&[1, 2, 3][..], 6, 8));
}

#[test]
fn silent_queue_makes_the_host_reconnect() {
    let controller = granting(3, 3);
    let script = controller.clone();
    on_a_core(move || async move {
        let mut options = wanting(3);
        options.timeouts.command = Duration::from_millis(300);
        let namespace = open(&script, options).await?;
        let writes = unanswered(&script, &namespace).await;
        script.script().silent_from = usize::MAX;
        must_succeed(writes).await;
        let lost_by = namespace.controller().info().lost_by;
        assert!(lost_by.is_some_and(|why| why.contains("no answer")));
        Ok(())
    });
}

#[test]
fn commands_of_queues_that_are_gone_move_to_the_first() {
    let controller = granting(3, 3);
    let script = controller.clone();
    on_a_core(move || async move {
        let namespace = open(&script, wanting(3)).await?;
        let mut writes = unanswered(&script, &namespace).await;
        // These wait behind the others.
        writes.extend([4, 5, 6, 7].map(|n| write(&namespace, n, n as u8)));
        {
            let mut script = script.script();
            (script.silent_from, script.queues) = (usize::MAX, (1, 1));
            script.seen_on.clear();
            script.cut();
        }
        must_succeed(writes).await;
        assert_eq!(namespace.controller().info().io_queues, 1);
        assert_eq!(script.script().used(), [1]);
        // The controller grants more again.
        {
            let mut script = script.script();
            script.queues = (3, 3);
            script.cut();
        }
        until(&script, "three queues connect", |script| script.io_streams.len() == 3 + 1 + 3).await;
        grown(&namespace, 3).await;
        let writes = unanswered(&script, &namespace).await;
        answer_again(&script);
        must_succeed(writes).await;
        Ok(())
    });
    let script = controller.script();
    assert!((1..8).all(|n| script.medium[n * 512] == n as u8) && script.writes.len() == 10);
}

#[test]
fn newer_write_waits_for_an_unanswered_one_of_another_queue() {
    let controller = granting(3, 3);
    let script = controller.clone();
    on_a_core(move || async move {
        let namespace = open(&script, wanting(3)).await?;
        script.script().silent_from = 0;
        let busy = read(&namespace, 9);
        let old = write(&namespace, 0, 1);
        until(&script, "both arrive", |script| script.seen_on.len() == 2).await;
        assert!(script.script().seen_on.contains(&(2, 1)), "the write is on the second queue");
        drop(old);
        let newer = write(&namespace, 0, 2);
        // A command behind the newer write: the write is not sent when this one has arrived.
        let behind = read(&namespace, 8);
        until(&script, "the read arrives", |script| script.count(2) == 2).await;
        {
            let mut script = script.script();
            assert_eq!(script.count(1), 1, "the newer write waits");
            script.silent_from = usize::MAX;
            script.cut_queue(1);
        }
        must_succeed([busy, newer, behind]).await;
        Ok(())
    });
    let script = controller.script();
    assert_eq!((&script.writes[..], script.medium[0]), (&[1, 2][..], 2));
}

/// The controller expects the second half directly behind the first on the same queue.
#[test]
fn fused_pair_is_whole_on_any_queue() {
    let controller = granting(3, 3);
    let script = controller.clone();
    on_a_core(move || async move {
        let namespace = open(&script, NvmeOptions { queue_len: 3, ..wanting(3) }).await?;
        for round in 0..20u64 {
            let reads: Vec<_> = (0..round % 7).map(|n| read(&namespace, 20 + n)).collect();
            let pairs: Vec<LocalBoxFuture<'static, bool>> = (0..4u64)
                .map(|at| {
                    let (namespace, data) = (namespace.clone(), [[round as u8; 512], [round as u8 + 1; 512]]);
                    begun(Box::pin(async move {
                        namespace.compare_and_write(at * 512, data.as_flattened()).await == Ok(true)
                    }))
                })
                .collect();
            must_succeed(pairs).await;
            must_succeed(reads).await;
        }
        Ok(())
    });
    let script = controller.script();
    let mut pairs: Vec<u16> =
        script.seen_on.iter().filter(|(_, opcode)| *opcode == 5).map(|(queue, _)| *queue).collect();
    pairs.sort_unstable();
    pairs.dedup();
    assert!(pairs.starts_with(&[1, 2]), "the pairs were on the queues {pairs:?}");
    assert!((0..4).all(|n| script.medium[n * 512] == 20));
}

#[test]
fn commands_fail_when_the_event_loop_of_the_controller_ends() {
    let controller = granting(3, 3);
    let script = controller.clone();
    let cores = Cores::one().expect("an event loop");
    let opened = cores.wait(0, move || async move { open(&script, wanting(3)).await });
    let namespace = opened.expect("an event loop").expect("open");
    controller.script().silent_from = 0;
    let (script, used) = (controller.clone(), namespace.clone());
    let (began, has_begun) = flume::bounded(1);
    let other = Cores::one().expect("an event loop");
    let codes = other.start_on(0, move || async move {
        let mut reads: Vec<_> = (0..6u64).map(|n| Box::pin(used.read(n * 512, Buf::zeroed(512)))).collect();
        reads.iter_mut().for_each(|read| assert!(futures_poll(read).is_pending()));
        until(&script, "each queue has a read", |script| script.count(2) == 3).await;
        began.send(()).expect("the test waits");
        let mut codes = Vec::new();
        for read in reads {
            codes.push(code(read.await.0));
        }
        codes.push(code(used.read(0, Buf::zeroed(512)).await.0));
        codes
    });
    has_begun.recv().expect("the reads begin");
    cores.stop();
    let codes = codes.recv().expect("all reads end");
    assert_eq!(codes, [Some(ErrorCode::SessionClosed); 7]);
    other.stop();
}
