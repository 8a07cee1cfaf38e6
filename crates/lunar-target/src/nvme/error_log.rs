//! The error log of a controller.

use crate::core::ScsiCommand;
use lunar_wire::nvme::{ErrorEntry, NvmeStatus, Sqe, nvm_opcode};
use lunar_wire::scsi::{cdb, lun, op};
use std::collections::VecDeque;

/// Entries of the error log.
pub const ERROR_ENTRIES: usize = 16;
/// The error is about no parameter.
const NO_PARAMETER: u16 = u16::MAX;

/// The latest commands of a controller that have failed.
#[derive(Debug, Default)]
pub struct ErrorLog {
    count: u64,
    /// The newest first.
    entries: VecDeque<ErrorEntry>,
}

/// The namespace and the block that a failed command concerns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErrorPlace {
    /// NSID; 0: none.
    pub namespace: u32,
    /// The first block; 0 if the command has no range of blocks.
    pub lba: u64,
}

impl ErrorPlace {
    /// The place of a command of an I/O queue.
    #[cold]
    pub fn of_entry(sqe: &Sqe) -> ErrorPlace {
        let has_range = matches!(
            sqe.opcode(),
            nvm_opcode::READ
                | nvm_opcode::WRITE
                | nvm_opcode::COMPARE
                | nvm_opcode::WRITE_ZEROES
                | nvm_opcode::VERIFY
        );
        ErrorPlace { namespace: sqe.namespace(), lba: if has_range { sqe.lba() } else { 0 } }
    }

    /// The place of a command of the core.
    #[cold]
    pub fn of_command(c: &ScsiCommand) -> ErrorPlace {
        let has_range = matches!(
            c.cdb[0],
            op::READ_16 | op::WRITE_16 | op::VERIFY_16 | op::WRITE_SAME_16 | op::COMPARE_AND_WRITE
        );
        let lba = if has_range { cdb::lba_range(&c.cdb).0 } else { 0 };
        ErrorPlace { namespace: lun::decode(c.lun).unwrap_or_default().into(), lba }
    }
}

impl ErrorLog {
    /// Adds a command of a queue.
    pub fn add(&mut self, queue: u16, command: u16, status: NvmeStatus, place: ErrorPlace) {
        self.count += 1;
        let entry = ErrorEntry {
            count: self.count,
            queue,
            command,
            status: status.encode(),
            parameter: NO_PARAMETER,
            lba: place.lba,
            namespace: place.namespace,
        };
        self.entries.truncate(ERROR_ENTRIES - 1);
        self.entries.push_front(entry);
    }

    /// The newest entry first.
    pub fn entries(&self) -> Vec<ErrorEntry> {
        self.entries.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_log_keeps_the_newest_entries() {
        let mut log = ErrorLog::default();
        for command in 0..20 {
            let place = ErrorPlace { namespace: 1, lba: command.into() };
            log.add(1, command, NvmeStatus::INVALID_FIELD, place);
        }
        let (errors, newest) = (log.entries(), log.entries()[0].clone());
        assert_eq!((errors.len(), newest.count, newest.command), (ERROR_ENTRIES, 20, 19));
        assert_eq!((newest.namespace, newest.lba), (1, 19));
    }
}
