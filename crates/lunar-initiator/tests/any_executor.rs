//! The futures for any executor, on tokio, against `lunar serve`. The example is a part of this test.

#[path = "../examples/tokio.rs"]
mod example;
mod serve;

use lunar_initiator::any_executor::{self, AsyncLun, Data};
use lunar_initiator::{ErrorCode, Url, cdb, discover};
use serve::server;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn example_copies_a_lun_on_tokio() {
    let server = server();
    let url: Url = server.url.parse().unwrap();
    let lun = AsyncLun::open(&url).await.unwrap();
    let data: Vec<u8> = (0..1 << 20).map(|n: u32| (n / 512 + n) as u8).collect();
    lun.write_at(0, &data).await.unwrap();
    assert_eq!(example::copy_first_mib(url).await.unwrap(), 1 << 20);
    let mut copy = vec![0; 1 << 20];
    lun.read_at(1 << 20, &mut copy).await.unwrap();
    assert!(copy == data);
    lun.close().await.unwrap();
}

#[tokio::test]
async fn operations_and_errors_come_back_on_one_thread() {
    let server = server();
    let url: Url = server.url.parse().unwrap();
    let lun = AsyncLun::open(&url).await.unwrap();
    let mut inquiry = [0; 96];
    let c = lun.scsi(cdb::inquiry(None, 96), Data::In(&mut inquiry)).await.unwrap();
    assert_eq!((c.status, &inquiry[8..13]), (0, &b"LUNAR"[..]));
    lun.write_at(0, &[9; 4096]).await.unwrap();
    lun.write_zeroes(0, 512, true).await.unwrap();
    lun.unmap(512, 512).await.unwrap();
    assert!(lun.compare_and_write(0, &[0; 512], &[7; 512]).await.unwrap());
    assert!(!lun.compare_and_write(0, &[0; 512], &[8; 512]).await.unwrap());
    let uneven = lun.compare_and_write(0, &[0; 512], &[8; 10]).await;
    assert_eq!(uneven.unwrap_err().code, ErrorCode::InvalidArgument);
    let mut first = [0; 1536];
    lun.read_at(0, &mut first).await.unwrap();
    assert_eq!([first[0], first[512], first[1024]], [7, 0, 9]);
    let beyond = lun.read_at(lun.capacity(), &mut first).await;
    assert_eq!(beyond.unwrap_err().code, ErrorCode::InvalidArgument);
    lun.flush().await.unwrap();
    let other = lun.clone();
    lun.close().await.unwrap();
    assert_eq!(other.read_at(0, &mut first).await.unwrap_err().code, ErrorCode::SessionClosed);
}

#[tokio::test]
async fn dropped_future_leaves_the_session_in_order() {
    let server = server();
    let url: Url = server.url.parse().unwrap();
    let lun = AsyncLun::open(&url).await.unwrap();
    let mut data = vec![0; 1 << 20];
    for n in 0..8 {
        tokio::select! {
            biased;
            done = lun.read_at(n << 20, &mut data) => done.unwrap(),
            () = std::future::ready(()) => {}
        }
    }
    lun.write_at(0, &[5; 512]).await.unwrap();
    lun.read_at(0, &mut data[..512]).await.unwrap();
    assert_eq!(data[..512], [5; 512]);
    lun.close().await.unwrap();
}

#[tokio::test]
async fn discovery_runs_on_the_event_loop() {
    let server = server();
    let url: Url = server.url.parse().unwrap();
    let portal = url.portal.clone();
    let found = any_executor::run(move || async move { discover(portal, &url.options()?).await }).await;
    assert_eq!(found.unwrap().unwrap().len(), 1);
}
