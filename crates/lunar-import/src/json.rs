//! Faults of JSON files.

use serde::de::DeserializeOwned;
use serde_json::Error;
use serde_json::error::Category;

/// Parses a file. The fault has the place and what was expected, but no value: it could be a secret.
pub(crate) fn parse<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|e| fault(&e))
}

/// The fault without the value that has it.
pub(crate) fn fault(e: &Error) -> String {
    let text = e.to_string();
    if e.classify() != Category::Data || text.starts_with("missing field `") {
        return text;
    }
    let place = format!("line {} column {}", e.line(), e.column());
    let text = text.strip_suffix(&format!(" at {place}")).unwrap_or(&text);
    match text.rsplit_once(", expected ") {
        Some((_, expected)) => format!("expected {expected} at {place}"),
        None => format!("a malformed value at {place}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn faults_show_no_values() {
        let fault = |text| parse::<BTreeMap<String, BTreeMap<String, u8>>>(text).expect_err(text);
        for text in ["{\"a\": \"secret\"}", "{\"a\": \"secret, expected secret at line 1 column 7\"}"] {
            let found = fault(text);
            assert!(
                found.starts_with("expected a map at line 1 column ") && !found.contains("secret"),
                "{found}"
            );
        }
        assert_eq!(fault("{\"a\": {\"b\": 4711}}"), "expected u8 at line 1 column 16");
        assert_eq!(fault("{\"a\": secret}"), "expected value at line 1 column 7");
    }
}
