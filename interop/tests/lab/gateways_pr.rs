//! Persistent reservations of the kernel's initiator through two gateways.

use super::guest::{HOST, lab_with};
use super::machine::GuestKind;
use interop::ceph::CephCluster;
use interop::gateways::{configuration_at, create_image, wait_for_join};
use interop::tool::Tool;
use interop::{Server, TARGET};

const SG: Tool = Tool { program: "sg_persist", package: "sg3-utils" };

#[test]
fn sg_persist_reserves_through_two_gateways() {
    let Some(lab) = lab_with(&[SG], GuestKind::Plain) else { return };
    let Some(cluster) = CephCluster::start() else { return };
    create_image(&cluster);
    let mut servers = [1, 2].map(|id| {
        let port = interop::ports::free();
        let portal = format!("{{ listen = \"127.0.0.1:{port}\", advertise = \"{HOST}:{port}\" }}");
        Server::start(&configuration_at(&cluster, id, &portal))
    });
    servers.iter().for_each(wait_for_join);
    let portals = servers.each_ref().map(|server| format!("{HOST}:{}", server.portal().port())).join(" ");
    let variables = [("PORTALS", portals.as_str()), ("IQN", TARGET), ("LUN", "0")];
    let mut scenario = lab.alone("gateways_pr", &variables);
    scenario.when_asked("power-loss", || {
        servers.iter_mut().for_each(Server::kill9);
        servers.iter_mut().for_each(Server::restart);
    });
    scenario.must_pass();
}
