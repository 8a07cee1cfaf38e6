use super::*;
use lunar_scsi::{Lu, LuIdentity};
use lunar_wire::scsi::Status;
use std::future::Future;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

const CAPACITY: u64 = 1 << 20;

fn settings() -> LuSettings {
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
        block_size: 512,
        physical_block_size: 512,
        capacity: CAPACITY,
        read_only: false,
        removable: false,
        write_cache: true,
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

fn unit(state_file: Option<PathBuf>) -> Arc<LogicalUnit> {
    let lu = Lu::new(settings(), None).expect("settings");
    Arc::new(LogicalUnit::new(Arc::new(lu), memory(), state_file))
}

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn quiesced_now(unit: &Arc<LogicalUnit>) -> Quiesced {
    compio::runtime::Runtime::new().expect("a runtime").block_on(unit.quiesce()).expect("rest")
}

#[test]
fn quiesced_unit_is_busy_until_resumed() {
    let unit = unit(None);
    let member = unit.task_set.handle(CoreIndex::current());
    assert!(member.try_lock_shared());
    let mut rest = pin!(unit.quiesce());
    assert!(poll(rest.as_mut()).is_pending());
    assert_eq!(unit.lu.busy_status(), Some(Status::Busy));
    member.unlock_shared();
    let Poll::Ready(Ok(quiesced)) = poll(rest.as_mut()) else { panic!("no command runs") };
    assert!(!member.try_lock_shared() && unit.lu.busy_status().is_some());
    drop(quiesced);
    assert!(member.try_lock_shared() && unit.lu.busy_status().is_none());
}

#[test]
fn dropped_quiesce_has_no_effect() {
    let unit = unit(None);
    let member = unit.task_set.handle(CoreIndex::current());
    assert!(member.try_lock_shared());
    assert!(poll(pin!(unit.quiesce())).is_pending());
    assert!(member.try_lock_shared() && unit.lu.busy_status().is_none());
}

#[test]
fn shared_medium_growth_reaches_all_units() {
    let path = std::env::temp_dir().join(format!("lunar-shared-{}.img", std::process::id()));
    let made = std::fs::File::create(&path).expect("a file");
    made.set_len(CAPACITY).expect("a size");
    let backend =
        lunar_block::open(&BackendSpec::path(&path)).unwrap_or_else(|e| panic!("{}: {}", e.subject, e.what));
    let units = [1, 2].map(|_| {
        let lu = Lu::new(settings(), None).expect("settings");
        LogicalUnit::new(Arc::new(lu), backend.clone(), None)
    });
    assert_eq!(units.each_ref().map(LogicalUnit::refresh), [false; 2]);
    made.set_len(2 * CAPACITY).expect("a size");
    assert_eq!(units.each_ref().map(LogicalUnit::refresh), [true; 2]);
    assert_eq!(units.each_ref().map(LogicalUnit::refresh), [false; 2]);
    std::fs::remove_file(&path).expect("its name");
}

#[test]
fn redefine_replaces_backend() {
    let unit = unit(None);
    let other = memory();
    let quiesced = quiesced_now(&unit);
    let wrong = LuSettings { block_size: 3, ..settings() };
    assert!(quiesced.redefine(wrong, other.clone(), true).is_err());
    assert!(!Arc::ptr_eq(&unit.backend(), &other));
    let epoch = unit.lu.epoch();
    assert!(quiesced.redefine(settings(), other.clone(), false).is_ok());
    assert!(Arc::ptr_eq(&unit.backend(), &other));
    assert_ne!(unit.lu.epoch(), epoch, "holders of the old backend look it up again");
}

#[test]
fn retired_unit_stays_busy_and_releases_backend() {
    let file = std::env::temp_dir().join(format!("lunar-retired-{}.state", std::process::id()));
    let unit = unit(Some(file.clone()));
    let blocks = Arc::downgrade(&unit.backend());
    compio::runtime::Runtime::new().expect("a runtime").block_on(async {
        unit.save().await.expect("saved");
        assert!(std::fs::remove_file(&file).is_ok());
        unit.quiesce().await.expect("rest").retire();
        assert!(unit.save().await.is_err());
    });
    assert!(!file.exists());
    assert_eq!(unit.lu.busy_status(), Some(Status::Busy));
    assert!(blocks.upgrade().is_none(), "the backend is closed");
    assert!(!unit.refresh(), "a removed unit changes no size");
    assert!(unit.task_set.handle(CoreIndex::current()).try_lock_shared(), "the lock is open");
}
