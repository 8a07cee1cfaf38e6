//! Get Log Page.

use super::admin_state::AdminState;
use super::discovery_log;
use super::error_log::ERROR_ENTRIES;
use super::limits::{MAX_NAMESPACES, MAX_TRANSFER};
use lunar_proto::nvme::ControllerKind;
use lunar_wire::nvme::{
    ErrorEntry, FirmwareLog, NvmeStatus, SmartLog, Sqe, admin_opcode, changed_namespaces, effect, effects,
    log_page, nvm_opcode, padded_text,
};

/// Retain Asynchronous Event (command dword 10, bit 15).
const RETAINS_EVENT: u32 = 1 << 15;
/// The access log without namespaces (RGO, the lowest bit of LSP in command dword 10).
const GROUPS_ONLY: u32 = 1 << 8;
/// Bytes of the access log page with all namespaces, each in a group of its own.
const ACCESS_LOG_LEN: usize = 16 + (32 + 4) * MAX_NAMESPACES as usize;
/// The unit in which SMART counts data, in bytes.
const SMART_UNIT: u64 = 512_000;
/// A temperature of 25 degrees Celsius: hosts take 0 for a fault of the sensor.
const TEMPERATURE: u16 = 298;
/// All spare blocks are there.
const ALL: u8 = 100;

const IO_PAGES: &[u8] = &[
    log_page::SUPPORTED,
    log_page::ERROR,
    log_page::SMART,
    log_page::FIRMWARE,
    log_page::CHANGED_NAMESPACES,
    log_page::EFFECTS,
    log_page::ACCESS,
    log_page::RESERVATION,
];
const DISCOVERY_PAGES: &[u8] = &[log_page::SUPPORTED, log_page::ERROR, log_page::DISCOVERY];

const ADMIN_EFFECTS: &[(u8, u32)] = &[
    (admin_opcode::GET_LOG_PAGE, effect::SUPPORTED),
    (admin_opcode::IDENTIFY, effect::SUPPORTED),
    (admin_opcode::ABORT, effect::SUPPORTED),
    (admin_opcode::SET_FEATURES, effect::SUPPORTED),
    (admin_opcode::GET_FEATURES, effect::SUPPORTED),
    (admin_opcode::ASYNC_EVENT_REQUEST, effect::SUPPORTED),
    (admin_opcode::KEEP_ALIVE, effect::SUPPORTED),
];
const WRITES: u32 = effect::SUPPORTED | effect::CHANGES_DATA;
const IO_EFFECTS: &[(u8, u32)] = &[
    (nvm_opcode::FLUSH, effect::SUPPORTED),
    (nvm_opcode::WRITE, WRITES),
    (nvm_opcode::READ, effect::SUPPORTED),
    (nvm_opcode::COMPARE, effect::SUPPORTED),
    (nvm_opcode::WRITE_ZEROES, WRITES),
    (nvm_opcode::DATASET_MANAGEMENT, WRITES),
    (nvm_opcode::VERIFY, effect::SUPPORTED),
    (nvm_opcode::RESERVATION_REGISTER, effect::SUPPORTED),
    (nvm_opcode::RESERVATION_REPORT, effect::SUPPORTED),
    (nvm_opcode::RESERVATION_ACQUIRE, effect::SUPPORTED),
    (nvm_opcode::RESERVATION_RELEASE, effect::SUPPORTED),
    (nvm_opcode::COPY, WRITES),
];

/// The part of a page that a command asks for.
struct PageRange {
    offset: u64,
    len: usize,
}

impl PageRange {
    fn of(sqe: &Sqe) -> Result<PageRange, NvmeStatus> {
        let dwords = u64::from(sqe.dword(11) & 0xffff) << 16 | u64::from(sqe.dword(10) >> 16);
        let len = (dwords + 1) * 4;
        let offset = u64::from(sqe.dword(13)) << 32 | u64::from(sqe.dword(12));
        match len {
            _ if len > MAX_TRANSFER.into() || !offset.is_multiple_of(4) => Err(NvmeStatus::INVALID_FIELD),
            _ if len != u64::from(sqe.data().len) => Err(NvmeStatus::SGL_INVALID_LENGTH),
            _ => Ok(PageRange { offset, len: len as usize }),
        }
    }

    /// This part of a page, with zeros behind its end.
    fn cut(&self, page: &[u8]) -> Result<Vec<u8>, NvmeStatus> {
        if self.offset > page.len() as u64 {
            return Err(NvmeStatus::INVALID_FIELD);
        }
        let mut part: Vec<u8> = page[self.offset as usize..].iter().copied().take(self.len).collect();
        part.resize(self.len, 0);
        Ok(part)
    }
}

/// Executes Get Log Page.
///
/// # Errors
/// The status of the command.
pub fn get_log_page(state: &mut AdminState, sqe: &Sqe) -> Result<Vec<u8>, NvmeStatus> {
    let (id, range) = (sqe.dword(10) as u8, PageRange::of(sqe)?);
    let pages = if state.kind() == ControllerKind::Io { IO_PAGES } else { DISCOVERY_PAGES };
    if !pages.contains(&id) {
        return Err(NvmeStatus::INVALID_LOG_PAGE);
    }
    let retains = sqe.dword(10) & RETAINS_EVENT != 0;
    let page = match id {
        log_page::SUPPORTED => supported(pages),
        log_page::ERROR => {
            let mut page: Vec<u8> = state.errors().iter().flat_map(ErrorEntry::encode).collect();
            page.resize(ERROR_ENTRIES * ErrorEntry::LEN, 0);
            page
        }
        log_page::SMART => smart(state).encode().to_vec(),
        log_page::FIRMWARE => {
            let first = padded_text(env!("CARGO_PKG_VERSION"));
            FirmwareLog { active: 1, first }.encode().to_vec()
        }
        log_page::CHANGED_NAMESPACES => changed_namespaces(&state.changed()).to_vec(),
        log_page::EFFECTS => effects(ADMIN_EFFECTS, IO_EFFECTS).to_vec(),
        log_page::ACCESS => {
            let with_namespaces = sqe.dword(10) & GROUPS_ONLY == 0;
            let mut page = state.namespaces().map(|all| all.access_log(with_namespaces)).unwrap_or_default();
            // A host reads the longest page, in parts.
            page.resize(ACCESS_LOG_LEN, 0);
            page
        }
        log_page::RESERVATION => state.notification().encode().to_vec(),
        _ => discovery_log::page(state),
    };
    let part = range.cut(&page)?;
    if !retains {
        state.log_was_read(id);
    }
    Ok(part)
}

/// The list of supported pages: a dword for each identifier.
fn supported(pages: &[u8]) -> Vec<u8> {
    let mut list = vec![0; 1024];
    pages.iter().for_each(|page| list[4 * usize::from(*page)] = 1);
    list
}

/// Health, with the counters of the queues that are connected.
fn smart(state: &AdminState) -> SmartLog {
    let total = state.io_totals();
    SmartLog {
        temperature: TEMPERATURE,
        spare: ALL,
        units_read: total.read_bytes.div_ceil(SMART_UNIT),
        units_written: total.write_bytes.div_ceil(SMART_UNIT),
        reads: total.reads,
        writes: total.writes,
        errors: state.error_count(),
        ..SmartLog::zeroed()
    }
}
