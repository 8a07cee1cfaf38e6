//! Pairs in front of NVMe storage that lacks commands, or that others use too.

use super::namespaces::{NQN, NamespaceRouter, registrants, server, url};
use super::{Pair, Role, lun_of, pair, run, spec, until};
use crate::failover::fence;
use crate::failover::machine::Holder;
use crate::failover::term::{Term, prefix_of};
use interop::Server;
use lunar_initiator::nvme::{self, NvmeRegistrant, ReservationChange, ReservationKind};
use lunar_initiator::{ErrorCode, Options, Session};
use lunar_target::Instance;
use lunar_wire::nvme::{nvm_opcode, pdu_type};
use lunar_wire::scsi::lun;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

/// Bytes of the common header of a PDU, which the command of a capsule follows.
const HEADER: usize = 8;
/// The byte of Reservation Acquire with its action (RACQA), and a reserved action.
const ACTION: usize = HEADER + 40;
const RESERVED: u8 = 7;

/// A portal of this server that refuses Reservation Acquire with one of these actions, with Invalid Field.
fn refusing(server: SocketAddr, actions: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let storage = TcpStream::connect(server).expect("the server runs");
            let ends = [&storage, &client].map(|end| end.try_clone().expect("a socket"));
            thread::spawn(move || {
                let [mut from, mut to] = ends;
                _ = io::copy(&mut from, &mut to);
                _ = to.shutdown(Shutdown::Both);
            });
            thread::spawn(move || {
                _ = forward(&client, &storage, actions);
                _ = storage.shutdown(Shutdown::Both);
            });
        }
    });
    address
}

/// Forwards PDUs until the client disconnects.
fn forward(mut client: &TcpStream, mut storage: &TcpStream, actions: &[u8]) -> io::Result<()> {
    loop {
        let mut pdu = vec![0; HEADER];
        client.read_exact(&mut pdu)?;
        let len = u32::from_le_bytes([pdu[4], pdu[5], pdu[6], pdu[7]]);
        pdu.resize(len as usize, 0);
        client.read_exact(&mut pdu[HEADER..])?;
        let is_acquire =
            pdu[0] == pdu_type::CAPSULE_COMMAND && pdu[HEADER] == nvm_opcode::RESERVATION_ACQUIRE;
        if is_acquire && actions.contains(&(pdu[ACTION] & RESERVED)) {
            pdu[ACTION] |= RESERVED;
        }
        storage.write_all(&pdu)?;
    }
}

/// SPDK has no Preempt and Abort.
#[test]
fn storage_without_aborts_makes_a_takeover_wait() {
    run(async || {
        let server = server("filters = [{ kind = \"delay\", write_us = 6000000 }]\n");
        let url = url(refusing(server.portal(), &[2]));
        let (mut a, mut b) = (NamespaceRouter::new(&url, 0xa).await, NamespaceRouter::new(&url, 0xb).await);
        let _late = a.begin_write().await;
        assert_eq!(b.take(true).await, Ok(()));
        b.sees_no_late_write().await;
        b.owner.release().await;
        let holders: Vec<u64> =
            registrants(&url).await.1.iter().filter(|one| one.is_holder).map(|one| one.key).collect();
        assert!(
            matches!(holders[..], [key] if key & 1 == 0),
            "the next takeover must wait too: {holders:x?}"
        );
    });
}

/// Each attempt is a new host, and the storage has room for a limited number.
#[test]
fn refused_takeover_leaves_no_registrant() {
    run(async || {
        let server = server("");
        let mut a = NamespaceRouter::new(&url(refusing(server.portal(), &[0, 1, 2])), 0xa).await;
        assert_eq!(a.take(false).await, Err(ErrorCode::ScsiError));
        assert_eq!(registrants(&url(server.portal())).await, (None, Vec::new()));
        a.owner.probe().await;
        assert!(a.owner.seen.is_none(), "the next attempt follows after a pause");
    });
}

