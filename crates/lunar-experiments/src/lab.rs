//! The environment of an experiment: durations, peers and results.

use crate::Args;
use crate::media::{ServedDisk, WorkDir};
use crate::mounted::MountedFs;
use crate::peers::{Peer, PeerServer};
use crate::relay::{LinkProfile, RelayLink};
use crate::transport::FabricTransport;
use lunar_bench::device::{self, CacheModel, emulate_block_layer};
use lunar_bench::document::{JobRun, ResultTable};
use lunar_bench::job::Job;
use lunar_bench::outcome::JobOutcome;
use lunar_bench::plain::args::job_words;
use lunar_bench::{Document, Error, ErrorKind, OpenTargets, RunHandle, TargetOptions, TargetSpec};
use lunar_bench_compat::RunContext;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// How many times a run that was too short for one command is repeated with more time.
const LONGER: usize = 3;

/// Open targets, and whether they may be overwritten.
pub struct LabTargets {
    /// The targets.
    pub opened: OpenTargets,
    may_write: bool,
}

/// A running experiment.
pub struct Lab<'a> {
    /// Its results.
    pub document: Document,
    /// Lines in the format of the tools of the publication.
    pub lines: Vec<String>,
    /// The folder of its files.
    pub work: WorkDir,
    args: &'a Args,
    handle: &'a RunHandle,
    lunar: PathBuf,
    transport: FabricTransport,
    against: Vec<Peer>,
}

