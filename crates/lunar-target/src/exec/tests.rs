//! Durability on a disk that loses its cache, and the log counters of the logical unit.

mod failing_media;

pub use failing_media::refusing_after;

use super::medium::io_failure;
use super::*;
use crate::ScsiError;
use crate::task_set_lock::{LockMode, TaskSetHandle};
use lunar_block::testing::VolatileBackend;
use lunar_block::{Backend, BackendKind, BackendSpec};
use lunar_scsi::{CopyRange, CopySegment, NexusId};
use lunar_scsi::{
    InitiatorPort, Lu, LuIdentity, LuSettings, Nexus, NexusPorts, TargetPort, TargetPorts, TransportProtocol,
};
use lunar_wire::scsi::op;

const BLOCK: usize = 512;
const CAPACITY: u64 = 1 << 20;
const FUA: u8 = 0x08;
/// Ways to lose the cache: all of it, or a random part of it with this seed.
const LOSSES: [Option<u64>; 4] = [None, Some(1), Some(2), Some(3)];

/// A context for commands that need only their logical unit. True: the command counts as aborted.
struct NoContext(bool);

impl ExecutionContext for NoContext {
    fn luns(&self) -> Vec<u16> {
        Vec::new()
    }
    fn copy_ends(&self, _: u16, _: &CopySegment) -> Result<copy::CopyEnds, Sense> {
        Err(Sense::LUN_NOT_SUPPORTED)
    }
    fn copy_range(&self, _: u16, _: &CopySegment, _: &copy::CopyEnds) -> Result<CopyRange, Sense> {
        Err(Sense::LUN_NOT_SUPPORTED)
    }
    fn own_lock(&self) -> Option<(TaskSetHandle, LockMode)> {
        None
    }
    fn copies_stably(&self) -> bool {
        false
    }
    fn abort(&self, _: Vec<NexusId>) -> lunar_block::LocalBoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    fn is_aborted(&self) -> bool {
        self.0
    }

    fn until_aborted(&self) -> lunar_block::LocalBoxFuture<'_, ()> {
        Box::pin(std::future::pending())
    }
}

/// A logical unit on a disk that loses its cache, and one nexus of it.
struct TestDisk {
    lossy: Arc<VolatileBackend>,
    unit: Arc<LogicalUnit>,
    nexus: Nexus,
    pool: Pool,
}

pub(super) fn settings(write_cache: bool) -> LuSettings {
    LuSettings {
        device_type: lunar_scsi::PeripheralDeviceType::Disk,
        identity: LuIdentity {
            vendor: "LUNAR".into(),
            product: "VIRTUAL DISK".into(),
            revision: "1".into(),
            serial: "1".into(),
            naa: vec![0x30, 1, 2, 3, 4, 5, 6, 7],
            designators: None,
        },
        block_size: BLOCK as u32,
        physical_block_size: BLOCK as u32,
        capacity: CAPACITY,
        read_only: false,
        removable: false,
        write_cache,
        thin: true,
        max_registrants: 4,
        reservable: true,
        passthrough: lunar_scsi::PassthroughMode::None,
        max_atomic: 1 << 20,
        medium_compares: false,
        explicit_access: true,
        shared: false,
    }
}

fn memory() -> Arc<dyn Backend> {
    lunar_block::open(&BackendSpec::sized(BackendKind::Memory, CAPACITY))
        .unwrap_or_else(|e| panic!("{}: {}", e.subject, e.what))
}

pub fn lu(write_cache: bool) -> Arc<Lu> {
    Arc::new(Lu::new(settings(write_cache), None).expect("settings"))
}

fn initiator(isid: [u8; 6]) -> InitiatorPort {
    InitiatorPort::Iscsi { name: "iqn.2026-11.org.example:host".into(), isid }
}

fn own_port() -> TargetPort {
    TargetPort::new(TransportProtocol::Iscsi, 1, None)
}

