//! Reads of a file with `zero_copy`: the server sends pages of the page cache, without a copy.

use interop::scsi::{READ, pattern, read10};
use interop::{Folder, Raw, Server, TARGET};
use std::fs::File;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

const BLOCKS: usize = 32_768;
const LEN: usize = BLOCKS * 512;
/// LOGICAL UNIT RESET, and its response on success.
const LUN_RESET: u8 = 5;
const COMPLETE: u8 = 0;
const CHECK_CONDITION: u8 = 0x02;
/// CAPACITY DATA HAS CHANGED.
const CAPACITY_CHANGED: u32 = 0x06_2a09;

/// A server of a file with this content, which is in the page cache afterwards.
fn serve(content: &[u8]) -> Server {
    let dir = Folder::fresh();
    std::fs::write(dir.join("disk.img"), content).expect("a file");
    Server::start_in(
        dir,
        &format!(
            "[session]\nnop_interval_s = 0\n[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\"]\n[[target]]\n\
             name = \"{TARGET}\"\n[[target.lun]]\nlun = 0\nbackend = \"file\"\npath = \"disk.img\"\nzero_copy = true\n"
        ),
    )
}

fn session(server: &Server, keys: &[(&str, &str)]) -> Raw {
    let mut raw = Raw::session(server.portal(), keys);
    raw.clear_attentions(0);
    raw
}

fn content() -> Vec<u8> {
    let mut content = pattern(LEN, 7);
    // No two blocks are equal.
    for (number, block) in content.chunks_mut(512).enumerate() {
        block[..4].copy_from_slice(&(number as u32).to_be_bytes());
    }
    content
}

/// The pipes of the server. Pages wait in pipes until they are sent.
fn pipes(server: &Server) -> usize {
    let dir = format!("/proc/{}/fd", server.pid());
    let links = std::fs::read_dir(dir).expect("descriptors").flatten();
    let is_pipe = |to: PathBuf| to.to_string_lossy().starts_with("pipe:");
    links.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(is_pipe)).count()
}

#[test]
fn reads_of_all_forms_return_the_bytes_of_the_file() {
    let content = content();
    let server = serve(&content);
    let small_segments = [("MaxRecvDataSegmentLength", "8192"), ("MaxBurstLength", "16384")];
    let digests = [("HeaderDigest", "CRC32C"), ("DataDigest", "CRC32C")];
    let header_digest = [("HeaderDigest", "CRC32C")];
    let before = pipes(&server);
    for keys in [&[][..], &small_segments, &header_digest, &digests] {
        let mut raw = session(&server, keys);
        for (lba, blocks) in
            [(0, 256), (0, 512), (1, 511), (3, 2048), (8, 2040), (777, 64), (32_768 - 512, 512)]
        {
            let bytes = &content[lba as usize * 512..][..usize::from(blocks) * 512];
            assert!(raw.read_blocks(0, lba, blocks) == bytes, "{keys:?}: {blocks} blocks at {lba}");
        }
        // Too little and too much room (RFC 7143 section 11.4.5).
        let cut = raw.read(0, &read10(64, 512), 200_001);
        assert!(cut.good() == content[64 * 512..][..200_001]);
        let short = raw.read(0, &read10(64, 320), 262_144);
        assert!(short.good() == content[64 * 512..][..320 * 512]);
    }
    assert!(pipes(&server) > before, "pages were sent");
}

/// Sends 120 READs of 128 KiB without receiving the responses. Returns the tags. Pages wait in pipes then, of which the
/// server had `idle` at its start.
fn read_without_receiving(server: &Server, idle: usize, raw: &mut Raw) -> Vec<(u32, u32)> {
    let reads = (0..120)
        .map(|n| {
            let lba = n * 256;
            let command = raw.command(0, 0x80 | READ, &read10(lba, 256), 131_072);
            raw.send(&command);
            (command.tag(), lba)
        })
        .collect();
    let end = Instant::now() + Duration::from_secs(10);
    while pipes(server) <= idle {
        assert!(Instant::now() < end, "no page waits");
        sleep(Duration::from_millis(5));
    }
    reads
}

#[test]
fn truncated_file_ends_waiting_reads() {
    let content = content();
    let server = serve(&content);
    let idle = pipes(&server);
    let mut raw = session(&server, &[]);
    let reads = read_without_receiving(&server, idle, &mut raw);
    sleep(Duration::from_millis(300));
    let file = File::options().write(true).open(server.dir().join("disk.img")).expect("a file");
    file.set_len(4096).expect("truncated");
    let mut good = 0;
    for (tag, lba) in reads {
        let reply = raw.collect(tag, &[]);
        if reply.status == 0 {
            good += 1;
            let old = &content[lba as usize * 512..][..131_072];
            let read = reply.good();
            let mut pages = std::iter::zip(read.chunks(4096), old.chunks(4096));
            // The kernel clears the rest of the folio in which the file ends now.
            assert!(pages.all(|(page, old)| page == old || page == [0; 4096]), "LBA {lba}");
        } else {
            assert_eq!(reply.status, CHECK_CONDITION);
        }
    }
    assert!(good > 0, "the first reads came before the end");
    // The target may notice the new size with this command only, and then reports it first.
    let rest =
        (0..2).map(|_| raw.read(0, &read10(0, 8), 4096)).find(|reply| reply.sense() != CAPACITY_CHANGED);
    assert!(rest.expect("one attention").good() == content[..4096], "the rest of the file is served");
    assert_ne!(raw.read(0, &read10(64, 128), 65_536).status, 0);
}

#[test]
fn reset_and_lost_connection_end_reads_whose_pages_wait() {
    let content = content();
    let mut server = serve(&content);
    let idle = pipes(&server);
    let mut raw = session(&server, &[]);
    for _ in 0..3 {
        let mut lost = session(&server, &[]);
        read_without_receiving(&server, idle, &mut lost);
        lost.cut();
        assert!(raw.read_blocks(0, 128, 512) == content[128 * 512..][..512 * 512]);
    }
    let reads = read_without_receiving(&server, idle, &mut raw);
    assert_eq!(raw.manage(LUN_RESET, 0), COMPLETE);
    drop(reads);
    let mut raw = session(&server, &[]);
    assert!(raw.read_blocks(0, 0, 2048) == content[..1 << 20]);
    assert!(server.lives());
}
