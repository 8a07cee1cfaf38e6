//! Changes the definition of a logical unit in use. It stays the same device server, and unit attentions report the
//! changes.

use crate::{InvalidDefinition, Lu, LuSettings};
use lunar_wire::scsi::{Sense, Status};

impl Lu {
    /// Sets whether every new command ends with BUSY (SAM-5 section 5.3.1).
    pub fn set_busy(&self, busy: bool) {
        let mut state = self.change();
        state.busy = busy;
        state.mark_changed();
    }

    /// The status of every new command if it does not depend on the command: BUSY.
    pub fn busy_status(&self) -> Option<Status> {
        self.change().is_busy().then_some(Status::Busy)
    }

    /// Whether a sanitize operation is running. It belongs to the current medium.
    pub fn is_sanitizing(&self) -> bool {
        self.change().sanitize.is_running()
    }

    /// Applies another definition. `replaced`: the medium is another one, too. Reservations, unit attentions and mode
    /// pages stay. Every nexus gets unit attentions for the changes (SPC-5 section 5.14, SBC-4 section 4.10): MEDIUM
    /// MAY HAVE CHANGED, INQUIRY DATA HAS CHANGED, CAPACITY DATA HAS CHANGED, MODE PARAMETERS CHANGED.
    ///
    /// The caller ensures that no command runs. Saved mode pages override the definition, as at power on.
    ///
    /// # Errors
    /// [`InvalidDefinition`] for contradictory settings, and for another device type. In both cases nothing changes.
    pub fn redefine(&self, settings: LuSettings, replaced: bool) -> Result<(), InvalidDefinition> {
        settings.check()?;
        let mut state = self.change();
        let old = self.settings();
        if old.device_type != settings.device_type {
            return Err(InvalidDefinition::new("the device type of a logical unit cannot change"));
        }
        let blocks = settings.capacity / u64::from(settings.block_size);
        let capacity = blocks != state.blocks
            || old.block_size != settings.block_size
            || old.physical_block_size != settings.physical_block_size
            || old.thin != settings.thin;
        let inquiry = old.identity != settings.identity
            || old.removable != settings.removable
            || old.thin != settings.thin;
        let modes = state.modes.set_default_write_cache(settings.write_cache)
            | (old.read_only != settings.read_only)
            | (old.block_size != settings.block_size);
        state.blocks = blocks;
        state.reservations.set_max_registrants(settings.max_registrants);
        if replaced || (old.removable && !settings.removable) {
            state.medium.load();
        }
        let changes = [
            (replaced, Sense::MEDIUM_CHANGED),
            (inquiry, Sense::INQUIRY_CHANGED),
            (capacity, Sense::CAPACITY_CHANGED),
            (modes, Sense::MODE_PARAMETERS_CHANGED),
        ];
        if replaced || old.block_size != settings.block_size {
            self.medium_replaced();
        }
        self.set_settings(settings);
        changes.iter().filter(|(is, _)| *is).for_each(|(_, sense)| state.raise(*sense, |_, _| true));
        // Even without a unit attention, nexuses must take new snapshots.
        state.mark_changed();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::*;
    use crate::{LuIdentity, LuSettings, Nexus, PeripheralDeviceType, Plan};
    use lunar_wire::scsi::{Sense, Status, op};

    const TUR: &[u8] = &[op::TEST_UNIT_READY];
    const READ_ONE: &[u8] = &[op::READ_10, 0, 0, 0, 0, 1, 0, 0, 1, 0];
    const WRITE_ONE: &[u8] = &[op::WRITE_10, 0, 0, 0, 0, 1, 0, 0, 1, 0];
    const REGISTER: &[u8] = &[0x5f, 0, 0, 0, 0, 0, 0, 0, 24];
    const RESERVE: &[u8] = &[0x5f, 1, 1, 0, 0, 0, 0, 0, 24];

    /// The pending unit attentions of a nexus.
    fn attentions(nexus: &mut Nexus) -> Vec<Sense> {
        std::iter::from_fn(|| run(nexus, TUR).err().and_then(|f| f.sense)).take(8).collect()
    }

    #[test]
    fn each_change_has_its_unit_attention() {
        let named = LuIdentity { serial: "9".into(), ..disk().identity };
        let cases: [(LuSettings, bool, &[Sense]); 8] = [
            (disk(), false, &[]),
            (LuSettings { identity: named, ..disk() }, false, &[Sense::INQUIRY_CHANGED]),
            (
                LuSettings { block_size: 4096, ..disk() },
                false,
                &[Sense::CAPACITY_CHANGED, Sense::MODE_PARAMETERS_CHANGED],
            ),
            (LuSettings { capacity: 4096, ..disk() }, false, &[Sense::CAPACITY_CHANGED]),
            (LuSettings { read_only: true, ..disk() }, false, &[Sense::MODE_PARAMETERS_CHANGED]),
            (LuSettings { write_cache: false, ..disk() }, false, &[Sense::MODE_PARAMETERS_CHANGED]),
            (LuSettings { thin: false, ..disk() }, false, &[Sense::INQUIRY_CHANGED, Sense::CAPACITY_CHANGED]),
            (disk(), true, &[Sense::MEDIUM_CHANGED]),
        ];
        for (settings, replaced, expected) in cases {
            let lu = lu(disk());
            let (mut a, mut b) = (nexus(&lu, "a"), nexus(&lu, "b"));
            assert!(run(&mut a, READ_ONE).is_ok());
            lu.redefine(settings.clone(), replaced).unwrap();
            assert_eq!(attentions(&mut a), expected, "{settings:?}");
            assert_eq!(attentions(&mut b), expected, "{settings:?}");
        }
    }

    #[test]
    fn reservation_without_aptpl_survives_a_redefinition() {
        let lu = lu(disk());
        let (mut a, mut b) = (nexus(&lu, "a"), nexus(&lu, "b"));
        let mut list = [0; 24];
        list[15] = 7;
        run_with(&mut a, REGISTER, &list).unwrap();
        (list[7], list[15]) = (7, 0);
        run_with(&mut a, RESERVE, &list).unwrap();
        lu.redefine(LuSettings { block_size: 4096, ..disk() }, false).unwrap();
        attentions(&mut a);
        attentions(&mut b);
        assert_eq!(run(&mut b, WRITE_ONE), Err(Status::ReservationConflict.into()));
        assert_eq!(run(&mut a, WRITE_ONE), Ok(Plan::Write { offset: 4096, len: 4096, stable: false }));
        assert_eq!(data(&mut a, &[op::READ_CAPACITY_10]), [0, 0, 0, 255, 0, 0, 16, 0]);
    }

    #[test]
    fn busy_status_keeps_unit_attentions() {
        let lu = lu(disk());
        let mut a = nexus(&lu, "a");
        assert!(run(&mut a, READ_ONE).is_ok());
        lu.luns_changed();
        lu.set_busy(true);
        for cdb in [READ_ONE, TUR, &[op::INQUIRY, 0, 0, 0, 36, 0]] {
            assert_eq!(run(&mut a, cdb), Err(Status::Busy.into()));
        }
        assert_eq!(lu.busy_status(), Some(Status::Busy));
        lu.set_busy(false);
        assert_eq!(lu.busy_status(), None);
        assert_eq!(run(&mut a, READ_ONE), fails(Sense::LUNS_CHANGED));
        assert!(run(&mut a, READ_ONE).is_ok());
    }

    #[test]
    fn saved_mode_pages_stand_above_the_definition() {
        let lu = lu(disk());
        let mut a = nexus(&lu, "a");
        // MODE SELECT(6) with SP: the caching page with WCE set.
        let mut list = vec![0, 0, 0, 0, 0x08, 0x12, 0x04];
        list.resize(24, 0);
        commit(&lu, run_with(&mut a, &[op::MODE_SELECT_6, 0x11, 0, 0, 24, 0], &list)).unwrap();
        lu.redefine(LuSettings { write_cache: false, ..disk() }, false).unwrap();
        assert_eq!(attentions(&mut a), []);
        assert!(lu.write_cache());
    }

    #[test]
    fn another_medium_is_loaded_and_another_kind_is_another_unit() {
        let settings = LuSettings { removable: true, ..disk() };
        let lu = lu(settings.clone());
        let mut a = nexus(&lu, "a");
        run(&mut a, &[op::START_STOP_UNIT, 0, 0, 0, 2, 0]).unwrap();
        assert_eq!(run(&mut a, TUR), fails(Sense::NOT_READY_NO_MEDIUM));
        lu.redefine(settings, true).unwrap();
        assert_eq!(attentions(&mut a), [Sense::MEDIUM_CHANGED]);
        assert!(
            lu.redefine(LuSettings { device_type: PeripheralDeviceType::CdRom, ..cdrom() }, true).is_err()
        );
        assert!(lu.redefine(LuSettings { block_size: 3, ..disk() }, false).is_err());
        assert_eq!((attentions(&mut a), lu.settings().block_size), (vec![], 512));
    }
}
