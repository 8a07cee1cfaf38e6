//! Listening sockets that the service manager holds: those of socket units, and those that an earlier process of this
//! service put into its store. They stay open over a restart, so connections wait in their backlogs.

use super::{forget, keep};
use lunar_server::inherited::InheritedDescriptor;
use rustix::net::{Shutdown, sockopt};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Prefix of the names of stored sockets. The address of the portal follows, with `-` for each `:`.
const STORED: &str = "kept-";
/// The same for names that an administrator gives a socket unit.
const OF_UNIT: &str = "portal-";

/// Sockets for the portals of a server.
#[derive(Default)]
pub struct PortalSockets {
    /// Those of socket units; until the first [`PortalSockets::settle`] also those of the store.
    inherited: Vec<InheritedDescriptor>,
    /// The addresses of those that portals use.
    lent: Vec<SocketAddr>,
    /// The other sockets of portals, by their names in the store.
    stored: Vec<(String, Arc<TcpListener>)>,
}

impl PortalSockets {
    /// Descriptors of [`lunar_server::inherited::take`].
    pub fn new(inherited: Vec<InheritedDescriptor>) -> PortalSockets {
        PortalSockets { inherited, ..PortalSockets::default() }
    }

    /// Takes back sockets that were lent for a change that was given up. `open` as for [`PortalSockets::settle`].
    pub fn take_back(&mut self, open: &[(SocketAddr, Arc<TcpListener>)]) {
        let addresses = local(open);
        self.lent.retain(|at| addresses.contains(at));
    }

    /// The socket of the portal at this address: an inherited one, or a new one. `own` are the open sockets.
    ///
    /// # Errors
    /// Those of bind and listen.
    pub fn socket(&mut self, address: SocketAddr, own: &[&TcpListener]) -> io::Result<TcpListener> {
        let Some((name, fd)) = self.inherited(address) else { return lunar_target::listen(address, own) };
        tracing::info!("listening socket \"{name}\" of the service manager used for portal {address}");
        let socket = TcpListener::from(fd.try_clone()?);
        self.lent.push(socket.local_addr()?);
        Ok(socket)
    }

    /// An inherited socket with the name or the address of this portal that no portal uses.
    fn inherited(&self, address: SocketAddr) -> Option<(&str, &OwnedFd)> {
        let names = [name(STORED, address), name(OF_UNIT, address)];
        let of_portal = |has: &&InheritedDescriptor| {
            let at = listener(has).ok().filter(|at| !self.lent.contains(at));
            at.is_some_and(|at| at == address || names.contains(&has.name))
        };
        self.inherited.iter().find(of_portal).map(|has| (has.name.as_str(), &has.fd))
    }

    /// The server has started. Closes the sockets that no portal uses, removes them from the store, and stores the
    /// others.
    pub fn start(&mut self, open: &[(SocketAddr, Arc<TcpListener>)]) {
        let addresses = local(open);
        let (used, unused): (Vec<_>, Vec<_>) = std::mem::take(&mut self.inherited)
            .into_iter()
            .partition(|has| listener(has).is_ok_and(|at| addresses.contains(&at)));
        for has in unused {
            let reason = match listener(&has) {
                Ok(at) => format!("no portal is at {at}"),
                Err(reason) => reason,
            };
            tracing::warn!("descriptor \"{}\" of the service manager closed: {reason}", has.name);
            if has.name.starts_with(STORED) {
                forget(&has.name);
            }
        }
        self.inherited = used.into_iter().filter(|has| !has.name.starts_with(STORED)).collect();
        self.settle(open);
    }

    /// These are the open sockets, with the addresses of their portals in the configuration. Closes the others, and
    /// removes them from the store. A socket of a unit stays open: the service manager has it too.
    pub fn settle(&mut self, open: &[(SocketAddr, Arc<TcpListener>)]) {
        let addresses = local(open);
        for at in self.lent.iter().filter(|at| !addresses.contains(at)) {
            tracing::warn!(
                "the service manager listens at {at}, where no portal is now; hint: stop its socket unit"
            );
        }
        let of_units: Vec<SocketAddr> = self.inherited.iter().filter_map(|has| listener(has).ok()).collect();
        self.lent = of_units.iter().filter(|at| addresses.contains(at)).copied().collect();
        let is_open = |socket: &Arc<TcpListener>| open.iter().any(|(_, other)| Arc::ptr_eq(other, socket));
        for (name, socket) in self.stored.iter().filter(|(_, socket)| !is_open(socket)) {
            // At once, although an event loop still has it.
            _ = rustix::net::shutdown(socket, Shutdown::Both);
            forget(name);
        }
        let own =
            open.iter().filter(|(_, socket)| !socket.local_addr().is_ok_and(|at| of_units.contains(&at)));
        self.stored = own.map(|(address, socket)| (name(STORED, *address), socket.clone())).collect();
        // After the removals, which concern all descriptors of a name. Storing a socket twice has no effect.
        self.stored.iter().for_each(|(name, socket)| keep(name, socket.as_fd()));
    }
}

/// The addresses of sockets.
fn local(open: &[(SocketAddr, Arc<TcpListener>)]) -> Vec<SocketAddr> {
    open.iter().filter_map(|(_, socket)| socket.local_addr().ok()).collect()
}

