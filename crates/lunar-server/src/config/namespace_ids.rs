//! The keys of a namespace by which NVMe hosts identify it. A namespace that replaces one of another subsystem has to report the
//! same values, or hosts see a new disk.

use super::lun::{UniqueValues, bytes_of, without_prefix};
use super::router::is_uuid;
use lunar_config::{Diagnostics, InvalidValue, Section, invalid};
use lunar_initiator::nvme::uuid_text;
use lunar_target::config::GivenNamespaceIds;

/// Reads the keys. Two namespaces of a file must not have the same value, not even in different subsystems: hosts ignore the second
/// one. Values that are derived are compared when the server builds its units.
pub(super) fn given_ids(
    p: &mut Diagnostics<'_>,
    s: &mut Section<'_>,
    unique: &mut UniqueValues,
) -> GivenNamespaceIds {
    let ids = GivenNamespaceIds {
        uuid: s.parsed(p, "uuid", |text| or_none(text, uuid)),
        nguid: s.parsed(p, "nguid", |text| or_none(text, |text| bytes(text, "an NGUID"))),
        eui64: s.parsed(p, "eui64", |text| bytes(text, "an EUI64")),
    };
    let shown = [
        ("uuid", ids.uuid.map(|id| format!("UUID {}", uuid_text(&id)))),
        ("nguid", ids.nguid.map(|id| format!("NGUID {}", super::hex(&id)))),
        ("eui64", ids.eui64.map(|id| format!("EUI64 {}", super::hex(&id)))),
    ];
    for (key, id) in shown {
        let is_none = s.find(key).is_some_and(|value| value.get_ref().as_str() == Some(NONE));
        if let (Some(id), Some(value), false) = (id, s.find(key), is_none) {
            unique.identifiers.first(p, id, &value.span());
        }
    }
    let without = GivenNamespaceIds { uuid: Some([0; 16]), nguid: Some([0; 16]), eui64: None };
    if let (true, Some(value)) = (ids == without, s.find("uuid")) {
        let what = "a namespace without UUID, NGUID and EUI64 looks like every other one";
        p.add(&value.span(), what, "give one of them, or remove `uuid`");
    }
    // The medium has a key of this name too, which is a designator for SCSI hosts.
    s.hide("eui64");
    ids
}

/// The value of an identifier that a namespace does not have. nvmet has no NGUID by default, and hosts that connect again expect the
/// same identifiers.
pub(crate) const NONE: &str = "none";

/// Zeros for [`NONE`], or an identifier.
fn or_none<const LEN: usize>(
    text: &str,
    parse: impl FnOnce(&str) -> Result<[u8; LEN], InvalidValue>,
) -> Result<[u8; LEN], InvalidValue> {
    if text == NONE { Ok([0; LEN]) } else { parse(text) }
}

fn uuid(text: &str) -> Result<[u8; 16], InvalidValue> {
    let digits = text.strip_prefix("uuid.").unwrap_or(text);
    let uuid = is_uuid(digits).then(|| parsed(digits)).flatten();
    checked(uuid, text, "a UUID", "write it as f81d4fae-7dec-11d0-a765-00a0c91e6bf6")
}

/// Bytes in hexadecimal digits, also as Linux shows them in `nguid` (with hyphens) and in `wwid` (with a prefix).
fn bytes<const LEN: usize>(text: &str, what: &str) -> Result<[u8; LEN], InvalidValue> {
    let hint = format!("write {} hexadecimal digits", 2 * LEN);
    checked(parsed(without_prefix(text, "eui.")), text, what, &hint)
}

fn parsed<const LEN: usize>(digits: &str) -> Option<[u8; LEN]> {
    bytes_of(&digits.replace(['-', ':'], ""))?.try_into().ok()
}

