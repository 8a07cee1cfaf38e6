//! A host and a controller that works, or refuses.

use super::scripted::{CAPACITY, ScriptedController, on_a_core, options};
use crate::nvme::discovery::discover;
use crate::nvme::options::{AuthSecrets, DhChapSecret};
use crate::nvme::{NvmeController, NvmeNamespace, NvmeOptions};
use crate::{Backend, Buf, Error, ErrorCode};
use std::future::poll_fn;
use std::time::Duration;

fn refused(edit: impl FnOnce(&ScriptedController)) -> Error {
    let controller = ScriptedController::start();
    edit(&controller);
    let address = controller.address();
    let opened = on_a_core(move || async move { Ok(NvmeController::open(address, options()).await.err()) });
    opened.expect("the controller is refused")
}

#[test]
fn any_bytes_are_read_as_they_were_written() {
    let controller = ScriptedController::start();
    let address = controller.address();
    let data: Vec<u8> = (0..30_000u32).map(|n| (n / 3) as u8).collect();
    let expected = data.clone();
    on_a_core(move || async move {
        let host = NvmeController::open(address, options()).await?;
        assert_eq!(host.namespaces().await?, [1]);
        let namespace = NvmeNamespace::open(&host, 1).await?;
        assert_eq!(namespace.info().capacity, CAPACITY as u64);
        // In a capsule, by R2T, over several commands, and with partial blocks.
        for (offset, len) in [(0, 512), (512, 8192), (16_384, 30_000), (100_001, 777), (200_001, 20_000)] {
            let (result, buf) = namespace.write(offset, Buf::copy_of(&data[..len]), false).await;
            result.expect("written");
            assert_eq!(buf[..], data[..len]);
            let (result, buf) = namespace.read(offset, Buf::zeroed(len)).await;
            result.expect("read");
            assert_eq!(buf[..], data[..len], "{len} bytes at {offset}");
        }
        namespace.flush().await.expect("flushed");
        let (beyond, _) = namespace.read(CAPACITY as u64 - 1, Buf::zeroed(2)).await;
        assert!(beyond.is_err());
        host.close().await;
        Ok(())
    });
    let script = controller.script();
    assert!(script.medium[16_384..46_384] == expected && script.medium[100_000] == 0);
    assert_eq!((script.configuration, script.count(0)), (0x0046_4001, 1), "shut down; flushed once");
}

#[test]
fn flush_and_fua_do_not_depend_on_the_first_connection() {
    let controller = ScriptedController::start();
    controller.script().has_cache = false;
    let address = controller.address();
    on_a_core(move || async move {
        let namespace = NvmeNamespace::open(&NvmeController::open(address, options()).await?, 1).await?;
        assert!(!namespace.info().write_through, "a later connection may have a cache");
        namespace.flush().await.expect("flushed");
        namespace.write(0, Buf::zeroed(512), true).await.0.expect("written");
        let mut queue = namespace.clone().queue().expect("this is its core");
        queue.write(0, 0, Buf::zeroed(512), true);
        poll_fn(|cx| queue.poll_ended(cx)).await.1.0.expect("written");
        assert!(namespace.compare_and_write(0, &[0; 1024]).await?);
        namespace.write(0, Buf::zeroed(512), false).await.0.expect("written");
        Ok(())
    });
    let script = controller.script();
    assert_eq!((script.count(0), script.forced, script.count(1)), (1, 3, 4));
}