pub fn port() -> Arc<NexusPorts> {
    Arc::new(NexusPorts {
        initiator: initiator([0x80, 0, 0, 1, 0, 0]),
        user: String::new(),
        target: "iqn.2026-11.org.example:disk".into(),
        own: own_port(),
        ports: TargetPorts::new([own_port()]),
    })
}

fn unit(write_cache: bool, backend: Arc<dyn Backend>) -> (Arc<LogicalUnit>, Nexus) {
    unit_of(lu(write_cache), backend)
}

fn unit_of(lu: Arc<Lu>, backend: Arc<dyn Backend>) -> (Arc<LogicalUnit>, Nexus) {
    let mut nexus = lu.attach(port(), false);
    assert!(nexus.begin(&[0; 16]).is_err(), "POWER ON");
    (Arc::new(LogicalUnit::new(lu, backend, None)), nexus)
}

impl TestDisk {
    fn new(write_cache: bool) -> TestDisk {
        let lossy = Arc::new(VolatileBackend::new(memory()));
        let (unit, nexus) = unit(write_cache, lossy.clone());
        TestDisk { lossy, unit, nexus, pool: Pool::new(64 << 20) }
    }

    /// Executes a CDB.
    async fn end(&mut self, cdb: &[u8], data: &[u8]) -> ExecutionResult {
        let mut padded = [0; 16];
        padded[..cdb.len()].copy_from_slice(cdb);
        let plan = match self.nexus.begin(&padded)? {
            Plan::Parameters { .. } => self.nexus.parameters(&padded, data)?,
            plan => plan,
        };
        let plan = persist(&self.unit, Ok(plan)).await?;
        let data = (plan.data_out_len() > 0).then(|| Buf::copy_of(data));
        run(&self.unit, &self.pool, plan, data, &NoContext(false)).await
    }

    async fn good(&mut self, cdb: &[u8], data: &[u8]) -> Vec<u8> {
        match self.end(cdb, data).await {
            Ok(ExecutionOutput::Medium(buf)) => buf.to_vec(),
            Ok(ExecutionOutput::Data(data)) => data,
            Ok(_) => Vec::new(),
            Err(f) => panic!("{cdb:02x?}: {f:?}"),
        }
    }

    async fn write(&mut self, lba: u8, byte: u8, flags: u8) {
        self.good(&write(op::WRITE_10, lba, flags), &[byte; BLOCK]).await;
    }

    /// The content of a block after a loss of the cache.
    async fn left(&mut self, lba: u8, loss: Option<u64>) -> Vec<u8> {
        self.lossy.lose(loss).await.expect("the medium works");
        self.good(&[op::READ_10, 0, 0, 0, 0, lba, 0, 0, 1, 0], &[]).await
    }

    /// A counter of LOG SENSE: bytes, or errors.
    async fn logged(&mut self, page: u8, parameter: u8) -> u64 {
        let data = self.good(&[op::LOG_SENSE, 0, 0x40 | page, 0, 0, 0, parameter, 0, 0xff, 0], &[]).await;
        u64::from_be_bytes(data[8..16].try_into().expect("8 bytes"))
    }
}

fn write(opcode: u8, lba: u8, flags: u8) -> [u8; 10] {
    [opcode, flags, 0, 0, 0, lba, 0, 0, 1, 0]
}

fn runs(test: impl Future<Output = ()>) {
    compio::runtime::Runtime::new().expect("a runtime").block_on(test);
}

/// Verifies the assumption of the following tests.
#[test]
fn cached_write_may_be_lost() {
    runs(async {
        let mut disk = TestDisk::new(true);
        disk.write(1, 7, 0).await;
        assert_eq!(disk.left(1, None).await, [0; BLOCK]);
    });
}

