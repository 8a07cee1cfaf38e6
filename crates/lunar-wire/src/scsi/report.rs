//! Parameter data of other commands: supported commands and task management functions, target port groups, log pages,
//! provisioning status (SPC-5 sections 6.35 to 6.37 and 7.3, SBC-4 section 5.6).

mod supported;

use super::BitField;
use super::fields::{get, name_of, split};
use super::log::{LogPageHeader, LogParameterHeader};
use crate::be;
pub use supported::{
    CommandSupport, FUNCTIONS, SupportedCommand, commands, encode_commands, encode_functions, task_management,
};

/// The number of bytes that follow this field: the header of several commands' data begins with it.
const PARAMETER_DATA_LENGTH: BitField = BitField::bytes(0, 4);

/// Fields of a target port group descriptor of REPORT TARGET PORT GROUPS, and of a descriptor in the parameter list of
/// SET TARGET PORT GROUPS, which has the first two alone.
pub mod target_port_group {
    use crate::scsi::BitField;

    /// ASYMMETRIC ACCESS STATE.
    pub const ACCESS_STATE: BitField = BitField::bits(0, 3, 4);
    /// TARGET PORT GROUP.
    pub const TARGET_PORT_GROUP: BitField = BitField::bytes(2, 2);
    /// Bytes of the header of the parameter list of SET TARGET PORT GROUPS.
    pub const SET_HEADER_LEN: usize = 4;
    /// Bytes of a descriptor of SET TARGET PORT GROUPS.
    pub const SET_LEN: usize = 4;

    pub(super) const PREF: BitField = BitField::flag(0, 7);
    pub(super) const SUPPORTED_STATES: BitField = BitField::bytes(1, 1);
    pub(super) const STATUS_CODE: BitField = BitField::bytes(5, 1);
    pub(super) const TARGET_PORT_COUNT: BitField = BitField::bytes(7, 1);
    /// Bytes before the target port descriptors, and of each.
    pub(super) const LEN: usize = 8;
    pub(super) const PORT_LEN: usize = 4;
    /// RELATIVE TARGET PORT IDENTIFIER of a target port descriptor.
    pub(super) const RELATIVE_TARGET_PORT: BitField = BitField::bytes(2, 2);
}

/// FORMAT TYPE of the extended header of REPORT TARGET PORT GROUPS: 1 in this header.
const FORMAT_TYPE: BitField = BitField::bits(4, 6, 3);
/// Bytes of the header with only a length, and of the extended header.
const LENGTH_HEADER_LEN: usize = 4;
const EXTENDED_HEADER_LEN: usize = 8;

/// A target port group descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetPortGroupDescriptor {
    /// TARGET PORT GROUP.
    pub number: u16,
    /// ASYMMETRIC ACCESS STATE.
    pub state: u8,
    /// PREF.
    pub preferred: bool,
    /// The supported states, a bit for each: T_SUP, O_SUP, a reserved bit, LBD_SUP, U_SUP, S_SUP, AN_SUP, AO_SUP.
    pub supported: u8,
    /// STATUS CODE: the reason of the latest change.
    pub status: u8,
    /// Relative target port identifiers.
    pub ports: Vec<u16>,
}

impl TargetPortGroupDescriptor {
    /// The name of its asymmetric access state.
    pub fn state_name(&self) -> &'static str {
        const STATES: &[(u64, &str)] = &[
            (0, "active/optimized"),
            (1, "active/non-optimized"),
            (2, "standby"),
            (3, "unavailable"),
            (4, "logical block dependent"),
            (14, "offline"),
            (15, "transitioning"),
        ];
        name_of(STATES, self.state.into()).unwrap_or("reserved")
    }

    fn encode(&self) -> Vec<u8> {
        use target_port_group::*;
        let mut b = vec![0; LEN];
        PREF.set(&mut b, self.preferred.into());
        ACCESS_STATE.set(&mut b, self.state.into());
        SUPPORTED_STATES.set(&mut b, self.supported.into());
        TARGET_PORT_GROUP.set(&mut b, self.number.into());
        STATUS_CODE.set(&mut b, self.status.into());
        TARGET_PORT_COUNT.set(&mut b, self.ports.len() as u64);
        for port in &self.ports {
            let mut d = [0; PORT_LEN];
            RELATIVE_TARGET_PORT.set(&mut d, (*port).into());
            b.extend_from_slice(&d);
        }
        b
    }
}