#[test]
fn queue_ends_each_lane_with_its_own_bytes() {
    const LANES: usize = 8;
    for (offset, len) in [(0, 4096), (7, 4096), (0, 16_384)] {
        let controller = ScriptedController::start();
        // 0/82h, namespace not ready.
        controller.script().failures = (3, 0x82 << 1);
        let address = controller.address();
        on_a_core(move || async move {
            let namespace = NvmeNamespace::open(&NvmeController::open(address, options()).await?, 1).await?;
            let mut queue = namespace.clone().queue().expect("this is its core");
            let place = |lane: usize| (lane * len + offset) as u64;
            for lane in 0..LANES {
                queue.write(lane, place(lane), Buf::copy_of(&vec![lane as u8 + 1; len]), lane % 2 == 0);
            }
            for _ in 0..LANES {
                let (_, (result, buf)) = poll_fn(|cx| queue.poll_ended(cx)).await;
                result.expect("written");
                assert_eq!(buf.len(), len);
            }
            (0..LANES).for_each(|lane| queue.read(lane, place(lane), Buf::zeroed(len)));
            for _ in 0..LANES {
                let (lane, (result, buf)) = poll_fn(|cx| queue.poll_ended(cx)).await;
                result.expect("read");
                assert!(buf.iter().all(|byte| *byte == lane as u8 + 1), "lane {lane} at {offset}");
            }
            queue.read(0, CAPACITY as u64, Buf::zeroed(512));
            assert!(poll_fn(|cx| queue.poll_ended(cx)).await.1.0.is_err(), "beyond the end");
            // An operation in flight outlives its queue.
            queue.write(1, 0, Buf::copy_of(&[9; 512]), false);
            drop(queue);
            namespace.write(0, Buf::copy_of(&[10; 512]), false).await.0.expect("written");
            Ok(())
        });
        assert_eq!(controller.script().medium[0], 10);
    }
}

#[test]
fn failure_with_do_not_retry_is_final() {
    let controller = ScriptedController::start();
    // 2/81h, unrecovered read error, with Do Not Retry.
    controller.script().failures = (2, 0x8000 | 0x281 << 1);
    let address = controller.address();
    on_a_core(move || async move {
        let namespace = NvmeNamespace::open(&NvmeController::open(address, options()).await?, 1).await?;
        let mut queue = namespace.clone().queue().expect("this is its core");
        queue.read(0, 0, Buf::zeroed(512));
        let (_, (queued, _)) = poll_fn(|cx| queue.poll_ended(cx)).await;
        for result in [queued, namespace.read(0, Buf::zeroed(512)).await.0] {
            let error = result.expect_err("the medium is bad");
            assert_eq!(Error::of(&error).and_then(|e| e.sense).map(|sense| sense.key), Some(3), "{error}");
        }
        Ok(())
    });
    assert_eq!(controller.script().count(2), 2);
}

#[test]
fn zeros_and_unmap_use_write_zeroes_for_whole_blocks() {
    let controller = ScriptedController::start();
    controller.script().medium.fill(7);
    let address = controller.address();
    on_a_core(move || async move {
        let namespace = NvmeNamespace::open(&NvmeController::open(address, options()).await?, 1).await?;
        assert!(namespace.info().unmap);
        namespace.write_zeroes(500, 2000, false).await.expect("zeros");
        namespace.unmap(8192, 4096).await.expect("unmapped");
        Ok(())
    });
    let script = controller.script();
    let zeros = |range: std::ops::Range<usize>| script.medium[range].iter().all(|byte| *byte == 0);
    assert!(zeros(500..2500) && zeros(8192..12_288) && script.medium[499] == 7 && script.medium[2500] == 7);
    assert_eq!(script.count(8), 2);
}

/// The controller ignores Dataset Management.
#[test]
fn unmap_writes_zeros_where_write_zeroes_cannot_deallocate() {
    for deallocation in [0b0000, 0b0001, 0b1000] {
        let controller = ScriptedController::start();
        {
            let mut script = controller.script();
            script.medium.fill(7);
            script.deallocation = deallocation;
        }
        let address = controller.address();
        let is_offered = on_a_core(move || async move {
            let namespace = NvmeNamespace::open(&NvmeController::open(address, options()).await?, 1).await?;
            namespace.unmap(8192, 4096).await.expect("unmapped");
            Ok(namespace.info().unmap)
        });
        let script = controller.script();
        assert!(!is_offered && script.medium[8192..12_288] == [0; 4096], "{deallocation:04b}");
        assert!(script.medium[8191] == 7 && script.medium[12_288] == 7, "{deallocation:04b}");
    }
}

/// Invalid Opcode and 1/83h, as Linux reports a file system that cannot write zeros, and Invalid Field. With Do Not Retry.
#[test]
fn zeros_are_written_where_write_zeroes_is_rejected() {
    for status in [0x01, 0x02, 0x183] {
        let controller = ScriptedController::start();
        controller.script().medium.fill(7);
        controller.script().zeroes = 0x8000 | status << 1;
        let address = controller.address();
        on_a_core(move || async move {
            let namespace = NvmeNamespace::open(&NvmeController::open(address, options()).await?, 1).await?;
            for at in [500, 65_536] {
                namespace.write_zeroes(at, 20_000, false).await.expect("zeros");
            }
            Ok(())
        });
        let script = controller.script();
        let zeros = |at: usize| script.medium[at..at + 20_000].iter().all(|byte| *byte == 0);
        assert!(zeros(500) && zeros(65_536) && script.medium[20_500] == 7, "{status:x}");
        assert_eq!(script.count(8), 1, "the first rejection counts for all");
    }
}