#[test]
fn fua_write_is_stable() {
    runs(async {
        for loss in LOSSES {
            let mut disk = TestDisk::new(true);
            disk.write(1, 6, 0).await;
            disk.write(1, 7, FUA).await;
            assert_eq!(disk.left(1, loss).await, [7; BLOCK]);
        }
    });
}

#[test]
fn write_without_write_cache_is_stable() {
    runs(async {
        for loss in LOSSES {
            let mut disk = TestDisk::new(false);
            disk.write(1, 7, 0).await;
            assert_eq!(disk.left(1, loss).await, [7; BLOCK]);
        }
    });
}

/// MODE SELECT clears WCE: later writes are stable.
#[test]
fn write_after_wce_is_cleared_is_stable() {
    runs(async {
        let mut disk = TestDisk::new(true);
        let mut list = [0; 24];
        list[4..6].copy_from_slice(&[0x08, 0x12]);
        disk.good(&[op::MODE_SELECT_6, 0x10, 0, 0, list.len() as u8, 0], &list).await;
        disk.write(1, 7, 0).await;
        assert_eq!(disk.left(1, None).await, [7; BLOCK]);
    });
}

#[test]
fn flush_makes_earlier_writes_stable() {
    runs(async {
        for cdb in [&[op::SYNCHRONIZE_CACHE_10][..], &[op::SYNCHRONIZE_CACHE_16]] {
            for loss in LOSSES {
                let mut disk = TestDisk::new(true);
                disk.write(1, 7, 0).await;
                disk.write(2, 8, 0).await;
                disk.good(cdb, &[]).await;
                disk.write(2, 9, 0).await;
                assert_eq!(disk.left(1, loss).await, [7; BLOCK]);
                let after = disk.left(2, None).await;
                assert!(after == [8; BLOCK] || after == [9; BLOCK], "{:02x?}", &after[..4]);
            }
        }
    });
}

/// Other write commands, with FUA or without a write cache. WRITE AND VERIFY and START STOP UNIT are always stable.
#[test]
fn other_write_commands_are_stable() {
    let mut verify = write(op::WRITE_VERIFY_10, 1, 0).to_vec();
    verify.resize(10, 0);
    let same = write(op::WRITE_SAME_10, 1, 0).to_vec();
    let mut compare = vec![0; 16];
    (compare[0], compare[9], compare[13]) = (op::COMPARE_AND_WRITE, 1, 1);
    let mut or = vec![0; 16];
    (or[0], or[9], or[13]) = (op::ORWRITE_16, 1, 1);
    let block = vec![7; BLOCK];
    let both = [vec![0; BLOCK], block.clone()].concat();
    runs(async {
        for (cdb, data, fua) in
            [(&verify, &block, false), (&same, &block, false), (&compare, &both, true), (&or, &block, true)]
        {
            let mut disk = TestDisk::new(false);
            disk.good(cdb, data).await;
            assert_eq!(disk.left(1, None).await, [7; BLOCK], "{:02x} without a write cache", cdb[0]);
            if fua {
                let mut disk = TestDisk::new(true);
                let mut cdb = cdb.clone();
                cdb[1] |= FUA;
                disk.good(&cdb, data).await;
                assert_eq!(disk.left(1, None).await, [7; BLOCK], "{:02x} with FUA", cdb[0]);
            }
        }
        let mut disk = TestDisk::new(true);
        disk.good(&verify, &block).await;
        assert_eq!(disk.left(1, None).await, [7; BLOCK], "verified is written");
        let mut disk = TestDisk::new(true);
        disk.write(1, 7, 0).await;
        disk.good(&[op::START_STOP_UNIT, 0, 0, 0, 0], &[]).await;
        disk.good(&[op::START_STOP_UNIT, 0, 0, 0, 1], &[]).await;
        assert_eq!(disk.left(1, None).await, [7; BLOCK], "stopped is flushed");
    });
}

const WRITES: u8 = 2;
const READS: u8 = 3;
const VERIFIES: u8 = 5;
const OTHERS: u8 = 6;
const BYTES: u8 = 5;
const ERRORS: u8 = 6;