/// The name of a descriptor: at most 255 ASCII characters without `:`.
fn name(prefix: &str, address: SocketAddr) -> String {
    format!("{prefix}{}", address.to_string().replace(':', "-"))
}

/// The address at which a descriptor listens, or the reason why it cannot serve a portal.
fn listener(has: &InheritedDescriptor) -> Result<SocketAddr, String> {
    let listens = sockopt::socket_acceptconn(&has.fd).unwrap_or(false);
    let address = rustix::net::getsockname(&has.fd).ok().and_then(|at| SocketAddr::try_from(at).ok());
    let Some(address) = address.filter(|_| listens) else {
        return Err("it is no listening TCP socket".into());
    };
    // The address of an IPv4 peer would be an IPv6 address, which no network in an access list matches.
    if address.is_ipv6() && !sockopt::ipv6_v6only(&has.fd).unwrap_or(false) {
        return Err(format!(
            "the socket at {address} accepts IPv4 too; hint: set BindIPv6Only=ipv6-only in the socket unit"
        ));
    }
    Ok(address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;
    use std::os::unix::net::UnixListener;

    fn inherited(name: &str, fd: impl Into<OwnedFd>) -> InheritedDescriptor {
        InheritedDescriptor { name: name.into(), fd: fd.into() }
    }

    fn bound() -> (SocketAddr, TcpListener) {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        (socket.local_addr().unwrap(), socket)
    }

    fn free() -> SocketAddr {
        bound().0
    }

    #[test]
    fn socket_is_matched_by_address_or_name() {
        let (at, socket) = bound();
        let (other, named) = bound();
        let of_unit: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let mut sockets = PortalSockets::new(vec![
            inherited("lunar.socket", socket),
            inherited("portal-127.0.0.1-0", named),
        ]);
        assert_eq!(sockets.socket(of_unit, &[]).unwrap().local_addr().unwrap(), other, "by its name");
        assert_eq!(sockets.socket(at, &[]).unwrap().local_addr().unwrap(), at, "by its address");
        let new = sockets.socket(of_unit, &[]).unwrap().local_addr().unwrap();
        assert!(new != other && new != at, "each socket is used once");
        assert_eq!(name(STORED, "[::1]:3260".parse().unwrap()), "kept-[--1]-3260");
    }

    #[test]
    fn descriptor_without_a_portal_is_not_used() {
        let folder = std::env::temp_dir().join(format!("lunar-inherited-{}", std::process::id()));
        _ = std::fs::remove_file(&folder);
        let at = free();
        let unix = inherited(&name(OF_UNIT, at), UnixListener::bind(&folder).unwrap());
        assert_eq!(listener(&unix), Err("it is no listening TCP socket".into()));
        let null = inherited("null", std::fs::File::open("/dev/null").unwrap());
        assert_eq!(listener(&null), Err("it is no listening TCP socket".into()));
        let (elsewhere, socket) = bound();
        let elsewhere_has = inherited("lunar.socket", socket);
        let mut sockets = PortalSockets::new(vec![unix, null, elsewhere_has]);
        assert_eq!(sockets.socket(at, &[]).unwrap().local_addr().unwrap(), at);
        assert_eq!(sockets.inherited.len(), 3);
        sockets.start(&[]);
        assert!(TcpListener::bind(elsewhere).is_ok(), "the socket is closed");
        std::fs::remove_file(folder).unwrap();
    }

    #[test]
    fn socket_of_a_unit_returns_with_its_portal() {
        let (at, socket) = bound();
        let mut sockets = PortalSockets::new(vec![inherited("lunar.socket", socket)]);
        let open = |sockets: &mut PortalSockets| (at, Arc::new(sockets.socket(at, &[]).unwrap()));
        let first = [open(&mut sockets)];
        sockets.start(&first);
        assert!(sockets.stored.is_empty(), "the service manager has it");
        sockets.settle(&[]);
        drop(first);
        assert!(TcpStream::connect(at).is_ok(), "the service manager still listens");
        let given_up = open(&mut sockets);
        sockets.take_back(&[]);
        drop(given_up);
        let again = [open(&mut sockets)];
        sockets.settle(&again);
        assert_eq!((sockets.lent, sockets.stored.len()), (vec![at], 0));
    }

    #[test]
    fn socket_of_a_removed_portal_refuses_at_once() {
        let mut sockets = PortalSockets::default();
        let listen: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let [one, two] = [(); 2].map(|()| (listen, Arc::new(sockets.socket(listen, &[]).unwrap())));
        let at = one.1.local_addr().unwrap();
        sockets.start(&[one.clone(), two.clone()]);
        assert_eq!(sockets.stored.len(), 2);
        sockets.settle(&[two]);
        // Other users of the socket do not keep it open.
        assert_eq!(TcpStream::connect(at).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(sockets.stored.len(), 1);
        drop(one);
    }

    #[test]
    fn socket_for_both_versions_of_ip_is_rejected() {
        // The standard library leaves IPV6_V6ONLY as it is: off, unless a sysctl sets it.
        let Ok(socket) = TcpListener::bind("[::]:0") else { return };
        sockopt::set_ipv6_v6only(&socket, false).unwrap_or_default();
        let has = inherited("lunar.socket", socket);
        if sockopt::ipv6_v6only(&has.fd) == Ok(false) {
            let reason = listener(&has).unwrap_err();
            assert!(reason.contains("hint: set BindIPv6Only=ipv6-only"), "{reason}");
        }
    }
}
