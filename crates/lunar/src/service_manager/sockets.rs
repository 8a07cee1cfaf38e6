//! Listening sockets that the service manager holds: those of socket units, and those that an earlier process of this
//! service put into its store. They stay open over a restart, so connections wait in their backlogs.

use super::{forget, keep};
use lunar_server::inherited::InheritedDescriptor;
use rustix::net::sockopt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;

/// Prefix of the names of stored sockets. The address of the portal follows, with `-` for each `:`.
const STORED: &str = "kept-";
/// The same for names that an administrator gives a socket unit.
const OF_UNIT: &str = "portal-";

/// Sockets for the portals of a server.
#[derive(Default)]
pub struct PortalSockets {
    inherited: Vec<InheritedDescriptor>,
    /// Sockets to store, by their names.
    stored: Vec<(String, TcpListener)>,
}

impl PortalSockets {
    /// Descriptors of [`lunar_server::inherited::take`].
    pub fn new(inherited: Vec<InheritedDescriptor>) -> PortalSockets {
        PortalSockets { inherited, stored: Vec::new() }
    }

    /// The socket of the portal at this address: an inherited one, or a new one.
    ///
    /// # Errors
    /// Those of bind and listen.
    pub fn socket(&mut self, address: SocketAddr) -> io::Result<TcpListener> {
        let stored = name(STORED, address);
        let Some((of, socket)) = self.inherited(address) else {
            let socket = lunar_target::listen(address)?;
            self.store(stored, &socket)?;
            return Ok(socket);
        };
        tracing::info!("listening socket \"{of}\" of the service manager used for portal {address}");
        if of == stored {
            self.store(stored, &socket)?;
        }
        Ok(socket)
    }

    fn store(&mut self, name: String, socket: &TcpListener) -> io::Result<()> {
        if super::is_there() {
            self.stored.push((name, socket.try_clone()?));
        }
        Ok(())
    }

    /// Takes an inherited socket with the name or the address of this portal.
    fn inherited(&mut self, address: SocketAddr) -> Option<(String, TcpListener)> {
        let names = [name(STORED, address), name(OF_UNIT, address)];
        let named = |has: &InheritedDescriptor| names.contains(&has.name);
        let listens = |has: &InheritedDescriptor| listener(has).is_ok_and(|at| at == address);
        let of_portal = |has: &InheritedDescriptor| listener(has).is_ok() && (named(has) || listens(has));
        let at = self.inherited.iter().position(of_portal)?;
        let InheritedDescriptor { name, fd } = self.inherited.remove(at);
        Some((name, TcpListener::from(fd)))
    }

    /// Closes the sockets that no portal uses, removes them from the store, and stores the others.
    pub fn settle(self) {
        for has in self.inherited {
            let reason = match listener(&has) {
                Ok(at) => format!("no portal is at {at}"),
                Err(reason) => reason,
            };
            tracing::warn!("descriptor \"{}\" of the service manager closed: {reason}", has.name);
            if has.name.starts_with(STORED) {
                forget(&has.name);
            }
        }
        // After the removals, which concern all descriptors of a name. Storing a socket twice has no effect.
        self.stored.iter().for_each(|(name, socket)| keep(name, socket.as_fd()));
    }
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
    use std::os::fd::OwnedFd;
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
        assert_eq!(sockets.socket(of_unit).unwrap().local_addr().unwrap(), other, "by its name");
        assert_eq!(sockets.socket(at).unwrap().local_addr().unwrap(), at, "by its address");
        let new = sockets.socket(of_unit).unwrap().local_addr().unwrap();
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
        assert_eq!(sockets.socket(at).unwrap().local_addr().unwrap(), at);
        assert_eq!(sockets.inherited.len(), 3);
        sockets.settle();
        assert!(TcpListener::bind(elsewhere).is_ok(), "the socket is closed");
        std::fs::remove_file(folder).unwrap();
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