#[test]
fn log_counters_count_bytes() {
    runs(async {
        let mut disk = TestDisk::new(true);
        disk.write(1, 7, 0).await;
        disk.good(&[op::READ_10, 0, 0, 0, 0, 1, 0, 0, 3, 0], &[]).await;
        disk.good(&[op::VERIFY_10, 0, 0, 0, 0, 1, 0, 0, 2, 0], &[]).await;
        for (page, blocks) in [(WRITES, 1), (READS, 3), (VERIFIES, 2)] {
            assert_eq!(disk.logged(page, BYTES).await, blocks * BLOCK as u64, "page {page:02x}");
            assert_eq!(disk.logged(page, ERRORS).await, 0, "page {page:02x}");
        }
        assert_eq!(disk.logged(OTHERS, 0).await, 0);
    });
}

/// Every access fails. A miscompare is not a medium error.
#[test]
fn log_counters_count_errors() {
    runs(async {
        let mut disk = TestDisk::new(true);
        let failing = lunar_block::filter::error(memory(), lunar_block::filter::FilterOp::Read, 1.0, None);
        (disk.unit, disk.nexus) = unit(true, failing);
        assert!(disk.end(&[op::READ_10, 0, 0, 0, 0, 1, 0, 0, 1, 0], &[]).await.is_err());
        assert!(disk.end(&[op::VERIFY_10, 0, 0, 0, 0, 1, 0, 0, 1, 0], &[]).await.is_err());
        for (page, errors) in [(WRITES, 0), (READS, 1), (VERIFIES, 1)] {
            assert_eq!(disk.logged(page, ERRORS).await, errors, "page {page:02x}");
            assert_eq!(disk.logged(page, BYTES).await, 0, "page {page:02x}");
        }
        let mut disk = TestDisk::new(true);
        assert!(disk.end(&[op::VERIFY_10, 2, 0, 0, 0, 1, 0, 0, 1, 0], &[7; BLOCK]).await.is_err());
        assert_eq!(disk.logged(VERIFIES, ERRORS).await, 0, "a miscompare");
    });
}

/// A long operation that is aborted ends between two steps.
#[test]
fn aborted_operation_stops_writing() {
    runs(async {
        let disk = TestDisk::new(true);
        let all = CAPACITY;
        let verify = Op::Verify { offset: 0, len: all, compare: lunar_scsi::Compare::Nothing };
        let same = Op::WriteSame {
            offset: 0,
            len: all,
            zero: false,
            unmap: false,
            block_size: BLOCK as u32,
            stable: false,
        };
        let zeros = Op::WriteSame {
            offset: 0,
            len: all,
            zero: true,
            unmap: false,
            block_size: BLOCK as u32,
            stable: false,
        };
        let unmap = Op::Unmap { extents: vec![(0, all)], stable: false };
        let block = Some(vec![7; BLOCK]);
        for (op, data) in [(verify, None), (same, block), (zeros, None), (unmap, None)] {
            let data = data.map(|d| Buf::copy_of(&d));
            let plan = Plan::Op(Box::new(op));
            let ended = run(&disk.unit, &disk.pool, plan, data, &NoContext(true)).await;
            assert!(ended.is_err_and(|f| f.status == Status::TaskAborted));
        }
        let read = disk.unit.backend().read(0, Buf::zeroed(BLOCK)).await;
        assert!(read.1.iter().all(|b| *b == 0), "no writes after the abort");
    });
}

/// PERSISTENT RESERVE OUT: service action, key, service action key. The registration persists (APTPL).
fn reserve_out(action: u8, key: u8, action_key: u8) -> ([u8; 10], [u8; 24]) {
    let mut list = [0; 24];
    (list[7], list[15], list[20]) = (key, action_key, (action == 0) as u8);
    ([op::PERSISTENT_RESERVE_OUT, action, 1, 0, 0, 0, 0, 0, 24, 0], list)
}

