//! A logical unit elsewhere as a [`Backend`], used from every core.
//!
//! Each core has sessions of its own, over every path, which it opens when it first has something to do there.

use super::health::{Condition, Health, together};
use super::known::Known;
use super::line::Line;
use super::losses::{Losses, ToldUpTo};
use super::queue::Lanes;
use super::told::telling;
use super::{State, Upstream};
use crate::FoundLun;
use crate::Hops;
use crate::pair::{Guard, Inside};
use lunar_block::{Backend, Extent, Facts, Finished, Future, Queue};
use lunar_initiator::multipath::{Multipath, Settings, Times, Way};
use lunar_initiator::{Error, Kind, Lun, Url};
use lunar_runtime::Buf;
use lunar_target::Told;
use lunar_wire::scsi::Sense;
use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Bytes of one read: what has come is sent on while the next is on its way.
const STRIDE: usize = 256 << 10;
/// So often every path is looked at.
const CHECK: Duration = Duration::from_secs(5);

/// A logical unit of an upstream. Operations are of whole blocks: cores do not wait for one another to write parts
/// of one.
pub struct Remote {
    id: u64,
    urls: Vec<Url>,
    settings: Settings,
    known: Arc<Known>,
    desks: Arc<Desks>,
    losses: Losses,
    /// A command that changes the medium was taken.
    written: AtomicBool,
}

/// What each core that uses it has of it.
type Desks = Mutex<Vec<Arc<Desk>>>;

/// What one core has of it.
struct Desk {
    core: String,
    lines: Vec<Arc<Line>>,
    joined: Arc<Multipath>,
    /// There was a path.
    was_up: AtomicBool,
    told: ToldUpTo,
}

thread_local! {
    /// The desks of this core, by remote.
    static HERE: RefCell<HashMap<u64, Weak<Desk>>> = RefCell::default();
}
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// One path of one core, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathFacts {
    /// Where it leads, without secrets.
    pub url: String,
    /// How it is; None while no core uses it.
    pub state: Option<State>,
    /// The core whose path it is, as its thread is called; None while no core uses it.
    pub core: Option<String>,
    /// Operations on it.
    pub in_flight: usize,
    /// Times that its session was made anew.
    pub recoveries: u32,
    /// Why it is not open.
    pub obstacle: Option<String>,
}

impl PathFacts {
    /// Of a path that nobody uses.
    pub fn unused(url: impl Into<String>) -> PathFacts {
        PathFacts { url: url.into(), state: None, core: None, in_flight: 0, recoveries: 0, obstacle: None }
    }
}

