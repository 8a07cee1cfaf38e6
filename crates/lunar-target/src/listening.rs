//! The listening sockets of a server, and their replacement while it runs.

use crate::accept::accept;
use crate::config::{Portal, PortalGroup};
use crate::open_portal::{BoundPortal, OpenPortal};
use crate::rdma_portals;
use crate::server_state::ServerState;
use crate::session_info::SessionInfo;
use lunar_runtime::{Cores, Listener, either};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time for which binding an address in use is retried.
const BIND_TIMEOUT: Duration = Duration::from_secs(1);

/// Returns the listening TCP socket of a portal: one that another process has bound, or that of [`listen`]. The open
/// sockets of the server may have the port.
pub type SocketSource<'a> = dyn FnMut(SocketAddr, &[&TcpListener]) -> io::Result<TcpListener> + 'a;

/// Ends the acceptance of connections when its last clone is dropped. A message begins it.
type AcceptHandle = flume::Sender<()>;

/// A portal with its listeners.
#[derive(Clone)]
struct ListeningPortal {
    /// Its address in the configuration, where the port may be 0.
    listen: SocketAddr,
    portal: Arc<OpenPortal>,
    tcp: Option<(Arc<TcpListener>, AcceptHandle)>,
    devices: Option<AcceptHandle>,
}

/// The portals of a server.
#[derive(Default)]
pub struct Listening(Vec<ListeningPortal>);

/// Portals that [`TargetServer::reload`](crate::TargetServer::reload) puts into force. New ones are bound, but accept no
/// connections yet. Dropping it closes these.
#[derive(Default)]
pub struct PreparedPortals {
    portals: Vec<(ListeningPortal, BoundPortal)>,
    begins: Vec<AcceptHandle>,
}

/// The event loops that portals use.
pub struct PortalCores<'a> {
    /// Accepts TCP connections.
    pub entrance: &'a Arc<Cores>,
    /// Serve connections.
    pub cores: &'a Arc<Cores>,
}

impl PreparedPortals {
    /// The portals.
    pub fn bound(&self) -> Arc<[BoundPortal]> {
        self.portals.iter().map(|(_, bound)| bound.clone()).collect()
    }
}

impl Listening {
    /// Binds the portals of these groups that do not listen yet.
    ///
    /// # Errors
    /// A portal cannot be bound: the message names it. Or the threads for TLS cannot be started.
    pub fn prepare(
        &self,
        groups: &[PortalGroup],
        shared: &Arc<ServerState>,
        cores: PortalCores<'_>,
        socket: &mut SocketSource<'_>,
    ) -> io::Result<PreparedPortals> {
        if groups.iter().flat_map(|group| &group.portals).any(|portal| portal.transports.tls) {
            shared.tls.start()?;
        }
        let own: Vec<&TcpListener> = self.sockets().map(|(_, socket)| &**socket).collect();
        let mut prepared = PreparedPortals::default();
        for (at, (tag, portal, open)) in self.matched(groups).into_iter().enumerate() {
            let by_tcp = portal.transports.by_tcp();
            let mut tcp = open.and_then(|open| open.tcp.clone()).filter(|_| by_tcp);
            let mut devices =
                open.and_then(|open| open.devices.clone()).filter(|_| portal.transports.by_devices());
            let new = (by_tcp && tcp.is_none()).then(|| socket(portal.listen, &own));
            let new = new.transpose().map_err(|e| not_bound(portal.listen, e))?.map(Arc::new);
            let local = new.as_ref().or(tcp.as_ref().map(|(socket, _)| socket));
            let address = local.map_or(Ok(portal.listen), |socket| socket.local_addr())?;
            let bound = bound(tag, portal, address);
            let there = open.map_or_else(|| OpenPortal::new(bound.clone()), |open| open.portal.clone());
            if let Some(socket) = new {
                let handle = accept_tcp(&socket, &there, shared, &cores)?;
                prepared.begins.push(handle.clone());
                tcp = Some((socket, handle));
            }
            if portal.transports.by_devices() && devices.is_none() {
                let handle = rdma_portals::listen(shared, cores.cores, at, (address, there.clone()))?;
                prepared.begins.push(handle.clone());
                devices = Some(handle);
            }
            let listening = ListeningPortal { listen: portal.listen, portal: there, tcp, devices };
            prepared.portals.push((listening, bound));
        }
        Ok(prepared)
    }

