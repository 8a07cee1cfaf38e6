//! Asymmetric logical unit access: REPORT and SET TARGET PORT GROUPS (SPC-5 sections 5.18, 6.37 and 6.45).
//!
//! A target port group is a portal group of the target, and its number is the portal group tag. It contains one
//! target port for each protocol of its portals.

use crate::capacity::READ_CAPACITY_16;
use crate::table::{ChangeScope, CommandContext, ReservationClass, Row};
use crate::{Lu, NexusPorts, Op, PeripheralDeviceType, Plan, PlanResult};
use lunar_wire::scsi::cdb::{report_target_port_groups, set_target_port_groups};
use lunar_wire::scsi::report::target_port_group::{ACCESS_STATE, SET_HEADER_LEN, SET_LEN, TARGET_PORT_GROUP};
use lunar_wire::scsi::report::{TargetPortGroupDescriptor, encode_groups};
use lunar_wire::scsi::{BitField, Sense, op};
use std::collections::{BTreeMap, BTreeSet};

/// TARGET PORT GROUPS, the service action of both commands.
const TARGET_PORT_GROUPS: u16 = 0x0a;

/// Rows of the command table. On a CD-ROM these operation codes are other commands.
pub(crate) const ROWS: &[Row] = &[
    Row::new(
        op::MAINTENANCE_IN,
        report,
        ReservationClass::Always,
        ChangeScope::Nothing,
        &[0xa3, 0x2a, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0],
    )
    .action(TARGET_PORT_GROUPS)
    .despite_reserve()
    .only(PeripheralDeviceType::Disk)
    .in_standby()
    .while_sanitizing(),
    Row::new(
        op::MAINTENANCE_OUT,
        set,
        ReservationClass::Never,
        ChangeScope::Shared,
        &[0xa4, 0x0a, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0],
    )
    .action(TARGET_PORT_GROUPS)
    .only(PeripheralDeviceType::Disk)
    .in_standby(),
];

/// ASYMMETRIC ACCESS STATE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessState {
    /// Active/optimized.
    Optimized = 0x0,
    /// Active/non-optimized.
    NonOptimized = 0x1,
    /// Standby.
    Standby = 0x2,
    /// Unavailable.
    Unavailable = 0x3,
    /// Transitioning.
    Transitioning = 0xf,
}

/// A target port group, of this target or of another that serves the same logical unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetPortGroup {
    /// Portal group tag.
    pub tag: u16,
    /// ASYMMETRIC ACCESS STATE of the group.
    pub access: AccessState,
    /// PREF.
    pub preferred: bool,
}

/// U_SUP, S_SUP, AN_SUP, AO_SUP: the supported states. T_SUP is added where states are set implicitly.
const SUPPORTED: u8 = 0x0f;
const TRANSITIONS: u8 = 0x80;
/// Commands that work in the states unavailable and transitioning. In standby, those of [`Row::in_standby`] work
/// (SPC-5 section 5.18.2.4). READ CAPACITY is here because Linux reads the capacity only when it discovers a path,
/// and creates a disk of zero blocks if that fails.
const WHEN_UNAVAILABLE: &[(u8, Option<u16>)] = &[
    (op::INQUIRY, None),
    (op::READ_CAPACITY_10, None),
    (op::SERVICE_ACTION_IN_16, Some(READ_CAPACITY_16)),
    (op::REPORT_LUNS, None),
    (op::REQUEST_SENSE, None),
    (op::READ_BUFFER_10, None),
    (op::WRITE_BUFFER, None),
    (op::MAINTENANCE_IN, Some(TARGET_PORT_GROUPS)),
    (op::MAINTENANCE_OUT, Some(TARGET_PORT_GROUPS)),
];
/// STATUS CODE: changed by SET TARGET PORT GROUPS, or by the device itself.
const SET_EXPLICITLY: u8 = 0x01;
const SET_IMPLICITLY: u8 = 0x02;

impl AccessState {
    fn of(code: u8) -> Option<AccessState> {
        match code {
            0x0 => Some(AccessState::Optimized),
            0x1 => Some(AccessState::NonOptimized),
            0x2 => Some(AccessState::Standby),
            0x3 => Some(AccessState::Unavailable),
            _ => None,
        }
    }
}

