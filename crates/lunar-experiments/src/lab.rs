//! What an experiment needs: how long, against whom, and where its results go.

use crate::Args;
use crate::carrier::Carrier;
use crate::media::{Disk, Folder};
use crate::mounted::Mounted;
use crate::peers::{Server, Who};
use crate::relay::{Line, Link};
use lunar_bench::device::{self, Before, like_a_block_device};
use lunar_bench::document::{Run, Table};
use lunar_bench::job::Job;
use lunar_bench::outcome::Outcome;
use lunar_bench::plain::args::told;
use lunar_bench::{Document, Error, Kind, OpenTargets, Opening, Target, Watch};
use lunar_bench_compat::Stage;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// How often a run that was too short for a single command gets more time.
const LONGER: usize = 3;

/// Targets that are open, and whether they may be written.
pub struct Open {
    /// The targets.
    pub rig: OpenTargets,
    may_write: bool,
}

/// An experiment while it runs.
pub struct Lab<'a> {
    /// What becomes of it.
    pub document: Document,
    /// Lines that a tool of the seed would have printed.
    pub lines: Vec<String>,
    /// Where files of its own are.
    pub work: Folder,
    args: &'a Args,
    watch: &'a Watch,
    lunar: PathBuf,
    carrier: Carrier,
    against: Vec<Who>,
}