impl<'a> Lab<'a> {
    /// Prepares an experiment.
    ///
    /// # Errors
    /// If a peer is unknown, or no folder can be created.
    pub fn new(args: &'a Args, handle: &'a RunHandle, title: &str) -> Result<Lab<'a>, Error> {
        let lunar = match &args.lunar {
            Some(path) => path.clone(),
            None => std::env::current_exe().map_err(|e| {
                Error::new(
                    ErrorKind::System,
                    format!("cannot find the path of this program: {e}"),
                    "mount /proc, or name the program with --lunar",
                )
            })?,
        };
        let dir = args.dir.clone().unwrap_or_else(std::env::temp_dir);
        let mut document = Document::new(title);
        document.seed = Some(args.seed.name().to_owned());
        let mut lab = Lab {
            document,
            lines: Vec::new(),
            work: WorkDir::below(&dir)?,
            args,
            handle,
            lunar,
            transport: FabricTransport::of(args.transport, args.provider)?,
            against: Vec::new(),
        };
        lab.against = lab.opponents()?;
        Ok(lab)
    }

    /// Lunar, and the requested peers, or those that are installed.
    fn opponents(&mut self) -> Result<Vec<Peer>, Error> {
        let requested = &self.args.against;
        let others = if self.transport.is_tcp() { &["stgt", "istgt"][..] } else { &[] };
        let named = if requested.is_empty() {
            others.iter().map(|o| (*o).into()).collect()
        } else {
            requested.clone()
        };
        let mut all = vec![Peer::Lunar];
        for name in named.iter().filter(|name| *name != "none") {
            let peer = match name.as_str() {
                "stgt" | "istgt" if !self.transport.is_tcp() => {
                    let what = format!("--against {name}: supports only --transport tcp");
                    return Err(Error::new(
                        ErrorKind::Invalid,
                        what,
                        "omit --transport, or use the URL of a running target",
                    ));
                }
                "stgt" => Peer::Stgt,
                "istgt" => Peer::Istgt,
                url if lunar_initiator::without_scheme(url).is_some() => {
                    Peer::Running(TargetSpec::parse(url)?)
                }
                other => {
                    let what = format!("--against {other}: unknown target");
                    return Err(Error::new(
                        ErrorKind::Invalid,
                        what,
                        "use stgt, istgt, none, or a URL iscsi://...",
                    ));
                }
            };
            match peer.missing() {
                Some(what) => self.note(what),
                None => {
                    let version = peer.version().map(|version| format!("{} is {version}", peer.name()));
                    version.into_iter().for_each(|version| self.note(version));
                    all.push(peer);
                }
            }
        }
        Ok(all)
    }

    /// The peers to measure.
    pub fn all(&self) -> Vec<Peer> {
        self.against.clone()
    }

    /// The transport.
    pub fn transport(&self) -> &FabricTransport {
        &self.transport
    }

    /// A relay to each portal of a server. If that fails, a note has the reason.
    pub fn links(&mut self, server: &PeerServer, line: LinkProfile) -> Option<Vec<RelayLink>> {
        if !self.transport.is_relayed() {
            self.note("network emulation is skipped: it needs TCP, and the transport is an RDMA device");
            return None;
        }
        let links: std::io::Result<Vec<RelayLink>> =
            server.portals().iter().map(|portal| self.link(*portal, line)).collect();
        links.map_err(|e| self.note(format!("network emulation failed: {e}"))).ok()
    }

    /// A slow line uses the kernel's network emulation, if it is available.
    fn link(&mut self, portal: SocketAddr, line: LinkProfile) -> std::io::Result<RelayLink> {
        if line.delay.is_zero() {
            return RelayLink::start(portal, line);
        }
        RelayLink::far(portal, line).or_else(|e| {
            self.note(format!(
                "a relay in this process emulates the remote line, because network emulation by the kernel failed: {e}"
            ));
            RelayLink::start(portal, line)
        })
    }

    /// Adds a note, once.
    pub fn note(&mut self, text: impl Into<String>) {
        let text = text.into();
        if !self.document.notes.contains(&text) {
            self.document.notes.push(text);
        }
    }

    /// Adds a finished table.
    pub fn table(&mut self, table: ResultTable) {
        self.document.tables.push(table);
    }

    /// Whether it transfers as much data as the original.
    pub fn is_full(&self) -> bool {
        !self.args.quick && self.args.brief.is_none()
    }

    /// The time limit of a run, unless the experiment is a full one.
    pub fn cap(&self, quick_ms: u64) -> Option<Duration> {
        let ms = self.args.brief.unwrap_or(quick_ms).min(quick_ms);
        (!self.is_full()).then(|| Duration::from_millis(ms))
    }

    /// An amount: that of the original, or a smaller one.
    pub fn scaled(&self, full: u64, quick: u64) -> u64 {
        match (self.is_full(), self.args.brief) {
            (true, _) => full,
            (_, Some(_)) => (quick / 16).min(full),
            _ => quick.min(full),
        }
    }

    /// Whether the user ended the experiment.
    pub fn is_ended(&self) -> bool {
        self.handle.is_ended()
    }

    /// Starts a target with disks. If that fails, a note has the reason.
    pub fn serve(&mut self, peer: &Peer, disks: &[ServedDisk], portals: usize) -> Option<PeerServer> {
        if self.is_ended() {
            return None;
        }
        self.handle.set_activity(format!("{} starts", peer.name()));
        let started = WorkDir::below(&std::env::temp_dir())
            .map_err(|e| e.to_string())
            .and_then(|dir| PeerServer::start(peer, &self.lunar, disks, (portals, &self.transport), dir));
        started.map_err(|why| self.note(format!("{} failed to start: {why}", peer.name()))).ok()
    }

    /// Starts Lunar's router in front of a server. If that fails, a note has the reason.
    pub fn route(&mut self, upstream: &PeerServer) -> Option<PeerServer> {
        if self.is_ended() {
            return None;
        }
        self.handle.set_activity("starting a router");
        let started = WorkDir::below(&std::env::temp_dir())
            .map_err(|e| e.to_string())
            .and_then(|dir| PeerServer::start_router(&self.lunar, upstream, &self.transport, dir));
        started.map_err(|why| self.note(format!("the router failed to start: {why}"))).ok()
    }

    /// Creates and mounts a file system on a logical unit of a server that was started here.
    ///
    /// # Errors
    /// The reason, as text.
    pub fn mount(&mut self, target: &TargetSpec, server: &PeerServer) -> Result<MountedFs, String> {
        if server.pid().is_none() {
            return Err(
                "the target was not started by this program; a new file system would overwrite its data"
                    .into(),
            );
        }
        self.handle.set_activity(format!("a file system on {target}"));
        let dir = WorkDir::below(&std::env::temp_dir()).map_err(|e| e.what)?;
        MountedFs::attach(&self.lunar, target, dir)
    }

    /// Whether data on a server's disks may be overwritten; always true for our own.
    pub fn may_destroy(&self, server: Option<&PeerServer>) -> bool {
        self.args.destroy || server.is_none_or(|server| server.pid().is_some())
    }

    /// Opens targets. Our own disks may be overwritten. Disks of others are read-only without --destroy. If
    /// that fails, a note has the reason.
    pub fn open(
        &mut self,
        targets: &[TargetSpec],
        sessions: usize,
        server: Option<&PeerServer>,
    ) -> Option<LabTargets> {
        if self.is_ended() {
            return None;
        }
        let mut opening = TargetOptions {
            sessions,
            write: true,
            destroy: self.may_destroy(server),
            target_pid: server.and_then(PeerServer::pid),
            ..TargetOptions::default()
        };
        let mut opened = OpenTargets::open(targets, &opening);
        if let Err(e) = &opened
            && e.kind == ErrorKind::HoldsData
        {
            self.note(format!("{}; the target is used read-only ({})", e.what, e.hint));
            opening.write = false;
            opened = OpenTargets::open(targets, &opening);
        }
        let names = || targets.iter().map(TargetSpec::to_string).collect::<Vec<_>>().join(", ");
        let opened = opened.map_err(|e| self.note(format!("{}: {}", names(), e.what))).ok()?;
        Some(LabTargets { opened, may_write: opening.write })
    }

    /// Like [`Lab::open`], and emulates the block layer of the kernel: the page cache, or the splitting of
    /// requests for direct access.
    pub fn open_device(
        &mut self,
        targets: &[TargetSpec],
        sessions: usize,
        server: Option<&PeerServer>,
        direct: bool,
    ) -> Option<LabTargets> {
        let mut open = self.open(targets, sessions, server)?;
        let before = if direct { CacheModel::RequestSplittingWithoutData } else { CacheModel::PageCache };
        if emulate_block_layer(&mut open.opened, targets.first()?, before) && !direct {
            self.note(format!(
                "the page cache of an initiator is emulated by {} commands of {} KiB in flight, as read-ahead and \
                 write-behind, for any block size",
                device::MAX_IN_FLIGHT,
                device::PIECE >> 10
            ));
        }
        Some(open)
    }

    /// Runs an emulated tool on a target without output; returns its last result.
    pub fn face(
        &mut self,
        label: &str,
        run: impl FnOnce(RunContext<'_>) -> Result<Document, Error>,
    ) -> Option<JobOutcome> {
        if self.is_ended() {
            return None;
        }
        self.handle.set_activity(label);
        let document = run(RunContext { handle: self.handle, out: &mut std::io::sink() });
        let document = document.map_err(|e| self.note(format!("{label}: {}", e.what))).ok()?;
        let run = document.runs.into_iter().next_back()?;
        let outcome = run.outcome.clone();
        self.document.runs.push(JobRun { label: label.into(), ..run });
        self.counts(label, outcome)
    }

    /// Runs a job and keeps its result. None if there is no valid one.
    pub fn measure(&mut self, label: &str, open: &LabTargets, job: &Job) -> Option<JobOutcome> {
        if self.is_ended() || (job.direction.writes() && !open.may_write) {
            return None;
        }
        self.handle.set_activity(label);
        let mut job = job.clone();
        let mut ran = open.opened.run(&job, self.handle);
        for _ in 0..LONGER {
            match job.time {
                Some(time) if is_too_short(&ran) => job.time = Some(time * 4),
                _ => break,
            }
            ran = open.opened.run(&job, self.handle);
        }
        self.keep(label, &open.opened, &job, ran)
    }

    /// Runs two jobs at once, each on its own targets.
    pub fn measure_both(
        &mut self,
        label: &str,
        one: (&LabTargets, &Job),
        two: (&LabTargets, &Job),
    ) -> [Option<JobOutcome>; 2] {
        if self.is_ended() || [one, two].iter().any(|(open, job)| job.direction.writes() && !open.may_write) {
            return [None, None];
        }
        self.handle.set_activity(label);
        let (mut job_one, mut job_two) = (one.1.clone(), two.1.clone());
        let mut ran = at_once(self.handle, (&one.0.opened, &job_one), (&two.0.opened, &job_two));
        for _ in 0..LONGER {
            match (job_one.time, job_two.time) {
                (Some(first), Some(second)) if ran.iter().any(is_too_short) => {
                    (job_one.time, job_two.time) = (Some(first * 4), Some(second * 4));
                }
                _ => break,
            }
            ran = at_once(self.handle, (&one.0.opened, &job_one), (&two.0.opened, &job_two));
        }
        let [first, second] = ran;
        [self.keep(label, &one.0.opened, &job_one, first), self.keep(label, &two.0.opened, &job_two, second)]
    }

    fn keep(
        &mut self,
        label: &str,
        opened: &OpenTargets,
        job: &Job,
        ran: Result<JobOutcome, Error>,
    ) -> Option<JobOutcome> {
        let outcome = ran.map_err(|e| self.note(format!("{label}: {}", e.what))).ok()?;
        self.document.runs.push(JobRun {
            label: label.into(),
            job: job_words(job, opened.sessions()),
            targets: opened.measured_targets(),
            outcome: outcome.clone(),
        });
        self.counts(label, outcome)
    }

    /// Rejects an incomplete result, which must not appear next to a published one.
    fn counts(&mut self, label: &str, outcome: JobOutcome) -> Option<JobOutcome> {
        if let Some(why) = &outcome.ended_early {
            self.note(format!("{label} ended early: {why}"));
        }
        let counts = outcome.ended_early.is_none() && !self.is_ended() && outcome.ios() > 0;
        counts.then_some(outcome)
    }
}

/// Whether no command ended in time.
fn is_too_short(ran: &Result<JobOutcome, Error>) -> bool {
    ran.as_ref().is_ok_and(|outcome| outcome.ios() == 0 && outcome.ended_early.is_none())
}

/// Runs two jobs at once.
fn at_once(
    handle: &RunHandle,
    one: (&OpenTargets, &Job),
    two: (&OpenTargets, &Job),
) -> [Result<JobOutcome, Error>; 2] {
    std::thread::scope(|scope| {
        let other = scope.spawn(|| two.0.run(two.1, handle));
        let first = one.0.run(one.1, handle);
        let died = || {
            Err(Error::new(
                ErrorKind::System,
                "a worker thread panicked",
                "this is a bug in Lunar: report it",
            ))
        };
        [first, other.join().unwrap_or_else(|_| died())]
    })
}