/// The access state of each target port group that was set; all others are active/optimized.
#[derive(Debug, Default)]
pub(crate) struct State {
    groups: BTreeMap<u16, AccessState>,
    /// [`Lu::set_access`] set the states, not SET TARGET PORT GROUPS.
    implicit: bool,
    preferred: Vec<u16>,
}

impl Lu {
    /// Sets the states of target port groups. Groups of other targets may be among them: they are reported too. If a
    /// state changes, every nexus gets the unit attention ASYMMETRIC ACCESS STATE CHANGED. A group that is not listed
    /// is active/optimized.
    pub fn set_access(&self, groups: &[TargetPortGroup]) {
        let now: BTreeMap<u16, AccessState> = groups.iter().map(|g| (g.tag, g.access)).collect();
        let preferred = groups.iter().filter(|g| g.preferred).map(|g| g.tag).collect();
        self.change().set_implicitly(now, preferred);
    }

    /// Makes these target port groups unavailable. All others keep their states.
    pub fn set_unavailable(&self, tags: &BTreeSet<u16>) {
        let mut state = self.change();
        let (mut now, preferred) = (state.alua.groups.clone(), state.alua.preferred.clone());
        now.extend(tags.iter().map(|tag| (*tag, AccessState::Unavailable)));
        state.set_implicitly(now, preferred);
    }
}

impl crate::state::State {
    fn set_implicitly(&mut self, now: BTreeMap<u16, AccessState>, preferred: Vec<u16>) {
        let before = &self.alua.groups;
        let changed =
            before.keys().chain(now.keys()).any(|tag| access_of(before, *tag) != access_of(&now, *tag));
        self.alua = State { groups: now, implicit: true, preferred };
        if changed {
            self.raise(Sense::ACCESS_STATE_CHANGED, |_, _| true);
        }
    }
}

fn access_of(groups: &BTreeMap<u16, AccessState>, tag: u16) -> AccessState {
    groups.get(&tag).copied().unwrap_or(AccessState::Optimized)
}

impl State {
    /// The state of a target port group.
    pub(crate) fn access(&self, tag: u16) -> AccessState {
        access_of(&self.groups, tag)
    }

    /// The sense data of the state of this port; `None` if it is active. REQUEST SENSE reports them, and commands
    /// that the state does not allow fail with them.
    pub(crate) fn not_ready(&self, port: &NexusPorts) -> Option<Sense> {
        match self.groups.get(&port.own.portal_group_tag)? {
            AccessState::Optimized | AccessState::NonOptimized => None,
            AccessState::Standby => Some(Sense::NOT_READY_STANDBY),
            AccessState::Unavailable => Some(Sense::NOT_READY_UNAVAILABLE),
            AccessState::Transitioning => Some(Sense::NOT_READY_TRANSITION),
        }
    }

    /// The sense data with which this command fails in the state of this port; `None` if the state allows it.
    pub(crate) fn denies(&self, row: &Row, port: &NexusPorts) -> Option<Sense> {
        let allowed = match self.groups.get(&port.own.portal_group_tag)? {
            AccessState::Unavailable | AccessState::Transitioning => {
                WHEN_UNAVAILABLE.contains(&(row.opcode, row.service_action))
            }
            _ => row.in_standby,
        };
        self.not_ready(port).filter(|_| !allowed)
    }

    fn group(&self, tag: u16, ports: Vec<u16>) -> TargetPortGroupDescriptor {
        let set = self.groups.get(&tag);
        TargetPortGroupDescriptor {
            number: tag,
            state: *set.unwrap_or(&AccessState::Optimized) as u8,
            preferred: self.preferred.contains(&tag),
            supported: if self.implicit { SUPPORTED | TRANSITIONS } else { SUPPORTED },
            status: match (set, self.implicit) {
                (None, _) => 0,
                (Some(_), true) => SET_IMPLICITLY,
                (Some(_), false) => SET_EXPLICITLY,
            },
            ports,
        }
    }
}

/// PARAMETER DATA FORMAT of the extended header.
const EXTENDED: u8 = 1;

