//! The names that exist now. A server that does not answer at once has none.

use crate::args::ServerChoice;
use crate::session::servers;
use lunar_admin::{ObjectId, SessionReport};
use lunar_api::client::{Client, RouterList, SessionList, segment};
use lunar_server::attached::Attached;
use lunar_server::config::attachment;
use lunar_server::{config, folders};
use serde_json::Value;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// How long the completion key waits for a server.
const PATIENCE: Duration = Duration::from_millis(500);

/// The running servers, or the one that the command line chooses.
fn clients() -> Vec<Client> {
    let text = |name| option(name).map(PathBuf::from);
    let choice = ServerChoice {
        socket: text("--socket"),
        server: option("--server"),
        token_file: text("--token-file"),
        ca: text("--ca"),
        cert: text("--cert"),
        key: text("--key"),
    };
    servers(&choice).unwrap_or_default().iter().map(|server| Client::new(server, PATIENCE)).collect()
}

/// The words of the command line to complete.
fn line() -> Vec<String> {
    std::env::args().skip_while(|word| word != "--").skip(1).collect()
}

/// The value of an option on the command line.
fn option(name: &str) -> Option<String> {
    let line = line();
    let after = line.iter().position(|word| word == name).and_then(|at| line.get(at + 1));
    let joined = line.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    after.map(String::as_str).or(joined).map(str::to_owned)
}

/// The objects of a collection of all servers.
fn items(path: &str) -> Vec<Value> {
    let of = |client: Client| client.get::<Value>(path).ok()?["items"].as_array().cloned();
    clients().into_iter().filter_map(of).flatten().collect()
}

/// A key of each object, as text.
fn values(items: Vec<Value>, key: &str) -> Vec<String> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    items.iter().filter(|item| !item[key].is_null()).map(|item| text(&item[key])).collect()
}

pub(super) fn targets() -> Vec<String> {
    values(items("/v1/targets"), "name")
}

pub(super) fn subsystems() -> Vec<String> {
    values(items("/v1/subsystems"), "nqn")
}

/// A collection of the object that the command line names, of those with these names at a path.
fn of_named(names: Vec<String>, path: &str, collection: &str) -> Vec<Value> {
    let line = line();
    let named = names.into_iter().find(|name| line.contains(name));
    named.map(|name| items(&format!("{path}/{}/{collection}", segment(&name)))).unwrap_or_default()
}

pub(super) fn luns() -> Vec<String> {
    values(of_named(targets(), "/v1/targets", "luns"), "lun")
}

pub(super) fn access_entries() -> Vec<String> {
    values(of_named(targets(), "/v1/targets", "access"), "index")
}

pub(super) fn namespaces() -> Vec<String> {
    values(of_named(subsystems(), "/v1/subsystems", "namespaces"), "nsid")
}

pub(super) fn hosts() -> Vec<String> {
    values(of_named(subsystems(), "/v1/subsystems", "hosts"), "nqn")
}

pub(super) fn chap_users() -> Vec<String> {
    values(items("/v1/chap-users"), "id")
}

pub(super) fn disks() -> Vec<String> {
    values(items("/v1/disks"), "name")
}

/// The forms of a medium of a LUN, without paths.
pub(super) fn media() -> Vec<String> {
    let disks = disks().into_iter().map(|name| format!("disk:{name}"));
    ["memory:", "null:"].map(str::to_owned).into_iter().chain(disks).collect()
}

/// The forms of a medium of a namespace, without paths.
pub(super) fn media_and_luns() -> Vec<String> {
    let luns = items("/v1/objects").into_iter().filter(|one| one["kind"] == "lun");
    let luns = luns.filter_map(|one| Some(format!("lun:{}/{}", one["target"].as_str()?, one["lun"])));
    luns.chain(media()).collect()
}

pub(super) fn portal_groups() -> Vec<String> {
    values(items("/v1/portal-groups"), "tag")
}

pub(super) fn sessions() -> Vec<String> {
    let of = |client: Client| client.get("/v1/sessions").map(|list: SessionList| list.items).ok();
    let sessions = clients().into_iter().filter_map(of).flatten();
    sessions.map(|session: SessionReport| session.tsih.to_string()).collect()
}

