//! A host and a controller that works, or refuses.

use super::scripted::{CAPACITY, ScriptedController, on_a_core, options};
use crate::nvme::discovery::discover;
use crate::nvme::{NvmeController, NvmeNamespace};
use crate::{Backend, Buf, Error, ErrorCode};
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
        for (offset, len) in [(0, 512), (512, 8192), (16_384, 30_000), (100_001, 777)] {
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
fn controller_that_is_not_what_it_claims_is_an_error() {
    let error = refused(|controller| controller.script().identified = 4);
    assert_eq!(error.code, ErrorCode::ProtocolError, "{error}");
    let error = refused(|controller| controller.script().status = 2);
    assert!(error.what.contains("CSTS.CFS"), "{error}");
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
