//! NVMe qualified names.

use std::fmt;

/// Bytes of the field of a name, with its end.
pub const NQN_LEN: usize = 256;
/// The longest name in bytes.
const MAX: usize = 223;
/// The name of every discovery service.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// The names that contain a UUID begin with this.
const UUID_PREFIX: &str = "nqn.2014-08.org.nvmexpress:uuid:";

/// An NVMe qualified name: `nqn.YYYY-MM.reverse.domain:anything`, or `nqn.2014-08.org.nvmexpress:uuid:` and a UUID. Names
/// are equal if their bytes are.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nqn(String);

/// The fault of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidNqn(pub &'static str);

impl fmt::Display for InvalidNqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for InvalidNqn {}

impl Nqn {
    /// Checks a name.
    ///
    /// # Errors
    /// Its fault.
    pub fn new(text: &str) -> Result<Nqn, InvalidNqn> {
        if text.len() > MAX {
            return Err(InvalidNqn("the name has more than 223 bytes"));
        }
        if text.chars().any(char::is_control) {
            return Err(InvalidNqn("the name has a control character"));
        }
        if let Some(uuid) = text.strip_prefix(UUID_PREFIX) {
            let is_uuid = uuid.len() == 36
                && uuid.bytes().enumerate().all(|(at, byte)| match at {
                    8 | 13 | 18 | 23 => byte == b'-',
                    _ => byte.is_ascii_hexdigit(),
                });
            return if is_uuid { Ok(Nqn(text.into())) } else { Err(InvalidNqn("the UUID is malformed")) };
        }
        let rest = text.strip_prefix("nqn.").ok_or(InvalidNqn("the name does not begin with nqn."))?;
        let (date, domain) =
            rest.split_at_checked(7).ok_or(InvalidNqn("the date is missing: nqn.YYYY-MM."))?;
        let is_date = date.bytes().enumerate().all(|(at, byte)| match at {
            4 => byte == b'-',
            _ => byte.is_ascii_digit(),
        });
        if !is_date || !(1..=12).contains(&date[5..].parse::<u8>().unwrap_or(0)) {
            return Err(InvalidNqn("the date is malformed: nqn.YYYY-MM."));
        }
        match domain.strip_prefix('.') {
            Some(domain) if !domain.is_empty() && !domain.starts_with([':', '.']) => Ok(Nqn(text.into())),
            _ => Err(InvalidNqn("the domain is missing: nqn.YYYY-MM.reverse.domain")),
        }
    }

    /// The name that contains this UUID.
    pub fn of_uuid(uuid: &[u8; 16]) -> Nqn {
        let digits: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &digits[part]);
        Nqn(format!("{UUID_PREFIX}{}", parts.join("-")))
    }

    /// Decodes a field: the name ends at the first zero, which must be there.
    ///
    /// # Errors
    /// The fault of the name.
    pub fn decode(field: &[u8; NQN_LEN]) -> Result<Nqn, InvalidNqn> {
        let len = field.iter().position(|byte| *byte == 0).ok_or(InvalidNqn("the name has no end"))?;
        let text = str::from_utf8(&field[..len]).map_err(|_| InvalidNqn("the name is not UTF-8"))?;
        Nqn::new(text)
    }

    /// The field with the name.
    pub fn encode(&self) -> [u8; NQN_LEN] {
        let mut field = [0; NQN_LEN];
        field[..self.0.len()].copy_from_slice(self.0.as_bytes());
        field
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
