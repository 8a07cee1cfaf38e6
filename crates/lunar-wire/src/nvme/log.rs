//! Log pages.

use super::identify::namespace_list;
use super::page::page;
use crate::le;

/// Identifiers of log pages.
pub mod log_page {
    /// The log pages that are there.
    pub const SUPPORTED: u8 = 0x00;
    /// Errors.
    pub const ERROR: u8 = 0x01;
    /// Health.
    pub const SMART: u8 = 0x02;
    /// Firmware slots.
    pub const FIRMWARE: u8 = 0x03;
    /// Namespaces that have changed.
    pub const CHANGED_NAMESPACES: u8 = 0x04;
    /// Commands and their effects.
    pub const EFFECTS: u8 = 0x05;
    /// Asymmetric access.
    pub const ACCESS: u8 = 0x0c;
    /// Discovery.
    pub const DISCOVERY: u8 = 0x70;
    /// Reservation notifications.
    pub const RESERVATION: u8 = 0x80;
}

page! {
    /// An entry of the error log (log page 01h).
    ErrorEntry, 64, {
        /// The number of this error since the start; 0: the entry is empty.
        count: u64 = 0,
        /// The queue.
        queue: u16 = 8,
        /// The command.
        command: u16 = 10,
        /// The status as in a completion.
        status: u16 = 12,
        /// The byte and the bit of the faulty parameter; FFFFh: none.
        parameter: u16 = 14,
        /// The first block in error.
        lba: u64 = 16,
        /// The namespace.
        namespace: u32 = 24,
    }
}

page! {
    /// Health (log page 02h). Its counters have 16 bytes on the wire.
    SmartLog, 512, {
        /// Critical warnings.
        warnings: u8 = 0,
        /// Temperature in kelvins; 0: unknown.
        temperature: u16 = 1,
        /// Available spare in percent.
        spare: u8 = 3,
        /// Its threshold in percent.
        spare_threshold: u8 = 4,
        /// Used life in percent.
        used: u8 = 5,
        /// Data that were read, in units of 512,000 bytes.
        units_read: u64 = 32,
        /// Data that were written, in units of 512,000 bytes.
        units_written: u64 = 48,
        /// Read commands.
        reads: u64 = 64,
        /// Write commands.
        writes: u64 = 80,
        /// Hours with power.
        power_on_hours: u64 = 128,
        /// Errors of the medium.
        media_errors: u64 = 160,
        /// Entries of the error log since the start.
        errors: u64 = 176,
    }
}

page! {
    /// Firmware slots (log page 03h).
    FirmwareLog, 512, {
        /// The active slot.
        active: u8 = 0,
        /// The revision in slot 1, padded with spaces.
        first: [u8; 8] = 8,
    }
}

page! {
    /// The oldest reservation notification (log page 80h).
    ReservationLog, 64, {
        /// Its number since the start; 0: there is none.
        count: u64 = 0,
        /// 1: registration preempted, 2: reservation released, 3: reservation preempted.
        kind: u8 = 8,
        /// More notifications, at most 255.
        more: u8 = 9,
        /// The namespace.
        namespace: u32 = 12,
    }
}

/// Bytes of the lists of namespaces and of effects.
const LIST: usize = 4096;
/// The first entry of a list of changed namespaces that has no room for all.
const TOO_MANY: u32 = u32::MAX;

/// Namespaces that have changed (log page 04h): ascending, or one entry that means that there are too many.
pub fn changed_namespaces(namespaces: &[u32]) -> [u8; LIST] {
    match namespaces.len() {
        0..=1024 => namespace_list(namespaces.iter().copied(), 0),
        _ => namespace_list([TOO_MANY], 0),
    }
}

/// Effects of a command (log page 05h).
pub mod effect {
    /// The command is supported (CSUPP).
    pub const SUPPORTED: u32 = 1 << 0;
    /// It changes data (LBCC).
    pub const CHANGES_DATA: u32 = 1 << 1;
}

/// Commands and their effects (log page 05h): opcodes of admin commands and of I/O commands, each with its effects.
pub fn effects(admin: &[(u8, u32)], io: &[(u8, u32)]) -> [u8; LIST] {
    const IO: usize = 1024;
    let mut page = [0; LIST];
    for (table, commands) in [(0, admin), (IO, io)] {
        for (opcode, effects) in commands {
            le::put32(&mut page[table + 4 * usize::from(*opcode)..], *effects);
        }
    }
    page
}