fn lock(desks: &Desks) -> MutexGuard<'_, Vec<Arc<Desk>>> {
    desks.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Remote {
    /// A logical unit that was found. Nothing is opened yet, so it may be away; when it is there, it has to be the
    /// one that was found, on every path and in every session.
    ///
    /// # Errors
    /// [`Kind::Invalid`] when it is no block device; [`Kind::Identity`] when it is not the one that the
    /// configuration asks for, or has several paths and no designator to see that they lead to the same.
    pub fn open(upstream: &Upstream, target: &str, lun: u16, found: FoundLun) -> Result<Arc<Remote>, Error> {
        check(upstream, &found).map_err(|e| e.during(format!("LUN {lun} of {target}")))?;
        let mut urls = upstream.ways()?;
        // What has lasted so long on one path is not tried on another: hosts do not wait for it.
        let longest = urls.iter_mut().map(|url| url.timeouts_mut().operation).max();
        let settings = Settings {
            policy: upstream.policy,
            check: CHECK,
            queue: upstream.hold,
            operation: longest.unwrap_or_default(),
        };
        Ok(Arc::new(Remote {
            id: NEXT_ID.fetch_add(1, Relaxed),
            urls,
            settings,
            known: Arc::new(Known::new(upstream, target, lun, found)),
            desks: Arc::default(),
            losses: Losses::default(),
            written: AtomicBool::new(false),
        }))
    }

    /// How it is, over all cores and paths.
    pub fn health(&self) -> Health {
        self.known.pulse.now()
    }

    /// Changes of its health from now on; at most 64 wait.
    pub fn watch(&self) -> flume::Receiver<Health> {
        self.known.pulse.watch()
    }

    /// Told when it was reset, or may have been: a session that was made anew hears of it, too.
    pub fn resets(&self) -> flume::Receiver<()> {
        self.known.resets.1.clone()
    }

    /// It may have been reset while nobody listened here.
    pub fn may_be_reset(&self) {
        self.known.was_reset();
    }

    /// All paths of all cores; those of the configuration while no core uses it.
    pub fn paths(&self) -> Vec<PathFacts> {
        let paths: Vec<PathFacts> = lock(&self.desks).iter().flat_map(|desk| desk.paths()).collect();
        if paths.is_empty() {
            self.urls.iter().map(|url| PathFacts::unused(url.plain())).collect()
        } else {
            paths
        }
    }

    /// Where the time of its commands has gone.
    pub fn hops(&self) -> Hops {
        let all = lock(&self.desks).iter().map(|desk| desk.joined.times()).fold(Times::default(), Times::and);
        Hops { queue: all.queue, upstream: all.service }
    }

    /// It in every session that is open: for what each nexus has to do for itself, such as registering a key.
    pub fn luns(&self) -> Vec<Arc<Lun>> {
        lock(&self.desks).iter().flat_map(|desk| desk.lines.iter().filter_map(|l| l.lun().cloned())).collect()
    }

    /// What lets commands through, in a failover pair.
    pub fn guard(&self) -> Option<&Arc<Guard>> {
        self.known.guard.as_ref()
    }

    /// The ways to it: where, to which target, and the LUN there.
    pub fn ways(&self) -> Vec<(Url, String, u16)> {
        let target = |url: &Url| url.target.clone().unwrap_or_else(|| self.known.target.clone());
        self.urls.iter().map(|url| (url.clone(), target(url), url.lun.unwrap_or(self.known.lun))).collect()
    }

    /// What it has to be, on every way: its designators; none if it has none.
    pub fn identity(&self) -> &[u8] {
        &self.known.found.designators
    }

    /// What it is called, for people.
    pub fn place(&self) -> String {
        let Known { upstream, target, lun, .. } = &*self.known;
        format!("LUN {lun} of {target} (upstream {upstream})")
    }

    /// The paths of this core, for a command that is let through.
    async fn enter(&self) -> io::Result<(Option<Inside>, Arc<Desk>)> {
        Ok((self.enter_guard()?, self.desk().await?))
    }

    /// Lets a command through in a failover pair, for as long as what this gives lives.
    pub(super) fn enter_guard(&self) -> io::Result<Option<Inside>> {
        let standby = || io::Error::from(Told::from(Sense::NOT_READY_STANDBY));
        self.guard().map(|guard| guard.enter().ok_or_else(standby)).transpose()
    }

    /// A command that changes the medium is about to go there.
    pub(super) fn writes(&self) {
        if !self.written.load(Relaxed) {
            self.written.store(true, Relaxed);
        }
    }

    /// Flushes, and tells what is lost: a session of another core may have heard of it.
    async fn flush_on(&self, desk: &Desk) -> io::Result<()> {
        let flushed = desk.joined.flush().await;
        flushed.inspect_err(|e| self.losses.add_failed(e, &desk.told))?;
        let desks = lock(&self.desks);
        let heard = desks.iter().flat_map(|desk| &desk.lines).filter_map(|line| line.take_loss());
        heard.for_each(|loss| self.losses.add(loss));
        self.losses.untold(&desk.told).map_or(Ok(()), |e| Err(e.into()))
    }

    /// The same error, carrying what a host is told of it. In a failover pair a conflict is not the host's: the other
    /// router has taken over.
    pub(super) fn telling(&self, e: io::Error) -> io::Error {
        let is_conflict = |e: &Error| e.kind == Kind::Reserved;
        let conflict = Error::of(&e).is_some_and(is_conflict);
        match self.guard() {
            Some(guard) if conflict => {
                guard.shut();
                Told::from(Sense::NOT_READY_TRANSITION).into()
            }
            _ => telling(e),
        }
    }

    fn here(&self) -> Option<Arc<Desk>> {
        HERE.with_borrow(|here| here.get(&self.id)?.upgrade())
    }

    /// The paths of this core.
    async fn desk(&self) -> io::Result<Arc<Desk>> {
        match self.here() {
            Some(desk) => Ok(desk),
            // Boxed, so that what is there already carries none of it about.
            None => Box::pin(self.settle()).await.map_err(|e| telling(e.into())),
        }
    }

    async fn settle(&self) -> Result<Arc<Desk>, Error> {
        let begin = |url: &Url| Line::begin(self.known.clone(), url.clone());
        let lines: Vec<Arc<Line>> = self.urls.iter().map(begin).collect();
        let ways = lines.iter().map(|line| line.clone() as Arc<dyn Way>).collect();
        let joined = Multipath::join(ways, self.settings).await?;
        // Another operation may have been first, had it waited.
        if let Some(desk) = self.here() {
            return Ok(desk);
        }
        let core = std::thread::current().name().unwrap_or("a thread").to_owned();
        let desk = Arc::new(Desk {
            core,
            lines,
            joined,
            was_up: AtomicBool::new(false),
            told: self.losses.since_now(),
        });
        HERE.with_borrow_mut(|here| {
            here.retain(|_, desk| desk.strong_count() > 0);
            here.insert(self.id, Arc::downgrade(&desk));
        });
        lock(&self.desks).push(desk.clone());
        let watched = (Arc::downgrade(&desk), Arc::downgrade(&self.desks), self.known.clone());
        lunar_runtime::spawn(attend(watched.0, watched.1, watched.2));
        Ok(desk)
    }
}

