//! The login phase of a connection: PDUs between the socket and the machine, and a place among the sessions.

use super::connection::Begun;
use crate::Visit;
use crate::access::Door;
use crate::registry::{Key, Request, Seat};
use crate::server::{Counted, Shared, luns_now};
use crate::session::Info;
use crate::setup::{Setup, Target};
use net::Stream;
use proto::Pdu;
use proto::login::{Login, SEGMENT_LEN, SessionType, Step};
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;
use wire::iscsi::status::LoginStatus;
use wire::iscsi::{BHS_LEN, Bhs, padded};

/// A connection before its login.
pub struct Fresh {
    /// The socket.
    pub stream: Stream,
    /// Our address.
    pub local: SocketAddr,
    /// The initiator's.
    pub peer: SocketAddr,
}

/// Leads a connection through login; None if it did not succeed.
pub async fn login(shared: &Arc<Shared>, fresh: Fresh, portal: usize, count: Counted) -> Option<Begun> {
    let peer = fresh.peer;
    let limit = shared.setup().limits.login_timeout;
    match compio::time::timeout(limit, negotiate(shared, fresh, portal, count)).await {
        Ok(Ok(session)) => session,
        Ok(Err(e)) => {
            shared.turned_away(peer, &e.to_string());
            None
        }
        Err(_) => {
            shared.turned_away(peer, "the login took too long");
            None
        }
    }
}

async fn negotiate(
    shared: &Arc<Shared>,
    fresh: Fresh,
    portal: usize,
    mut count: Counted,
) -> io::Result<Option<Begun>> {
    let setup = shared.setup();
    let bound = shared.portals[portal].clone();
    let door = Door { setup: setup.clone(), group: bound.tag, peer: fresh.peer.ip() };
    let mut machine = Login::new(setup.session.offer(), bound.tag, setup.limits.text_bytes);
    let (mut pending, mut begun) = (Vec::new(), false);
    loop {
        // Nothing was said: somebody looked whether the port is open.
        let Some((header, data)) = next_pdu(&fresh.stream, &mut pending, begun).await? else {
            return Ok(None);
        };
        begun = true;
        match machine.request(&header, &data, &door) {
            Step::Reply(pdu) => send(&fresh.stream, &pdu).await?,
            Step::Drop => return Err(io::Error::other("it began with something that is no Login Request")),
            Step::Refuse(pdu) => {
                refused(&setup, &fresh, &machine, &pdu);
                send(&fresh.stream, &pdu).await?;
                return Ok(None);
            }
            Step::Ready => break,
        }
    }
    let info = info(&machine, &fresh, bound.tag, shared.registry.find(machine.tsih()));
    let (mailbox, letters) = flume::unbounded();
    let key = key(&info, &bound);
    let request = Request { key, tsih: machine.tsih(), cid: info.cid, mailbox, info: info.clone() };
    let target = info.target.as_ref().and_then(|name| setup.targets.get(name));
    let seat = shared.registry.enter(&request, &setup.limits).await;
    let seat = match seat.and_then(|seat| visit(target, &info).map(|()| seat)) {
        Ok(seat) => seat,
        Err(status) => {
            let pdu = machine.refuse(status);
            refused(&setup, &fresh, &machine, &pdu);
            send(&fresh.stream, &pdu).await?;
            return Ok(None);
        }
    };
    let most = setup.limits.commands_per_session;
    let depth = target.and_then(|t| t.depth).map_or(most, |depth| depth.clamp(1, most));
    count.logged_in();
    let now = shared.setup();
    if !Arc::ptr_eq(&now, &setup) {
        // The configuration was read again meanwhile, when this session was not yet there to hear of it.
        luns_now(&now, &info).into_iter().for_each(|letter| drop(request.mailbox.send(letter)));
    }
    send(&fresh.stream, &machine.accept(seat.tsih, depth)).await?;
    welcome(&info, &seat);
    let (cmd_sn, stat_sn) = (machine.cmd_sn(), machine.next_stat_sn());
    Ok(Some(Begun {
        shared: shared.clone(),
        fresh,
        door,
        info,
        seat,
        letters,
        count,
        depth,
        cmd_sn,
        stat_sn,
        pending,
    }))
}