    /// Puts prepared portals into force. The others close.
    pub fn replace(&mut self, PreparedPortals { portals, begins }: PreparedPortals) {
        let stays =
            |old: &ListeningPortal| portals.iter().any(|(new, _)| Arc::ptr_eq(&new.portal, &old.portal));
        self.0.iter().filter(|old| !stays(old)).for_each(|old| old.portal.close());
        portals.iter().for_each(|(listening, bound)| listening.portal.set(bound.clone()));
        self.0 = portals.into_iter().map(|(listening, _)| listening).collect();
        // A receiver is there as long as its sender.
        begins.iter().for_each(|begin| _ = begin.send(()));
    }

    /// Closes the TCP sockets.
    pub fn stop_accepting(&mut self) {
        self.0.iter_mut().for_each(|one| one.tcp = None);
    }

    /// The listening TCP sockets, with the addresses of their portals in the configuration.
    pub fn sockets(&self) -> impl Iterator<Item = (SocketAddr, &Arc<TcpListener>)> {
        self.0.iter().filter_map(|one| Some((one.listen, &one.tcp.as_ref()?.0)))
    }

    /// Whether the session could not log in again with these portal groups.
    pub fn would_strand(&self, groups: &[PortalGroup], session: &SessionInfo) -> bool {
        let served = |(tag, portal, open): (u16, &Portal, Option<&ListeningPortal>)| {
            let address = open.map_or(portal.listen, |open| open.portal.bound().address);
            bound(tag, portal, address).serves(session)
        };
        !self.matched(groups).into_iter().any(served)
    }

    /// The portals of these groups, each with its tag and the open portal at its address.
    fn matched<'a>(
        &'a self,
        groups: &'a [PortalGroup],
    ) -> Vec<(u16, &'a Portal, Option<&'a ListeningPortal>)> {
        let mut open: Vec<&ListeningPortal> = self.0.iter().collect();
        let all = groups.iter().flat_map(|group| group.portals.iter().map(|portal| (group.tag, portal)));
        all.map(|(tag, portal)| {
            let at = open.iter().position(|open| open.listen == portal.listen);
            (tag, portal, at.map(|at| open.remove(at)))
        })
        .collect()
    }
}

fn bound(tag: u16, portal: &Portal, address: SocketAddr) -> BoundPortal {
    BoundPortal { address, tag, advertise: portal.advertise.clone(), transports: portal.transports }
}

/// Accepts connections of this socket, from the message to the end of the handle.
fn accept_tcp(
    socket: &TcpListener,
    portal: &Arc<OpenPortal>,
    shared: &Arc<ServerState>,
    PortalCores { entrance, cores }: &PortalCores<'_>,
) -> io::Result<AcceptHandle> {
    let (handle, end) = flume::bounded(1);
    let (shared, to, portal, socket) =
        (shared.clone(), (*cores).clone(), portal.clone(), socket.try_clone()?);
    entrance.run_on(0, move || {
        lunar_runtime::spawn(async move { until_end(end, accept(shared, to, socket, portal)).await });
    });
    Ok(handle)
}

/// Runs `work` from a message until the last sender is dropped.
pub async fn until_end(end: flume::Receiver<()>, work: impl Future<Output = ()>) {
    if end.recv_async().await.is_ok() {
        // The end first: a closed socket must not count as a failure.
        either(async { _ = end.recv_async().await }, work).await;
    }
}

/// The portals that cannot be bound now, each with the error that a starting server would report. This binds nothing.
pub fn cannot_bind(groups: &[PortalGroup]) -> Vec<(SocketAddr, io::Error)> {
    let portals = groups.iter().flat_map(|group| &group.portals);
    let refused = |portal: &Portal| {
        let address = portal.listen;
        let by_tcp = match portal.transports.by_tcp() {
            true => Listener::can_bind(address).map_err(|e| not_bound(address, e)),
            false => Ok(()),
        };
        let by_devices = || match portal.transports.by_devices() {
            true => rdma_portals::can_listen(address),
            false => Ok(()),
        };
        by_tcp.and_then(|()| by_devices()).err().map(|e| (address, e))
    };
    portals.filter_map(refused).collect()
}

