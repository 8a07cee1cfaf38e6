//! No write extends a file that was truncated meanwhile.

use super::*;

/// Truncates the file while a write of 16 KiB waits for a reader. The write must fail without extending the file.
async fn shrinks(
    spec: &BackendSpec,
    file: &FileBackend,
    is_waiting: impl Fn() -> bool,
    mut write: LocalBoxFuture<'_, io::Result<()>>,
) {
    let still = file.in_flight.still(RegionIndices::of(0, 1 << 14)).await;
    let (mut polls, pause) = (0, std::time::Duration::from_millis(1));
    while polls < 20 || !is_waiting() {
        assert!(poll_once(&mut write).await.is_pending(), "a reader blocks the write");
        compio::time::sleep(pause).await;
        polls += 1;
    }
    shrink(spec);
    // Another write has checked the size just before the truncation.
    lunar_runtime::begin_batch();
    file.refresh_size();
    file.capacity.store(1 << 16, Relaxed);
    drop(still);
    assert_eq!(write.await.expect_err("beyond the end").kind(), io::ErrorKind::UnexpectedEof);
    assert_eq!(size(spec), 4096);
    assert!(!file.open.is_open());
}

#[test]
fn write_that_waited_never_grows_a_file() {
    for kind in 0..5 {
        with_journal("waited", async |spec, file| {
            let file = &file;
            file.write(0, of(1, 1 << 14), false).await.0.expect("written");
            let write: LocalBoxFuture<'_, io::Result<()>> = match kind {
                0 => Box::pin(async { file.write(0, of(2, 1 << 14), false).await.0 }),
                1 => Box::pin(async { file.write(0, of(2, 1 << 14), true).await.0 }),
                2 => Box::pin(async { file.write_atomic(0, of(2, 1 << 14)).await.0 }),
                3 => file.write_zeroes(0, 1 << 14, false),
                _ => file.unmap(0, 1 << 14),
            };
            let journal = file.journal.as_ref().expect("a journal");
            shrinks(spec, file, || kind != 2 || journal.is_pending().expect("readable"), write).await;
        });
    }
}

#[test]
fn zeros_that_are_written_never_grow_a_file() {
    with_journal("zeros", async |spec, file| {
        [&file.can.punch, &file.can.zero_range].iter().for_each(|can| can.store(false, Relaxed));
        shrinks(spec, &file, || true, file.write_zeroes(0, 1 << 14, false)).await;
    });
}

/// With the polling driver, a write waits for a thread permit.
#[test]
fn write_that_waits_for_its_turn_never_grows_a_file() {
    use compio::driver::{DriverType, ProactorBuilder};
    let mut proactor = ProactorBuilder::new();
    proactor.driver_type(DriverType::Poll);
    let runtime = compio::runtime::RuntimeBuilder::new().with_proactor(proactor).build();
    let path = std::env::temp_dir().join(format!("lunar-permit-{}", std::process::id()));
    let spec = BackendSpec {
        kind: BackendKind::File,
        size: Some(1 << 16),
        create: true,
        ..BackendSpec::path(&path)
    };
    let file = FileBackend::open(&spec).expect("a file");
    runtime.expect("a runtime").block_on(async {
        let mut permits = Vec::new();
        for _ in 0..lunar_runtime::threads::AT_ONCE {
            permits.push(lunar_runtime::ThreadPermit::wait().await);
        }
        let mut write = file.write(0, of(2, 8192), false);
        assert!(poll_once(&mut write).await.is_pending(), "all permits are taken");
        shrink(&spec);
        drop(permits);
        assert_eq!(write.await.0.expect_err("beyond the end").kind(), io::ErrorKind::UnexpectedEof);
    });
    assert_eq!(size(&spec), 4096);
    std::fs::remove_file(path).expect("a file");
}

#[test]
fn undo_never_grows_a_file() {
    with_journal("undo-shrunk", async |spec, file| {
        file.write(0, of(2, 8192), false).await.0.expect("written");
        shrink(spec);
        for (offset, len) in [(0, 8192), (8192, 4096)] {
            undo(&file, offset, len).await.expect("the rest of the range is restored");
            assert!(!file.open.is_open() && size(spec) == 4096);
        }
        assert_eq!(std::fs::read(&spec.path).expect("a file"), [1; 4096]);
    });
}
