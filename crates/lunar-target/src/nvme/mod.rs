//! NVMe over TCP: the same logical units as namespaces (NVM Express Base, NVM Command Set and TCP Transport
//! specifications).
//!
//! A connection is a queue. A host connects an admin queue, which makes a [`controllers::Controller`], and then I/O queues. The
//! admin queue has a loop of its own ([`admin`]). An I/O queue is a front end of the core ([`front_end`]): its commands are SCSI
//! commands there, so that order, reservations and all limits are the same for hosts of both families.

mod abort_request;
mod aborts;
mod admin;
mod admin_commands;
mod admin_state;
mod authenticate;
mod begin;
mod capsule;
mod commands;
mod connect;
mod connection;
pub(crate) mod controllers;
mod copy;
mod discovery_log;
mod dispatch;
mod error_log;
mod features;
mod front_end;
mod fused;
pub(crate) mod identifiers;
mod identify;
mod keep_alive;
mod limits;
mod log_pages;
mod namespaces;
mod queue;
mod queue_session;
mod reauthenticate;
mod reservations;
mod transfers;

use crate::open_portal::OpenPortal;
use crate::server_state::{ConnectionGuard, ServerState};
use crate::session_info::{Addresses, TlsSessionInfo};
use lunar_runtime::Stream;
use std::sync::Arc;

/// Serves one connection to its end, with TLS if there is any.
pub(crate) async fn serve_stream(
    shared: Arc<ServerState>,
    stream: Stream,
    addresses: Addresses,
    portal: Arc<OpenPortal>,
    (count, tls): (ConnectionGuard, Option<TlsSessionInfo>),
) {
    let (limit, evicted) = (shared.config().limits.login_timeout, count.evicted());
    let begun = evicted.or(limit, async { Ok(begin::begin(stream).await) }).await;
    match begun {
        Ok(Ok(begun)) => connect::connect(&shared, begun, addresses, portal, (count, tls)).await,
        Ok(Err(fault)) => {
            shared.log_closed_before_login(addresses.peer, &fault.to_string());
            fault.report().await;
        }
        Err(e) => shared.log_closed_before_login(addresses.peer, &e.to_string()),
    }
}
