use super::test_target::{Host, HostResponse, OFFSET, command, encoded, run_ready};
use super::{TestTarget, golden, on_core};
use lunar_rdma::mem::EndpointOp;
use lunar_runtime::Buf;
use lunar_wire::scsi::cdb;
use lunar_wire::srp::{
    DESCRIPTOR_LEN, DataBuffer, IndirectBuffer, MemoryDescriptor, Residual, SrpCommand, SrpResponse,
};

const BLOCK: usize = 512;

async fn target() -> (TestTarget, Host) {
    let target = TestTarget::new();
    let host = target.host(1, false).await.receive_attentions().await;
    (target, host)
}

/// Bytes that depend on their offset.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 7 + i) as u8).collect()
}

/// A descriptor table as bytes.
fn table(pieces: &[MemoryDescriptor]) -> Vec<u8> {
    pieces.iter().flat_map(|piece| piece.encode()).collect()
}

/// An indirect data buffer with all descriptors in the command.
fn indirect(list: &[u8]) -> IndirectBuffer<'_> {
    let table = MemoryDescriptor { address: 0, key: 0, len: list.len() as u32 };
    let len =
        list.as_chunks::<DESCRIPTOR_LEN>().0.iter().map(|piece| MemoryDescriptor::decode(piece).len).sum();
    IndirectBuffer { table, len, list }
}

/// Writes bytes from the first block of the disk on.
async fn write(host: &mut Host, bytes: &[u8]) {
    let (at, cdb) = (host.source(bytes), cdb::write_16(0, (bytes.len() / BLOCK) as u32, false));
    let write = SrpCommand { data_out: DataBuffer::Direct(at), ..command(100, &cdb) };
    assert_eq!(host.execute(&write).await, HostResponse::good(100));
}

/// Reads blocks from the first block of the disk on.
async fn read(host: &mut Host, blocks: u32) -> Vec<u8> {
    let (at, cdb) = (host.sink(blocks * BLOCK as u32), cdb::read_16(0, blocks));
    let read = SrpCommand { data_in: DataBuffer::Direct(at), ..command(101, &cdb) };
    assert_eq!(host.execute(&read).await, HostResponse::good(101));
    host.written(at)
}

#[test]
fn written_data_are_read_back() {
    on_core(async move || {
        let (_world, mut host) = target().await;
        for len in [BLOCK, 8 << 10, 3 << 20] {
            write(&mut host, &pattern(len)).await;
            assert!(read(&mut host, (len / BLOCK) as u32).await == pattern(len), "{len}");
        }
    });
}

#[test]
fn long_write_is_read_and_stored_in_chunks() {
    const PIECE: usize = 1 << 20;
    on_core(async move || {
        let (_world, mut host) = target().await;
        let len = 20 * PIECE;
        write(&mut host, &pattern(len)).await;
        let log = host.faults[1].log();
        let read_in = log.iter().filter(|op| matches!(op, EndpointOp::Read { .. })).map(length);
        assert_eq!(read_in.collect::<Vec<_>>(), [PIECE; 20]);
        drop(log);
        assert!(read(&mut host, (len / BLOCK) as u32).await == pattern(len));
    });
}

#[test]
fn read_writes_memory_before_response() {
    on_core(async move || {
        let (_world, mut host) = target().await;
        write(&mut host, &pattern(BLOCK)).await;
        host.faults[1].take_log();
        let (at, cdb) = (host.sink(512), cdb::read_10(0, 1));
        let read = SrpCommand { data_in: DataBuffer::Direct(at), ..command(0x1122_3344_5566_7788, &cdb) };
        host.send_unit(&golden(&format!(
            "02000000 00010000 1122334455667788 00000000 0000000000000000 00000000
             28000000000000000100000000000000 {:016x} {:08x} 00000200",
            at.address, at.key
        )));
        assert_eq!(encoded(&read).len(), 64);
        let wanted =
            golden("c1000000 00000001 1122334455667788 00000000 00000000 00000000 00000000 00000000");
        assert_eq!(host.receive().await.expect("an answer"), wanted);
        assert_eq!(host.written(at), pattern(BLOCK));
        let lens: Vec<usize> = host.faults[1].log().iter().map(length).collect();
        assert_eq!(lens, [BLOCK, SrpResponse::LEN]);
    });
}

fn length(operation: &EndpointOp) -> usize {
    match operation {
        EndpointOp::Send { len, .. } | EndpointOp::Write { len, .. } | EndpointOp::Read { len, .. } => *len,
        EndpointOp::ReadEnded { .. } => 0,
    }
}

