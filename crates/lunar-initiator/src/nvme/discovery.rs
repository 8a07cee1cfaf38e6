//! Discovery: reads the log page of a discovery service.

use super::association::{Association, SubsystemAddress, associate, call};
use super::lifetime::log_entry;
use super::options::{Nqn, NvmeOptions};
use crate::connect::login_timed_out;
use crate::{Direction, Error, ErrorCode, Portal, time_limit, waits};
use lunar_runtime::Buf;
#[doc(inline)]
pub use lunar_wire::nvme::{
    AddressFamily, DISCOVERY_NQN, DiscoveryEntry, DiscoveryKind, SecureChannel, TransportKind,
};
use lunar_wire::nvme::{DiscoveryHeader, log_page};
use std::time::Duration;

/// Bytes of one read of the log page.
const PIECE: usize = 4096;
/// The most entries that are read of one service, and that a list of several has.
const MAX_ENTRIES: u64 = 16 << 10;
/// The most discovery services that are asked for one list.
const MAX_SERVICES: usize = 16;
/// How often a log page that changes is read.
const TRIES: u32 = 8;
/// Command dword 10 of Get Log Page, bit 15: the event is not cleared (RAE).
const RETAIN_EVENT: u32 = 1 << 15;

/// The name of the discovery service that every portal knows.
///
/// # Panics
/// Never: the name is well formed.
pub fn well_known() -> Nqn {
    Nqn::new(DISCOVERY_NQN).expect("the well-known name is well formed")
}

/// Reads all entries of a discovery service. Call it inside an event loop.
///
/// # Errors
/// When the service is unreachable or refuses this host, is no discovery service, or changes its entries all the time.
pub async fn discover(
    address: &SubsystemAddress,
    options: &NvmeOptions,
) -> Result<Vec<DiscoveryEntry>, Error> {
    // A connection that only reads a log page needs no Keep Alive.
    let options = NvmeOptions { keep_alive: Duration::ZERO, ..options.clone().identified() };
    let limit = options.timeouts.login;
    let _wait = waits::on(format!("the discovery at {}", address.portal));
    let read = Box::pin(async {
        let association = associate(address, &options).await?;
        if !association.is_discovery() && address.subsystem.as_str() != DISCOVERY_NQN {
            let what = format!("{} is no discovery service", address.subsystem);
            return Err(Error::new(ErrorCode::InvalidArgument, what));
        }
        let entries = read_log(&association).await?;
        // The entries are here: a missing answer does not matter.
        _ = association.shut_down(options.timeouts.logout).await;
        Ok(entries)
    });
    let read = time_limit::within(limit, read).await.unwrap_or_else(|| Err(login_timed_out(limit)));
    read.map_err(|e| e.during(format!("discovery at {}", address.portal)))
}

/// As [`discover`], and with the entries of the services that it refers to over TCP: at most 16 services and 16,384 entries in
/// all. A warning reports each service that cannot be read. The result has no referrals to the services that were asked.
///
/// # Errors
/// Those of [`discover`] at the first service.
pub async fn discover_referred(
    address: &SubsystemAddress,
    options: &NvmeOptions,
) -> Result<Vec<DiscoveryEntry>, Error> {
    let mut entries = discover(address, options).await?;
    let mut asked = vec![address.clone()];
    while let Some(service) = unasked(&mut entries, &asked) {
        if asked.len() == MAX_SERVICES {
            tracing::warn!("only the first {MAX_SERVICES} discovery services are asked");
            break;
        }
        match discover(&service, options).await {
            Ok(more) => add(&mut entries, more),
            Err(e) => {
                tracing::warn!(error = %e, "a discovery service that another one refers to is left out")
            }
        }
        asked.push(service);
    }
    Ok(entries)
}

/// Removes the referrals to services that were asked, and returns the first one that was not.
fn unasked(entries: &mut Vec<DiscoveryEntry>, asked: &[SubsystemAddress]) -> Option<SubsystemAddress> {
    entries.retain(|entry| referred_to(entry).is_none_or(|service| !asked.contains(&service)));
    entries.iter().find_map(referred_to)
}

/// Adds the entries of another service, as long as there is room.
fn add(entries: &mut Vec<DiscoveryEntry>, more: Vec<DiscoveryEntry>) {
    let room = (MAX_ENTRIES as usize).saturating_sub(entries.len());
    if more.len() > room {
        tracing::warn!("only the first {MAX_ENTRIES} entries of all discovery services are used");
    }
    entries.extend(more.into_iter().take(room));
}

