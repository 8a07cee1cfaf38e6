//! Keys of objects on the command line.

use serde_json::{Map, Value};

/// A key of an object and its value.
pub type Pair = (String, Value);

/// Parses KEY=VALUE. `true` and `false` are booleans; a value that begins with a bracket, a brace or a quotation mark
/// is JSON. Anything else is text, because most keys that look like numbers have letters too.
///
/// # Errors
/// The fault of the argument.
pub fn pair(text: &str) -> Result<Pair, String> {
    let Some((key, value)) = text.split_once('=').filter(|(key, _)| !key.is_empty()) else {
        return Err("write KEY=VALUE, such as read_only=true".into());
    };
    let value = match value {
        "true" => true.into(),
        "false" => false.into(),
        json if json.starts_with(['[', '{', '"']) => {
            serde_json::from_str(json).map_err(|e| format!("the value is no JSON: {e}"))?
        }
        text => text.into(),
    };
    Ok((key.to_owned(), value))
}

/// As [`pair`], for a change: an empty value is null, which removes the key.
///
/// # Errors
/// As [`pair`].
pub fn change(text: &str) -> Result<Pair, String> {
    let (key, value) = pair(text)?;
    Ok(match text.split_once('=') {
        Some((_, "")) => (key, Value::Null),
        _ => (key, value),
    })
}

/// Parses the LUNs that initiators see: numbers, or pairs of their number and that of the target.
///
/// # Errors
/// The fault of the argument.
pub fn luns(text: &str) -> Result<Value, String> {
    let number = |text: &str| text.trim().parse::<u16>().map_err(|_| format!("{text:?} is no LUN"));
    let parts: Vec<&str> = text.split(',').collect();
    if !text.contains('=') {
        let numbers: Result<Vec<u16>, String> = parts.into_iter().map(number).collect();
        return numbers.map(Value::from);
    }
    let mut map = Map::new();
    for part in parts {
        let (seen, lun) = part.split_once('=').ok_or("write numbers alone, or pairs alone: 0=5,1=6")?;
        if map.insert(number(seen)?.to_string(), number(lun)?.into()).is_some() {
            return Err(format!("the LUN {} is given twice", seen.trim()));
        }
    }
    Ok(map.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn pair_has_a_value_of_its_kind() {
        let value = |text| pair(text).map(|(_, value)| value);
        assert_eq!(pair("read_only=true"), Ok(("read_only".into(), json!(true))));
        assert_eq!(value("serial=0001"), Ok(json!("0001")));
        assert_eq!(value("serial=\"true\""), Ok(json!("true")));
        assert_eq!(value("alias=a=b"), Ok(json!("a=b")));
        assert_eq!(value("filters=[{\"kind\":\"stats\"}]"), Ok(json!([{"kind": "stats"}])));
        assert!(value("filters=[").is_err_and(|what| what.starts_with("the value is no JSON: ")));
        assert!(pair("read_only").is_err() && pair("=true").is_err());
    }

    #[test]
    fn empty_value_of_a_change_removes_the_key() {
        assert_eq!(change("alias="), Ok(("alias".into(), Value::Null)));
        assert_eq!(change("alias=\"\""), Ok(("alias".into(), json!(""))));
        assert_eq!(change("alias=a="), Ok(("alias".into(), json!("a="))));
        assert!(change("alias").is_err() && change("=").is_err());
    }

    #[test]
    fn luns_are_numbers_or_pairs() {
        assert_eq!(luns("0,7"), Ok(json!([0, 7])));
        assert_eq!(luns("0=7,1=8"), Ok(json!({"0": 7, "1": 8})));
        for wrong in ["", "0,x", "0=1,2", "0=1,0=2", "0=65536"] {
            assert!(luns(wrong).is_err(), "{wrong}");
        }
    }
}