/// The data of REPORT TARGET PORT GROUPS with these descriptors. PARAMETER DATA FORMAT selects the header.
pub fn encode_groups(list: &[TargetPortGroupDescriptor], extended: bool) -> Vec<u8> {
    let mut b = vec![0; if extended { EXTENDED_HEADER_LEN } else { LENGTH_HEADER_LEN }];
    if extended {
        FORMAT_TYPE.set(&mut b, 1);
    }
    list.iter().for_each(|group| b.extend_from_slice(&group.encode()));
    PARAMETER_DATA_LENGTH.set_following_len(&mut b);
    b
}

/// The descriptors in the data of REPORT TARGET PORT GROUPS with the length-only header format.
pub fn groups(data: &[u8]) -> impl Iterator<Item = TargetPortGroupDescriptor> {
    use target_port_group::*;
    let rest = data.get(LENGTH_HEADER_LEN..).unwrap_or(&[]);
    let rest = &rest[..rest.len().min(PARAMETER_DATA_LENGTH.get(data) as usize)];
    let all = split(rest, |b| (b.len() >= LEN).then(|| LEN + PORT_LEN * TARGET_PORT_COUNT.get(b) as usize));
    all.map(|d| TargetPortGroupDescriptor {
        number: TARGET_PORT_GROUP.get_u16(d),
        state: ACCESS_STATE.get_u8(d),
        preferred: PREF.is_set(d),
        supported: SUPPORTED_STATES.get_u8(d),
        status: STATUS_CODE.get_u8(d),
        ports: d[LEN..].chunks_exact(PORT_LEN).map(|port| RELATIVE_TARGET_PORT.get_u16(port)).collect(),
    })
}

/// An LBA status descriptor of GET LBA STATUS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LbaStatusDescriptor {
    /// First logical block.
    pub lba: u64,
    /// Number of logical blocks.
    pub blocks: u32,
    /// PROVISIONING STATUS: 0 mapped, 1 deallocated, 2 anchored.
    pub status: u8,
}

impl LbaStatusDescriptor {
    /// Whether the blocks have no storage. An anchored block has.
    pub fn is_deallocated(&self) -> bool {
        self.status == 1
    }

    /// Bytes of Data-In with this number of descriptors.
    pub const fn list_len(descriptors: usize) -> usize {
        EXTENTS_HEADER_LEN + EXTENT_LEN * descriptors
    }
}

/// Bytes of the header of GET LBA STATUS data, and of a descriptor.
const EXTENTS_HEADER_LEN: usize = 8;
const EXTENT_LEN: usize = 16;

/// The data of GET LBA STATUS with these descriptors.
pub fn encode_extents(list: &[LbaStatusDescriptor]) -> Vec<u8> {
    let mut b = vec![0; EXTENTS_HEADER_LEN];
    for extent in list {
        let mut d = [0; EXTENT_LEN];
        lba_status::LBA.set(&mut d, extent.lba);
        lba_status::BLOCKS.set(&mut d, extent.blocks.into());
        lba_status::PROVISIONING_STATUS.set(&mut d, extent.status.into());
        b.extend_from_slice(&d);
    }
    PARAMETER_DATA_LENGTH.set_following_len(&mut b);
    b
}

/// Fields of an LBA status descriptor.
mod lba_status {
    use crate::scsi::BitField;

    pub(super) const LBA: BitField = BitField::bytes(0, 8);
    pub(super) const BLOCKS: BitField = BitField::bytes(8, 4);
    pub(super) const PROVISIONING_STATUS: BitField = BitField::bits(12, 3, 4);
}

/// The descriptors in the data of GET LBA STATUS.
pub fn extents(data: &[u8]) -> impl Iterator<Item = LbaStatusDescriptor> {
    let end = data.len().min(4 + PARAMETER_DATA_LENGTH.get(data) as usize);
    let all = data.get(EXTENTS_HEADER_LEN..end).unwrap_or(&[]).chunks_exact(EXTENT_LEN);
    all.map(|d| LbaStatusDescriptor {
        lba: lba_status::LBA.get(d),
        blocks: lba_status::BLOCKS.get_u32(d),
        status: lba_status::PROVISIONING_STATUS.get_u8(d),
    })
}

/// The name of a log page; `None` if it is unknown.
pub fn log_name(page: u8) -> Option<&'static str> {
    const NAMES: &[(u64, &str)] = &[
        (0x00, "supported log pages"),
        (0x02, "write errors"),
        (0x03, "read errors"),
        (0x04, "read reverse errors"),
        (0x05, "verify errors"),
        (0x06, "other errors"),
        (0x0c, "logical block provisioning"),
        (0x0d, "temperature"),
        (0x0e, "start-stop cycles"),
        (0x10, "self-test results"),
        (0x11, "solid state media"),
        (0x15, "background scan"),
        (0x19, "statistics and performance"),
        (0x2f, "informational exceptions"),
    ];
    name_of(NAMES, page.into())
}

