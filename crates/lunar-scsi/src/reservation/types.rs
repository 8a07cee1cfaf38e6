//! The types of persistent reservations, and the commands that each allows (SPC-5 table 66, section 5.14.2).

use crate::ReservationClass;
use lunar_wire::scsi::Sense;
use lunar_wire::scsi::cdb::persistent_reserve_out::{SCOPE, TYPE};

/// A reservation type; the value is that of the TYPE field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ReservationType {
    WriteExclusive = 1,
    ExclusiveAccess = 3,
    WriteExclusiveRegistrantsOnly = 5,
    ExclusiveAccessRegistrantsOnly = 6,
    WriteExclusiveAllRegistrants = 7,
    ExclusiveAccessAllRegistrants = 8,
}

/// The role of a nexus in a persistent reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RegistrantRole {
    /// It holds the reservation. Under an all registrants type, every registrant does.
    Holder,
    /// It is registered, but not a holder.
    Registrant,
    /// It is not registered.
    Stranger,
}

impl ReservationType {
    /// Every type.
    pub(crate) const ALL: [ReservationType; 6] = [
        ReservationType::WriteExclusive,
        ReservationType::ExclusiveAccess,
        ReservationType::WriteExclusiveRegistrantsOnly,
        ReservationType::ExclusiveAccessRegistrantsOnly,
        ReservationType::WriteExclusiveAllRegistrants,
        ReservationType::ExclusiveAccessAllRegistrants,
    ];

    /// The type of a TYPE field; `None` for obsolete and reserved values.
    pub(crate) fn from_code(code: u8) -> Option<ReservationType> {
        ReservationType::ALL.into_iter().find(|k| *k as u8 == code)
    }

    /// The type in SCOPE and TYPE (byte 2 of the CDB). The scope must be the logical unit.
    pub(crate) fn of_scope_and_type(byte: u8) -> Result<ReservationType, Sense> {
        if byte >> 4 != 0 {
            return Err(Sense::in_cdb(SCOPE));
        }
        ReservationType::from_code(byte & 0x0f).ok_or(Sense::in_cdb(TYPE))
    }

    /// Whether every registrant is a holder.
    pub(crate) fn all_registrants(self) -> bool {
        matches!(
            self,
            ReservationType::WriteExclusiveAllRegistrants | ReservationType::ExclusiveAccessAllRegistrants
        )
    }

    /// Whether registrants share the access, and therefore get a unit attention when the reservation ends.
    pub(crate) fn shared(self) -> bool {
        !matches!(self, ReservationType::WriteExclusive | ReservationType::ExclusiveAccess)
    }

    fn write_exclusive(self) -> bool {
        use ReservationType::*;
        matches!(self, WriteExclusive | WriteExclusiveRegistrantsOnly | WriteExclusiveAllRegistrants)
    }

    /// Whether a nexus of this role may run a command of this class.
    pub(crate) fn permits(self, role: RegistrantRole, class: ReservationClass) -> bool {
        let inside = match role {
            RegistrantRole::Holder => true,
            RegistrantRole::Registrant => self.shared(),
            RegistrantRole::Stranger => false,
        };
        match class {
            _ if inside => true,
            ReservationClass::Always => true,
            ReservationClass::Reading => self.write_exclusive(),
            ReservationClass::Never => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Type, role, and whether commands that read and commands that write are allowed.
    #[rustfmt::skip]
    const ACCESS: &[(u8, RegistrantRole, bool, bool)] = &[
        (1, RegistrantRole::Holder,     true,  true),
        (1, RegistrantRole::Registrant, true,  false),
        (1, RegistrantRole::Stranger,   true,  false),
        (3, RegistrantRole::Holder,     true,  true),
        (3, RegistrantRole::Registrant, false, false),
        (3, RegistrantRole::Stranger,   false, false),
        (5, RegistrantRole::Holder,     true,  true),
        (5, RegistrantRole::Registrant, true,  true),
        (5, RegistrantRole::Stranger,   true,  false),
        (6, RegistrantRole::Holder,     true,  true),
        (6, RegistrantRole::Registrant, true,  true),
        (6, RegistrantRole::Stranger,   false, false),
        (7, RegistrantRole::Holder,     true,  true),
        (7, RegistrantRole::Stranger,   true,  false),
        (8, RegistrantRole::Holder,     true,  true),
        (8, RegistrantRole::Stranger,   false, false),
    ];

    #[test]
    fn access_is_that_of_the_table() {
        for &(code, role, reads, writes) in ACCESS {
            let kind = ReservationType::from_code(code).unwrap();
            assert!(kind.permits(role, ReservationClass::Always), "{code} {role:?}");
            assert_eq!(kind.permits(role, ReservationClass::Reading), reads, "{code} {role:?} reads");
            assert_eq!(kind.permits(role, ReservationClass::Never), writes, "{code} {role:?} writes");
        }
    }

    #[test]
    fn sense_points_at_obsolete_types_and_scopes() {
        for code in 0..16 {
            let known = [1, 3, 5, 6, 7, 8].contains(&code);
            assert_eq!(ReservationType::of_scope_and_type(code).is_ok(), known, "type {code}");
            if !known {
                assert_eq!(ReservationType::of_scope_and_type(code), Err(Sense::cdb_field(2, 3)));
            }
        }
        for scope in 1..16 {
            assert_eq!(
                ReservationType::of_scope_and_type(scope << 4 | 1),
                Err(Sense::cdb_field(2, 7)),
                "scope {scope}"
            );
        }
    }
}