#[test]
fn compare_and_swap_reports_where_the_data_differ() {
    let controller = ScriptedController::start();
    controller.script().medium[512..1024].fill(1);
    let address = controller.address();
    on_a_core(move || async move {
        let namespace = NvmeNamespace::open(&NvmeController::open(address, options()).await?, 1).await?;
        assert_eq!(namespace.max_compare_and_swap(), 512);
        let halves = |old: u8, new: u8| Buf::copy_of(&[[old; 512], [new; 512]].concat());
        let mut other = halves(1, 2);
        other[9] = 0;
        let swapped = [
            Backend::compare_and_swap(&*namespace, 512, other).await,
            Backend::compare_and_swap(&*namespace, 512, halves(1, 2)).await,
        ];
        assert_eq!(swapped.map(|swapped| swapped.expect("an answer")), [Some(9), None]);
        Ok(())
    });
    assert!(controller.script().medium[512..1024].iter().all(|byte| *byte == 2));
}

#[test]
fn controller_that_refuses_the_host_is_an_error() {
    // 1/82h and 1/84h, with Do Not Retry.
    for (status, code) in [(0x8304, ErrorCode::NotFound), (0x8308, ErrorCode::Refused)] {
        let error = refused(|controller| controller.script().connect = (0x1_0100, status));
        assert_eq!(error.code, code, "{error}");
    }
    let error = refused(|controller| controller.script().connect = (0x2_0003, 0));
    assert_eq!(error.code, ErrorCode::AuthenticationFailed, "no secret is set: {error}");
    let error = refused(|controller| controller.script().connect = (0x4_0003, 0));
    assert_eq!(error.code, ErrorCode::NegotiationFailed, "{error}");
}

#[test]
fn controller_that_must_prove_itself_and_does_not_is_refused() {
    let controller = ScriptedController::start();
    let address = controller.address();
    let secret = || DhChapSecret::generate(None).expect("random numbers");
    let open = |subsystem| {
        let options = NvmeOptions { secrets: Some(AuthSecrets::new(secret(), subsystem)), ..options() };
        let address = address.clone();
        on_a_core(move || async move { Ok(NvmeController::open(address, options).await.err()) })
    };
    assert_eq!(open(None), None, "the controller decides whether the host must prove itself");
    let error = open(Some(secret())).expect("an impostor");
    assert!(error.code == ErrorCode::AuthenticationFailed && error.hint.is_some(), "{error}");
}

#[test]
fn controller_that_is_not_what_it_claims_is_an_error() {
    let error = refused(|controller| controller.script().identified = 4);
    assert_eq!(error.code, ErrorCode::ProtocolError, "{error}");
    let error = refused(|controller| controller.script().status = 2);
    assert!(error.what.contains("CSTS.CFS"), "{error}");
}

#[test]
fn only_a_missing_list_means_no_identifiers() {
    // Of a namespace that is opened: 0/02h and 0/01h, with Do Not Retry.
    for (status, opens) in [(0x8004, true), (0x8002, true), (0x06 << 1, false), (0x82 << 1, false)] {
        let controller = ScriptedController::start();
        controller.script().identifiers = status;
        let address = controller.address();
        let uuid = on_a_core(move || async move {
            let namespace = NvmeNamespace::open(&NvmeController::open(address, options()).await?, 1).await;
            Ok(namespace.ok().map(|namespace| namespace.properties().identity.uuid))
        });
        assert_eq!(uuid, opens.then_some(None), "status {status:x}h");
    }
}