impl<'a> Lab<'a> {
    /// Prepares a seed.
    ///
    /// # Errors
    /// When an opponent is not understood, or no folder for files can be made.
    pub fn new(args: &'a Args, watch: &'a Watch, title: &str) -> Result<Lab<'a>, Error> {
        let lunar = match &args.lunar {
            Some(path) => path.clone(),
            None => std::env::current_exe()
                .map_err(|e| Error::new(Kind::System, format!("where is lunar? {e}"), "is /proc mounted?"))?,
        };
        let dir = args.dir.clone().unwrap_or_else(std::env::temp_dir);
        let mut document = Document::new(title);
        document.seed = Some(args.seed.name().to_owned());
        let mut lab = Lab {
            document,
            lines: Vec::new(),
            work: Folder::below(&dir)?,
            args,
            watch,
            lunar,
            carrier: Carrier::of(args.transport, args.provider)?,
            against: Vec::new(),
        };
        lab.against = lab.opponents()?;
        Ok(lab)
    }

    /// Lunar, then those that were asked for, or else those that are installed.
    fn opponents(&mut self) -> Result<Vec<Who>, Error> {
        let asked = &self.args.against;
        let others = if self.carrier.is_tcp() { &["stgt", "istgt"][..] } else { &[] };
        let named =
            if asked.is_empty() { others.iter().map(|o| (*o).into()).collect() } else { asked.clone() };
        let mut all = vec![Who::Lunar];
        for name in named.iter().filter(|name| *name != "none") {
            let who = match name.as_str() {
                "stgt" | "istgt" if !self.carrier.is_tcp() => {
                    let what = format!("--against {name}: it is started for tcp alone");
                    return Err(Error::new(
                        Kind::Invalid,
                        what,
                        "leave --transport out, or give the URL of one that runs",
                    ));
                }
                "stgt" => Who::Stgt,
                "istgt" => Who::Istgt,
                url if lunar_initiator::without_scheme(url).is_some() => Who::Running(Target::parse(url)?),
                other => {
                    let what = format!("--against {other}: nobody is called so");
                    return Err(Error::new(
                        Kind::Invalid,
                        what,
                        "it takes stgt, istgt, none, or a URL iscsi://...",
                    ));
                }
            };
            match who.missing() {
                Some(what) => self.note(what),
                None => {
                    let version = who.version().map(|version| format!("{} is {version}", who.name()));
                    version.into_iter().for_each(|version| self.note(version));
                    all.push(who);
                }
            }
        }
        Ok(all)
    }

    /// Who is measured.
    pub fn all(&self) -> Vec<Who> {
        self.against.clone()
    }

    /// What carries commands and data.
    pub fn carrier(&self) -> &Carrier {
        &self.carrier
    }

    /// A link of this kind to each portal of a server. Where there cannot be one, a note says why.
    pub fn links(&mut self, server: &Server, line: Line) -> Option<Vec<Link>> {
        if !self.carrier.is_relayed() {
            self.note(
                "lines of their own are TCP, which a relay carries on: over an RDMA device they are left out",
            );
            return None;
        }
        let links: std::io::Result<Vec<Link>> =
            server.portals().iter().map(|portal| self.link(*portal, line)).collect();
        links.map_err(|e| self.note(format!("a line of its own: {e}"))).ok()
    }

    /// A line that is long is one of the kernel's, where that can be had.
    fn link(&mut self, portal: SocketAddr, line: Line) -> std::io::Result<Link> {
        if line.delay.is_zero() {
            return Link::start(portal, line);
        }
        Link::far(portal, line).or_else(|e| {
            self.note(format!("the far line is made in this process; the kernel has none: {e}"));
            Link::start(portal, line)
        })
    }

    /// What a reader must know, once.
    pub fn note(&mut self, text: impl Into<String>) {
        let text = text.into();
        if !self.document.notes.contains(&text) {
            self.document.notes.push(text);
        }
    }

    /// A table that is finished.
    pub fn table(&mut self, table: Table) {
        self.document.tables.push(table);
    }

    /// Whether it moves as much as the original did.
    pub fn is_full(&self) -> bool {
        !self.args.quick && self.args.brief.is_none()
    }

    /// The longest that a run may take, where it is not a full one.
    pub fn cap(&self, quick_ms: u64) -> Option<Duration> {
        let ms = self.args.brief.unwrap_or(quick_ms).min(quick_ms);
        (!self.is_full()).then(|| Duration::from_millis(ms))
    }

    /// An amount: the original's, or another where it is not a full run.
    pub fn scaled(&self, full: u64, quick: u64) -> u64 {
        match (self.is_full(), self.args.brief) {
            (true, _) => full,
            (_, Some(_)) => (quick / 16).min(full),
            _ => quick.min(full),
        }
    }

    /// Somebody asked for the end.
    pub fn is_ended(&self) -> bool {
        self.watch.is_ended()
    }

    /// Starts a target with disks. Where that fails, a note says why.
    pub fn serve(&mut self, who: &Who, disks: &[Disk], portals: usize) -> Option<Server> {
        if self.is_ended() {
            return None;
        }
        self.watch.says(format!("{} starts", who.name()));
        let started = Folder::below(&std::env::temp_dir())
            .map_err(|e| e.to_string())
            .and_then(|dir| Server::start(who, &self.lunar, disks, (portals, &self.carrier), dir));
        started.map_err(|why| self.note(format!("{} does not run: {why}", who.name()))).ok()
    }

    /// Starts Lunar's router before a server. Where that fails, a note says why.
    pub fn route(&mut self, upstream: &Server) -> Option<Server> {
        if self.is_ended() {
            return None;
        }
        self.watch.says("a router starts");
        let started = Folder::below(&std::env::temp_dir())
            .map_err(|e| e.to_string())
            .and_then(|dir| Server::start_router(&self.lunar, upstream, &self.carrier, dir));
        started.map_err(|why| self.note(format!("the router does not run: {why}"))).ok()
    }

    /// Puts a file system on a logical unit of a server that was started here.
    ///
    /// # Errors
    /// Why that cannot be, for people.
    pub fn mount(&mut self, target: &Target, server: &Server) -> Result<Mounted, String> {
        if server.pid().is_none() {
            return Err("it would destroy what a running target holds".into());
        }
        self.watch.says(format!("a file system on {target}"));
        let dir = Folder::below(&std::env::temp_dir()).map_err(|e| e.what)?;
        Mounted::on(&self.lunar, target, dir)
    }

    /// Whether what a server's disks hold may be overwritten: that of our own may.
    pub fn may_destroy(&self, server: Option<&Server>) -> bool {
        self.args.destroy || server.is_none_or(|server| server.pid().is_some())
    }

    /// Opens targets. Data of our own disks may be overwritten, that of others only with --destroy: without,
    /// they are only read. Where it fails, a note says why.
    pub fn open(&mut self, targets: &[Target], sessions: usize, server: Option<&Server>) -> Option<Open> {
        if self.is_ended() {
            return None;
        }
        let mut opening = Opening {
            sessions,
            write: true,
            destroy: self.may_destroy(server),
            target_pid: server.and_then(Server::pid),
            ..Opening::default()
        };
        let mut opened = OpenTargets::open(targets, &opening);
        if let Err(e) = &opened
            && e.kind == Kind::HoldsData
        {
            self.note(format!("{}; it is only read ({})", e.what, e.hint));
            opening.write = false;
            opened = OpenTargets::open(targets, &opening);
        }
        let names = || targets.iter().map(Target::to_string).collect::<Vec<_>>().join(", ");
        let rig = opened.map_err(|e| self.note(format!("{}: {}", names(), e.what))).ok()?;
        Some(Open { rig, may_write: opening.write })
    }

    /// The same, with what a kernel has before a block device of a target: its page cache or, for direct
    /// access, the cutting of large requests.
    pub fn open_device(
        &mut self,
        targets: &[Target],
        sessions: usize,
        server: Option<&Server>,
        direct: bool,
    ) -> Option<Open> {
        let mut open = self.open(targets, sessions, server)?;
        let before = if direct { Before::CuttingZeros } else { Before::PageCache };
        if like_a_block_device(&mut open.rig, targets.first()?, before) && !direct {
            self.note(format!(
                "the page cache of an initiator is {} commands of {} KiB in flight, ahead of a reader and behind a \
                 writer, whatever the block size",
                device::FLIGHT,
                device::PIECE >> 10
            ));
        }
        Some(open)
    }

    /// Lets the face of a tool run on a target, without a word; what it measured last.
    pub fn face(
        &mut self,
        label: &str,
        run: impl FnOnce(Stage<'_>) -> Result<Document, Error>,
    ) -> Option<Outcome> {
        if self.is_ended() {
            return None;
        }
        self.watch.says(label);
        let document = run(Stage { watch: self.watch, out: &mut std::io::sink() });
        let document = document.map_err(|e| self.note(format!("{label}: {}", e.what))).ok()?;
        let run = document.runs.into_iter().next_back()?;
        let outcome = run.outcome.clone();
        self.document.runs.push(Run { label: label.into(), ..run });
        self.counts(label, outcome)
    }

    /// Runs a job and keeps what came of it. None if nothing that counts came of it.
    pub fn measure(&mut self, label: &str, open: &Open, job: &Job) -> Option<Outcome> {
        if self.is_ended() || (job.way.writes() && !open.may_write) {
            return None;
        }
        self.watch.says(label);
        let mut job = job.clone();
        let mut ran = open.rig.run(&job, self.watch);
        for _ in 0..LONGER {
            match job.time {
                Some(time) if is_too_short(&ran) => job.time = Some(time * 4),
                _ => break,
            }
            ran = open.rig.run(&job, self.watch);
        }
        self.keep(label, &open.rig, &job, ran)
    }

    /// Runs two jobs at once, each on targets of its own.
    pub fn measure_both(
        &mut self,
        label: &str,
        one: (&Open, &Job),
        two: (&Open, &Job),
    ) -> [Option<Outcome>; 2] {
        if self.is_ended() || [one, two].iter().any(|(open, job)| job.way.writes() && !open.may_write) {
            return [None, None];
        }
        self.watch.says(label);
        let (mut job_one, mut job_two) = (one.1.clone(), two.1.clone());
        let mut ran = at_once(self.watch, (&one.0.rig, &job_one), (&two.0.rig, &job_two));
        for _ in 0..LONGER {
            match (job_one.time, job_two.time) {
                (Some(first), Some(second)) if ran.iter().any(is_too_short) => {
                    (job_one.time, job_two.time) = (Some(first * 4), Some(second * 4));
                }
                _ => break,
            }
            ran = at_once(self.watch, (&one.0.rig, &job_one), (&two.0.rig, &job_two));
        }
        let [first, second] = ran;
        [self.keep(label, &one.0.rig, &job_one, first), self.keep(label, &two.0.rig, &job_two, second)]
    }

    fn keep(
        &mut self,
        label: &str,
        rig: &OpenTargets,
        job: &Job,
        ran: Result<Outcome, Error>,
    ) -> Option<Outcome> {
        let outcome = ran.map_err(|e| self.note(format!("{label}: {}", e.what))).ok()?;
        self.document.runs.push(Run {
            label: label.into(),
            job: told(job, rig.sessions()),
            targets: rig.facts(),
            outcome: outcome.clone(),
        });
        self.counts(label, outcome)
    }

    /// What ended early is no figure beside a published one.
    fn counts(&mut self, label: &str, outcome: Outcome) -> Option<Outcome> {
        if let Some(why) = &outcome.ended_early {
            self.note(format!("{label} ended early: {why}"));
        }
        let counts = outcome.ended_early.is_none() && !self.is_ended() && outcome.ios() > 0;
        counts.then_some(outcome)
    }
}

/// Not even one command ended in its time.
fn is_too_short(ran: &Result<Outcome, Error>) -> bool {
    ran.as_ref().is_ok_and(|outcome| outcome.ios() == 0 && outcome.ended_early.is_none())
}

/// Two jobs at the same time.
fn at_once(
    watch: &Watch,
    one: (&OpenTargets, &Job),
    two: (&OpenTargets, &Job),
) -> [Result<Outcome, Error>; 2] {
    std::thread::scope(|scope| {
        let other = scope.spawn(|| two.0.run(two.1, watch));
        let first = one.0.run(one.1, watch);
        let died = || Err(Error::new(Kind::System, "a thread died", "this is a fault of Lunar: report it"));
        [first, other.join().unwrap_or_else(|_| died())]
    })
}
