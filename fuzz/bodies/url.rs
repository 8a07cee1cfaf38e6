//! URLs. Input: the text of a URL.

use lunar_initiator::{ErrorCode, Url};

pub fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    match Url::parse(text) {
        Ok(url) => {
            let shown = url.to_string();
            assert!(!shown.contains(char::is_control));
            let again = Url::parse(&shown).expect("a URL in its own notation");
            assert_eq!(again.to_string(), shown);
            assert_eq!((again.portal, again.target, again.lun), (url.portal, url.target, url.lun));
        }
        Err(e) => {
            assert_eq!(e.code, ErrorCode::InvalidArgument);
            assert!(e.hint.as_ref().is_some_and(|hint| !hint.is_empty()));
            assert!(!e.what.contains(char::is_control));
        }
    }
}
