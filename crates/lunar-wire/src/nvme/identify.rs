//! The data of Identify.

use super::page::page;

page! {
    /// Identify Controller (CNS 01h).
    IdentifyController, 4096, {
        /// Serial number, padded with spaces (SN).
        serial: [u8; 20] = 4,
        /// Model number, padded with spaces (MN).
        model: [u8; 40] = 24,
        /// Firmware revision, padded with spaces (FR).
        firmware: [u8; 8] = 64,
        /// Multipath and namespace sharing: bit 0 ports, bit 1 controllers, bit 3 asymmetric access (CMIC).
        multipath: u8 = 76,
        /// The most data of a command: 2 to the power of this, in pages of 4 KiB; 0: no limit (MDTS).
        max_transfer: u8 = 77,
        /// The controller (CNTLID).
        controller: u16 = 78,
        /// Version (VER).
        version: u32 = 80,
        /// Asynchronous events that the host can turn on (OAES).
        events: u32 = 92,
        /// Attributes: bit 0 long host identifiers, bit 6 keep-alive by traffic (CTRATT).
        attributes: u32 = 96,
        /// 1: I/O controller, 2: discovery controller (CNTRLTYPE).
        kind: u8 = 111,
        /// Delays of a retry in units of 100 ms (CRDT1).
        retry_delay: u16 = 128,
        /// Optional admin commands (OACS).
        admin_commands: u16 = 256,
        /// The most Abort commands at a time, 0-based (ACL).
        aborts: u8 = 258,
        /// The most Asynchronous Event Requests, 0-based (AERL).
        event_requests: u8 = 259,
        /// Firmware updates: bits 1 to 3 are the number of slots (FRMW).
        firmware_slots: u8 = 260,
        /// Attributes of log pages: bit 1 effects, bit 2 offsets (LPA).
        log_attributes: u8 = 261,
        /// Entries of the error log, 0-based (ELPE).
        error_entries: u8 = 262,
        /// Granularity of the keep-alive timer in units of 100 ms (KAS).
        keep_alive: u16 = 320,
        /// Seconds in which an access state changes (ANATT).
        access_transition_s: u8 = 342,
        /// Access states that can occur, and bit 6: group identifiers do not change (ANACAP).
        access_states: u8 = 343,
        /// The largest group identifier (ANAGRPMAX).
        max_access_group: u32 = 344,
        /// Number of groups (NANAGRPID).
        access_groups: u32 = 348,
        /// Sizes of submission queue entries: required and largest, as powers of 2 (SQES).
        submission_entry: u8 = 512,
        /// Sizes of completion queue entries (CQES).
        completion_entry: u8 = 513,
        /// The most commands of a queue (MAXCMD).
        max_commands: u16 = 514,
        /// The largest namespace identifier (NN).
        namespaces: u32 = 516,
        /// Optional commands: bit 0 Compare, 1 Write Uncorrectable, 2 Dataset Management, 3 Write Zeroes, 5 reservations, 7
        /// Verify, 8 Copy (ONCS).
        commands: u16 = 520,
        /// Fused commands: bit 0 Compare and Write (FUSES).
        fused: u16 = 522,
        /// Bit 0: there is a volatile write cache; bits 1 and 2: Flush of all namespaces (VWC).
        write_cache: u8 = 525,
        /// Atomic write unit in blocks, 0-based (AWUN).
        atomic_write: u16 = 526,
        /// The same at a loss of power (AWUPF).
        atomic_write_power: u16 = 528,
        /// Atomic compare and write unit in blocks, 0-based (ACWU).
        atomic_compare: u16 = 532,
        /// Formats of the source ranges of Copy: bit 0 format 0 (OCFS).
        copy_formats: u16 = 534,
        /// Descriptors of data: bit 0 SGLs, bit 20 offsets (SGLS).
        sgls: u32 = 536,
        /// The most namespaces that a host sees (MNAN).
        max_namespaces: u32 = 540,
        /// The subsystem, with its end (SUBNQN).
        subsystem: [u8; 256] = 768,
        /// Size of a capsule with a command in units of 16 bytes (IOCCSZ).
        command_capsule: u32 = 1792,
        /// Size of a capsule with a completion in units of 16 bytes (IORCSZ).
        response_capsule: u32 = 1796,
        /// Offset of data in a capsule in units of 16 bytes (ICDOFF).
        capsule_data_offset: u16 = 1800,
        /// The most descriptors of data (MSDBD).
        max_descriptors: u8 = 1803,
    }
}