fn check(upstream: &Upstream, found: &FoundLun) -> Result<(), Error> {
    if found.block_size == 0 {
        let what = format!("it has no blocks (device type {:02x}h)", found.kind);
        return Err(Error::new(Kind::Invalid, what).with_hint("route it with mode = \"passthrough\""));
    }
    if upstream.urls.len() > 1 && found.designators.is_empty() {
        let what = "without VPD page 83h it cannot be seen that its paths lead to the same logical unit";
        return Err(Error::new(Kind::Identity, what).with_hint("leave one URL"));
    }
    let wanted = upstream.identity.as_deref();
    if let Some(wanted) = wanted.filter(|wanted| !lunar_initiator::is_named(&found.designators, wanted)) {
        let is = lunar_initiator::name_of(&found.designators).unwrap_or_else(|| "without designators".into());
        return Err(Error::new(
            Kind::Identity,
            format!("it is {is}, and the configuration asks for {wanted}"),
        ));
    }
    Ok(())
}

impl Desk {
    fn paths(&self) -> impl Iterator<Item = PathFacts> {
        self.lines.iter().zip(self.joined.paths()).map(|(line, (url, state, in_flight))| PathFacts {
            url,
            state: Some(state),
            core: Some(self.core.clone()),
            in_flight,
            recoveries: line.lun().map_or(0, |lun| lun.session().facts().recoveries),
            obstacle: line.obstacle().map(|e| e.what.clone()),
        })
    }

    fn condition(&self) -> Condition {
        let outage = self.joined.outage();
        if outage.is_none() {
            self.was_up.store(true, Relaxed);
        }
        Condition { outage, is_changed: self.joined.is_changed(), was_up: self.was_up.load(Relaxed) }
    }
}

/// Tells of the health whenever paths of a core change, and when an outage has lasted too long.
async fn attend(desk: Weak<Desk>, desks: Weak<Desks>, known: Arc<Known>) {
    loop {
        let (turn, left) = {
            let (Some(desk), Some(desks)) = (desk.upgrade(), desks.upgrade()) else { return };
            let turn = desk.joined.turn();
            beat(&desks, &known);
            let gone = desk.joined.outage().map(|since| since.elapsed());
            (turn, gone.filter(|gone| *gone < known.hold).map(|gone| known.hold - gone))
        };
        match left {
            // Either is a reason to look.
            Some(left) => _ = compio::time::timeout(left, turn).await,
            None => turn.await,
        }
    }
}

