//! Names of a namespace: its number, or an identifier that stays the same where the number changes.

use super::controller::NvmeController;
use super::namespace::inspect;
use super::namespace_identity::{NamespaceIdentity, digits, uuid_text};
use super::options::parse_uuid;
use crate::{Error, ErrorCode};
use std::fmt;
use std::str::FromStr;

/// A name of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceName {
    /// Its number (NSID).
    Number(u32),
    /// `uuid.` and its UUID.
    Uuid([u8; 16]),
    /// `eui.` and the 32 hexadecimal digits of its NGUID.
    Nguid([u8; 16]),
    /// `eui.` and the 16 hexadecimal digits of its EUI64.
    Eui64([u8; 8]),
}

impl NamespaceName {
    /// Whether a namespace with this identity has this identifier. A number is no identifier.
    pub fn identifies(&self, identity: &NamespaceIdentity) -> bool {
        match self {
            NamespaceName::Number(_) => false,
            NamespaceName::Uuid(uuid) => identity.uuid.as_ref() == Some(uuid),
            NamespaceName::Nguid(nguid) => identity.nguid.as_ref() == Some(nguid),
            NamespaceName::Eui64(eui64) => identity.eui64.as_ref() == Some(eui64),
        }
    }

    /// The number of the namespace at a controller.
    ///
    /// # Errors
    /// [`ErrorCode::NotFound`] when the controller has no usable namespace with this identifier; those of Identify.
    pub async fn resolve(&self, controller: &NvmeController) -> Result<u32, Error> {
        if let NamespaceName::Number(number) = self {
            return Ok(*number);
        }
        for number in controller.namespaces().await? {
            match inspect(controller, number).await {
                Ok(properties) if self.identifies(&properties.identity) => return Ok(number),
                Ok(_) => {}
                // It is not usable, or has gone since the list was read.
                Err(e) if matches!(e.code, ErrorCode::InvalidArgument | ErrorCode::NotFound) => {
                    tracing::debug!("namespace {number} is left out: {e}");
                }
                Err(e) => return Err(e),
            }
        }
        let info = controller.info();
        let what = format!("no namespace of {} has the identifier {self}", info.subsystem);
        let hint = format!("lunar ls nvme://{}/{} lists the identifiers", info.portal, info.subsystem);
        Err(Error::new(ErrorCode::NotFound, what).with_hint(hint))
    }
}

/// Parses back to the same name. An identifier has the form of `wwid` in Linux.
impl fmt::Display for NamespaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NamespaceName::Number(number) => write!(f, "{number}"),
            NamespaceName::Uuid(uuid) => write!(f, "uuid.{}", uuid_text(uuid)),
            NamespaceName::Nguid(nguid) => write!(f, "eui.{}", digits(nguid)),
            NamespaceName::Eui64(eui64) => write!(f, "eui.{}", digits(eui64)),
        }
    }
}

impl FromStr for NamespaceName {
    type Err = Error;

    fn from_str(text: &str) -> Result<NamespaceName, Error> {
        let number = |text: &str| {
            let number =
                text.parse::<u32>().ok().filter(|id| (1..u32::MAX).contains(id) && !text.starts_with('+'));
            number.map(NamespaceName::Number)
        };
        let eui = |text: &str| match text.len() {
            32 => bytes(text).map(NamespaceName::Nguid),
            _ => bytes(text).map(NamespaceName::Eui64),
        };
        let name = match text.split_once('.') {
            None => number(text),
            Some((kind, id)) if kind.eq_ignore_ascii_case("uuid") => parse_uuid(id).map(NamespaceName::Uuid),
            Some((kind, id)) if kind.eq_ignore_ascii_case("eui") => eui(id),
            Some(_) => None,
        };
        name.ok_or_else(|| {
            let what = format!("\"{}\" is not a namespace", text.escape_debug());
            Error::new(ErrorCode::InvalidArgument, what).with_hint(
                "use the number of a namespace (NSID), 1 or more; or uuid.UUID, eui.NGUID or eui.EUI64, as lunar ls shows \
                 them",
            )
        })
    }
}

/// Hexadecimal digits as bytes. None also for zeros, which identify no namespace.
fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    let is_plain = text.len() == 2 * N && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = is_plain.then(|| u128::from_str_radix(text, 16).ok()).flatten().filter(|id| *id != 0)?;
    number.to_be_bytes().last_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_a_number_or_an_identifier() {
        for (text, name) in [
            ("7", NamespaceName::Number(7)),
            ("uuid.abababab-abab-abab-abab-abababababab", NamespaceName::Uuid([0xab; 16])),
            ("eui.07070707070707070707070707070707", NamespaceName::Nguid([7; 16])),
            ("eui.00a0b00000000001", NamespaceName::Eui64([0, 0xa0, 0xb0, 0, 0, 0, 0, 1])),
        ] {
            assert_eq!(text.parse(), Ok(name), "{text}");
            assert_eq!(name.to_string(), text);
        }
        assert_eq!("UUID.ABABABABabababababababababababab".parse(), Ok(NamespaceName::Uuid([0xab; 16])));
        for text in [
            "0",
            "+1",
            "4294967295",
            "1.5",
            "uuid.7",
            "uuid.",
            "eui.",
            "eui.0707",
            "eui.0000000000000000",
            "eui.+707070707070707",
        ] {
            let error = text.parse::<NamespaceName>().expect_err(text);
            assert!(error.code == ErrorCode::InvalidArgument && error.hint.is_some(), "{text}: {error}");
        }
    }

    #[test]
    fn identifier_fits_the_namespace_that_has_it() {
        let identity = NamespaceIdentity {
            uuid: Some([1; 16]),
            nguid: Some([2; 16]),
            eui64: Some([3; 8]),
            ..NamespaceIdentity::default()
        };
        for (name, is) in [
            (NamespaceName::Uuid([1; 16]), true),
            (NamespaceName::Nguid([2; 16]), true),
            (NamespaceName::Eui64([3; 8]), true),
            (NamespaceName::Uuid([2; 16]), false),
            (NamespaceName::Number(1), false),
        ] {
            assert_eq!(name.identifies(&identity), is, "{name}");
        }
        assert!(!NamespaceName::Uuid([1; 16]).identifies(&NamespaceIdentity::default()));
    }
}
