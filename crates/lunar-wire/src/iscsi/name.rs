//! Preparation of iSCSI names for comparison: the stringprep profile of RFC 3722.

use std::borrow::Cow;
use stringprep::tables;

/// The longest iSCSI name, in bytes (RFC 7143 section 4.2.7.1).
pub const NAME_LEN: usize = 223;

/// Maps, case-folds and normalizes an iSCSI name (RFC 3722 sections 3 and 4). Two spellings of one name give equal
/// results, and preparing a result returns it unchanged.
///
/// # Errors
/// A printable reason: a character that sections 5 and 6 prohibit or Unicode 3.2 does not assign, text of two
/// directions, or more than 223 bytes. The underscore is allowed, because initiators send it.
pub fn prepare(name: &str) -> Result<Cow<'_, str>, String> {
    prepare_with(name, may_stand)
}

/// Like [`prepare`], but `may_stand` decides which characters the result may contain.
///
/// # Errors
/// The same as for [`prepare`].
pub fn prepare_with(name: &str, may_stand: fn(char) -> bool) -> Result<Cow<'_, str>, String> {
    // Before normalization, so that its cost is bounded.
    check_len(name)?;
    let prepared = if name.is_ascii() { lower(name) } else { normalized(name)? };
    check_len(&prepared)?;
    match prepared.chars().find(|&c| !may_stand(c)) {
        Some(c) => Err(prohibited(c)),
        None => Ok(prepared),
    }
}

/// Folds text that may be an invalid name, such as saved state, for comparison. The result is that of [`prepare`], or
/// the text in lower case if [`prepare`] fails.
pub fn fold(name: &str) -> Cow<'_, str> {
    prepare(name).unwrap_or_else(|_| if name.is_ascii() { lower(name) } else { name.to_lowercase().into() })
}

/// Whether a folded and normalized iSCSI name may contain this character (RFC 3722 section 5). ASCII is limited to
/// letters, digits, dash, dot, colon, and the underscore that some initiators send.
pub fn may_stand(c: char) -> bool {
    match c {
        '-' | '.' | ':' | '_' => true,
        c if c.is_ascii() => c.is_ascii_alphanumeric(),
        // Section 6.2 adds the ideographic full stop.
        c => c != '\u{3002}' && !is_prohibited(c) && !tables::unassigned_code_point(c),
    }
}

/// Whether a character is invisible or changes how the text around it is displayed. Such characters are neither valid
/// in a name nor safe on a terminal.
pub fn is_invisible(c: char) -> bool {
    tables::ascii_control_character(c)
        || tables::non_ascii_control_character(c)
        || tables::change_display_properties_or_deprecated(c)
        || tables::tagging_character(c)
}

/// Whether RFC 3722 section 5 prohibits a non-ASCII character: the tables of RFC 3454 that it names. Table C.5
/// (surrogates) is omitted, because a `char` is never a surrogate.
fn is_prohibited(c: char) -> bool {
    const TABLES: [fn(char) -> bool; 8] = [
        tables::non_ascii_space_character,
        tables::non_ascii_control_character,
        tables::private_use,
        tables::non_character_code_point,
        tables::inappropriate_for_plain_text,
        tables::inappropriate_for_canonical_representation,
        tables::change_display_properties_or_deprecated,
        tables::tagging_character,
    ];
    TABLES.iter().any(|table| table(c))
}

fn normalized(name: &str) -> Result<Cow<'_, str>, String> {
    // The normalization tables are of a later Unicode version than the folding tables, so reject these characters
    // first.
    if let Some(c) = name.chars().find(|&c| tables::unassigned_code_point(c)) {
        return Err(format!("'{}' is not assigned in Unicode 3.2 (RFC 3722)", c.escape_default()));
    }
    let nameprep = |text: &str| match stringprep::nameprep(text) {
        Ok(prepared) => Ok(prepared.into_owned()),
        Err(_) => Err(match text.chars().find(|&c| is_prohibited(c)) {
            Some(c) => prohibited(c),
            None => "the name mixes text directions, or normalizes to characters that RFC 3722 prohibits"
                .to_owned(),
        }),
    };
    let once = nameprep(name)?;
    match nameprep(&once)? == once {
        true => Ok(once.into()),
        false => Err("normalizing the name twice gives different results".into()),
    }
}

fn prohibited(c: char) -> String {
    let shown = if c.is_ascii_graphic() { c.to_string() } else { c.escape_unicode().to_string() };
    format!("RFC 3722 prohibits '{shown}'")
}

