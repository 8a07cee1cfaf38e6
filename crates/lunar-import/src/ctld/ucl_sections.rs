//! The sections of a file in UCL, as the keys of the other grammar.

use super::file::CtldKey;
use super::ucl::{Ucl, UclValue};

/// The keys of a file.
pub(super) fn sections(top: &[(String, Ucl)]) -> Vec<CtldKey> {
    let mut keys = Vec::new();
    for (key, value) in top {
        match (&value.value, key.as_str()) {
            (UclValue::Object(named), "target") => {
                keys.extend(named.iter().map(|(name, value)| section(key, name, value, true)));
            }
            (UclValue::Object(named), _) => {
                keys.extend(named.iter().map(|(name, value)| section(key, name, value, false)));
            }
            _ => keys.extend(leaves(key, value)),
        }
    }
    keys
}

fn section(key: &str, name: &str, value: &Ucl, is_target: bool) -> CtldKey {
    let mut block = Vec::new();
    for (key, value) in object(value) {
        match key.as_str() {
            "lun" if is_target => block.extend(luns(value)),
            _ => block.extend(leaves(key, value)),
        }
    }
    CtldKey { key: key.into(), words: vec![name.into()], block, line: value.line }
}

fn object(value: &Ucl) -> &[(String, Ucl)] {
    match &value.value {
        UclValue::Object(pairs) => pairs,
        _ => &[],
    }
}

/// The items of a list. Another value is a list of one item.
fn items(value: &Ucl) -> &[Ucl] {
    match &value.value {
        UclValue::List(items) => items,
        _ => std::slice::from_ref(value),
    }
}

/// The text of a key of an object.
fn text(value: &Ucl, key: &str) -> Option<String> {
    let found = object(value).iter().find(|(name, _)| name == key)?;
    match &found.1.value {
        UclValue::Text(text) => Some(text.clone()),
        _ => None,
    }
}

/// The keys of one name: one for each item of a list.
fn leaves(key: &str, value: &Ucl) -> Vec<CtldKey> {
    if key == "options" {
        let one = |(name, value): &(String, Ucl)| CtldKey {
            key: "option".into(),
            words: [vec![name.clone()], words(name, value)].concat(),
            block: Vec::new(),
            line: value.line,
        };
        return object(value).iter().map(one).collect();
    }
    let one = |value: &Ucl| CtldKey {
        key: key.into(),
        words: words(key, value),
        block: Vec::new(),
        line: value.line,
    };
    items(value).iter().map(one).collect()
}

fn words(key: &str, value: &Ucl) -> Vec<String> {
    let of = |keys: &[&str]| keys.iter().map(|key| text(value, key).unwrap_or_default()).collect();
    match (&value.value, key) {
        (UclValue::Text(text), _) => vec![text.clone()],
        (UclValue::Object(_), "chap") => of(&["user", "secret"]),
        (UclValue::Object(_), "chap-mutual") => of(&["user", "secret", "mutual-user", "mutual-secret"]),
        (UclValue::Object(_), "portal-group") => {
            [text(value, "name"), text(value, "auth-group-name")].into_iter().flatten().collect()
        }
        _ => Vec::new(),
    }
}

/// The LUNs of a target: an object of numbers, or a list of objects with a number each.
fn luns(value: &Ucl) -> Vec<CtldKey> {
    let has_number = text(value, "number").is_some();
    match &value.value {
        UclValue::Object(pairs) if !has_number => {
            pairs.iter().map(|(number, value)| lun(number, value)).collect()
        }
        _ => {
            let one = |value: &Ucl| lun(&text(value, "number").unwrap_or_default(), value);
            items(value).iter().map(one).collect()
        }
    }
}

fn lun(number: &str, value: &Ucl) -> CtldKey {
    let name = match &value.value {
        UclValue::Text(name) => Some(name.clone()),
        _ => text(value, "name"),
    };
    let entries = object(value).iter().filter(|(key, _)| !matches!(key.as_str(), "number" | "name"));
    let block = entries.flat_map(|(key, value)| leaves(key, value)).collect();
    let words = std::iter::once(number.to_owned()).chain(name).collect();
    CtldKey { key: "lun".into(), words, block, line: value.line }
}

#[cfg(test)]
mod tests {
    use super::super::ucl::parse;

    fn shown(text: &str) -> Vec<String> {
        let keys = parse(text).unwrap_or_else(|e| panic!("{e}"));
        let one = |key: &super::CtldKey| {
            let whole = |key: &super::CtldKey| format!("{} {}", key.key, key.words.join(" "));
            let block: Vec<String> = key.block.iter().map(|key| whole(key).trim_end().to_owned()).collect();
            format!("{} {{{}}}", whole(key).trim_end(), block.join("; "))
        };
        keys.iter().map(one).collect()
    }

    #[test]
    fn sections_become_keys() {
        assert_eq!(
            shown(
                "auth-group a { chap = [{user = u, secret = s}], initiator-name = [x, y] }\n\
                 lun { d { path /d, options { naa = \"0x5\", rpm = 1 } } }"
            ),
            [
                "auth-group a {chap u s; initiator-name x; initiator-name y}",
                "lun d {path /d; option naa 0x5; option rpm 1}"
            ]
        );
    }

    #[test]
    fn luns_of_a_target_have_numbers() {
        let target = |luns: &str| {
            shown(&format!("target {{ \"t\" {{ portal-group {{name = p, auth-group-name = a}}, {luns} }} }}"))
        };
        let expected = "target t {portal-group p a; lun 0 d; lun 1}";
        assert_eq!(target("lun { 0 = d, 1 { path = /x } }"), [expected]);
        assert_eq!(target("lun = [{number = 0, name = d}, {number = 1, path = /x}]"), [expected]);
        assert_eq!(target("lun { number = 0, name = d } lun { 1 { path /x } }"), [expected]);
    }
}