#[test]
fn indirect_memory_is_used_in_order() {
    on_core(async move || {
        let (_world, mut host) = target().await;
        let bytes = pattern(2 * BLOCK);
        let cuts = [0..100, 100..100, 100..900, 900..1024];
        let out: Vec<_> = cuts.iter().map(|cut| host.source(&bytes[cut.clone()])).collect();
        let (out, cdb) = (table(&out), cdb::write_10(0, 2, false));
        let write = SrpCommand { data_out: DataBuffer::Indirect(indirect(&out)), ..command(5, &cdb) };
        host.faults[1].take_log();
        host.faults[1].reads.hold();
        host.send(&write);
        run_ready().await;
        let begun: Vec<_> = host.faults[1].take_log().iter().map(length).collect();
        assert_eq!(begun, [100, 800, 124], "all reads begin at once");
        host.faults[1].reads.release();
        assert_eq!(host.answer().await, HostResponse::good(5));
        let into: Vec<_> = [1, 1000, 23].into_iter().map(|len| host.sink(len)).collect();
        let (list, cdb) = (table(&into), cdb::read_10(0, 2));
        let read = SrpCommand { data_in: DataBuffer::Indirect(indirect(&list)), ..command(6, &cdb) };
        assert_eq!(host.execute(&read).await, HostResponse::good(6));
        assert_eq!(into.iter().flat_map(|at| host.written(*at)).collect::<Vec<_>>(), bytes);
        // The same for a command that reads no medium.
        let into: Vec<_> = [5, 31].into_iter().map(|len| host.sink(len)).collect();
        let (list, cdb) = (table(&into), cdb::inquiry(None, 36));
        let inquiry = SrpCommand { data_in: DataBuffer::Indirect(indirect(&list)), ..command(7, &cdb) };
        assert_eq!(host.execute(&inquiry).await, HostResponse::good(7));
        assert_eq!(&host.written(into[1])[3..8], b"LUNAR");
    });
}

#[test]
fn external_descriptor_table_is_read_first() {
    on_core(async move || {
        let (_world, mut host) = target().await;
        write(&mut host, &pattern(2 * BLOCK)).await;
        let into: Vec<_> = [500, 24, 500].into_iter().map(|len| host.sink(len)).collect();
        let whole = table(&into);
        let all = IndirectBuffer { table: host.source(&whole), len: 1024, list: &whole[..16] };
        let cdb = cdb::read_10(0, 2);
        host.faults[1].reads.hold();
        host.send(&SrpCommand { data_in: DataBuffer::Indirect(all), ..command(6, &cdb) });
        // Later commands wait for it.
        host.send(&command(7, &cdb::test_unit_ready()));
        host.expect_silence().await;
        host.faults[1].reads.release();
        assert_eq!(
            [host.answer().await, host.answer().await],
            [HostResponse::good(6), HostResponse::good(7)]
        );
        assert_eq!(into.iter().flat_map(|at| host.written(*at)).collect::<Vec<_>>(), pattern(2 * BLOCK));
    });
}

/// Takes all memory from the target's pool.
fn exhaust_pool(target: &TestTarget) -> Vec<Buf> {
    let all_of = |len| std::iter::from_fn(move || target.shared.pool.try_get(len));
    [1 << 20, 4096, 16].into_iter().flat_map(all_of).collect()
}

#[test]
fn table_without_memory_is_busy() {
    on_core(async move || {
        let (target, mut host) = target().await;
        let into = table(&[host.sink(500), host.sink(524)]);
        let all = IndirectBuffer { table: host.source(&into), len: 1024, list: &[] };
        let cdb = cdb::read_10(0, 2);
        let read = |tag| SrpCommand { data_in: DataBuffer::Indirect(all), ..command(tag, &cdb) };
        let memory = exhaust_pool(&target);
        host.faults[1].reads.hold();
        // A session may always have one buffer.
        host.send(&read(6));
        for tag in [7, 8] {
            assert_eq!(host.execute(&read(tag)).await, HostResponse { status: 8, ..HostResponse::good(tag) });
        }
        drop(memory);
        host.faults[1].reads.release();
        assert_eq!(host.answer().await, HostResponse::good(6));
        assert_eq!(host.execute(&read(7)).await, HostResponse::good(7));
    });
}

