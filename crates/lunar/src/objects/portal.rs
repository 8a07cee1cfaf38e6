//! `lunar portal`: portal groups.

use super::{Change, client, items, listed, show, source, text};
use crate::args::PortalCommand;
use crate::exit::Failure;
use lunar_admin::Keys;
use serde_json::{Value, json};

fn path(tag: u16) -> String {
    format!("/v1/portal-groups/{tag}")
}

/// The text to print.
pub fn portal(command: PortalCommand) -> Result<String, Failure> {
    match command {
        PortalCommand::List(args) => {
            let row = |one: &Value| [text(&one["tag"]), portals(&one["config"]["portals"]), source(one)];
            let head = [">TAG", "PORTALS", "SOURCE"];
            let none = "no portal groups: the server listens on 127.0.0.1:3260";
            listed(items(&client(&args)?, "/v1/portal-groups")?, args.json, none, head, row)
        }
        PortalCommand::Show { tag, server } => show(&path(tag), &server),
        PortalCommand::Add { tag, portals, iser, srp, nvme, tls, object } => {
            let change = Change::of(&object)?;
            let of_portal = |portal: &String| transports(portal, [iser, srp, nvme]);
            change.done(&change.create(&path(tag), &group(&portals, of_portal, tls))?)
        }
        PortalCommand::Remove { tag, force, object } => {
            let change = Change::of(&object)?.with_force(force);
            change.done(&change.remove(&path(tag))?)
        }
    }
}

/// The transports of a portal by the options; none stands for TCP alone.
fn transports(portal: &str, [iser, srp, nvme]: [bool; 3]) -> &'static [&'static str] {
    match portal.rsplit_once(':') {
        _ if iser => &["tcp", "iser"],
        _ if srp => &["srp"],
        Some((_, "8009")) if nvme => &["nvme-discovery"],
        _ if nvme => &["nvme-tcp"],
        _ => &[],
    }
}

/// The keys of a portal group.
fn group(portals: &[String], transports: impl Fn(&String) -> &'static [&'static str], tls: bool) -> Keys {
    let portal = |address: &String| match transports(address) {
        [] => json!(address),
        transports if tls => json!({ "listen": address, "transport": transports, "tls": "required" }),
        transports => json!({ "listen": address, "transport": transports }),
    };
    Keys::from_iter([("portals".to_owned(), portals.iter().map(portal).collect())])
}

/// The addresses of portals, each with its transports.
fn portals(list: &Value) -> String {
    let one = |portal: &Value| match portal {
        Value::Object(keys) => {
            let transports = keys.get("transport").map(|list| format!(" ({})", text(list)));
            let tls = if keys.contains_key("tls") { " with TLS" } else { "" };
            text(keys.get("listen").unwrap_or(&Value::Null)) + &transports.unwrap_or_default() + tls
        }
        address => text(address),
    };
    list.as_array().into_iter().flatten().map(one).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transports_of_a_group_are_shown_as_given() {
        let shown_with = |port: u16, options, tls| {
            let of_portal = |portal: &String| transports(portal, options);
            portals(&group(&[format!("[::1]:{port}")], of_portal, tls)["portals"])
        };
        let shown = |port, options| shown_with(port, options, false);
        assert_eq!(shown(3260, [false; 3]), "[::1]:3260");
        assert_eq!(shown(3260, [true, false, false]), "[::1]:3260 (tcp,iser)");
        assert_eq!(shown(3260, [false, true, false]), "[::1]:3260 (srp)");
        assert_eq!(shown(4420, [false, false, true]), "[::1]:4420 (nvme-tcp)");
        assert_eq!(shown(8009, [false, false, true]), "[::1]:8009 (nvme-discovery)");
        assert_eq!(shown_with(4420, [false, false, true], true), "[::1]:4420 (nvme-tcp) with TLS");
    }
}
