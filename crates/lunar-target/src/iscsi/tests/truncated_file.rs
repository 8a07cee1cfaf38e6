//! A file that another program truncates while it is a LUN.

use super::host::{Host, wait_for_expiry};
use crate::config::TargetConfig;
use crate::test_target::{self, CAPACITY, NAME, run_test_with};
use lunar_block::{BackendKind, BackendSpec};
use lunar_wire::iscsi::opcode;
use lunar_wire::scsi::Status;
use std::collections::BTreeMap;
use std::fs::{self, File};

/// Bytes of the truncated file.
const LEFT: u64 = 4096;

/// Writes one block. Returns the status.
async fn write(host: &mut Host, lba: u32, byte: u8) -> u8 {
    host.write(lba, byte);
    host.send();
    host.receive(opcode::SCSI_RESPONSE).await.scsi_status()
}

/// The file is truncated in the tick of the coarse clock in which the target has read its size.
#[test]
fn write_after_truncation_never_grows_a_file() {
    let path = std::env::temp_dir().join(format!("lunar-truncated-{}.img", std::process::id()));
    for _ in 0..5 {
        let (kind, size) = (BackendKind::File, Some(CAPACITY));
        let disk = BackendSpec { kind, size, create: true, ..BackendSpec::path(&path) };
        let disk = lunar_block::open(&disk).expect("a disk");
        let luns = BTreeMap::from([(0, test_target::unit_of(1, disk))]);
        let change = |config: &mut TargetConfig| config.targets.get_mut(NAME).expect("a target").luns = luns;
        let file = File::options().write(true).open(&path).expect("a file");
        run_test_with(change, |target| async move {
            let mut host = Host::session(&target, 1).await;
            let last = (CAPACITY / 512 - 1) as u32;
            assert_eq!(write(&mut host, last, 1).await, Status::Good as u8);
            file.set_len(LEFT).expect("truncated");
            wait_for_expiry();
            assert_eq!(write(&mut host, last, 2).await, Status::CheckCondition as u8);
            assert_eq!(file.metadata().expect("a file").len(), LEFT);
        });
        fs::remove_file(&path).expect("a file");
    }
}