fn report(cx: &mut CommandContext<'_>) -> PlanResult {
    use report_target_port_groups::{ALLOCATION_LENGTH, PARAMETER_DATA_FORMAT};
    let own: Vec<u16> = cx.port.portal_group_tags();
    let alua = &cx.state.alua;
    let others = alua.groups.keys().copied().filter(|tag| !own.contains(tag));
    let mut groups: Vec<_> = own.iter().map(|tag| alua.group(*tag, cx.port.relative_in(*tag))).collect();
    groups.extend(others.map(|tag| alua.group(tag, vec![tag])));
    let data = encode_groups(&groups, PARAMETER_DATA_FORMAT.get_u8(cx.cdb) == EXTENDED);
    Ok(Plan::data_cut(data, ALLOCATION_LENGTH.get_u32(cx.cdb)))
}

fn set(cx: &mut CommandContext<'_>) -> PlanResult {
    if !cx.lu.settings().explicit_access {
        return Err(Sense::INVALID_OPCODE.into());
    }
    let len = set_target_port_groups::PARAMETER_LIST_LENGTH.get_u32(cx.cdb);
    let max = SET_HEADER_LEN + SET_LEN * cx.port.portal_group_tags().len();
    match cx.parameters {
        _ if len == 0 => Ok(Plan::Done),
        _ if len as usize > max => Err(Sense::PARAMETER_LIST_LENGTH.into()),
        None => Ok(Plan::Parameters { len }),
        Some(list) => {
            let wanted = wanted(list, cx.port)?;
            if cx.state.sharing.is_some() {
                return Ok(Plan::op(Op::SetAccess { groups: wanted }));
            }
            if apply(&mut cx.state.alua, &wanted) {
                cx.state.raise_on_others(Sense::ACCESS_STATE_CHANGED, cx.nexus);
            }
            Ok(Plan::Done)
        }
    }
}

/// The states that a parameter list sets. Fails if any part of the list is invalid.
fn wanted(list: &[u8], port: &NexusPorts) -> Result<Vec<(u16, AccessState)>, Sense> {
    let Some(groups) = list.get(SET_HEADER_LEN..).filter(|g| g.len() % SET_LEN == 0) else {
        return Err(Sense::PARAMETER_LIST_LENGTH);
    };
    let check = |(i, group): (usize, &[u8])| {
        let at = (SET_HEADER_LEN + i * SET_LEN) as u16;
        let wrong = |field: BitField| Sense::in_parameters(field.after(at));
        let access = AccessState::of(ACCESS_STATE.get_u8(group)).ok_or(wrong(ACCESS_STATE))?;
        let tag = TARGET_PORT_GROUP.get_u16(group);
        if !port.portal_group_tags().contains(&tag) {
            return Err(wrong(TARGET_PORT_GROUP));
        }
        Ok((tag, access))
    };
    groups.chunks_exact(SET_LEN).enumerate().map(check).collect()
}

