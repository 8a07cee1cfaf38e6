//! A target at its limits.

use super::*;
use interop::Server;
use lunar_initiator::Direction;
use lunar_wire::scsi::cdb;

const MIB: usize = 1 << 20;

/// A server with minimal memory and a slow medium.
fn narrow() -> Server {
    Server::start(&format!(
        "[limits]\nmemory = \"32MiB\"\n[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\"]\n\
         [[target]]\nname = \"{}\"\n[[target.lun]]\nlun = 0\nbackend = \"memory\"\nsize = \"128MiB\"\n\
         filters = [{{ kind = \"delay\", read_us = 3000, write_us = 3000 }}]\n",
        interop::TARGET
    ))
}

/// All kinds of commands at once in one session. The writes hold all buffers while COMPARE AND WRITE runs
/// exclusively. This ends only if the reads inside COMPARE AND WRITE need no buffers.
async fn everything_at_once(lun: Arc<Lun>) {
    let mut all = Vec::new();
    for n in 0..40u64 {
        let (writer, reader, comparer) = (lun.clone(), lun.clone(), lun.clone());
        let writes = async move { write(&*writer, n * MIB as u64, n, MIB).await.expect("written") };
        let reads = async move { drop(read(&*reader, (40 + n) * MIB as u64, MIB).await) };
        all.push(compio::runtime::spawn(writes));
        if n % 4 == 0 {
            let compares = async move {
                let data = Buf::zeroed(2 * 512);
                let same = comparer.compare_and_write(100 * MIB as u64 + n * 512, data).await;
                assert!(same.expect("compared"));
            };
            all.push(compio::runtime::spawn(compares));
        }
        all.push(compio::runtime::spawn(reads));
    }
    for one in all {
        one.await.expect("the task panicked");
    }
    for n in 0..40 {
        assert!(read(&*lun, n * MIB as u64, MIB).await == *pattern(n, MIB));
    }
}

#[test]
fn large_reads_and_writes_and_compare_and_write_at_once_all_end() {
    let server = narrow();
    let url = format!("iscsi://{}/{}/0?command_timeout=100", server.portal(), interop::TARGET);
    run(move || async move {
        let lun = open(&url).await.expect("a LUN");
        for _ in 0..3 {
            everything_at_once(lun.clone()).await;
        }
        let done = lun.perform(cdb::test_unit_ready(), Direction::None).await.0;
        assert_eq!(done.expect("the target responds").status, 0);
    });
}
