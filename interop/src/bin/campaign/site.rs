//! The servers of campaigns: a storage server, and optionally a router in front of it.

use crate::tally::Tally;
use interop::routed::{session, until};
use interop::{Login, Raw, Server, TARGET};
use std::net::SocketAddr;

/// The target of a router.
pub const ROUTED: &str = "iqn.2026-11.org.example:routed";

/// How sessions reach the storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServedBy {
    Direct,
    Block,
    Pass,
}

impl ServedBy {
    pub const ALL: [ServedBy; 3] = [ServedBy::Direct, ServedBy::Block, ServedBy::Pass];
}

/// The start of every configuration. Keepalive is off, so that campaigns need not answer pings.
pub const HEAD: &str =
    "[session]\nnop_interval_s = 0\n[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\"]\n";

/// The table of a LUN with these keys.
pub fn lun(number: u16, keys: &str) -> String {
    format!("[[target.lun]]\nlun = {number}\n{keys}\n")
}

/// The keys of a file backend of 160 MiB, and further keys.
pub fn file(name: &str, keys: &str) -> String {
    format!("backend = \"file\"\npath = \"{name}\"\nsize = \"160MiB\"\nserial = \"{name}\"\n{keys}")
}

/// A storage server, and the router in front of it, if there is one.
pub struct Storage {
    pub storage: Server,
    pub router: Option<Server>,
}

impl Storage {
    /// Starts both; `options` are those of the upstream's URL.
    pub fn start(tally: &Tally, served_by: ServedBy, luns: &str, options: &str) -> Storage {
        let target = format!("[server]\ncores = 2\n{HEAD}[[target]]\nname = \"{TARGET}\"\n{luns}");
        let storage = Server::start_in(tally.folder(), &target);
        let mode = match served_by {
            ServedBy::Direct => return Storage { storage, router: None },
            ServedBy::Block => "block",
            ServedBy::Pass => "passthrough",
        };
        let url = format!("iscsi://{}/{TARGET}{options}", storage.portal());
        let router = format!("{HEAD}{}", router(mode, &[url], ""));
        let router = Server::start_in(tally.folder(), &router);
        Storage { storage, router: Some(router) }
    }

    fn front(&self) -> &Server {
        self.router.as_ref().unwrap_or(&self.storage)
    }

    /// The address for logins.
    pub fn portal(&self) -> SocketAddr {
        self.front().portal()
    }

    /// A login of this host.
    pub fn login(&self, host: usize) -> Login {
        let target = if self.router.is_some() { ROUTED } else { TARGET };
        login(host).target(target)
    }

    /// Logs in, and waits until these LUNs are present and ready.
    pub fn session(&self, login: &Login, luns: &[u16]) -> Raw {
        let mut raw = session(login, self.portal(), luns);
        let mut is_ready = |lun: &u16| raw.simple(*lun, &[0; 6]).status == 0;
        until("all LUNs are ready", || luns.iter().all(&mut is_ready).then_some(()));
        raw
    }
}

/// A login of this host: always the same initiator port.
pub fn login(host: usize) -> Login {
    let name = format!("iqn.2026-11.org.example:host-{host}");
    Login::new().initiator(&name).isid([0x80, 0, 0, 0, 0, host as u8])
}

/// The tables of router r, which serves the target at these URLs as [`ROUTED`].
pub fn router(mode: &str, urls: &[String], upstream: &str) -> String {
    let urls = urls.join("\", \"");
    format!(
        "[router.r]\nmode = \"{mode}\"\npath_loss_timeout_s = 60\n[router.r.upstream.a]\nurls = [\"{urls}\"]\n{upstream}\
         [[router.r.target]]\nmap = \"target\"\nname = \"{ROUTED}\"\nupstream = \"a\"\naccess = \"all\"\n"
    )
}