fn apply(state: &mut State, wanted: &[(u16, AccessState)]) -> bool {
    let mut changed = false;
    for &(tag, access) in wanted {
        let before = state.groups.insert(tag, access).unwrap_or(AccessState::Optimized);
        changed |= before != access;
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::*;
    use crate::{LuSettings, Nexus};
    use std::sync::Arc;

    const READ_ONE: &[u8] = &[op::READ_10, 0, 0, 0, 0, 1, 0, 0, 1, 0];
    const CAPACITY: &[u8] = &[op::READ_CAPACITY_10, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    const CAPACITY_16: &[u8] = &[op::SERVICE_ACTION_IN_16, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0];
    const LOG_PAGES: &[u8] = &[op::LOG_SENSE, 0, 0x40, 0, 0, 0, 0, 0, 4, 0];
    const ECHO: &[u8] = &[op::READ_BUFFER_10, 0x0b, 0, 0, 0, 0, 0, 0, 4, 0];
    const BUFFER: &[u8] = &[op::READ_BUFFER_10, 0x02, 0, 0, 0, 0, 0, 0, 4, 0];
    const REPORT: &[u8] = &[op::MAINTENANCE_IN, 0x0a, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0];

    fn set(n: &mut Nexus, groups: &[(u8, u16)]) -> PlanResult {
        let mut list = vec![0; 4];
        for (state, tag) in groups {
            list.extend_from_slice(&[*state, 0, (tag >> 8) as u8, *tag as u8]);
        }
        run_with(n, &[op::MAINTENANCE_OUT, 0x0a, 0, 0, 0, 0, 0, 0, 0, list.len() as u8, 0, 0], &list)
    }

    fn through_group_2(lu: &Arc<Lu>) -> Nexus {
        let port = NexusPorts { own: iscsi_port(2), ..(*port("b")).clone() };
        let mut n = lu.attach(Arc::new(port), false);
        assert_eq!(run(&mut n, &[op::TEST_UNIT_READY]), fails(Sense::POWER_ON));
        n
    }

    #[test]
    fn groups_are_reported_in_both_header_formats() {
        let mut n = nexus(&lu(disk()), "a");
        let groups = [[0, 0x0f, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1], [0, 0x0f, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2]];
        let short = data(&mut n, REPORT);
        assert_eq!((&short[..4], &short[4..]), (&[0, 0, 0, 24][..], &groups.concat()[..]));
        let long = data(&mut n, &[op::MAINTENANCE_IN, 0x2a, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!((&long[..8], &long[8..]), (&[0, 0, 0, 28, 0x10, 0, 0, 0][..], &groups.concat()[..]));
        assert_eq!(run(&mut n, &[op::MAINTENANCE_IN, 0x4a]), fails(Sense::cdb_field(1, 6)));
    }

    #[test]
    fn set_state_applies_to_its_group() {
        let lu = lu(disk());
        let (mut a, mut b) = (nexus(&lu, "a"), through_group_2(&lu));
        assert!(run(&mut b, READ_ONE).is_ok());
        assert_eq!(set(&mut a, &[(2, 2)]), Ok(Plan::Done));
        assert!(run(&mut a, READ_ONE).is_ok(), "no unit attention for the requester");
        assert_eq!(run(&mut b, READ_ONE), fails(Sense::ACCESS_STATE_CHANGED));
        assert_eq!(run(&mut b, READ_ONE), fails(Sense::NOT_READY_STANDBY));
        assert_eq!(data(&mut b, REPORT)[16..22], [2, 0x0f, 0, 2, 0, 1]);
        assert!(run(&mut b, LOG_PAGES).is_ok());
        assert!(run(&mut b, ECHO).is_ok());
        let (capacity, long) = (data(&mut a, CAPACITY), data(&mut a, CAPACITY_16));
        assert_eq!(data(&mut b, CAPACITY), capacity);
        assert_eq!(data(&mut b, CAPACITY_16), long);
        assert_eq!(run(&mut b, BUFFER), fails(Sense::NOT_READY_STANDBY));
        assert_eq!(set(&mut b, &[(3, 2)]), Ok(Plan::Done));
        assert_eq!(run(&mut b, READ_ONE), fails(Sense::NOT_READY_UNAVAILABLE));
        assert_eq!(run(&mut b, LOG_PAGES), fails(Sense::NOT_READY_UNAVAILABLE));
        assert!(run(&mut b, ECHO).is_ok());
        assert_eq!(data(&mut b, CAPACITY), capacity);
        assert_eq!(data(&mut b, CAPACITY_16), long);
        assert_eq!(data(&mut b, &[op::INQUIRY, 0, 0, 0, 36, 0]).len(), 36);
        assert_eq!(set(&mut b, &[(1, 2), (0, 1)]), Ok(Plan::Done));
        assert!(run(&mut b, READ_ONE).is_ok());
    }

    #[test]
    fn wrong_list_changes_nothing() {
        let lu = lu(disk());
        let mut n = nexus(&lu, "a");
        assert_eq!(set(&mut n, &[(3, 1), (4, 2)]), fails(Sense::parameter_field(8, 3)));
        assert_eq!(set(&mut n, &[(3, 1), (0, 7)]), fails(Sense::parameter_field(10, 7)));
        assert_eq!(set(&mut n, &[(3, 1), (0, 2), (0, 2)]), fails(Sense::PARAMETER_LIST_LENGTH));
        let odd = [op::MAINTENANCE_OUT, 0x0a, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0];
        assert_eq!(run_with(&mut n, &odd, &[0; 7]), fails(Sense::PARAMETER_LIST_LENGTH));
        assert!(run(&mut n, READ_ONE).is_ok());
        let none = [op::MAINTENANCE_OUT, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(run(&mut n, &none), Ok(Plan::Done));
    }

    #[test]
    fn first_states_that_are_optimized_are_no_change() {
        let lu = lu(LuSettings { explicit_access: false, ..disk() });
        let mut n = nexus(&lu, "a");
        lu.set_access(&[TargetPortGroup { tag: 1, access: AccessState::Optimized, preferred: false }]);
        assert!(run(&mut n, READ_ONE).is_ok());
        lu.set_access(&[]);
        assert!(run(&mut n, READ_ONE).is_ok());
    }

    #[test]
    fn implicit_state_change_is_reported_to_every_nexus() {
        let lu = lu(LuSettings { explicit_access: false, ..disk() });
        let (mut a, mut b) = (nexus(&lu, "a"), through_group_2(&lu));
        let group = |tag, access, preferred| TargetPortGroup { tag, access, preferred };
        let groups = [group(1, AccessState::Standby, false), group(7, AccessState::Optimized, true)];
        lu.set_access(&groups);
        assert_eq!(run(&mut a, READ_ONE), fails(Sense::ACCESS_STATE_CHANGED));
        assert_eq!(run(&mut a, READ_ONE), fails(Sense::NOT_READY_STANDBY));
        assert_eq!(run(&mut b, READ_ONE), fails(Sense::ACCESS_STATE_CHANGED));
        assert!(run(&mut b, READ_ONE).is_ok());
        let descriptors = data(&mut b, REPORT);
        assert_eq!(descriptors[4..16], [2, 0x8f, 0, 1, 0, 2, 0, 1, 0, 0, 0, 1]);
        assert_eq!(descriptors[28..40], [0x80, 0x8f, 0, 7, 0, 2, 0, 1, 0, 0, 0, 7]);
        assert_eq!(set(&mut b, &[(0, 1)]), fails(Sense::INVALID_OPCODE));
        assert_eq!(data(&mut b, &[op::INQUIRY, 0, 0, 0, 36, 0])[5] & 0x30, 0x10);
        lu.set_access(&groups);
        assert!(run(&mut b, READ_ONE).is_ok(), "the same again is no change");
        lu.set_access(&[group(1, AccessState::Transitioning, false)]);
        assert_eq!(run(&mut a, READ_ONE), fails(Sense::ACCESS_STATE_CHANGED));
        assert_eq!(run(&mut a, READ_ONE), fails(Sense::NOT_READY_TRANSITION));
    }

    #[test]
    fn unavailable_ports_leave_others_as_they_are() {
        let lu = lu(LuSettings { explicit_access: false, ..disk() });
        let mut n = nexus(&lu, "a");
        lu.set_access(&[TargetPortGroup { tag: 7, access: AccessState::Standby, preferred: false }]);
        assert_eq!(run(&mut n, READ_ONE), fails(Sense::ACCESS_STATE_CHANGED));
        lu.set_unavailable(&[1].into());
        assert_eq!(run(&mut n, READ_ONE), fails(Sense::ACCESS_STATE_CHANGED));
        assert_eq!(run(&mut n, READ_ONE), fails(Sense::NOT_READY_UNAVAILABLE));
        let descriptors = data(&mut n, REPORT);
        assert_eq!((descriptors[4] & 0xf, descriptors[28] & 0xf), (3, 2), "{descriptors:?}");
    }

    #[test]
    fn states_of_a_shared_unit_are_set_on_all_servers() {
        let lu = lu(disk());
        let mut n = nexus(&lu, "a");
        lu.share(|| {});
        let groups = vec![(1, AccessState::Standby), (2, AccessState::Optimized)];
        assert_eq!(set(&mut n, &[(2, 1), (0, 2)]), Ok(Plan::op(Op::SetAccess { groups })));
        assert!(run(&mut n, READ_ONE).is_ok(), "nothing has changed yet");
        assert_eq!(set(&mut n, &[(0, 9)]), fails(Sense::parameter_field(6, 7)));
    }

    #[test]
    fn same_state_again_is_no_change() {
        let lu = lu(disk());
        let (mut a, mut b) = (nexus(&lu, "a"), nexus(&lu, "b"));
        assert_eq!(set(&mut a, &[(0, 1)]), Ok(Plan::Done));
        assert!(run(&mut b, READ_ONE).is_ok());
    }
}
