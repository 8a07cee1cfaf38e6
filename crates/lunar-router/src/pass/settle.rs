//! What a router before this one may have left in sessions for its hosts: it is ended before a logical unit takes commands that
//! may change it. A host may be back in a session with the same ISID, but at another port of the target that is another nexus.

use super::Shared;
use super::line::Line;
use crate::ports::{self, Meets, Old, Ports, Way};
use lunar_initiator::late::{self, OldPort};
use lunar_initiator::{Error, Kind, LateWrites, Session, Url};
use std::cell::Cell;
use std::collections::BTreeMap;
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
    /// A reset has failed.
    has_failed: Cell<bool>,
}

impl Past {
    pub fn new(shared: Arc<Shared>, line: Rc<Line>, lun: u64) -> Rc<Past> {
        let (is_over, is_being_ended) = (Cell::new(false), Cell::new(false));
        let (recorded, since, has_failed) = (Cell::new(0), Cell::new(None), Cell::new(false));
        Rc::new(Past { shared, line, lun, is_over, recorded, is_being_ended, since, has_failed })
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
        lunar_runtime::spawn(async move {
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
            let user = ports::user(session.options());
            let way = Way { unit: &unit, path: &path, user: user.as_deref() };
            if !self.is_over.get() {
                self.settle(ports, way, session).await?;
            }
            ports.uses(way, session).await;
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
        if ports.old(way.unit).await?.is_empty() {
            return Ok(());
        }
        let since = self.since.get().unwrap_or_else(Instant::now);
        self.since.set(Some(since));
        // One at a time ends them: all lines of a host, and all hosts, have the same to do.
        let Some(turn) = ports.turn(way).await else { return Ok(()) };
        let Err(Left { what, is_final }) = self.replace(ports, way, session).await else { return Ok(()) };
        let is_over = since.elapsed() >= options.timeouts.fast_io_fail;
        if !is_over && (!is_final || self.has_failed.get()) {
            return Err(what);
        }
        let why = "a router before this one may have left writes at another portal group";
        if late::reset(session, self.lun, why).await.is_some() {
            turn.has_ended().await;
            return Ok(());
        }
        self.since.set(Some(Instant::now()));
        self.has_failed.set(true);
        Err(what)
    }

    /// Ends what old sessions have left, each at the port that it had.
    async fn replace(&self, ports: &Arc<Ports>, way: Way<'_>, session: &Session) -> Result<(), Left> {
        let (facts, own) = (session.facts(), session.options().initiator.as_str());
        let port = facts.target_port();
        let mut leads = BTreeMap::new();
        for old in ports.old(way.unit).await? {
            let is_own = old.isid == facts.isid && old.initiator.as_deref() == Some(own);
            match ports.meets(&old) {
                _ if is_own && old.is_ended_at(way, port.as_deref()) => {}
                Meets::Successor => {}
                Meets::Login => {
                    return Err(Error::new(Kind::Lost, "another session logs in as an old one").into());
                }
                Meets::Nobody => self.replace_at(&old, &mut leads).await?,
            }
            ports.is_replaced(&old);
        }
        Ok(())
    }

    /// Logs in as an old session at the port that it had. A login at the port of a live session with its ISID would end that
    /// one. So each path is asked first where it leads, by a login as nobody.
    async fn replace_at(&self, old: &Old, leads: &mut BTreeMap<usize, Option<String>>) -> Result<(), Left> {
        let (Some((number, url)), Some(_)) = (self.path_of(old), old.port()) else {
            return Err(Left::at(old));
        };
        let log_in = async |isid| {
            let port = OldPort { initiator: old.initiator.as_deref(), isid };
            late::replace(url, port).await
        };
        let is_asked = leads.contains_key(&number);
        let now = if is_asked { None } else { Some(log_in(lunar_initiator::new_isid()).await?) };
        let leads = leads.entry(number).or_insert_with(|| now.flatten());
        if leads.as_deref() != old.port() || log_in(old.isid).await?.as_deref() != old.port() {
            return Err(Left::at(old));
        }
        Ok(())
    }

    /// The path of an old session, where it is still configured for the same user.
    fn path_of(&self, old: &Old) -> Option<(usize, &Url)> {
        let paths = &self.shared.spec.paths;
        let number = (0..paths.len()).find(|number| self.way(*number).1 == old.path)?;
        let (url, options) = &paths[number];
        old.is_of(ports::user(options).as_deref()).then_some((number, url))
    }
}

/// Why old sessions may still have writes.
struct Left {
    what: Error,
    /// No login ends them: the logical unit has to be reset.
    is_final: bool,
}

impl Left {
    fn at(old: &Old) -> Left {
        let place = old.path.rsplit(' ').next().unwrap_or_default();
        let what = Error::new(Kind::Lost, format!("old sessions at {place} may still have writes"));
        Left { what, is_final: true }
    }
}

impl From<Error> for Left {
    fn from(what: Error) -> Left {
        Left { what, is_final: false }
    }
}
