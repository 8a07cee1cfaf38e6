//! Gateways that serve one image of a test cluster, the state that they share, and their hosts.

use crate::ceph::CephCluster;
use crate::config::TARGET;
use crate::login::Login;
use crate::raw::Raw;
use crate::routed::until;
use crate::server::Server;
use std::collections::BTreeMap;

/// The image that the gateways serve.
pub const IMAGE: &str = "shared";

/// Creates the image.
pub fn create_image(cluster: &CephCluster) {
    create_image_of(cluster, IMAGE, "64M");
}

/// Creates another image, of this size.
pub fn create_image_of(cluster: &CephCluster, image: &str, size: &str) {
    cluster.rbd(&["create", "--size", size, "--image-feature", "layering", &format!("rbd/{image}")]);
}

/// The configuration of a gateway with this portal, in TOML.
pub fn configuration_at(cluster: &CephCluster, id: u8, portal: &str) -> String {
    format!(
        "[gateway]\ngroup = \"gw\"\nid = {id}\n\n[[portal_group]]\ntag = 1\nportals = [{portal}]\n\n[[target]]\n\
         name = \"{TARGET}\"\n\n{}",
        lun(cluster, 0, IMAGE)
    )
}

/// The table of a LUN, in TOML.
pub fn lun(cluster: &CephCluster, number: u8, image: &str) -> String {
    format!(
        "[[target.lun]]\nlun = {number}\nbackend = \"rbd\"\npool = \"rbd\"\nimage = \"{image}\"\n\
         user = \"lunar\"\nceph_conf = \"{}\"\n",
        cluster.conf().display()
    )
}

/// The configuration of a gateway.
pub fn configuration(cluster: &CephCluster, id: u8) -> String {
    configuration_at(cluster, id, "\"127.0.0.1:0\"")
}

/// Gateways with the ids from 1, which have joined.
pub fn start<const N: usize>(cluster: &CephCluster) -> [Server; N] {
    let servers = std::array::from_fn(|at| Server::start(&configuration(cluster, at as u8 + 1)));
    servers.iter().for_each(wait_for_join);
    servers
}

/// Waits until a gateway that was started has joined, and all others know its ports. A change of ports is a unit attention.
pub fn wait_for_join(server: &Server) {
    until("a gateway joins", || (joins(server) > 0).then_some(()));
}

/// A session of a host, as soon as the gateway has joined. Its unit attentions are cleared.
pub fn session(server: &Server, host: &str) -> Raw {
    session_of(server, &Login::new().initiator(host))
}

/// As [`session`], with a login that may happen again: a registration belongs to its ISID.
pub fn session_of(server: &Server, login: &Login) -> Raw {
    let mut raw = until("a login", || login.try_on(server.portal()).ok());
    raw.clear_attentions(0);
    raw
}

/// The number of times that the gateway has joined the group.
pub fn joins(server: &Server) -> usize {
    server.log().matches("serves the image").count()
}

/// The number of fenced clients.
pub fn fenced(cluster: &CephCluster) -> usize {
    let said = cluster.ceph(&["osd", "blocklist", "ls"]);
    // The others are a heading. A gateway fences a reserved address for a second when it starts (RFC 5737).
    said.lines().filter(|line| line.contains('/') && !line.contains("192.0.2.1:")).count()
}

/// The keys and values of the object in which the gateways keep their state.
pub fn shared_state(cluster: &CephCluster) -> BTreeMap<String, Vec<u8>> {
    let objects = cluster.rados(&["-p", "rbd", "ls"]);
    let object = objects.lines().find(|name| name.starts_with("lunar.lu.")).expect("the object of the state");
    decode_omap(&cluster.rados(&["-p", "rbd", "listomapvals", object]))
}

/// Decodes the output of `rados listomapvals`: for each key its name, its length, and a dump of lines of 16 bytes, where
/// `*` stands for repeated lines.
fn decode_omap(text: &str) -> BTreeMap<String, Vec<u8>> {
    let (mut omap, mut key, mut lines) = (BTreeMap::new(), "", text.lines());
    while let Some(line) = lines.next() {
        let Some(length) = line.strip_prefix("value (").and_then(|rest| rest.split(' ').next()) else {
            key = if line.is_empty() { key } else { line };
            continue;
        };
        let length: usize = length.parse().expect("a length");
        let dump = lines.by_ref().take_while(|line| !line.is_empty());
        omap.insert(key.to_owned(), decode_dump(dump, length));
    }
    omap
}

fn decode_dump<'a>(lines: impl Iterator<Item = &'a str>, length: usize) -> Vec<u8> {
    let (mut bytes, mut last) = (Vec::new(), Vec::new());
    for line in lines.filter(|line| *line != "*") {
        let mut columns = line.split('|').next().unwrap_or_default().split_whitespace();
        let at = usize::from_str_radix(columns.next().expect("an offset"), 16).expect("an offset");
        while bytes.len() < at && !last.is_empty() {
            bytes.extend_from_slice(&last);
        }
        last = columns.map(|byte| u8::from_str_radix(byte, 16).expect("a byte")).collect();
        bytes.extend_from_slice(&last);
    }
    bytes.truncate(length);
    assert_eq!(bytes.len(), length, "an incomplete dump");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dump_of_an_object_is_decoded() {
        let text = "state\nvalue (40 bytes) :\n\
            00000000  00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00  |................|\n*\n\
            00000020  7c 01 02 03 04 05 06 07                           ||.......|\n00000028\n\n\
            version\nvalue (2 bytes) :\n00000000  31 32                                             |12|\n00000002\n\n";
        let omap = decode_omap(text);
        assert_eq!(omap["version"], b"12");
        assert_eq!(omap["state"], [&[0; 32][..], b"|\x01\x02\x03\x04\x05\x06\x07"].concat());
    }
}