/// Hosts are logged in at both routers, the link between these is cut, and the takeover waits.
#[test]
fn preempted_takeover_leaves_the_namespace_to_the_peer() {
    run(async || {
        let server = server("");
        let url = url(server.portal());
        // An interrupted takeover.
        let crashed = nvme::open(&url).await.expect("a namespace");
        let key = Term::new(prefix_of(0xc)).taking_key();
        let kind = ReservationKind::ExclusiveAccessRegistrants;
        for change in
            [ReservationChange::Register { key, persists: None }, ReservationChange::Acquire { key, kind }]
        {
            crashed.change_reservation(change).await.expect("a reservation");
        }
        let (a, mut b) = (NamespaceRouter::new(&url, 0xa).await, NamespaceRouter::new(&url, 0xb).await);
        let instance = Arc::new(Instance::new("r1"));
        instance.logins_active.store(1, Relaxed);
        let pair = Pair::start(spec(0xa), true, instance, None, || {}, |job| job());
        pair.add_lu(&a.disk);
        let is_of_a = |one: &NvmeRegistrant| one.is_holder && one.key >> 32 == u64::from(prefix_of(0xa));
        while !registrants(&url).await.1.iter().any(is_of_a) {
            compio::time::sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(pair.status().role, Role::Taking);
        assert_eq!(b.take(true).await, Ok(()), "the first router must not take over again");
        assert_eq!(pair.status().role, Role::Standby);
    });
}

/// Two LUNs that are namespaces too.
fn shared_with_scsi() -> Server {
    let name = interop::TARGET;
    Server::start(&format!(
        "[[portal_group]]\ntag = 1\n\
         portals = [\"127.0.0.1:0\", {{ listen = \"127.0.0.1:0\", transport = [\"nvme-tcp\"] }}]\n\
         [[target]]\nname = \"{name}\"\n\
         [[target.lun]]\nlun = 0\nbackend = \"memory\"\nsize = \"16MiB\"\n\
         [[target.lun]]\nlun = 1\nbackend = \"memory\"\nsize = \"16MiB\"\n\
         [[subsystem]]\nnqn = \"{NQN}\"\n\
         [[subsystem.namespace]]\nnsid = 1\ntarget = \"{name}\"\nlun = 0\n\
         [[subsystem.namespace]]\nnsid = 2\ntarget = \"{name}\"\nlun = 1\n"
    ))
}

/// The target gives a conflict to NVMe hosts while SCSI hosts are registered, even without a reservation.
#[test]
fn namespace_with_a_scsi_registrant_leaves_the_others_served() {
    run(async || {
        let server = shared_with_scsi();
        let [scsi, nvme] = [server.portals()[0], server.portals()[1]];
        let portal = lun_of(scsi, 1).portal;
        let session = Session::open(portal, interop::TARGET, Options::new(interop::INITIATOR)).await;
        let session = session.expect("a session");
        fence::register(&session, lun::encode(1), 7).await.expect("a registration");
        let of = |nsid: u32| format!("nvme://{nvme}/{NQN}/{nsid}").parse().expect("a URL");
        let served = NamespaceRouter::new(&of(1), 0xa).await;
        let mut other = NamespaceRouter::new(&of(2), 0xa).await;
        assert_eq!(other.take(false).await, Err(ErrorCode::InUse));
        let pair = pair(spec(0xa), None);
        pair.add_lu(&served.disk);
        pair.add_lu(&other.disk);
        until(|| pair.status().role == Role::Active).await;
        until(|| served.owner.gate().is_open()).await;
        // Several further attempts at the other one.
        compio::time::sleep(Duration::from_secs(4)).await;
        assert!(pair.status().role == Role::Active && served.owner.gate().is_open());
        assert_eq!(served.write(1).await, Ok(()));
        assert!(!other.owner.gate().is_open());
    });
}

/// The next attempt would not find the hosts of these commands any more.
#[test]
fn takeover_outlasts_the_commands_that_it_aborts() {
    run(async || {
        let server = server("filters = [{ kind = \"delay\", write_us = 7000000 }]\n");
        let url = url(server.portal());
        let (mut a, mut b) = (NamespaceRouter::new(&url, 0xa).await, NamespaceRouter::new(&url, 0xb).await);
        let _late = a.begin_write().await;
        assert_eq!(b.take(true).await, Ok(()));
        b.sees_no_late_write().await;
    });
}

/// Two processes with the keys of one router would otherwise both serve, or preempt each other.
#[test]
fn second_process_of_a_router_is_another_holder() {
    run(async || {
        let server = server("");
        let url = url(server.portal());
        let (mut a, mut twin) =
            (NamespaceRouter::new(&url, 0xa).await, NamespaceRouter::new(&url, 0xa).await);
        assert_eq!(a.take(false).await, Ok(()));
        let holder = async |router: &mut NamespaceRouter| {
            router.owner.probe().await;
            router.owner.holder()
        };
        assert_eq!([holder(&mut a).await, holder(&mut twin).await], [Holder::Ours; 2]);
        assert_eq!(twin.take(false).await, Ok(()));
        assert_eq!([holder(&mut a).await, holder(&mut twin).await], [Holder::Other, Holder::Ours]);
    });
}
