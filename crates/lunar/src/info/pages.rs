//! Decodes pages and responses into named values.

use crate::hex;
use crate::tree::{Node, read};
use lunar_wire::scsi::vpd::{self, Designator};
use lunar_wire::scsi::{inquiry, mode, op, pr, report};

/// Named values, in order.
pub type Fields = Vec<(String, Node)>;

fn list(all: impl Iterator<Item = Node>) -> Node {
    Node::List(all.collect())
}

/// A code as the key of its page.
pub fn key(code: u8, subpage: u8) -> String {
    if subpage == 0 { format!("0x{code:02x}") } else { format!("0x{code:02x},0x{subpage:02x}") }
}

/// A reservation key.
pub fn pr_key(key: u64) -> Node {
    Node::text(format!("{key:#018x}"))
}

/// Standard INQUIRY data.
pub fn standard(b: &[u8]) -> Fields {
    let mut fields = read(inquiry::STANDARD, b);
    let named = inquiry::standards(b).map(|(code, name)| match name {
        Some(name) => Node::text(name),
        None => Node::text(format!("{code:04x}h")),
    });
    fields.push(("standards".into(), list(named)));
    fields
}

fn designator(d: Designator<'_>) -> Node {
    let kind = d.kind_name().unwrap_or("reserved");
    Node::map([("of", Node::text(d.of())), ("type", Node::text(kind)), ("value", Node::text(d.text()))])
}

/// A VPD page.
pub fn vpd_page(code: u8, b: &[u8]) -> Fields {
    let mut fields = vec![("name".to_owned(), Node::text(vpd::name(code).unwrap_or("unknown")))];
    if let Some(table) = vpd::table(code) {
        fields.extend(read(table, b));
        return fields;
    }
    let (name, node) = match code {
        0x00 => ("pages", list(vpd::body(b).iter().map(|page| Node::text(key(*page, 0))))),
        0x80 => ("serial", Node::text(vpd::serial(b))),
        0x83 => ("designators", list(vpd::designators(b).map(designator))),
        0x85 => ("addresses", list(vpd::addresses(b).map(address))),
        0x87 => ("policies", list(vpd::policies(b).map(policy))),
        0x88 => ("ports", list(vpd::ports(b).map(port))),
        0x8f => ("descriptors", list(vpd::copy_descriptors(b).map(|(_, name)| Node::text(name)))),
        _ => ("bytes", Node::text(hex::digits(vpd::body(b)))),
    };
    fields.push((name.to_owned(), node));
    fields
}