/// The access state of a group of namespaces through a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum AnaState {
    /// Optimized.
    Optimized = 0x1,
    /// Non-optimized.
    NonOptimized = 0x2,
    /// Inaccessible.
    Inaccessible = 0x3,
    /// Persistent loss.
    PersistentLoss = 0x4,
    /// The state changes.
    Change = 0xf,
}

impl AnaState {
    fn decode(code: u8) -> Option<AnaState> {
        Some(match code & 0xf {
            0x1 => AnaState::Optimized,
            0x2 => AnaState::NonOptimized,
            0x3 => AnaState::Inaccessible,
            0x4 => AnaState::PersistentLoss,
            0xf => AnaState::Change,
            _ => return None,
        })
    }
}

/// A group of namespaces with one access state (log page 0Ch).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnaGroup {
    /// Its identifier (ANAGRPID).
    pub id: u32,
    /// The number of its changes.
    pub changes: u64,
    /// Its state.
    pub state: AnaState,
    /// Its namespaces, ascending.
    pub namespaces: Vec<u32>,
}

/// Bytes of the header of the page.
const ANA_HEADER: usize = 16;
/// Bytes of a group before its namespaces.
const ANA_GROUP: usize = 32;

impl AnaGroup {
    /// The page with these groups. `with_namespaces`: false leaves them out (RGO).
    pub fn encode(changes: u64, groups: &[AnaGroup], with_namespaces: bool) -> Vec<u8> {
        let mut page = vec![0; ANA_HEADER];
        le::put64(&mut page, changes);
        le::put16(&mut page[8..], groups.len() as u16);
        for group in groups {
            let namespaces = if with_namespaces { &group.namespaces[..] } else { &[] };
            let mut head = [0; ANA_GROUP];
            le::put32(&mut head, group.id);
            le::put32(&mut head[4..], namespaces.len() as u32);
            le::put64(&mut head[8..], group.changes);
            head[16] = group.state as u8;
            page.extend(head);
            page.extend(namespaces.iter().flat_map(|id| id.to_le_bytes()));
        }
        page
    }

    /// The number of changes and the groups of a page. `None`: it is shorter than it states, or a state is reserved.
    pub fn decode(page: &[u8]) -> Option<(u64, Vec<AnaGroup>)> {
        let group = |entry: Option<AnaEntry<'_>>| {
            let entry = entry?;
            let AnaEntry { id, changes, state, .. } = entry;
            Some(AnaGroup { id, changes, state: state?, namespaces: entry.namespaces().collect() })
        };
        let groups = AnaEntry::all(page).map(group).collect::<Option<_>>()?;
        Some((le::get64(page), groups))
    }
}

/// A group in a page of which a part was read.
#[derive(Clone, Copy, Debug)]
pub struct AnaEntry<'a> {
    /// Its identifier (ANAGRPID).
    pub id: u32,
    /// The number of its changes.
    pub changes: u64,
    /// Its state; `None` if the code is reserved.
    pub state: Option<AnaState>,
    namespaces: &'a [u8],
}

impl<'a> AnaEntry<'a> {
    /// The groups at the start of a page. `None`, the last item: the part is shorter than the page states.
    pub fn all(page: &'a [u8]) -> impl Iterator<Item = Option<AnaEntry<'a>>> {
        let header = page.split_at_checked(ANA_HEADER);
        let mut left = header.map_or(1, |(header, _)| le::get16(&header[8..]));
        let mut rest = header.map(|(_, rest)| rest);
        std::iter::from_fn(move || {
            left = left.checked_sub(1)?;
            let split = rest.and_then(AnaEntry::split);
            rest = split.map(|(_, behind)| behind);
            left = if split.is_some() { left } else { 0 };
            Some(split.map(|(entry, _)| entry))
        })
    }

    /// The first group of these bytes, and the bytes behind it.
    fn split(bytes: &'a [u8]) -> Option<(AnaEntry<'a>, &'a [u8])> {
        let (head, behind) = bytes.split_at_checked(ANA_GROUP)?;
        let len = usize::try_from(le::get32(&head[4..])).ok()?.checked_mul(4)?;
        let (namespaces, rest) = behind.split_at_checked(len)?;
        let state = AnaState::decode(head[16]);
        Some((AnaEntry { id: le::get32(head), changes: le::get64(&head[8..]), state, namespaces }, rest))
    }

    /// Its namespaces.
    pub fn namespaces(self) -> impl Iterator<Item = u32> + use<'a> {
        self.namespaces.chunks_exact(4).map(le::get32)
    }
}
