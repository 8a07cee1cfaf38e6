//! Unit attention conditions of one I_T_L nexus (SAM-5 section 5.14).

use lunar_wire::scsi::Sense;

/// Maximum number of conditions, above the number of different ones. Further conditions are dropped.
const MAX: usize = 16;

/// Pending conditions in the order in which they are reported, without duplicates.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnitAttentions(Vec<Sense>);

impl UnitAttentions {
    /// The conditions of a new nexus: POWER ON.
    pub(crate) fn power_on() -> UnitAttentions {
        UnitAttentions(vec![Sense::POWER_ON])
    }

    /// Adds a condition. A reset (29h) replaces all others, but does not replace a pending POWER ON.
    pub(crate) fn raise(&mut self, sense: Sense) {
        if sense.asc == Sense::POWER_ON.asc {
            let powered = self.0.contains(&Sense::POWER_ON);
            self.0.clear();
            self.0.push(if powered { Sense::POWER_ON } else { sense });
        } else if !self.0.contains(&sense) && self.0.len() < MAX {
            self.0.push(sense);
        }
    }

    /// Removes and returns the next condition to report.
    pub(crate) fn take(&mut self) -> Option<Sense> {
        if self.0.is_empty() { None } else { Some(self.0.remove(0)) }
    }

    /// Returns a condition that could not be reported to the front, unless a reset is pending.
    pub(crate) fn put_back(&mut self, sense: Sense) {
        let reset = self.0.first().is_some_and(|s| s.asc == Sense::POWER_ON.asc);
        if !reset && !self.0.contains(&sense) {
            self.0.insert(0, sense);
            self.0.truncate(MAX);
        }
    }

    /// Drops one condition.
    pub(crate) fn forget(&mut self, sense: Sense) {
        self.0.retain(|s| *s != sense);
    }

    /// Whether no condition is pending.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(mut q: UnitAttentions) -> Vec<Sense> {
        std::iter::from_fn(|| q.take()).collect()
    }

    #[test]
    fn each_condition_is_reported_once_in_order() {
        let mut q = UnitAttentions::default();
        for s in [Sense::CAPACITY_CHANGED, Sense::LUNS_CHANGED, Sense::CAPACITY_CHANGED] {
            q.raise(s);
        }
        assert_eq!(drain(q), [Sense::CAPACITY_CHANGED, Sense::LUNS_CHANGED]);
    }

    #[test]
    fn unreported_attention_is_the_next_without_a_reset() {
        let mut q = UnitAttentions::default();
        q.raise(Sense::CAPACITY_CHANGED);
        q.raise(Sense::LUNS_CHANGED);
        let taken = q.take().unwrap();
        q.put_back(taken);
        q.put_back(taken);
        assert_eq!(drain(q.clone()), [Sense::CAPACITY_CHANGED, Sense::LUNS_CHANGED]);
        let taken = q.take().unwrap();
        q.raise(Sense::LUN_RESET);
        q.put_back(taken);
        assert_eq!(drain(q), [Sense::LUN_RESET]);
        let mut full = UnitAttentions::default();
        (0..MAX as u8).for_each(|ascq| full.raise(Sense::new(6, 0x77, ascq)));
        full.put_back(Sense::LUNS_CHANGED);
        assert_eq!(drain(full).len(), MAX);
    }

    #[test]
    fn reset_drops_what_came_before_it() {
        let mut q = UnitAttentions::default();
        q.raise(Sense::MODE_PARAMETERS_CHANGED);
        q.raise(Sense::LUN_RESET);
        q.raise(Sense::LUNS_CHANGED);
        assert_eq!(drain(q), [Sense::LUN_RESET, Sense::LUNS_CHANGED]);
    }

    #[test]
    fn power_on_outranks_a_reset() {
        let mut q = UnitAttentions::power_on();
        q.raise(Sense::LUN_RESET);
        assert_eq!(drain(q), [Sense::POWER_ON]);
    }

    #[test]
    fn queue_is_bounded() {
        let mut q = UnitAttentions::default();
        (0..200).for_each(|i| q.raise(Sense::new(6, 0x80, i)));
        assert_eq!(drain(q).len(), MAX);
    }
}