fn beat(desks: &Desks, known: &Known) {
    let look = || {
        let all: Vec<Condition> = lock(desks).iter().map(|desk| desk.condition()).collect();
        together(&all, known.hold, Instant::now())
    };
    let Some(health) = known.pulse.beat(look) else { return };
    let Known { router, upstream, target, lun, .. } = known;
    match health {
        Health::Up => tracing::info!(router, upstream, target, lun, "the upstream LUN is back"),
        Health::Holding(_) => tracing::warn!(router, upstream, target, lun, "no path is left: commands wait"),
        Health::Lost(_) => tracing::error!(router, upstream, target, lun, "no path came back: commands fail"),
        Health::Changed => {
            tracing::error!(router, upstream, target, lun, "every path leads elsewhere: commands fail");
        }
    }
}

impl Backend for Remote {
    fn facts(&self) -> Facts {
        self.known.facts()
    }

    fn refresh(&self) -> bool {
        let desks = lock(&self.desks);
        let lines = desks.iter().flat_map(|desk| &desk.lines);
        lines
            .filter_map(|line| line.learned())
            .fold(false, |changed, facts| self.known.learn(facts) | changed)
    }

    fn read(&self, offset: u64, buf: Buf) -> Future<'_, Finished> {
        Box::pin(async move {
            let (_inside, desk) = match self.enter().await {
                Ok(entered) => entered,
                Err(e) => return (Err(e), buf),
            };
            let (result, buf) = desk.joined.read(offset, buf).await;
            (result.map_err(|e| self.telling(e)), buf)
        })
    }

    fn write(&self, offset: u64, buf: Buf, stable: bool) -> Future<'_, Finished> {
        Box::pin(async move {
            let (_inside, desk) = match self.enter().await {
                Ok(entered) => entered,
                Err(e) => return (Err(e), buf),
            };
            self.writes();
            let (result, buf) = desk.joined.write(offset, buf, stable).await;
            (result.map_err(|e| self.telling(e)), buf)
        })
    }

    fn queue(self: Arc<Self>) -> Option<Box<dyn Queue>> {
        let queue = self.here()?.joined.clone().queue()?;
        Some(Box::new(Lanes::new(self, queue)))
    }

    fn flush(&self) -> Future<'_, io::Result<()>> {
        Box::pin(async move {
            if self.guard().is_some_and(|guard| !guard.is_open() && !guard.owes()) {
                return Ok(());
            }
            let (_inside, desk) = self.enter().await?;
            self.flush_on(&desk).await.map_err(|e| self.telling(e))
        })
    }

    fn is_unwritten(&self) -> bool {
        !self.written.load(Relaxed)
    }

    fn unmap(&self, offset: u64, len: u64) -> Future<'_, io::Result<()>> {
        Box::pin(async move {
            let (_inside, desk) = self.enter().await?;
            self.writes();
            desk.joined.unmap(offset, len).await.map_err(|e| self.telling(e))
        })
    }

    fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> Future<'_, io::Result<()>> {
        Box::pin(async move {
            let (_inside, desk) = self.enter().await?;
            self.writes();
            desk.joined.write_zeroes(offset, len, unmap).await.map_err(|e| self.telling(e))
        })
    }

    fn extent(&self, offset: u64, len: u64) -> Future<'_, io::Result<Extent>> {
        Box::pin(async move {
            let (_inside, desk) = self.enter().await?;
            desk.joined.extent(offset, len).await.map_err(|e| self.telling(e))
        })
    }

    fn extents(&self, offset: u64, len: u64, most: usize) -> Future<'_, io::Result<Vec<Extent>>> {
        Box::pin(async move {
            let (_inside, desk) = self.enter().await?;
            desk.joined.extents(offset, len, most).await.map_err(|e| self.telling(e))
        })
    }

    fn stride(&self) -> Option<usize> {
        Some(STRIDE)
    }

    fn describe(&self) -> Vec<(String, String)> {
        let told = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        vec![
            told("kind", "routed"),
            told("router", &self.known.router),
            told("upstream", &self.known.upstream),
            told("target", &self.known.target),
            told("lun", &self.known.lun.to_string()),
        ]
    }
}