#[test]
fn namespace_without_its_identifiers_gets_no_command() {
    let controller = ScriptedController::start();
    let script = controller.clone();
    on_a_core(move || async move {
        let mut options = options();
        // Time for several attempts: the last one gives the reason.
        options.timeouts.recovery = Duration::from_secs(2);
        let namespace =
            NvmeNamespace::open(&NvmeController::open(script.address(), options).await?, 1).await?;
        {
            // 0/06h, internal error.
            let mut script = script.script();
            script.identifiers = 0x06 << 1;
            script.cut();
        }
        let error = namespace.read(0, Buf::zeroed(512)).await.0.expect_err("no connection");
        assert!(
            error.to_string().contains("internal error"),
            "the identity is unknown, not another one: {error}"
        );
        Ok(())
    });
}

#[test]
fn discovery_reads_pieces_of_one_generation() {
    for (changes, first) in [(0, "7"), (2, "9")] {
        let controller = ScriptedController::start();
        {
            let mut script = controller.script();
            (script.is_discovery, script.generation.1) = (true, changes);
        }
        let address = controller.address();
        let found = on_a_core(move || async move { discover(&address, &options()).await });
        let shown: Vec<_> = found.iter().map(|one| (one.address.as_str(), one.service.as_str())).collect();
        assert_eq!((shown.len(), shown[0]), (5, ("192.0.2.1", first)), "{changes} changes");
        assert_eq!(found[4].subsystem.as_str(), "nqn.2026-11.org.example:found");
        assert_eq!(controller.script().configuration & 1 << 14, 1 << 14, "the controller was shut down");
    }
}

#[test]
fn discovery_log_that_always_changes_is_an_error() {
    let controller = ScriptedController::start();
    {
        let mut script = controller.script();
        (script.is_discovery, script.generation.1) = (true, u32::MAX);
    }
    let address = controller.address();
    let error = on_a_core(move || async move { Ok(discover(&address, &options()).await.err()) });
    assert!(error.is_some_and(|e| e.what.contains("changed during each")));
}

#[test]
fn controllers_of_the_other_kind_are_refused() {
    let error = refused(|controller| controller.script().is_discovery = true);
    assert!(error.what.contains("is a discovery controller"), "{error}");
    let controller = ScriptedController::start();
    let address = controller.address();
    let error = on_a_core(move || async move { Ok(discover(&address, &options()).await.err()) });
    assert!(error.is_some_and(|e| e.what.contains("is no discovery service")));
}

#[test]
fn controller_that_is_never_ready_times_out() {
    let controller = ScriptedController::start();
    controller.script().status = 0;
    let address = controller.address();
    let mut options = options();
    options.timeouts.login = Duration::from_millis(300);
    let error = on_a_core(move || async move { Ok(NvmeController::open(address, options).await.err()) });
    assert_eq!(error.map(|e| e.code), Some(ErrorCode::TimedOut));
}

#[test]
fn closed_controller_accepts_no_command() {
    let controller = ScriptedController::start();
    let address = controller.address();
    on_a_core(move || async move {
        let host = NvmeController::open(address, options()).await?;
        let namespace = NvmeNamespace::open(&host, 1).await?;
        host.close().await;
        host.close().await;
        let (result, buf) = namespace.read(0, Buf::zeroed(512)).await;
        assert_eq!(Error::of(&result.expect_err("closed")).map(|e| e.code), Some(ErrorCode::SessionClosed));
        assert_eq!(buf.len(), 512);
        Ok(())
    });
}

#[test]
fn other_cores_use_a_namespace_as_well() {
    let controller = ScriptedController::start();
    let address = controller.address();
    let cores = lunar_runtime::Cores::start(&[0, 0]).expect("event loops");
    let open =
        move || async move { NvmeNamespace::open(&NvmeController::open(address, options()).await?, 1).await };
    let namespace = cores.wait(0, open).expect("no panic").expect("opened");
    let there = namespace.clone();
    let read = cores.wait(1, move || async move {
        there.write(0, Buf::copy_of(&[5; 512]), true).await.0?;
        let halves = Buf::copy_of(&[[5; 512], [6; 512]].concat());
        assert_eq!(Backend::compare_and_swap(&*there, 0, halves).await?, None);
        let (result, buf) = there.read(0, Buf::zeroed(512)).await;
        result.map(|()| buf.to_vec())
    });
    assert_eq!(read.expect("no panic").expect("read"), [6; 512]);
    cores.wait(0, move || async move { namespace.controller().close().await }).expect("no panic");
    cores.stop();
}
