//! Persistent reservations of initiators without iSCSI names, and the target ports that the device reports.

use super::test_target::{Host, HostResponse, NAME, command};
use super::{TestTarget, on_core};
use crate::srp::port_id;
use lunar_wire::scsi::cdb::{self, Cdb};
use lunar_wire::scsi::pr;
use lunar_wire::srp::{DataBuffer, SrpCommand};

const CONFLICT: u8 = 0x18;
const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
const MOVE: u8 = 7;
const FULL_STATUS: u8 = 3;
/// Write exclusive.
const TYPE: u8 = 1;

/// Sends PERSISTENT RESERVE OUT.
async fn out(host: &mut Host, action: u8, list: &[u8]) -> HostResponse {
    let (at, cdb) = (host.source(list), cdb::persistent_reserve_out(action, TYPE, list.len() as u32));
    host.execute(&SrpCommand { data_out: DataBuffer::Direct(at), ..command(10, &cdb) }).await
}

/// The parameter list: our key and the new one.
fn keys(key: u64, new: u64, persists: bool) -> Vec<u8> {
    pr::ReserveOutParameters { key, action_key: new, aptpl: persists, all_ports: false }.encode().to_vec()
}

/// Executes a command that returns data.
async fn data_of(host: &mut Host, cdb: Cdb) -> Vec<u8> {
    const LEN: u32 = 0xff;
    let at = host.sink(LEN);
    host.execute(&SrpCommand { data_in: DataBuffer::Direct(at), ..command(11, &cdb) }).await;
    host.written(at)
}

/// The registrants of READ FULL STATUS: key, target port, initiator port, and whether it is a holder.
async fn registrants(host: &mut Host) -> Vec<(u64, u16, String, bool)> {
    let answer = data_of(host, cdb::persistent_reserve_in(FULL_STATUS, 0xff)).await;
    let all = pr::registrations(&answer);
    all.map(|one| (one.key, one.port, one.initiator, one.holds.is_some())).collect()
}

async fn writes(host: &mut Host) -> u8 {
    host.execute(&command(12, &cdb::write_10(0, 0, false))).await.status
}

const FIRST: &str = "0x000000000000aaaa0000000000000001";
const SECOND: &str = "0x000000000000aaaa0000000000000002";

#[test]
fn reservation_survives_restart_for_same_port() {
    let file = std::env::temp_dir().join(format!("lunar-srp-reservation-{}", std::process::id()));
    _ = std::fs::remove_file(&file);
    let state = file.clone();
    on_core(async move || {
        let target = TestTarget::with_state_file(&state);
        let mut first = target.host(1, false).await.receive_attentions().await;
        assert_eq!(out(&mut first, REGISTER, &keys(0, 7, true)).await, HostResponse::good(10));
        assert_eq!(out(&mut first, RESERVE, &keys(7, 0, false)).await, HostResponse::good(10));
    });
    let state = file.clone();
    on_core(async move || {
        let target = TestTarget::with_state_file(&state);
        let mut first = target.host(1, false).await.receive_attentions().await;
        let mut second = target.host(2, false).await.receive_attentions().await;
        assert_eq!(registrants(&mut second).await, [(7, 0x8001, FIRST.into(), true)]);
        assert_eq!((writes(&mut first).await, writes(&mut second).await), (0, CONFLICT));
    });
    _ = std::fs::remove_file(&file);
}

#[test]
fn register_and_move_follows_transport_id() {
    on_core(async move || {
        let target = TestTarget::new();
        let mut first = target.host(1, false).await.receive_attentions().await;
        let mut second = target.host(2, false).await.receive_attentions().await;
        assert_eq!(out(&mut first, REGISTER, &keys(0, 7, false)).await, HostResponse::good(10));
        assert_eq!(out(&mut first, RESERVE, &keys(7, 0, false)).await, HostResponse::good(10));
        let mut list = keys(7, 8, false);
        list[16..24].copy_from_slice(&[0, 2, 0x80, 1, 0, 0, 0, 24]);
        list.extend_from_slice(&[
            4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xaa, 0xaa, 0, 0, 0, 0, 0, 0, 0, 2,
        ]);
        assert_eq!(out(&mut first, MOVE, &list).await, HostResponse::good(10));
        assert_eq!(registrants(&mut first).await, [(8, 0x8001, SECOND.into(), true)]);
        assert_eq!((writes(&mut first).await, writes(&mut second).await), (CONFLICT, 0));
    });
}

#[test]
fn srp_port_is_reported_in_inquiry() {
    on_core(async move || {
        let target = TestTarget::new();
        let mut host = target.host(1, false).await.receive_attentions().await;
        let standard = data_of(&mut host, cdb::inquiry(None, 0xff)).await;
        assert_eq!(standard[64..66], [0x09, 0x40], "the version descriptor of SRP");
        let ports = data_of(&mut host, cdb::inquiry(Some(0x88), 0xff)).await;
        let golden = [&[0, 0, 0x80, 1, 0, 0, 0, 0, 0, 0, 0, 20, 0x41, 0x92, 0, 16][..], &port_id(NAME).0];
        assert_eq!((&ports[2..4], &ports[4..36]), (&[0, 32][..], &golden.concat()[..]), "the only one");
        let names = data_of(&mut host, cdb::inquiry(Some(0x83), 0xff)).await;
        assert!(names.windows(20).any(|name| name == &golden.concat()[12..]));
    });
}
