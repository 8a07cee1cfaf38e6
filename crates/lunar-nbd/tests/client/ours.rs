//! Tests of the client with Lunar's server, from the core that opened the disk and from another.

use super::{MIB, on_a_core, open, pattern, read, refused, write};
use lunar_block::{Backend, BackendKind, BackendSpec};
use lunar_nbd::server::{ListenAddress, NbdExport, NbdServer, ServerLimits, serve};
use lunar_runtime::Cores;
use std::sync::Arc;

fn server() -> NbdServer {
    let backend =
        lunar_block::open(&BackendSpec::sized(BackendKind::Memory, 64 * MIB)).expect("a memory backend");
    let export = |name: &str, read_only| NbdExport {
        name: name.into(),
        backend: backend.clone(),
        block_size: 512,
        read_only,
        description: String::new(),
    };
    let listen = ["127.0.0.1:0", "[::1]:0"].map(|at| ListenAddress::Tcp(at.parse().expect("an address")));
    let cores = Arc::new(Cores::one().expect("an event loop"));
    serve(&listen, vec![export("disk", false), export("copy", true)], cores, ServerLimits::default())
        .expect("the server starts")
}

#[test]
fn disk_may_be_used_from_another_core() {
    let server = server();
    let url = server.addresses()[1].url("disk");
    let (home, other) = (Cores::one().expect("an event loop"), Cores::one().expect("an event loop"));
    let disk = home.wait(0, move || async move { open(&url).await }).expect("the task panicked");
    let there = disk.clone();
    let used = other.wait(0, move || async move {
        let bytes = pattern(3, 3 << 20);
        write(&*there, 512, &bytes, true).await;
        there.flush().await.expect("the flush succeeds");
        read(&*there, 512, 3 << 20).await == bytes
    });
    assert!(used.expect("the task panicked"));
    home.stop();
    let late = other.wait(0, move || async move { disk.read(0, lunar_runtime::Buf::zeroed(512)).await.0 });
    late.expect("the task panicked").expect_err("a read succeeded without an event loop");
}

#[test]
fn abandoned_command_disturbs_no_other() {
    let server = server();
    let url = server.addresses()[0].url("disk");
    on_a_core(move || async move {
        let disk = open(&url).await;
        write(&*disk, 0, &pattern(1, 8 << 20), false).await;
        for len in [512, 8 << 20] {
            let mut given_up = disk.read(0, lunar_runtime::Buf::zeroed(len));
            let polled = futures_util::poll!(&mut given_up);
            assert!(polled.is_pending());
            drop(given_up);
            let mut given_up = disk.write(8 * MIB, lunar_runtime::Buf::zeroed(len), false);
            assert!(futures_util::poll!(&mut given_up).is_pending());
            drop(given_up);
            assert!(read(&*disk, 0, 8 << 20).await == pattern(1, 8 << 20));
        }
    });
}

#[test]
fn more_than_one_command_may_bring_is_asked_for_in_pieces() {
    let server = server();
    let url = server.addresses()[0].url("");
    on_a_core(move || async move {
        let (disk, bytes) = (open(&url).await, pattern(7, 40 << 20));
        write(&*disk, MIB, &bytes, true).await;
        assert!(read(&*disk, MIB, 40 << 20).await == bytes);
        assert!(read(&*disk, 0, 0).await.is_empty());
    });
}

#[test]
fn unknown_export_error_lists_the_exports() {
    let server = server();
    let (what, hint) = refused(&server.addresses()[0].url("dsk"));
    assert!(what.contains("refuses export \"dsk\": no such export"), "{what}");
    assert_eq!(hint, "the server has the exports \"disk\", \"copy\"");
}
