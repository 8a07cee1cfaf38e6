//! Pairs in front of a namespace. Its disk is a LUN of the storage, too.

use crate::*;

const NQN: &str = "nqn.2026-11.org.example:storage";

/// The subsystem of the storage.
pub fn subsystem() -> String {
    format!(
        "[[subsystem]]\nnqn = \"{NQN}\"\n[[subsystem.namespace]]\nnsid = 1\ntarget = \"{TARGET}\"\nlun = 0\n"
    )
}

/// The subsystem of the storage as an upstream.
pub fn url(storage: &Server) -> String {
    format!("nvme://{}/{NQN}", storage.portals()[1])
}

fn pair() -> FailoverPair {
    FailoverPair::over(Upstream::Nvme)
}

#[test]
fn standby_takes_a_namespace_from_a_killed_router() {
    kill_both_in_turn(pair());
}

#[test]
fn switchover_over_a_namespace_keeps_the_data_of_a_writing_host() {
    switch_over_and_back(pair());
}

#[test]
fn stalled_router_writes_nothing_to_a_namespace_it_has_lost() {
    stall_the_active_router(pair());
}

#[test]
fn stalled_router_refuses_late_writes_of_an_nvme_host() {
    nvme::stall_the_active_router(pair());
}

#[test]
fn stopped_router_releases_its_namespace() {
    stop_both(pair());
}

#[test]
fn pair_waits_for_a_lost_namespace() {
    restart_the_storage(pair());
}

#[test]
fn nvme_host_keeps_its_data_over_a_namespace() {
    nvme::kill_the_active_router(pair());
}

#[test]
fn reservation_of_an_nvme_pair_holds_against_scsi_hosts() {
    let world = pair();
    let mut host = world.host();
    host.write_for(Duration::from_millis(300));
    let mut direct = Raw::session(world.target.portal(), &[]);
    const CONFLICT: u8 = 0x18;
    assert_eq!(direct.write_blocks(0, 0, &[1; BLOCK]).status, CONFLICT);
    host.check(&mut path(&world.routers[0]));
}