fn not_bound(address: SocketAddr, e: io::Error) -> io::Error {
    lunar_runtime::error::with_context(e, format!("cannot listen on {address}"))
}

/// Binds the address of a portal. An address in use is retried, because the kernel releases the sockets of a killed
/// process a moment later. `own` are the sockets of this process, which may have the port.
///
/// # Errors
/// Those of bind and listen.
pub fn listen(address: SocketAddr, own: &[&TcpListener]) -> io::Result<TcpListener> {
    let end = Instant::now() + BIND_TIMEOUT;
    loop {
        match Listener::bind_beside(address, own) {
            Err(e) if e.kind() == io::ErrorKind::AddrInUse && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(20));
            }
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TargetServer;
    use crate::test_target::config;
    use std::net::TcpStream;

    fn group(tag: u16, portals: &[SocketAddr]) -> PortalGroup {
        PortalGroup { tag, portals: portals.iter().map(|at| Portal::tcp(*at)).collect() }
    }

    fn free(host: [u8; 4]) -> SocketAddr {
        TcpListener::bind((std::net::Ipv4Addr::from(host), 0)).and_then(|at| at.local_addr()).expect("a port")
    }

    /// A server with a portal at this address.
    fn server(at: SocketAddr) -> TargetServer {
        TargetServer::start(with(&[group(1, &[at])]), &[0]).expect("a server")
    }

    fn with(groups: &[PortalGroup]) -> crate::config::TargetConfig {
        crate::config::TargetConfig { portal_groups: groups.to_vec(), ..config() }
    }

    fn change(server: &TargetServer, groups: &[PortalGroup]) {
        let portals = server.prepare(groups, &mut listen).expect("free addresses");
        server.reload(with(groups), portals);
    }

    fn at(server: &TargetServer) -> Vec<(u16, SocketAddr)> {
        server.portals().iter().map(|portal| (portal.tag, portal.address)).collect()
    }

    #[test]
    fn portals_that_are_given_up_close_again() {
        let (old, new) = (free([127, 0, 0, 1]), free([127, 0, 0, 2]));
        let server = server(old);
        let prepared = server.prepare(&[group(1, &[new])], &mut listen).expect("a free address");
        let waiting = TcpStream::connect(new).expect("it listens");
        assert_eq!(at(&server), [(1, old)], "nothing has changed");
        drop((prepared, waiting));
        drop(listen(new, &[]).expect("the address is free again"));
        let other = TcpListener::bind(new).expect("a free address");
        let failed = server.prepare(&[group(1, &[old, new])], &mut listen).err().expect("it is taken");
        assert_eq!(failed.kind(), io::ErrorKind::AddrInUse);
        drop(other);
        assert!(TcpStream::connect(old).is_ok());
        server.stop(|| {}).expect("a stop");
    }

    #[test]
    fn socket_stays_while_its_group_changes() {
        let (one, two) = (free([127, 0, 0, 1]), free([127, 0, 0, 2]));
        let server = server(one);
        let before = server.sockets();
        change(&server, &[group(7, &[one]), group(2, &[two])]);
        assert_eq!(at(&server), [(7, one), (2, two)]);
        let after = server.sockets();
        assert!(Arc::ptr_eq(&before[0].1, &after[0].1));
        change(&server, &[group(2, &[two])]);
        drop((before, after));
        assert_eq!(at(&server), [(2, two)]);
        drop(listen(one, &[]).expect("the address is free again"));
        server.stop(|| {}).expect("a stop");
    }

    #[test]
    fn any_port_stays_the_assigned_one() {
        let any: SocketAddr = ([127, 0, 0, 1], 0).into();
        let server = server(any);
        let assigned = at(&server)[0].1;
        change(&server, &[group(1, &[any, any])]);
        let now = at(&server);
        assert!(now[0].1 == assigned && now[1].1 != assigned && now[1].1.port() != 0, "{now:?}");
        server.stop(|| {}).expect("a stop");
    }
}