page! {
    /// Identify Namespace (CNS 00h).
    IdentifyNamespace, 4096, {
        /// Size in blocks (NSZE).
        size: u64 = 0,
        /// Capacity in blocks (NCAP). Linux removes a disk whose capacity is 0.
        capacity: u64 = 8,
        /// Blocks in use (NUSE).
        used: u64 = 16,
        /// Features: bit 0 thin, bit 1 atomic units of the namespace, bit 4 preferred granularities (NSFEAT).
        features: u8 = 24,
        /// Number of formats, 0-based (NLBAF).
        formats: u8 = 25,
        /// The format in use (FLBAS).
        format: u8 = 26,
        /// Bit 0: several controllers can use it (NMIC).
        sharing: u8 = 30,
        /// Reservations: bit 0 persist through power loss, bits 1 to 6 the types (RESCAP).
        reservations: u8 = 31,
        /// Deallocated blocks: bits 0 to 2 are 1 if they read as zeros, bit 3 Write Zeroes may deallocate (DLFEAT).
        deallocation: u8 = 33,
        /// Atomic write unit in blocks, 0-based (NAWUN).
        atomic_write: u16 = 34,
        /// The same at a loss of power (NAWUPF).
        atomic_write_power: u16 = 36,
        /// Atomic compare and write unit in blocks, 0-based (NACWU).
        atomic_compare: u16 = 38,
        /// Preferred write granularity in blocks, 0-based (NPWG).
        write_granularity: u16 = 64,
        /// Preferred write alignment in blocks, 0-based (NPWA).
        write_alignment: u16 = 66,
        /// Preferred deallocate granularity in blocks, 0-based (NPDG).
        deallocate_granularity: u16 = 68,
        /// Preferred deallocate alignment in blocks, 0-based (NPDA).
        deallocate_alignment: u16 = 70,
        /// Optimal write size in blocks, 0-based (NOWS).
        optimal_write: u16 = 72,
        /// The most blocks of a source range of Copy (MSSRL).
        max_copy_range: u16 = 74,
        /// The most blocks of a Copy command (MCL).
        max_copy: u32 = 76,
        /// The most source ranges of a Copy command, 0-based (MSRC).
        copy_ranges: u8 = 80,
        /// Group of its access state (ANAGRPID).
        access_group: u32 = 92,
        /// Bit 0: it is write protected now (NSATTR).
        attributes: u8 = 99,
        /// Globally unique identifier; zeros if there is none (NGUID).
        nguid: [u8; 16] = 104,
        /// Extended unique identifier; zeros if there is none (EUI64).
        eui64: [u8; 8] = 120,
        /// Bytes of metadata of the first format (MS).
        metadata: u16 = 128,
        /// The binary logarithm of the block size of the first format (LBADS).
        block_shift: u8 = 130,
    }
}

/// The offset of the formats in Identify Namespace.
const FORMATS: usize = 128;

impl IdentifyNamespace {
    /// The format in use (FLBAS): bytes of metadata, and the binary logarithm of the block size.
    pub fn active_format(page: &[u8; IdentifyNamespace::LEN]) -> (u16, u8) {
        // Bits 0 to 3 of FLBAS are the low ones of the index, bits 5 and 6 the high ones.
        let index = usize::from(page[26] & 0xf | page[26] >> 1 & 0x30);
        let format = &page[FORMATS + 4 * index..];
        (crate::le::get16(format), format[2])
    }
}

/// An identifier of a namespace (CNS 03h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceIdentifier {
    /// EUI64.
    Eui64([u8; 8]),
    /// NGUID.
    Nguid([u8; 16]),
    /// UUID.
    Uuid([u8; 16]),
    /// The command set: 0 for NVM.
    CommandSet(u8),
}

/// Bytes before an identifier.
const HEAD: usize = 4;
/// Bytes of a list.
const LIST: usize = 4096;

impl NamespaceIdentifier {
    /// The list of the identifiers of a namespace.
    pub fn encode(identifiers: &[NamespaceIdentifier]) -> [u8; LIST] {
        let mut list = [0; LIST];
        let mut at = 0;
        for identifier in identifiers {
            let (kind, value) = match identifier {
                NamespaceIdentifier::Eui64(value) => (1, &value[..]),
                NamespaceIdentifier::Nguid(value) => (2, &value[..]),
                NamespaceIdentifier::Uuid(value) => (3, &value[..]),
                NamespaceIdentifier::CommandSet(value) => (4, std::slice::from_ref(value)),
            };
            let end = at + HEAD + value.len();
            let Some(place) = list.get_mut(at..end) else { break };
            (place[0], place[1]) = (kind, value.len() as u8);
            place[HEAD..].copy_from_slice(value);
            at = end;
        }
        list
    }

    /// The known identifiers of a list, up to its end or a fault.
    pub fn decode(list: &[u8]) -> Vec<NamespaceIdentifier> {
        let (mut found, mut rest) = (Vec::new(), list);
        while let [kind, len, _, _, behind @ ..] = rest
            && *len > 0
            && let Some((value, next)) = behind.split_at_checked(usize::from(*len))
        {
            let wide = || <[u8; 16]>::try_from(value).ok();
            found.extend(match (kind, value) {
                (1, _) => <[u8; 8]>::try_from(value).ok().map(NamespaceIdentifier::Eui64),
                (2, _) => wide().map(NamespaceIdentifier::Nguid),
                (3, _) => wide().map(NamespaceIdentifier::Uuid),
                (4, [set]) => Some(NamespaceIdentifier::CommandSet(*set)),
                _ => None,
            });
            rest = next;
        }
        found
    }
}

/// The list of active namespaces (CNS 02h): the first 1024 of these, which ascend, after `after`.
pub fn namespace_list(namespaces: impl IntoIterator<Item = u32>, after: u32) -> [u8; LIST] {
    let mut list = [0; LIST];
    let wanted = namespaces.into_iter().filter(|id| *id > after);
    list.chunks_exact_mut(4).zip(wanted).for_each(|(place, id)| crate::le::put32(place, id));
    list
}

/// The namespaces of a list, up to its end.
pub fn listed_namespaces(list: &[u8]) -> impl Iterator<Item = u32> {
    list.chunks_exact(4).map(crate::le::get32).take_while(|id| *id != 0)
}

/// ASCII text padded with spaces. Other characters become `_`, and what does not fit is left out.
pub fn padded_text<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [b' '; N];
    let fit = |c: char| if c.is_ascii_graphic() || c == ' ' { c as u8 } else { b'_' };
    field.iter_mut().zip(text.chars().map(fit)).for_each(|(to, from)| *to = from);
    field
}
