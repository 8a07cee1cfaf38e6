//! The LUNs of an I_T nexus.

use super::lun_handle::LunHandle;
use crate::access::{LunEntry, LunMap};
use crate::exec::copy::{CopyEnd, CopyEnds};
use crate::nexus_list::NexusList;
use crate::{LogicalUnit, PassthroughNexus};
use lunar_scsi::{CopyRange, CopySegment, NexusPorts, TargetPort};
use lunar_wire::scsi::Sense;
use lunar_wire::scsi::lun;
use std::rc::Rc;
use std::sync::Arc;

/// The result of looking up a LUN field.
pub enum LunLookup<'a> {
    /// A logical unit.
    LogicalUnit(&'a mut LunHandle),
    /// The REPORT LUNS well-known logical unit.
    WellKnown,
    /// The initiator does not see this LUN.
    Absent,
}

/// The LUNs of an I_T nexus.
pub struct NexusLuns {
    map: Arc<LunMap>,
    port: Arc<NexusPorts>,
    handles: Vec<Option<Box<LunHandle>>>,
    nexuses: Arc<NexusList>,
}

impl NexusLuns {
    /// The LUNs of a new session, none of which was used.
    pub fn new(map: Arc<LunMap>, port: Arc<NexusPorts>, nexuses: Arc<NexusList>) -> Self {
        NexusLuns { map, port, handles: Vec::new(), nexuses }
    }

    /// The LUNs that the initiator sees.
    pub fn map(&self) -> &Arc<LunMap> {
        &self.map
    }

    /// Looks up a LUN field. The first use of a LUN creates its I_T_L nexus.
    #[inline]
    pub fn find(&mut self, field: u64) -> LunLookup<'_> {
        let Some(number) = lun::of_request(field) else {
            return if field == lun::REPORT_LUNS { LunLookup::WellKnown } else { LunLookup::Absent };
        };
        if !self.handles.get(number as usize).is_some_and(Option::is_some) && !self.open(number) {
            return LunLookup::Absent;
        }
        match self.handles.get_mut(number as usize) {
            Some(Some(handle)) => LunLookup::LogicalUnit(handle),
            _ => LunLookup::Absent,
        }
    }

    fn open(&mut self, number: u16) -> bool {
        let Some(visible) = self.map.get(&number) else { return false };
        let handle = LunHandle::open(visible, &self.port, &self.nexuses);
        let at = number as usize;
        if self.handles.len() <= at {
            self.handles.resize_with(at + 1, || None);
        }
        self.handles[at] = Some(Box::new(handle));
        true
    }

    /// The source and destination of a segment of EXTENDED COPY, which are LUNs of this session. Naming a LUN counts
    /// as using it.
    pub fn copy_ends(&mut self, number: u16, segment: &CopySegment) -> Result<CopyEnds, Sense> {
        let [from, to] = [&segment.source, &segment.destination].map(|naa| self.named(naa));
        let (from, to) = from.zip(to).ok_or(segment.unreachable(number))?;
        let end = |lun| {
            let h = self.handle(lun)?;
            let (nexus, task_set, medium) = (h.nexus().id(), h.task_set(), h.unit().lu.medium());
            Some(CopyEnd { lun, unit: h.unit().clone(), nexus, task_set, medium })
        };
        let ends = end(from).zip(end(to)).map(|(source, destination)| CopyEnds { source, destination });
        ends.ok_or(segment.unreachable(number))
    }

    /// The bytes that a segment copies. Fails unless this initiator may read the source and write the destination
    /// now, and both are still the same logical units.
    pub fn copy_range(
        &self,
        number: u16,
        segment: &CopySegment,
        ends: &CopyEnds,
    ) -> Result<CopyRange, Sense> {
        let nexus = |end: &CopyEnd| {
            let handle = self.handle(end.lun).filter(|h| Arc::ptr_eq(h.unit(), &end.unit));
            handle.map(LunHandle::nexus).ok_or(segment.unreachable(number))
        };
        segment.range(number, nexus(&ends.source)?, nexus(&ends.destination)?)
    }

    /// The passthrough nexuses of these logical units. Naming a LUN counts as using it.
    pub fn passthrough_nexuses(&mut self, units: &[Arc<LogicalUnit>]) -> Vec<Rc<dyn PassthroughNexus>> {
        let passing = |(_, v): &(&u16, &LunEntry)| {
            v.unit.passthrough().is_some() && units.iter().any(|unit| Arc::ptr_eq(unit, &v.unit))
        };
        let numbers: Vec<u16> = self.map.iter().filter(passing).map(|(number, _)| *number).collect();
        let passthrough_nexus = |number: u16| {
            let used = self.handle(number).is_some() || self.open(number);
            self.handle(number).filter(|_| used)?.passthrough()
        };
        numbers.into_iter().filter_map(passthrough_nexus).collect()
    }

    /// The handle of a LUN field, if it still is this logical unit. A reload may have given the LUN to another one.
    pub fn unit(&mut self, field: u64, unit: &Arc<LogicalUnit>) -> Option<&mut LunHandle> {
        match self.find(field) {
            LunLookup::LogicalUnit(handle) if Arc::ptr_eq(handle.unit(), unit) => Some(handle),
            _ => None,
        }
    }

    /// The LUN with this NAA designator. Naming a LUN counts as using it.
    fn named(&mut self, naa: &[u8]) -> Option<u16> {
        let (&number, _) = self.map.iter().find(|(_, v)| v.unit.lu.settings().identity.naa == naa)?;
        (self.handle(number).is_some() || self.open(number)).then_some(number)
    }

    /// The handle of a LUN field that was used before.
    #[inline]
    pub fn known(&mut self, field: u64) -> Option<&mut LunHandle> {
        self.handles.get_mut(lun::of_request(field)? as usize)?.as_deref_mut()
    }

    fn handle(&self, number: u16) -> Option<&LunHandle> {
        self.handles.get(number as usize)?.as_deref()
    }

    /// The handles of LUNs that were used.
    pub fn used(&mut self) -> impl Iterator<Item = &mut LunHandle> {
        self.handles.iter_mut().flatten().map(|h| &mut **h)
    }

    /// Ends every nexus.
    pub fn close(&mut self) {
        self.handles.clear();
        self.map = Arc::default();
    }

    /// Replaces the map. Handles of LUNs that were removed or replaced are closed; the others get a unit attention.
    /// Returns whether anything changed.
    pub fn replace(&mut self, map: Arc<LunMap>) -> bool {
        let changed = !same(&self.map, &map);
        let mut anew = Vec::new();
        for (number, slot) in self.handles.iter_mut().enumerate() {
            let now = map.get(&(number as u16));
            let stays = slot
                .as_ref()
                .zip(now)
                .is_some_and(|(h, v)| Arc::ptr_eq(h.unit(), &v.unit) && h.nexus().read_only() == v.read_only);
            if stays {
                continue;
            }
            // The same logical unit with a new nexus: its ORDERED commands are still unfinished.
            let to_same = |h: &LunHandle| now.is_some_and(|v| Arc::ptr_eq(h.unit(), &v.unit));
            let ordered = slot.take().filter(|h| h.has_ordered() && to_same(h)).map(|h| h.ordered());
            anew.extend(ordered.map(|ordered| (number as u16, ordered)));
        }
        // Release replaced media, so that their file descriptors close with their last user.
        self.used().for_each(LunHandle::refresh);
        self.map = map;
        for (number, ordered) in anew {
            if self.open(number)
                && let Some(Some(handle)) = self.handles.get_mut(number as usize)
            {
                handle.count_ordered(ordered);
            }
        }
        if changed {
            self.used().for_each(|h| h.nexus_mut().luns_changed());
        }
        changed
    }
}

