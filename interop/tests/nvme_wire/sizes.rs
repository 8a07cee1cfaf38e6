//! Blocks of 4096 bytes, the largest commands, the longest names, and addresses of a portal for all.

use super::{BLOCKS, NQN, config, queue, server};
use interop::Server;
use interop::nvme::{DISCOVERY, DNR, NvmeEntry, NvmeHostName, NvmeWire, RawController, connect_data};
use interop::scsi::pattern;
use std::net::SocketAddr;

#[test]
fn namespace_may_have_blocks_of_4096_bytes() {
    let namespace =
        "[[subsystem.namespace]]\nnsid = 5\nbackend = \"memory\"\nsize = \"8MiB\"\nblock_size = 4096\n";
    let server = Server::start(&config(namespace));
    let (mut it, mut queue) = queue(&server, "host");
    let identity = it.admin.execute(&NvmeEntry::identify(0, 5), &[]).good();
    assert_eq!((&identity[..4], identity[130]), (&[0, 8, 0, 0][..], 12), "NSZE and LBADS");
    let mut data = pattern(8192, 1);
    let blocks = |opcode, lba| NvmeEntry::blocks(opcode, 5, lba, 2).on_host(8192);
    queue.execute(&blocks(1, 3), &data).is(0);
    assert_eq!(queue.execute(&blocks(2, 3), &[]).good(), data);
    queue.execute(&blocks(5, 3), &data).is(0);
    queue.execute(&NvmeEntry::blocks(8, 5, 3, 1), &[]).is(0);
    data[..4096].fill(0);
    assert_eq!(queue.execute(&blocks(2, 3), &[]).good(), data);
    queue.execute(&blocks(2, 3).on_host(1024), &[]).is(DNR | 0x0f);
    queue.execute(&blocks(2, 2047), &[]).is(DNR | 0x80);
}

/// The fields of lengths are as full as the namespace allows.
#[test]
fn largest_commands_succeed() {
    let server = server();
    let (_it, mut queue) = queue(&server, "host");
    let data = pattern(1 << 20, 3);
    queue.execute(&NvmeEntry::write(1, 0, 2048), &data).is(0);
    queue.execute(&NvmeEntry::blocks(5, 1, 0, 2048).on_host(1 << 20), &data).is(0);
    let all = |opcode| NvmeEntry::blocks(opcode, 1, 0, 1).dword(12, 65535);
    queue.execute(&all(0x0c), &[]).is(0);
    queue.execute(&all(8), &[]).is(0);
    assert!(queue.execute(&NvmeEntry::read(1, 0, 2048), &[]).good().iter().all(|byte| *byte == 0));
    queue.execute(&NvmeEntry::write(1, 0, 2048), &data).is(0);
    let mut range = [0; 16];
    range[4..8].copy_from_slice(&(BLOCKS as u32).to_le_bytes());
    let whole = NvmeEntry::new(9, 1).dword(10, 255).dword(11, 4).in_capsule(4096);
    queue.execute(&whole, &range.repeat(256)).is(0);
    assert!(queue.execute(&NvmeEntry::read(1, 0, 2048), &[]).good().iter().all(|byte| *byte == 0));
}

#[test]
fn longest_name_of_a_host_is_taken() {
    let server = server();
    let longest = format!("nqn.2026-11.org.example:{}", "x".repeat(199));
    for (name, status) in [
        (longest.clone(), 0),
        (format!("{longest}x"), DNR | 0x184),
        ("iqn.2026-11.org.example:host".into(), DNR | 0x184),
        ("nqn.2014-08.org.nvmexpress:uuid:7d3f1a52-90c4-4b61-8a0e-2f6c5b1d9e70".into(), 0),
        ("nqn.2014-08.org.nvmexpress:uuid:7d3f1a52".into(), DNR | 0x184),
    ] {
        let host = NvmeHostName { nqn: name, ..NvmeHostName::new("host") };
        let mut wire = NvmeWire::begin(super::portal(&server), 0);
        let reply = wire.execute(&NvmeEntry::connect(0, 31, 0), &connect_data(&host, 0xffff, NQN));
        assert_eq!(reply.status, status, "{} bytes: {}", host.nqn.len(), host.nqn);
    }
}

/// A portal that listens on every address is shown with the one that the host has reached.
#[test]
fn discovery_shows_the_address_of_the_host() {
    let server = Server::start(&config("").replacen("127.0.0.1:0", "0.0.0.0:0", 1));
    let port = server.portals()[0].port();
    for last in [1, 2] {
        let at = SocketAddr::from(([127, 0, 0, last], port));
        let mut it = RawController::enabled(at, &NvmeHostName::new("host"), DISCOVERY, 0);
        let page = it.admin.execute(&NvmeEntry::log(0x70, 4096), &[]).good();
        assert_eq!(page[8], 2);
        for record in page[1024..].chunks_exact(1024).take(2) {
            let address = String::from_utf8_lossy(&record[512..768]).into_owned();
            assert_eq!(address.trim_end_matches([' ', '\0']), at.ip().to_string());
        }
    }
}
