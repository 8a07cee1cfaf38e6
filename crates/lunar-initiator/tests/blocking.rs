//! Blocking calls and their example, against `lunar serve`.

mod serve;

use lunar_initiator::blocking::{self, BlockingLun, Data};
use lunar_initiator::{ErrorCode, Url, cdb, discover};
use serve::server;
use std::process::Command;
use std::thread;

#[test]
fn threads_share_a_lun() {
    let server = server();
    let lun = BlockingLun::open(&server.url.parse::<Url>().unwrap()).unwrap();
    assert_eq!(lun.capacity(), 64 << 20);
    thread::scope(|scope| {
        for n in 0..4u8 {
            let lun = &lun;
            scope.spawn(move || {
                for round in 0..8u64 {
                    let at = (u64::from(n) * 8 + round) * 65536 + 100;
                    let (data, mut back) = (vec![n + 1; 5000], vec![0; 5000]);
                    lun.write_at(at, &data).unwrap();
                    lun.read_at(at, &mut back).unwrap();
                    assert!(back == data);
                }
            });
        }
    });
    lun.flush().unwrap();
    lun.write_zeroes(0, 65536, true).unwrap();
    lun.unmap(65536, 65536).unwrap();
    let mut zeros = [1; 4096];
    lun.read_at(65536, &mut zeros).unwrap();
    assert_eq!(zeros, [0; 4096]);
    lun.close().unwrap();
}

#[test]
fn commands_and_errors_of_a_lun() {
    let server = server();
    let lun = BlockingLun::open(&server.url.parse::<Url>().unwrap()).unwrap();
    let mut inquiry = [0; 96];
    let c = lun.scsi(cdb::inquiry(None, 96), Data::In(&mut inquiry)).unwrap();
    assert_eq!((c.status, &inquiry[8..13]), (0, &b"LUNAR"[..]));
    let c = lun.scsi([0xff; 16], Data::None).unwrap();
    assert_eq!((c.status, c.sense().map(|s| s.key)), (2, Some(5)));
    assert!(lun.compare_and_write(0, &[0; 512], &[7; 512]).unwrap());
    assert!(!lun.compare_and_write(0, &[0; 512], &[8; 512]).unwrap());
    assert_eq!(lun.compare_and_write(0, &[0; 512], &[8; 10]).unwrap_err().code, ErrorCode::InvalidArgument);
    let end = lun.capacity();
    assert_eq!(lun.read_at(end - 1, &mut [0; 2]).unwrap_err().code, ErrorCode::InvalidArgument);
    assert_eq!(lun.write_at(u64::MAX, &[0]).unwrap_err().code, ErrorCode::InvalidArgument);
    lun.read_at(end - 1, &mut [0; 1]).unwrap();
}

#[test]
fn luns_of_one_process_work_side_by_side() {
    let server = server();
    let url: Url = server.url.parse().unwrap();
    let luns: Vec<BlockingLun> = (0..4).map(|_| BlockingLun::open(&url).unwrap()).collect();
    let portal = url.portal.clone();
    let found = blocking::run(move || async move { discover(portal, &url.options()?).await }).unwrap();
    assert_eq!(found.unwrap().len(), 1);
    for lun in luns {
        lun.read_at(0, &mut [0; 512]).unwrap();
        lun.close().unwrap();
    }
}

#[test]
fn thread_that_panics_with_a_lun_ends_alone() {
    let server = server();
    let url: Url = server.url.parse().unwrap();
    let lun = BlockingLun::open(&url).unwrap();
    let panicked = thread::spawn(move || {
        lun.read_at(0, &mut [0; 512]).unwrap();
        panic!("expected by this test");
    });
    assert!(panicked.join().is_err());
    BlockingLun::open(&url).unwrap().close().unwrap();
}

#[test]
fn example_reads_a_lun() {
    let server = server();
    let here = std::env::current_exe().expect("a path");
    let example =
        here.parent().and_then(|deps| deps.parent()).expect("the target directory").join("examples/read_lun");
    let ran = Command::new(&example).arg(&server.url).output();
    let ran = ran.unwrap_or_else(|e| panic!("{}: {e}", example.display()));
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success() && said.starts_with("67108864 bytes, "), "{said}");
}
