//! Sizes in responses: bytes, whatever the notation in the file.

use lunar_proto::size;
use serde_json::{Map, Value};

/// The keys of `lunar.toml` that are sizes, with those of filters.
pub const SIZE_KEYS: [&str; 4] = ["size", "block_size", "physical_block_size", "bytes_per_s"];

/// Converts the sizes of an object to bytes.
pub(crate) fn in_bytes(mut keys: Map<String, Value>) -> Map<String, Value> {
    keys.iter_mut().for_each(|(key, value)| convert(key, value));
    keys
}

fn convert(key: &str, value: &mut Value) {
    match value {
        Value::String(text) if SIZE_KEYS.contains(&key) => {
            if let Ok(bytes) = size::parse(text) {
                *value = bytes.into();
            }
        }
        Value::Array(list) => {
            let filters = list.iter_mut().filter_map(Value::as_object_mut).flatten();
            filters.for_each(|(key, value)| convert(key, value));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::collections::BTreeSet;

    #[test]
    fn sizes_are_bytes_also_those_of_filters() {
        let filter = |bytes: Value| json!([{ "kind": "rate", "bytes_per_s": bytes }]);
        let keys = json!({ "size": "2G", "block_size": 512, "path": "64K", "filters": filter("1M".into()) });
        let keys = in_bytes(keys.as_object().unwrap().clone());
        let filters = filter((1 << 20).into());
        let expected = json!({ "size": 2_u64 << 30, "block_size": 512, "path": "64K", "filters": filters });
        assert_eq!(Value::Object(keys), expected);
    }

    #[test]
    fn each_key_that_takes_a_size_is_known() {
        let document = serde_json::to_value(crate::openapi()).unwrap();
        let schemas = ["LunKeys", "DiskKeys", "NamespaceKeys", "FilterKeys"]
            .map(|name| &document["components"]["schemas"][name]);
        let properties = schemas.iter().flat_map(|schema| schema["properties"].as_object().unwrap());
        let takes_size = |value: &Value| value.to_string().contains("/SizeValue\"");
        let found: BTreeSet<&str> =
            properties.filter(|(_, value)| takes_size(value)).map(|(key, _)| key.as_str()).collect();
        assert_eq!(found, BTreeSet::from(SIZE_KEYS));
    }
}