/// Makes the folder of a state file unwritable by putting a file in its place, or writable again.
fn block_folder(folder: &std::path::Path, blocked: bool) {
    _ = std::fs::remove_dir_all(folder);
    _ = std::fs::remove_file(folder);
    if blocked {
        std::fs::write(folder, "").expect("a file");
    }
}

#[test]
fn unsaved_change_changes_nothing() {
    const CACHE_OFF: [u8; 24] =
        [0, 0, 0, 0, 0x08, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    const SELECT: [u8; 6] = [op::MODE_SELECT_6, 0x11, 0, 0, 24, 0];
    const KEYS: [u8; 10] = [op::PERSISTENT_RESERVE_IN, 0, 0, 0, 0, 0, 0, 1, 0, 0];
    const HELD: [u8; 10] = [op::PERSISTENT_RESERVE_IN, 1, 0, 0, 0, 0, 0, 1, 0, 0];
    let folder = std::env::temp_dir().join(format!("lunar-exec-keep-{}", std::process::id()));
    let file = folder.join("0.state");
    runs(async {
        block_folder(&folder, false);
        let mut disk = TestDisk::new(true);
        let lu = lu(true);
        let other = Arc::new(NexusPorts { initiator: initiator([0x80, 0, 0, 2, 0, 0]), ..(*port()).clone() });
        (disk.unit, disk.nexus) =
            (Arc::new(LogicalUnit::new(lu.clone(), memory(), Some(file.clone()))), lu.attach(port(), false));
        let mut victim = lu.attach(other, false);
        for nexus in [&mut disk.nexus, &mut victim] {
            assert!(nexus.begin(&[0; 16]).is_err(), "POWER ON");
        }
        let (cdb, list) = reserve_out(0, 0, 1);
        disk.good(&cdb, &list).await;
        std::mem::swap(&mut disk.nexus, &mut victim);
        disk.good(&cdb, &list).await;
        let (cdb, list) = reserve_out(1, 1, 0);
        disk.good(&cdb, &list).await;
        std::mem::swap(&mut disk.nexus, &mut victim);
        let kept = std::fs::read(&file).expect("a state file");
        assert_eq!(kept, lu.saved_state().1);

        block_folder(&folder, true);
        let before = (disk.good(&KEYS, &[]).await, disk.good(&HELD, &[]).await, lu.saved_state());
        for (cdb, list) in
            [reserve_out(5, 1, 1), reserve_out(4, 1, 1), reserve_out(0, 1, 9), reserve_out(3, 1, 0)]
        {
            let ended = disk.end(&cdb, &list).await;
            assert!(ended.is_err_and(|f| f.sense == Some(Sense::INTERNAL_FAILURE)), "{cdb:02x?}");
        }
        std::mem::swap(&mut disk.nexus, &mut victim);
        let ended = disk.end(&SELECT, &CACHE_OFF).await;
        assert!(ended.is_err_and(|f| f.sense == Some(Sense::INTERNAL_FAILURE)));
        std::mem::swap(&mut disk.nexus, &mut victim);
        assert!(lu.write_cache());
        assert_eq!((disk.good(&KEYS, &[]).await, disk.good(&HELD, &[]).await, lu.saved_state()), before);
        assert!(victim.begin(&[0; 16]).is_ok(), "no unit attention for a change that failed");

        block_folder(&folder, false);
        std::mem::swap(&mut disk.nexus, &mut victim);
        disk.good(&SELECT, &CACHE_OFF).await;
        assert!(!lu.write_cache());
        assert_eq!(std::fs::read(&file).expect("a state file"), lu.saved_state().1);
        block_folder(&folder, false);
    });
}

#[test]
fn scsi_error_of_backend_is_passed_on_unchanged() {
    let (unit, _) = unit(true, memory());
    let far = Sense { key: 3, asc: 0x11, ascq: 4, ..Sense::READ_ERROR }.at(99);
    let busy = ScsiError { status: Status::Busy, sense: None };
    for error in [ScsiError::from(far), ScsiError::from(Sense::NOT_READY_TRANSITION), busy] {
        let failure = io_failure(&unit, &error.into(), 512, &READ);
        assert_eq!((failure.status, failure.sense), (error.status, error.sense));
    }
    let own = io_failure(&unit, &std::io::Error::other("a scratch"), 512, &READ);
    assert_eq!(own.sense, Some(Sense::READ_ERROR.at(1)), "an error without a SCSI status");
}

/// A temporary file of `CAPACITY` bytes.
struct TempImage(std::path::PathBuf);

impl TempImage {
    fn new(name: &str) -> (TempImage, Arc<dyn Backend>) {
        let path = std::env::temp_dir().join(format!("lunar-image-{name}-{}", std::process::id()));
        _ = std::fs::remove_file(&path);
        let spec = BackendSpec {
            kind: BackendKind::File,
            size: Some(CAPACITY),
            create: true,
            ..BackendSpec::path(&path)
        };
        (TempImage(path), lunar_block::open(&spec).expect("a file"))
    }
}

impl Drop for TempImage {
    fn drop(&mut self) {
        _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn read_of_removed_range_fails_and_reports_capacity() {
    let (image, backend) = TempImage::new("shrunk");
    let (unit, mut nexus) = unit(true, backend);
    let cdb = |op, lba: u8| [op, 0, 0, 0, 0, lba, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
    let plan = nexus.begin(&cdb(0x28, 9)).expect("a plan");
    std::fs::OpenOptions::new()
        .write(true)
        .open(&image.0)
        .and_then(|file| file.set_len(8 * BLOCK as u64))
        .expect("shrunk");
    let pool = Pool::new(64 << 20);
    let runtime = compio::runtime::Runtime::new().expect("a runtime");
    let ended = runtime.block_on(run(&unit, &pool, plan, None, &NoContext(false)));
    assert_eq!(ended.err().and_then(|failure| failure.sense), Some(Sense::LBA_OUT_OF_RANGE.at(9)));
    let sense = |answer: PlanResult| answer.err().and_then(|failure| failure.sense);
    assert_eq!(sense(nexus.begin(&cdb(0x28, 9))), Some(Sense::CAPACITY_CHANGED));
    assert_eq!(sense(nexus.begin(&cdb(0x2a, 9))), Some(Sense::LBA_OUT_OF_RANGE.at(9)));
    assert!(nexus.begin(&cdb(0x28, 7)).is_ok());
    assert!(unit.refresh() && !unit.refresh(), "the change is reported once");
}

#[test]
fn deleted_image_follows_on_missing_setting() {
    use crate::OnMissing;
    let (image, backend) = TempImage::new("deleted");
    let (unit, mut nexus) = unit(true, lunar_block::filter::stats(backend).0);
    unit.set_on_missing(OnMissing::NotReady);
    unit.watch_path("t", 0);
    assert!(nexus.begin(&[0; 16]).is_ok());
    let elsewhere = image.0.with_extension("moved");
    std::fs::rename(&image.0, &elsewhere).expect("moved");
    unit.watch_path("t", 0);
    let sense = |answer: PlanResult| answer.err().and_then(|failure| failure.sense);
    assert_eq!(sense(nexus.begin(&[0; 16])), Some(Sense::NOT_READY_INTERVENTION));
    unit.set_on_missing(OnMissing::Continue);
    unit.watch_path("t", 0);
    assert!(nexus.begin(&[0; 16]).is_ok());
    std::fs::rename(&elsewhere, &image.0).expect("back");
    unit.watch_path("t", 0);
    assert!(nexus.begin(&[0; 16]).is_ok());
}
