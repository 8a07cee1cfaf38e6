//! Clusters of hosts on several gateways of one image of Ceph RBD: each host has its session on another gateway.
#![forbid(unsafe_code)]

mod commands;
mod cut;
mod heartbeats;
mod history;
mod kills;
mod model;
mod order;
mod validation;

use interop::ceph::CephCluster;
use interop::gateways::{self, session_of};
use interop::{Login, Raw, Server};
use std::time::Duration;

/// A change waits for a gateway that does not acknowledge it.
const PATIENCE: Duration = Duration::from_secs(60);

/// The login of a host, with the same ISID each time, so that its registrations count.
fn host(number: usize) -> Login {
    let name = format!("iqn.2026-11.org.example:host-{number}");
    Login::new().initiator(&name).isid([0x80, 0, 0, 0, 0, number as u8 + 1])
}

/// The key of a host.
fn key(host: usize) -> u64 {
    0xa0 + host as u64
}

/// A session of each host, on a gateway of its own.
fn hosts(servers: &[Server; 3]) -> [Raw; 3] {
    std::array::from_fn(|number| session_of(&servers[number], &host(number)))
}

#[test]
fn hosts_of_three_gateways_are_a_cluster() {
    let Some(cluster) = CephCluster::start() else { return };
    interop::raw::choose_patience(PATIENCE);
    gateways::create_image(&cluster);
    let mut servers: [Server; 3] = gateways::start(&cluster);
    validation::persistent_reservations(&servers);
    heartbeats::hosts_keep_their_locks(&servers);
    history::answers_are_those_of_one_server(&cluster, &mut servers);
    kills::each_gateway_is_killed_in_turn(&cluster, &mut servers);
    kills::power_loss_of_all_keeps_registrations(&mut servers);
}

#[test]
fn cut_gateway_overwrites_nothing() {
    cut::run();
}
