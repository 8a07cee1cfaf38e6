//! Named values: JSON for programs, and lines for people.

use lunar_wire::scsi::fields::{self, Field, FieldValue};
use serde::ser::{Serialize, SerializeMap, Serializer};
use std::fmt::Write;

/// A value, or named values in display order.
#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    /// A value.
    Leaf(FieldValue),
    /// Several values.
    List(Vec<Node>),
    /// Named values.
    Map(Vec<(String, Node)>),
}

impl Node {
    /// Text. The caller must have removed control characters.
    pub fn text(text: impl Into<String>) -> Node {
        Node::Leaf(FieldValue::Text(text.into()))
    }

    /// A number.
    pub fn number(n: impl Into<u64>) -> Node {
        Node::Leaf(FieldValue::Number(n.into()))
    }

    /// A boolean.
    pub fn flag(is: bool) -> Node {
        Node::Leaf(FieldValue::Flag(is))
    }

    /// Named values.
    pub fn map<const N: usize>(fields: [(&str, Node); N]) -> Node {
        Node::Map(fields.map(|(name, node)| (name.to_owned(), node)).into())
    }
}

/// The fields of a table that are within these bytes.
pub fn read(table: &'static [Field], bytes: &[u8]) -> Vec<(String, Node)> {
    fields::read(table, bytes).map(|(name, value)| (name.to_owned(), Node::Leaf(value))).collect()
}

impl Serialize for Node {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Node::Leaf(FieldValue::Flag(is)) => to.serialize_bool(*is),
            Node::Leaf(FieldValue::Number(n)) => to.serialize_u64(*n),
            Node::Leaf(FieldValue::Text(text)) => to.serialize_str(text),
            Node::Leaf(FieldValue::Named(n, name)) => {
                let mut map = to.serialize_map(Some(2))?;
                map.serialize_entry("code", n)?;
                map.serialize_entry("name", name)?;
                map.end()
            }
            Node::List(list) => to.collect_seq(list),
            Node::Map(fields) => to.collect_map(fields.iter().map(|(name, node)| (name, node))),
        }
    }
}

/// The name of the value that is the title of its group.
const TITLE: &str = "name";

/// Lines for people: a paragraph for each group of values.
pub fn lines(fields: &[(String, Node)]) -> String {
    let mut text = String::new();
    put(&mut text, fields, 0);
    text
}

fn put(text: &mut String, fields: &[(String, Node)], depth: usize) {
    let leaves = || fields.iter().filter(|(_, node)| one_line(node).is_some());
    let width = leaves().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, node) in fields.iter().filter(|(name, _)| depth == 0 || name != TITLE) {
        let pad = "  ".repeat(depth);
        let shown = name.replace('_', " ");
        match (one_line(node), node) {
            (Some(line), _) => _ = writeln!(text, "{pad}{shown:width$}  {line}"),
            (None, Node::Map(inner)) => {
                let gap = if depth == 0 && !text.is_empty() { "\n" } else { "" };
                _ = writeln!(text, "{gap}{pad}{}", title(&shown, inner));
                put(text, inner, depth + 1);
            }
            (None, Node::List(list)) => {
                let gap = if depth == 0 && !text.is_empty() { "\n" } else { "" };
                _ = writeln!(text, "{gap}{pad}{shown}");
                list.iter().for_each(|node| _ = writeln!(text, "{pad}  {}", item(node)));
            }
            (None, Node::Leaf(_)) => {}
        }
    }
}

fn title(name: &str, fields: &[(String, Node)]) -> String {
    match fields.iter().find(|(name, _)| name == TITLE) {
        Some((_, Node::Leaf(FieldValue::Text(title)))) => format!("{title} ({name})"),
        _ => name.to_owned(),
    }
}

/// The value on one line, if it fits.
fn one_line(node: &Node) -> Option<String> {
    match node {
        Node::Leaf(value) => Some(leaf(value)),
        Node::List(list) if list.iter().all(|node| matches!(node, Node::Leaf(_))) => {
            let all: Vec<String> = list.iter().map(item).collect();
            Some(if all.is_empty() { "none".into() } else { all.join(", ") })
        }
        Node::Map(fields) if fields.iter().all(|(name, _)| name == TITLE) => Some("no more details".into()),
        _ => None,
    }
}

fn leaf(value: &FieldValue) -> String {
    match value {
        FieldValue::Flag(true) => "yes".into(),
        FieldValue::Flag(false) => "no".into(),
        FieldValue::Number(n) => n.to_string(),
        FieldValue::Text(text) => text.clone(),
        FieldValue::Named(n, name) => format!("{name} ({n})"),
    }
}

/// An element of a list.
fn item(node: &Node) -> String {
    match node {
        Node::Leaf(value) => leaf(value),
        Node::List(list) => list.iter().map(item).collect::<Vec<_>>().join(", "),
        Node::Map(fields) => {
            let fact = |(name, node): &(String, Node)| format!("{} {}", name.replace('_', " "), item(node));
            fields.iter().map(fact).collect::<Vec<_>>().join(", ")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields() -> Vec<(String, Node)> {
        let port = Node::map([("number", Node::number(1u16)), ("is_ours", Node::flag(true))]);
        let page = Node::map([
            ("name", Node::text("block limits")),
            ("max_blocks", Node::number(8u32)),
            ("kind", Node::Leaf(FieldValue::Named(2, "thin"))),
            ("ports", Node::List(vec![port])),
            ("keys", Node::List(Vec::new())),
        ]);
        let Node::Map(fields) = Node::map([("lun", Node::number(0u16)), ("0xb0", page)]) else { panic!() };
        fields
    }

    #[test]
    fn people_get_lines() {
        let wanted = "lun  0\n\nblock limits (0xb0)\n  max blocks  8\n  kind        thin (2)\n  ports\n    \
                      number 1, is ours yes\n  keys        none\n";
        assert_eq!(lines(&fields()), wanted);
    }

    #[test]
    fn programs_get_json_in_the_same_order() {
        let json = serde_json::to_string(&Node::Map(fields())).unwrap();
        assert_eq!(
            json,
            [
                r#"{"lun":0,"0xb0":{"name":"block limits","max_blocks":8,"#,
                r#""kind":{"code":2,"name":"thin"},"ports":[{"number":1,"is_ours":true}],"keys":[]}}"#,
            ]
            .concat()
        );
    }
}
