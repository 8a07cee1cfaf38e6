//! iSCSI names as they are compared (RFC 3722).

use std::borrow::Cow;

/// The form of an iSCSI name in which two spellings of one name are equal: case folded, and normalized beyond ASCII. A
/// name that the profile forbids is folded as far as its letters go, so that the caller can still refuse it.
pub fn fold(name: &str) -> Cow<'_, str> {
    if !name.is_ascii() {
        return stringprep::nameprep(name).unwrap_or_else(|_| name.to_lowercase().into());
    }
    match name.bytes().any(|b| b.is_ascii_uppercase()) {
        true => name.to_ascii_lowercase().into(),
        false => name.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::fold;
    use std::borrow::Cow;

    #[test]
    fn name_in_capitals_folds_to_lower_case() {
        assert_eq!(fold("IQN.1991-05.com.Microsoft:HOST_1"), "iqn.1991-05.com.microsoft:host_1");
        assert_eq!(fold("eui.02004567A425678D"), "eui.02004567a425678d");
    }

    #[test]
    fn name_beyond_ascii_is_normalized() {
        let folded = "iqn.2026-11.org.example:m\u{fc}ller";
        for same in [folded, "iqn.2026-11.org.example:M\u{dc}LLER", "iqn.2026-11.org.example:mu\u{308}ller"] {
            assert_eq!(fold(same), folded, "{same}");
        }
    }

    #[test]
    fn name_already_folded_is_not_copied() {
        assert!(matches!(fold("iqn.2026-11.org.example:a"), Cow::Borrowed(_)));
    }
}
