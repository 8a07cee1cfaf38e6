//! Checks of JSON text that a parser hides.

use serde_json::Value;

/// Panics if an object has a key twice. Parsers take one of the two values without a word.
pub fn assert_unique_keys(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert_eq!(keys_in_text(text), keys(&value), "an object has a key twice: {text}");
}

/// The number of keys of a value.
fn keys(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.iter().map(keys).sum(),
        Value::Object(map) => map.values().map(|value| 1 + keys(value)).sum(),
        _ => 0,
    }
}

/// The number of strings of a text that precede a colon.
fn keys_in_text(text: &str) -> usize {
    let (mut is_string, mut is_escaped, mut count) = (false, false, 0);
    for c in text.chars() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => is_string = !is_string,
            ':' if !is_string => count += 1,
            _ => {}
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_that_stands_twice_is_found() {
        assert_unique_keys(r#"[{"a": ":\":", "b": {"a": [{"c": 1}]}}]"#);
        let twice = std::panic::catch_unwind(|| assert_unique_keys(r#"{"a": 1, "b": {"c": 1, "c": 2}}"#));
        assert!(twice.is_err());
    }
}