#[test]
fn command_behind_table_needs_no_pool_memory() {
    on_core(async move || {
        let (target, mut host) = target().await;
        let bytes = pattern(2 * BLOCK);
        let from = table(&[host.source(&bytes[..100]), host.source(&bytes[100..])]);
        let all = IndirectBuffer { table: host.source(&from), len: 1024, list: &[] };
        let (first, second) = (cdb::write_10(0, 2, false), cdb::write_10(2, 2, false));
        host.faults[1].reads.hold();
        host.send(&SrpCommand { data_out: DataBuffer::Indirect(all), ..command(6, &first) });
        let memory = exhaust_pool(&target);
        host.send(&SrpCommand { data_out: DataBuffer::Immediate(&bytes), ..command(7, &second) });
        host.expect_silence().await;
        drop(memory);
        host.faults[1].reads.release();
        let mut answers = [host.answer().await, host.answer().await];
        answers.sort_by_key(|answer| answer.tag);
        assert_eq!(answers, [HostResponse::good(6), HostResponse::good(7)]);
        assert_eq!(read(&mut host, 4).await, [&bytes[..], &bytes].concat());
    });
}

#[test]
fn immediate_data_are_written() {
    on_core(async move || {
        let (_world, mut host) = target().await;
        let bytes = pattern(16 * BLOCK);
        let cdb = cdb::write_10(0, 16, false);
        let write = SrpCommand { data_out: DataBuffer::Immediate(&bytes), ..command(5, &cdb) };
        assert_eq!(encoded(&write).len(), 8260);
        assert_eq!(encoded(&write)[usize::from(OFFSET)..], bytes);
        host.faults[1].take_log();
        assert_eq!(host.execute(&write).await, HostResponse::good(5));
        assert_eq!(host.faults[1].log().iter().map(length).collect::<Vec<_>>(), [SrpResponse::LEN]);
        assert_eq!(read(&mut host, 16).await, bytes);
    });
}

#[test]
fn residual_matches_moved_bytes() {
    on_core(async move || {
        let (_world, mut host) = target().await;
        let inquiry = cdb::inquiry(None, 36);
        let read = cdb::read_10(0, 2);
        let write = cdb::write_10(0, 1, false);
        let (wide, narrow) = (host.sink(40), host.sink(1000));
        let (much, none) = (host.source(&[7; 600]), Residual::None);
        for (command, wanted) in [
            (
                SrpCommand { data_in: DataBuffer::Direct(wide), ..command(1, &inquiry) },
                [none, Residual::Under(4)],
            ),
            (
                SrpCommand { data_in: DataBuffer::Direct(narrow), ..command(2, &read) },
                [none, Residual::Over(24)],
            ),
            (
                SrpCommand { data_out: DataBuffer::Direct(much), ..command(3, &write) },
                [Residual::Under(88), none],
            ),
        ] {
            host.send(&command);
            let unit = host.receive().await.expect("an answer");
            let r = SrpResponse::decode(&unit).expect("a response");
            assert_eq!((r.status, [r.residual_out, r.residual_in]), (0, wanted), "{}", command.tag);
        }
        assert_eq!(host.written(wide)[36..], [0; 4]);
        let (little, write) = (host.source(&[9; 600]), cdb::write_10(0, 2, false));
        host.send(&SrpCommand { data_out: DataBuffer::Direct(little), ..command(4, &write) });
        let unit = host.receive().await.expect("an answer");
        let r = SrpResponse::decode(&unit).expect("a response");
        assert_eq!((r.status, r.residual_out), (2, Residual::Over(424)));
        assert_eq!(self::read(&mut host, 1).await, [7; 512], "no data are stored");
        // No more of the write was read than its CDB requests.
        assert!(host.faults[1].log().iter().any(|op| matches!(op, EndpointOp::Read { len: 512, .. })));
    });
}

#[test]
fn check_condition_has_sense_and_no_data() {
    on_core(async move || {
        let (_world, mut host) = target().await;
        let (at, cdb) = (host.sink(512), cdb::read_16(1 << 40, 1));
        host.faults[1].take_log();
        let read = SrpCommand { data_in: DataBuffer::Direct(at), ..command(5, &cdb) };
        assert_eq!(host.execute(&read).await, HostResponse::check(5, (5, 0x21, 0)));
        let other = SrpCommand { lun: 9 << 48, ..command(6, &cdb) };
        assert_eq!(host.execute(&other).await, HostResponse::check(6, (5, 0x25, 0)));
        assert!(host.faults[1].log().iter().all(|op| matches!(op, EndpointOp::Send { .. })));
    });
}

#[test]
fn solicited_bit_follows_request() {
    on_core(async move || {
        let (_world, mut host) = target().await;
        let cdb = cdb::test_unit_ready();
        for (notifications, lun, wanted) in [(0, 0, 0), (2, 0, 1), (4, 0, 0), (4, 9 << 48, 1)] {
            host.send(&SrpCommand { notifications, lun, ..command(5, &cdb) });
            assert_eq!(host.receive().await.expect("an answer")[1], wanted);
        }
    });
}