pub(super) fn routers() -> Vec<String> {
    let of = |client: Client| client.get("/v1/routers").map(|list: RouterList| list.items).ok();
    clients().into_iter().filter_map(of).flatten().map(|router| router.name).collect()
}

pub(super) fn shared_images() -> Vec<String> {
    values(items("/v1/shared-units"), "image")
}

/// The numbers of the entries of the history.
pub(super) fn history() -> Vec<String> {
    values(items("/v1/config/history"), "number")
}

/// The names of active attachments.
pub(super) fn attached() -> Vec<String> {
    let attached = folders::attached().and_then(Attached::at);
    let records = attached.and_then(|attached| attached.lock()?.all());
    records.unwrap_or_default().into_iter().map(|record| record.name).collect()
}

/// The URLs of the LUNs of running servers, and those of saved attachments without secrets.
pub(super) fn urls() -> Vec<String> {
    let mut urls = Vec::new();
    for client in clients() {
        let of = |path: &str| client.get::<Value>(path).ok()?["items"].as_array().cloned();
        let Some(portal) = of("/v1/portal-groups").unwrap_or_default().iter().find_map(portal_of) else {
            continue;
        };
        for target in values(of("/v1/targets").unwrap_or_default(), "name") {
            let luns = of(&format!("/v1/targets/{}/luns", segment(&target))).unwrap_or_default();
            urls.extend(values(luns, "lun").iter().map(|lun| format!("iscsi://{portal}/{target}/{lun}")));
        }
    }
    urls
}

/// An address of a portal group that accepts iSCSI, as a client of this host uses it.
fn portal_of(group: &Value) -> Option<SocketAddr> {
    let address = |portal: &Value| {
        let is_tcp = portal["transport"].as_array().is_none_or(|all| all.iter().any(|one| one == "tcp"));
        let text = portal.as_str().or(portal["listen"].as_str()).filter(|_| is_tcp)?;
        let port = config::PORT;
        text.parse().ok().or_else(|| text.parse().ok().map(|address: IpAddr| SocketAddr::new(address, port)))
    };
    let mut address: SocketAddr = group["config"]["portals"].as_array()?.iter().find_map(address)?;
    match address.ip() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    Some(address)
}

/// URLs, and the names of saved attachments.
pub(super) fn urls_and_saved() -> Vec<String> {
    let mut all = attachment::names().unwrap_or_default();
    all.extend(urls());
    all
}

/// The objects that `lunar adopt` can move.
pub(super) fn objects() -> Vec<String> {
    let file = option("--config").map(PathBuf::from);
    let file = crate::configuration::file_or_default(file.as_deref());
    let config = file.ok().and_then(|file| config::load_without_secrets(&file).ok());
    let objects = config.map(|config| config::all_adoptable(&config)).unwrap_or_default();
    let name = |id: ObjectId| match id {
        ObjectId::Target(name) | ObjectId::Subsystem(name) => Some(name),
        ObjectId::Lun(name, number) | ObjectId::Namespace(name, number) => Some(format!("{name}/{number}")),
        ObjectId::ChapUser(id) => Some(format!("chap:{id}")),
        ObjectId::Disk(name) => Some(format!("disk:{name}")),
        ObjectId::PortalGroup(tag) => Some(format!("portal:{tag}")),
        ObjectId::Access(..) | ObjectId::Host(..) => None,
    };
    objects.into_iter().filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn portal_is_an_address_that_this_host_can_reach() {
        let portal = |portals: Value| {
            portal_of(&json!({ "config": { "portals": portals } })).map(|address| address.to_string())
        };
        assert_eq!(portal(json!(["0.0.0.0:3260"])), Some("127.0.0.1:3260".into()));
        assert_eq!(portal(json!(["[::]"])), None);
        assert_eq!(portal(json!(["192.0.2.10"])), Some("192.0.2.10:3260".into()));
        let srp = json!({ "listen": "192.0.2.1:1", "transport": ["srp"] });
        assert_eq!(portal(json!([srp, { "listen": "[::]:2" }])), Some("[::1]:2".into()));
    }
}