fn check_len(name: &str) -> Result<(), String> {
    let len = name.len();
    if len > NAME_LEN {
        Err(format!("the name has {len} bytes, above the maximum of {NAME_LEN}"))
    } else {
        Ok(())
    }
}

fn lower(name: &str) -> Cow<'_, str> {
    match name.bytes().any(|b| b.is_ascii_uppercase()) {
        true => name.to_ascii_lowercase().into(),
        false => name.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::{NAME_LEN, fold, is_invisible, prepare};
    use proptest::prelude::*;
    use std::borrow::Cow;

    const HEAD: &str = "iqn.2026-11.org.example:";

    /// One character of each table that RFC 3722 names, and of section 6.2.
    #[test]
    fn prohibited_character_is_refused_with_its_code() {
        for (c, shown) in [
            (' ', "\\u{20}"),
            ('\u{7}', "\\u{7}"),
            ('/', "'/'"),
            ('=', "'='"),
            ('@', "'@'"),
            ('\u{7f}', "\\u{7f}"),
            ('\u{a0}', "\\u{20}"),
            ('\u{2003}', "\\u{20}"),
            ('\u{85}', "\\u{85}"),
            ('\u{2028}', "\\u{2028}"),
            ('\u{e000}', "\\u{e000}"),
            ('\u{fdd0}', "\\u{fdd0}"),
            ('\u{fffd}', "\\u{fffd}"),
            ('\u{2ff0}', "\\u{2ff0}"),
            ('\u{202e}', "\\u{202e}"),
            ('\u{e0001}', "\\u{e0001}"),
            ('\u{3002}', "\\u{3002}"),
            ('\u{ff61}', "\\u{3002}"),
            ('\u{1f600}', "\\u{1f600}"),
            ('\u{1f130}', "\\u{1f130}"),
        ] {
            let why = prepare(&format!("{HEAD}a{c}b")).unwrap_err();
            assert!(why.contains(shown), "{c:?}: {why}");
        }
    }

    #[test]
    fn character_that_normalizes_to_prohibited_is_refused() {
        // They normalize to "a/c", and to a space with a combining mark.
        for c in ['\u{2100}', '\u{a8}'] {
            assert!(prepare(&format!("{HEAD}{c}")).is_err(), "{c:?}");
        }
    }

    /// RFC 3722 section 7.
    #[test]
    fn text_of_two_directions_is_refused() {
        assert!(prepare(&format!("{HEAD}\u{5d0}")).is_err());
        assert_eq!(prepare("\u{5d0}:\u{5d0}").as_deref(), Ok("\u{5d0}:\u{5d0}"));
    }

    #[test]
    fn character_mapped_to_nothing_is_left_out() {
        for c in ['\u{ad}', '\u{200d}', '\u{feff}', '\u{fe0f}'] {
            assert_eq!(prepare(&format!("{HEAD}a{c}b")), Ok(format!("{HEAD}ab").into()), "{c:?}");
        }
    }

    #[test]
    fn name_that_grows_beyond_223_bytes_is_refused() {
        let why = prepare(&"\u{3316}".repeat(70)).unwrap_err();
        assert!(why.contains("1260 bytes"), "{why}");
        assert!(prepare(&"a".repeat(NAME_LEN)).is_ok() && prepare(&"a".repeat(NAME_LEN + 1)).is_err());
    }

    #[test]
    fn terminal_control_characters_are_invisible() {
        for c in ['\u{1b}', '\u{9b}', '\u{202e}', '\u{200f}', '\u{e0001}', '\u{feff}'] {
            assert!(is_invisible(c), "{c:?}");
        }
        assert!(!['a', ' ', '\u{e9}', '\u{1f600}'].into_iter().any(is_invisible));
    }

    proptest! {
        #[test]
        fn prepared_text_prepares_to_itself(name in "(iqn\\.)?\\PC{0,40}|[\\x00-\u{10ffff}]{0,40}") {
            match prepare(&name) {
                Ok(once) => {
                    prop_assert_eq!(prepare(&once), Ok(Cow::Borrowed(&*once)));
                    prop_assert_eq!(fold(&name), once.clone());
                    prop_assert!(once.len() <= NAME_LEN && !once.chars().any(is_invisible));
                }
                Err(why) => prop_assert!(!why.contains(is_invisible), "{}", why),
            }
        }

        #[test]
        fn prepared_character_prepares_to_itself(c: char) {
            let name = format!("{HEAD}{c}x");
            if let Ok(once) = prepare(&name) {
                prop_assert_eq!(prepare(&once), Ok(Cow::Borrowed(&*once)));
            }
        }
    }

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