impl NexusLuns {
    /// Replaces the ports of the target. If they differ, each used LUN gets a unit attention.
    pub fn replace_ports(&mut self, ports: Arc<[TargetPort]>) {
        if self.port.ports.replace(ports) {
            self.used().for_each(|h| h.nexus_mut().ports_changed());
        }
    }
}

fn same(a: &LunMap, b: &LunMap) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|((la, a), (lb, b))| la == lb && Arc::ptr_eq(&a.unit, &b.unit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::tests::{lu, port};

    fn map(unit: &Arc<LogicalUnit>, read_only: bool) -> Arc<LunMap> {
        let visible = LunEntry { unit: unit.clone(), read_only, aen: false, given_ids: Default::default() };
        Arc::new(LunMap::from([(0, visible)]))
    }

    fn ordered(luns: &mut NexusLuns) -> Option<i32> {
        match luns.find(0) {
            LunLookup::LogicalUnit(handle) => Some(handle.ordered()),
            _ => None,
        }
    }

    #[test]
    fn replaced_map_keeps_ordered_count_of_same_unit() {
        let [one, other] =
            [(); 2].map(|()| Arc::new(LogicalUnit::new(lu(true), lunar_block::nothing(), None)));
        let mut luns = NexusLuns::new(map(&one, false), port(), Default::default());
        let LunLookup::LogicalUnit(handle) = luns.find(0) else { panic!("LUN 0 is missing") };
        handle.count_ordered(2);
        luns.replace(map(&one, true));
        assert_eq!(ordered(&mut luns), Some(2));
        luns.replace(map(&other, true));
        assert_eq!(ordered(&mut luns), Some(0));
    }
}
