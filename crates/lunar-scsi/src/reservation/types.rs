//! The types of a persistent reservation, and what each lets through (SPC-5 table 66, section 5.14.2).

use crate::Allowed;
use lunar_wire::scsi::Sense;

/// A reservation type; the value is that of the TYPE field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Type {
    WriteExclusive = 1,
    ExclusiveAccess = 3,
    WriteExclusiveRegistrantsOnly = 5,
    ExclusiveAccessRegistrantsOnly = 6,
    WriteExclusiveAllRegistrants = 7,
    ExclusiveAccessAllRegistrants = 8,
}

/// How a nexus stands to a persistent reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It holds it; under an all registrants type every registrant does.
    Holder,
    /// It is registered.
    Registrant,
    /// It is not.
    Stranger,
}

impl Type {
    /// Every type.
    pub(crate) const ALL: [Type; 6] = [
        Type::WriteExclusive,
        Type::ExclusiveAccess,
        Type::WriteExclusiveRegistrantsOnly,
        Type::ExclusiveAccessRegistrantsOnly,
        Type::WriteExclusiveAllRegistrants,
        Type::ExclusiveAccessAllRegistrants,
    ];

    /// The type of a TYPE field; none for obsolete and reserved values.
    pub(crate) fn from_code(code: u8) -> Option<Type> {
        Type::ALL.into_iter().find(|k| *k as u8 == code)
    }

    /// SCOPE and TYPE of a PERSISTENT RESERVE OUT CDB (byte 2): the scope must be the logical unit.
    pub(crate) fn of_scope_and_type(byte: u8) -> Result<Type, Sense> {
        if byte >> 4 != 0 {
            return Err(Sense::cdb_field(2, 7));
        }
        Type::from_code(byte & 0x0f).ok_or(Sense::cdb_field(2, 3))
    }

    /// Every registrant is a holder.
    pub(crate) fn all_registrants(self) -> bool {
        matches!(self, Type::WriteExclusiveAllRegistrants | Type::ExclusiveAccessAllRegistrants)
    }

    /// Registrants share the access: they learn of its end by a unit attention.
    pub(crate) fn shared(self) -> bool {
        !matches!(self, Type::WriteExclusive | Type::ExclusiveAccess)
    }

    fn write_exclusive(self) -> bool {
        use Type::*;
        matches!(self, WriteExclusive | WriteExclusiveRegistrantsOnly | WriteExclusiveAllRegistrants)
    }

    /// A command of this class goes through for a nexus of this standing.
    pub(crate) fn lets(self, standing: Standing, class: Allowed) -> bool {
        let inside = match standing {
            Standing::Holder => true,
            Standing::Registrant => self.shared(),
            Standing::Stranger => false,
        };
        match class {
            _ if inside => true,
            Allowed::Always => true,
            Allowed::Reading => self.write_exclusive(),
            Allowed::Never => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Type, standing, and whether commands that read and commands that write go through.
    #[rustfmt::skip]
    const ACCESS: &[(u8, Standing, bool, bool)] = &[
        (1, Standing::Holder,     true,  true),
        (1, Standing::Registrant, true,  false),
        (1, Standing::Stranger,   true,  false),
        (3, Standing::Holder,     true,  true),
        (3, Standing::Registrant, false, false),
        (3, Standing::Stranger,   false, false),
        (5, Standing::Holder,     true,  true),
        (5, Standing::Registrant, true,  true),
        (5, Standing::Stranger,   true,  false),
        (6, Standing::Holder,     true,  true),
        (6, Standing::Registrant, true,  true),
        (6, Standing::Stranger,   false, false),
        (7, Standing::Holder,     true,  true),
        (7, Standing::Stranger,   true,  false),
        (8, Standing::Holder,     true,  true),
        (8, Standing::Stranger,   false, false),
    ];

    #[test]
    fn access_is_that_of_the_table() {
        for &(code, standing, reads, writes) in ACCESS {
            let kind = Type::from_code(code).unwrap();
            assert!(kind.lets(standing, Allowed::Always), "{code} {standing:?}");
            assert_eq!(kind.lets(standing, Allowed::Reading), reads, "{code} {standing:?} reads");
            assert_eq!(kind.lets(standing, Allowed::Never), writes, "{code} {standing:?} writes");
        }
    }

    #[test]
    fn obsolete_and_reserved_types_and_scopes_are_pointed_at() {
        for code in 0..16 {
            let known = [1, 3, 5, 6, 7, 8].contains(&code);
            assert_eq!(Type::of_scope_and_type(code).is_ok(), known, "type {code}");
            if !known {
                assert_eq!(Type::of_scope_and_type(code), Err(Sense::cdb_field(2, 3)));
            }
        }
        for scope in 1..16 {
            assert_eq!(Type::of_scope_and_type(scope << 4 | 1), Err(Sense::cdb_field(2, 7)), "scope {scope}");
        }
    }
}