/// The discovery service that an entry refers to over TCP.
fn referred_to(entry: &DiscoveryEntry) -> Option<SubsystemAddress> {
    let is_referral = entry.kind == DiscoveryKind::Referral && entry.transport == TransportKind::Tcp;
    let port = entry.service.trim().parse().ok().filter(|_| is_referral)?;
    let portal = Portal { host: entry.address.trim().into(), port };
    Some(SubsystemAddress { portal, subsystem: entry.subsystem.clone() })
}

/// Reads the log page until its generation is the same before and behind the entries.
async fn read_log(association: &Association) -> Result<Vec<DiscoveryEntry>, Error> {
    for _ in 0..TRIES {
        let before = header(association).await?;
        let count = before.entries.min(MAX_ENTRIES) as usize;
        if before.entries > MAX_ENTRIES {
            tracing::warn!(
                entries = before.entries,
                "only the first {MAX_ENTRIES} entries of the log page are read"
            );
        }
        let bytes = read(association, DiscoveryHeader::LEN as u64, count * DiscoveryEntry::LEN).await?;
        if header(association).await?.generation == before.generation {
            return Ok(decode(&bytes));
        }
    }
    let what = format!("the log page changed during each of {TRIES} reads");
    Err(Error::new(ErrorCode::ProtocolError, what))
}

fn decode(bytes: &[u8]) -> Vec<DiscoveryEntry> {
    let (entries, _) = bytes.as_chunks::<{ DiscoveryEntry::LEN }>();
    let decode = |entry: &[u8; DiscoveryEntry::LEN]| {
        let decoded = DiscoveryEntry::decode(entry);
        if decoded.is_none() {
            tracing::warn!("an entry of the discovery service is malformed, and left out");
        }
        decoded
    };
    entries.iter().filter_map(decode).collect()
}

async fn header(association: &Association) -> Result<DiscoveryHeader, Error> {
    let bytes = read(association, 0, DiscoveryHeader::LEN).await?;
    let header = bytes.first_chunk().and_then(DiscoveryHeader::decode);
    header.ok_or_else(|| {
        Error::new(ErrorCode::ProtocolError, "the format of the discovery log page is unknown")
    })
}

/// Reads bytes of the log page, in pieces.
async fn read(association: &Association, offset: u64, len: usize) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        let piece = (len - bytes.len()).min(PIECE);
        let page = u32::from(log_page::DISCOVERY) | RETAIN_EVENT;
        let sqe = log_entry(page, 0, offset + bytes.len() as u64, piece as u32);
        let data = Direction::In(Buf::zeroed(piece));
        let (_, buf) =
            call(&association.admin, sqe, data).await.map_err(|e| e.during("discovery log page"))?;
        bytes.extend_from_slice(&buf.unwrap_or_else(|| Buf::zeroed(piece)));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An entry of this kind: 1 is a referral, and 2 a subsystem.
    fn entry(kind: u8, service: &str) -> DiscoveryEntry {
        let mut bytes = [0; DiscoveryEntry::LEN];
        bytes[..3].copy_from_slice(&[3, 1, kind]);
        bytes[32..32 + service.len()].copy_from_slice(service.as_bytes());
        bytes[256..256 + DISCOVERY_NQN.len()].copy_from_slice(DISCOVERY_NQN.as_bytes());
        bytes[512..521].copy_from_slice(b"192.0.2.1");
        DiscoveryEntry::decode(&bytes).expect("an entry")
    }

    #[test]
    fn all_referrals_to_services_that_were_asked_are_removed() {
        let address = |port| {
            let portal = Portal { host: "192.0.2.1".into(), port };
            SubsystemAddress { portal, subsystem: well_known() }
        };
        let referrals = ["1", "1", "2", "1", "2"].map(|service| entry(1, service));
        let mut entries = [vec![entry(2, "1")], referrals.into()].concat();
        let mut asked = vec![address(1)];
        assert_eq!(unasked(&mut entries, &asked), Some(address(2)));
        assert_eq!(entries, [entry(2, "1"), entry(1, "2"), entry(1, "2")]);
        asked.push(address(2));
        assert_eq!(unasked(&mut entries, &asked), None);
        assert_eq!(entries, [entry(2, "1")]);
    }

    #[test]
    fn list_of_several_services_is_bounded() {
        let mut entries = vec![entry(2, "1"); MAX_ENTRIES as usize - 1];
        add(&mut entries, vec![entry(2, "2"); 3]);
        assert_eq!(entries.len() as u64, MAX_ENTRIES);
        assert_eq!(entries.last(), Some(&entry(2, "2")));
    }
}
