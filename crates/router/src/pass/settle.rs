//! What a router before this one may have left at other ports of the target, in sessions for the same host: it is ended before
//! a logical unit takes commands that may change it. Their ISID is that of the present session, but at another port that is
//! another nexus.

use super::Shared;
use super::line::Line;
use crate::ports::{Old, Ports, Way};
use initiator::late::{self, OldPort};
use initiator::{Error, Kind, LateWrites, Session, Url};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(500);

/// The past of a logical unit at the end of a line.
pub struct Past {
    shared: Arc<Shared>,
    line: Rc<Line>,
    lun: u64,
    /// Nothing is left of it.
    is_over: Cell<bool>,
    /// The connection whose port is recorded, by its number in the line.
    recorded: Cell<u64>,
    is_being_ended: Cell<bool>,
    /// Since when it keeps commands waiting, or a reset has failed.
    since: Cell<Option<Instant>>,
}

impl Past {
    pub fn new(shared: Arc<Shared>, line: Rc<Line>, lun: u64) -> Rc<Past> {
        let (is_over, is_being_ended) = (Cell::new(false), Cell::new(false));
        let (recorded, since) = (Cell::new(0), Cell::new(None));
        Rc::new(Past { shared, line, lun, is_over, recorded, is_being_ended, since })
    }

    /// How long commands wait for it.
    pub fn hold(&self) -> Duration {
        self.shared.spec.hold
    }

    /// It is over, and commands over this connection may be sent.
    pub fn is_over(&self) -> bool {
        self.is_over.get() && self.recorded.get() == self.line.connection()
    }

    /// Tries to end it over this session, unless somebody does; the line rings after that.
    pub fn end(self: &Rc<Self>, session: &Session) {
        if self.is_being_ended.replace(true) {
            return;
        }
        let (past, session) = (self.clone(), session.clone());
        net::spawn(async move {
            if let Err(e) = past.try_to_end(&session).await {
                tracing::info!("commands of a host wait: {e}");
                compio::time::sleep(PAUSE).await;
            }
            past.is_being_ended.set(false);
            past.line.ring();
        });
    }

    async fn try_to_end(&self, session: &Session) -> Result<(), Error> {
        let connection = self.line.connection();
        if let Some(ports) = &self.shared.spec.ports {
            let (unit, path) = self.way(self.line.path());
            let way = Way { unit: &unit, path: &path };
            if !self.is_over.get() {
                self.settle(ports, way, session).await?;
            }
            ports.uses(way, &session.options().initiator, session.facts().target_port()).await;
        }
        self.is_over.set(true);
        self.recorded.set(connection);
        Ok(())
    }

    /// The names of the logical unit and of a path to it in the record.
    fn way(&self, path: usize) -> (String, String) {
        let spec = &self.shared.spec;
        let (url, _) = &spec.paths[path];
        let target = url.target.as_deref().unwrap_or_default();
        let unit = format!("{}/{} pass {target} {} ", spec.router, spec.upstream, spec.lun);
        let path = format!("{unit}{}", spec.place(url));
        (unit, path)
    }

    async fn settle(&self, ports: &Arc<Ports>, way: Way<'_>, session: &Session) -> Result<(), Error> {
        let options = session.options();
        if options.late_writes == LateWrites::Risk {
            return ports.forget(way).await;
        }
        let since = self.since.get().unwrap_or_else(Instant::now);
        self.since.set(Some(since));
        let Err(e) = self.replace(ports, way, session).await else { return Ok(()) };
        if since.elapsed() < options.timeouts.fast_io_fail {
            return Err(e);
        }
        let Some(turn) = ports.turn(way).await else { return Ok(()) };
        let why = "a router before this one may have left writes at another portal group";
        if late::reset(session, self.lun, why).await.is_some() {
            turn.has_ended().await;
            return Ok(());
        }
        self.since.set(Some(Instant::now()));
        Err(e)
    }

    /// Logs in as this host at each port where a router before this one had sessions.
    async fn replace(&self, ports: &Arc<Ports>, way: Way<'_>, session: &Session) -> Result<(), Error> {
        let port = session.facts().target_port();
        for old in ports.old(way.unit).await? {
            let is_own = old.initiator.as_deref() == Some(&session.options().initiator);
            if is_own && old.is_ended_at(way.path, port.as_deref()) {
                continue;
            }
            let (number, url) = self.url_of(&old);
            let as_it = OldPort { initiator: old.initiator.as_deref(), isid: session.facts().isid };
            let at = late::replace(url, as_it).await?;
            if !old.is_ended_at(&self.way(number).1, at.as_deref()) {
                let what = format!("old sessions at {} may still have writes", self.shared.spec.place(url));
                return Err(Error::new(Kind::Lost, what));
            }
        }
        Ok(())
    }

    /// The path of an old session; the present one where that is not configured any more.
    fn url_of(&self, old: &Old) -> (usize, &Url) {
        let paths = &self.shared.spec.paths;
        let number = (0..paths.len()).find(|number| self.way(*number).1 == old.path);
        let number = number.unwrap_or_else(|| self.line.path());
        (number, &paths[number].0)
    }
}