/// Who a session is between (RFC 7143 section 4.5.1); discovery sessions are told apart by portal.
fn key(info: &Info, bound: &crate::server::Bound) -> Key {
    Key {
        initiator: info.initiator.clone(),
        isid: info.isid,
        target: info.target.clone(),
        tag: bound.tag,
        portal: info.target.is_none().then_some(bound.address),
    }
}

/// What is known of the connection; `session` is the one that it reinstates.
fn info(machine: &Login, fresh: &Fresh, tag: u16, session: Option<Arc<Info>>) -> Arc<Info> {
    let own = machine.parameters();
    Arc::new(Info {
        initiator: machine.initiator_name().to_owned(),
        alias: machine.initiator_alias().map(str::to_owned),
        address: fresh.peer,
        portal: fresh.local,
        target: machine.target_name().map(str::to_owned),
        tag,
        isid: machine.isid(),
        cid: machine.cid(),
        discovery: machine.session_type() == SessionType::Discovery,
        user: machine.chap_user().map(str::to_owned),
        parameters: session.map_or_else(|| own.clone(), |s| own.joining(&s.parameters)),
        since: Instant::now(),
        counters: Default::default(),
        visit: Default::default(),
    })
}

/// Takes a place in the SCSI routing instance of a target, if it has one.
fn visit(target: Option<&Target>, info: &Info) -> Result<(), LoginStatus> {
    let Some(instance) = target.and_then(|target| target.instance.as_ref()) else { return Ok(()) };
    let visit = Visit::enter(instance)?;
    // Nobody else knows of this session yet.
    let _ = info.visit.set(visit);
    Ok(())
}

fn welcome(info: &Info, seat: &Seat) {
    let Info { initiator, address, .. } = info;
    match &info.target {
        Some(target) => tracing::info!(%initiator, %address, %target, tsih = seat.tsih, "logged in"),
        None => tracing::debug!(%initiator, %address, tsih = seat.tsih, "discovery"),
    }
}

fn refused(setup: &Setup, fresh: &Fresh, machine: &Login, pdu: &Pdu) {
    let status = LoginStatus(pdu.header.0[36], pdu.header.0[37]);
    let target = machine.target_name().and_then(|name| setup.targets.get(name));
    if let Some(instance) = target.and_then(|target| target.instance.as_ref()) {
        instance.refused(status);
    }
    let (initiator, target) = (machine.initiator_name(), machine.target_name().unwrap_or_default());
    // It is printable already.
    let reason = machine.reason().map(tracing::field::display);
    tracing::info!(peer = %fresh.peer, ?initiator, ?target, %status, reason, "login refused");
}

/// The next whole PDU, or None when the peer has closed without a word: nor has it `begun` before. `pending`
/// holds bytes beyond the PDU.
async fn next_pdu(stream: &Stream, pending: &mut Vec<u8>, begun: bool) -> io::Result<Option<(Bhs, Vec<u8>)>> {
    let (mut chunk, mut silent) = ([0; 4096], !begun && pending.is_empty());
    loop {
        if let Some(b) = pending.first_chunk::<BHS_LEN>() {
            let header = Bhs(*b);
            if header.data_len() > SEGMENT_LEN {
                let what = format!("it sent a data segment of {} bytes", header.data_len());
                return Err(io::Error::other(what));
            }
            let start = BHS_LEN + header.ahs_len();
            let whole = start + padded(header.data_len());
            if pending.len() >= whole {
                let data = pending[start..start + header.data_len()].to_vec();
                pending.drain(..whole);
                return Ok(Some((header, data)));
            }
        }
        stream.readable().await?;
        match stream.receive(&mut chunk)? {
            Some(0) if silent => return Ok(None),
            Some(0) => return Err(io::Error::other("the initiator closed it within its login")),
            Some(n) => {
                silent = false;
                pending.extend_from_slice(&chunk[..n]);
            }
            None => {}
        }
    }
}

async fn send(stream: &Stream, pdu: &Pdu) -> io::Result<()> {
    let mut bytes = [&pdu.header.0[..], &pdu.data].concat();
    bytes.resize(BHS_LEN + padded(pdu.data.len()), 0);
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        match stream.send(&[IoSlice::new(rest)])? {
            Some(n) => rest = &rest[n..],
            None => stream.writable().await?,
        }
    }
    Ok(())
}