fn checked<const LEN: usize>(
    id: Option<[u8; LEN]>,
    text: &str,
    what: &str,
    hint: &str,
) -> Result<[u8; LEN], InvalidValue> {
    match id {
        Some(id) if id == [0; LEN] => invalid(
            format!("\"{}\" cannot be {what}: zeros mean none", text.escape_debug()),
            if LEN == 8 {
                "remove the key, or write another value"
            } else {
                "write \"none\", or another value"
            },
        ),
        Some(id) => Ok(id),
        None => invalid(format!("\"{}\" cannot be {what}", text.escape_debug()), hint.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::uuid_text;
    use crate::config::parse;
    use crate::config::tests::problems;
    use lunar_target::config::GivenNamespaceIds;
    use std::collections::BTreeMap;

    const UUID: &str = "f81d4fae-7dec-11d0-a765-00a0c91e6bf6";

    fn file(subsystems: &[&[&str]]) -> String {
        let namespace = |(at, keys): (usize, &&str)| {
            format!("[[subsystem.namespace]]\nnsid = {}\nbackend = \"null\"\nsize = \"1M\"\n{keys}\n", at + 1)
        };
        let subsystem = |(at, all): (usize, &&[&str])| {
            let namespaces: String = all.iter().enumerate().map(namespace).collect();
            format!("[[subsystem]]\nnqn = \"nqn.2026-11.org.example:{at}\"\n{namespaces}")
        };
        subsystems.iter().enumerate().map(subsystem).collect()
    }

    fn ids(keys: &str) -> BTreeMap<u16, GivenNamespaceIds> {
        let config = parse(&file(&[&[keys]]), "t.toml".as_ref()).expect("a configuration");
        config.targets[0].subsystem.as_ref().expect("a subsystem").given_ids.clone()
    }

    #[test]
    fn given_identifiers_are_read_in_the_forms_of_linux() {
        let uuid =
            [0xf8, 0x1d, 0x4f, 0xae, 0x7d, 0xec, 0x11, 0xd0, 0xa7, 0x65, 0, 0xa0, 0xc9, 0x1e, 0x6b, 0xf6];
        let of = |uuid, nguid, eui64| [(1, GivenNamespaceIds { uuid, nguid, eui64 })].into();
        for text in [UUID, &format!("uuid.{UUID}"), &UUID.to_uppercase()] {
            assert_eq!(ids(&format!("uuid = \"{text}\"")), of(Some(uuid), None, None));
        }
        for text in [UUID, &UUID.replace('-', ""), &format!("eui.{}", UUID.replace('-', ""))] {
            assert_eq!(ids(&format!("nguid = \"{text}\"")), of(None, Some(uuid), None));
        }
        for text in
            ["0102030405060708", "eui.0102030405060708", "0x0102030405060708", "01 02 03 04 05 06 07 08"]
        {
            assert_eq!(ids(&format!("eui64 = \"{text}\"")), of(None, None, Some([1, 2, 3, 4, 5, 6, 7, 8])));
        }
        assert_eq!(ids(""), BTreeMap::new());
        assert_eq!(uuid_text(&uuid), UUID);
    }

    #[test]
    fn namespace_may_lack_an_identifier_but_not_all() {
        let none = |uuid, nguid, eui64| [(1, GivenNamespaceIds { uuid, nguid, eui64 })].into();
        assert_eq!(ids("nguid = \"none\""), none(None, Some([0; 16]), None));
        let eui64 = Some([1, 2, 3, 4, 5, 6, 7, 8]);
        let keys = "uuid = \"none\"\nnguid = \"none\"\neui64 = \"0102030405060708\"";
        assert_eq!(ids(keys), none(Some([0; 16]), Some([0; 16]), eui64));
        let found = problems(&file(&[&["uuid = \"none\"\nnguid = \"none\""]]));
        assert!(found.contains("without UUID, NGUID and EUI64"), "{found}");
        let twice = file(&[&["nguid = \"none\"", "nguid = \"none\""]]);
        parse(&twice, "t.toml".as_ref()).expect("several namespaces can lack one");
    }

    #[test]
    fn identifiers_that_hosts_cannot_use_are_rejected() {
        let zero = "00000000-0000-0000-0000-000000000000";
        for (keys, expected) in [
            (format!("uuid = \"{zero}\""), "cannot be a UUID: zeros mean none"),
            (format!("nguid = \"{zero}\""), "cannot be an NGUID: zeros mean none"),
            ("eui64 = \"0000000000000000\"".to_owned(), "cannot be an EUI64: zeros mean none"),
            (format!("uuid = \"{}\"", UUID.replace('-', "")), "cannot be a UUID"),
            ("uuid = \"f81d4fae-7dec-11d0-a765-00a0c91e6bfé\"".to_owned(), "cannot be a UUID"),
            ("nguid = \"0102\"".to_owned(), "cannot be an NGUID"),
            ("eui64 = \"+102030405060708\"".to_owned(), "cannot be an EUI64"),
            (format!("eui64 = \"{}\"", UUID.replace('-', "")), "cannot be an EUI64"),
        ] {
            let found = problems(&file(&[&[&keys]]));
            assert!(found.contains(expected), "{keys}: {found}");
        }
    }

    #[test]
    fn identifier_of_two_namespaces_is_reported() {
        let uuid = format!("uuid = \"{UUID}\"");
        let nguid = format!("nguid = \"{UUID}\"");
        for (subsystems, expected) in [
            (&[&[uuid.as_str(), &uuid][..]][..], format!("identifier UUID {UUID} is given twice")),
            (&[&[&uuid], &[&uuid]], format!("identifier UUID {UUID} is given twice")),
            (&[&[&nguid], &[&nguid]], format!("identifier NGUID {} is given twice", UUID.replace('-', ""))),
            (
                &[&["eui64 = \"0102030405060708\"", "eui64 = \"eui.0102030405060708\""]],
                "identifier EUI64 0102".to_owned(),
            ),
        ] {
            let found = problems(&file(subsystems));
            assert!(found.contains(&expected), "{found}");
        }
        parse(&file(&[&[&uuid, &nguid]]), "t.toml".as_ref()).expect("a UUID and an NGUID differ in kind");
    }
}