/// The log parameters of a log page: code and value of each.
pub fn parameters(page: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let rest = page.get(LogPageHeader::LEN..).unwrap_or(&[]);
    let rest = &rest[..rest.len().min(LogPageHeader::decode(page).page_length.into())];
    let head = |b: &[u8]| b.get(..LogParameterHeader::LEN).map(LogParameterHeader::decode);
    let all = split(rest, move |b| Some(LogParameterHeader::LEN + usize::from(head(b)?.parameter_length)));
    all.map(move |b| (LogParameterHeader::decode(b).parameter_code, &b[LogParameterHeader::LEN..]))
}

/// Name and value of a log parameter; `None` if it is not decoded.
pub fn parameter(page: u8, code: u16, value: &[u8]) -> Option<(&'static str, u64)> {
    const ERRORS: &[(u64, &str)] = &[
        (0, "corrected_without_delay"),
        (1, "corrected_with_delay"),
        (2, "retries"),
        (3, "corrected"),
        (4, "correction_runs"),
        (5, "bytes"),
        (6, "uncorrected"),
    ];
    match (page, code) {
        (0x02..=0x05, _) => Some((name_of(ERRORS, code.into())?, number(value)?)),
        (0x06, 0) => Some(("errors", number(value)?)),
        // FFh: the temperature is unknown.
        (0x0d, 0) => Some(("celsius", u64::from(*value.get(1).filter(|c| **c != 0xff)?))),
        (0x0d, 1) => Some(("reference_celsius", u64::from(*value.get(1).filter(|c| **c != 0xff)?))),
        // ASC and ASCQ of a predicted failure, or zeros.
        (0x2f, 0) => Some(("asc_ascq", u64::from(be::get16(value.get(..2)?)))),
        _ => None,
    }
}

/// A counter of one to eight bytes.
fn number(value: &[u8]) -> Option<u64> {
    (1..=8).contains(&value.len()).then(|| get(value, 0, value.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_port_groups_decode() {
        let b = [0, 0, 0, 20, 0x80, 0x0f, 0, 1, 0, 0, 0, 1, 0, 0, 0, 7, 0x02, 0, 1, 0, 0, 0, 0, 0];
        let all: Vec<_> = groups(&b).collect();
        assert_eq!(
            all[0],
            TargetPortGroupDescriptor {
                number: 1,
                state: 0,
                preferred: true,
                supported: 0x0f,
                status: 0,
                ports: vec![7]
            }
        );
        assert_eq!((all[1].number, all[1].state_name()), (256, "standby"));
        assert_eq!(encode_groups(&all, false), b);
        let extended = [&[0, 0, 0, 24, 0x10, 0, 0, 0], &b[4..]].concat();
        assert_eq!(encode_groups(&all, true), extended);
        (0..b.len()).for_each(|n| assert!(groups(&b[..n]).count() < 2));
    }

    #[test]
    fn lba_status_descriptors_decode() {
        let mut b = vec![0, 0, 0, 36, 0, 0, 0, 0];
        b.extend([0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 16, 1, 0, 0, 0]);
        b.extend([0; 16]);
        let all: Vec<_> = extents(&b).collect();
        assert_eq!((all[0], all.len()), (LbaStatusDescriptor { lba: 8, blocks: 16, status: 1 }, 2));
        assert_eq!(encode_extents(&all), b);
        (0..b.len()).for_each(|n| assert!(extents(&b[..n]).count() < 2));
    }

    #[test]
    fn log_parameters_decode() {
        let b = [0x0d, 0, 0, 12, 0, 0, 3, 2, 0, 31, 0, 1, 3, 2, 0, 0xff];
        let all: Vec<_> = parameters(&b).map(|(code, value)| parameter(0x0d, code, value)).collect();
        assert_eq!(all, [Some(("celsius", 31)), None]);
        assert_eq!(parameter(3, 5, &[1, 0]), Some(("bytes", 256)));
        assert_eq!(
            (parameter(3, 5, &[]), parameter(3, 5, &[0; 9]), parameter(3, 99, &[1])),
            (None, None, None)
        );
        (0..b.len()).for_each(|n| assert!(parameters(&b[..n]).count() < 2));
    }
}