fn address((service, address): (&'static str, String)) -> Node {
    Node::map([("service", Node::text(service)), ("address", Node::text(address))])
}

fn policy((code, subpage, mlus, shared): (u8, u8, bool, &'static str)) -> Node {
    Node::map([
        ("page", Node::text(format!("0x{code:02x}"))),
        ("subpage", Node::text(format!("0x{subpage:02x}"))),
        ("policy", Node::text(shared)),
        ("multiple_logical_units", Node::flag(mlus)),
    ])
}

fn port(port: vpd::ScsiPortDescriptor<'_>) -> Node {
    let names = list(port.designators().map(|d| Node::text(d.text())));
    Node::map([("number", Node::number(port.number)), ("names", names)])
}

/// MODE SENSE(10).
pub fn mode_pages(b: &[u8]) -> Fields {
    let mut fields = read(mode::HEADER, b);
    for page in mode::pages(b) {
        let mut inner = vec![("name".to_owned(), Node::text(page.name().unwrap_or("unknown")))];
        match page.table() {
            Some(table) => inner.extend(read(table, page.bytes)),
            None => inner.push(("bytes".into(), Node::text(hex::digits(page.bytes)))),
        }
        inner.push(("saveable".into(), Node::flag(page.saveable)));
        let key = key(page.code, page.subpage);
        // istgt sends one page twice, and JSON keys must be unique.
        if fields.iter().all(|(there, _)| *there != key) {
            fields.push((key, Node::Map(inner)));
        }
    }
    fields
}

/// Target port groups; `ours`: the group of the port in use.
pub fn groups(b: &[u8], ours: Option<u16>) -> Node {
    list(report::groups(b).map(|group| {
        Node::map([
            ("number", Node::number(group.number)),
            ("state", Node::text(group.state_name())),
            ("preferred", Node::flag(group.preferred)),
            ("ports", list(group.ports.iter().map(|port| Node::number(*port)))),
            ("ours", Node::flag(Some(group.number) == ours)),
        ])
    }))
}

/// READ KEYS.
pub fn keys(b: &[u8]) -> Fields {
    let generation = ("generation".to_owned(), Node::number(pr::generation(b)));
    vec![generation, ("keys".into(), list(pr::keys(b).map(pr_key)))]
}

fn kind(code: u8) -> Node {
    Node::text(pr::type_name(code).unwrap_or("reserved"))
}

/// READ RESERVATION.
pub fn reservation(b: &[u8]) -> Fields {
    let held = pr::reservation(b);
    let mut fields = vec![("reserved".to_owned(), Node::flag(held.is_some()))];
    if let Some(held) = held {
        fields.push(("key".into(), pr_key(held.key)));
        fields.push(("type".into(), kind(held.kind)));
    }
    fields
}

/// READ FULL STATUS.
pub fn registrations(b: &[u8]) -> Node {
    list(pr::registrations(b).map(|one| {
        let mut fields = vec![
            ("initiator".to_owned(), Node::text(one.initiator)),
            ("key".to_owned(), pr_key(one.key)),
            ("port".to_owned(), Node::number(one.port)),
            ("all_ports".to_owned(), Node::flag(one.all_ports)),
            ("holds_reservation".to_owned(), Node::flag(one.holds.is_some())),
        ];
        fields.extend(one.holds.map(|code| ("type".to_owned(), kind(code))));
        Node::Map(fields)
    }))
}

/// A log page.
pub fn log_page(code: u8, b: &[u8]) -> Fields {
    let mut fields = vec![("name".to_owned(), Node::text(report::log_name(code).unwrap_or("unknown")))];
    for (number, value) in report::parameters(b) {
        fields.push(match report::parameter(code, number, value) {
            Some((name, n)) => (name.to_owned(), Node::number(n)),
            None => (format!("0x{number:04x}"), Node::text(hex::digits(value))),
        });
    }
    fields
}

/// REPORT SUPPORTED OPERATION CODES.
pub fn commands(b: &[u8]) -> Node {
    list(report::commands(b).map(|one| {
        let name = op::command(one.opcode, one.action).unwrap_or("unknown");
        let mut fields = vec![("opcode".to_owned(), Node::text(format!("0x{:02x}", one.opcode)))];
        fields.extend(one.action.map(|action| ("action".to_owned(), Node::text(format!("0x{action:02x}")))));
        fields.push(("bytes".into(), Node::number(one.len)));
        fields.push(("command".into(), Node::text(name)));
        Node::Map(fields)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// istgt repeats a mode page.
    #[test]
    fn repeated_page_is_listed_once() {
        let page = |byte: u8| [&[0x0a, 0x0a, byte][..], &[0; 9]].concat();
        let b = [&[0, 30, 0, 0, 0, 0, 0, 0][..], &page(2), &page(4)].concat();
        let fields = mode_pages(&b);
        let entries: Vec<_> = fields.iter().filter(|(key, _)| key == "0x0a").collect();
        assert_eq!(entries.len(), 1);
        assert_eq!(entries[0], mode_pages(&b[..20]).last().expect("the first"));
    }
    use crate::tree::lines;

    #[test]
    fn pages_are_shown_in_words() {
        let text = lines(&vpd_page(0x83, &[0, 0x83, 0, 8, 0x51, 0x95, 0, 4, 0, 0, 0, 7]));
        assert!(text.ends_with("  of target port, type target port group, value 7\n"), "{text}");
        let text = lines(&vpd_page(0xc0, &[0, 0xc0, 0, 2, 1, 0x1b]));
        assert!(text.contains("unknown") && text.contains("011b"), "{text}");
        let text = lines(&log_page(0x0d, &[0x0d, 0, 0, 6, 0, 0, 3, 2, 0, 31]));
        assert!(text.contains("celsius  31\n"), "{text}");
        let text = lines(&mode_pages(&[0, 0, 0, 0x80, 0, 0, 0, 0, 0x08, 1, 4]));
        assert!(text.contains("caching (0x08)\n  write cache"), "{text}");
    }

    #[test]
    fn reservations_are_shown_in_words() {
        let b = [0, 0, 0, 2, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 5, 0, 0];
        let text = lines(&reservation(&b));
        assert!(
            text.contains("0x0000000000000009") && text.contains("write exclusive, registrants only"),
            "{text}"
        );
        assert_eq!(lines(&reservation(&[0; 8])), "reserved  no\n");
    }
}
