//! The process of an attachment: opens the disk, exports it to the host, and watches both until it is stopped.

use super::attachment_record::AttachmentRecord;
use super::claim::{AttachClaim, StaleAttachment, claim, left_behind, with_isids};
use super::disk::{self, Disk, PendingIo};
use super::export::HostExport;
use super::write_tracker::WriteTracker;
use super::{namespace, open_attached, unfinished_writes};
use crate::exit::{Exit, Failure};
use lunar_initiator::Error;
use lunar_runtime::Cores;
use lunar_server::Diagnostic;
use lunar_server::attached::{Attached, LeftSession, Record, State};
use lunar_server::config::attachment::Attachment;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::fs::Permissions;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Interval of checks of capacity and export.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Time limit of a login that ends unfinished writes on a path that is not open.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for a client to read the status.
const STATUS_TIMEOUT: Duration = Duration::from_secs(2);

/// Events of the main thread.
enum AttachEvent {
    /// SIGINT or SIGTERM.
    Stop,
    /// The disk is open, or could not be opened.
    Opened(Box<Result<Disk, Failure>>),
    /// A path could not be opened, and is tried again.
    Missing(String),
    /// A status request.
    Status(UnixStream),
}

/// Callbacks of an attachment in progress.
pub struct AttachObserver<C, M, R> {
    /// Called when the name is claimed.
    pub claimed: C,
    /// Called when a path could not be opened and is tried again.
    pub missing: M,
    /// Called when the disk is attached. False: the caller is gone, and the attachment is undone.
    pub ready: R,
    /// SIGHUP stops the process, as SIGTERM does. If false, SIGHUP is ignored.
    pub ends_with_terminal: bool,
}

/// Attaches, and serves until a signal.
///
/// # Errors
/// When the LUN cannot be attached, or not all data could be flushed at the end.
pub fn serve(
    attachment: &Attachment,
    timeout: Option<Duration>,
    mut watch: AttachObserver<
        impl FnOnce(&Record) -> Result<(), Failure>,
        impl FnMut(&str),
        impl FnOnce(&Record) -> bool,
    >,
) -> Result<(), Failure> {
    let process = AttachProcess::watch(attachment, watch.ends_with_terminal)?;
    let attached = &process.force.attached;
    let AttachClaim { alive, record, left } = claim(attached, attachment)?;
    if let Err(failure) = (watch.claimed)(&record) {
        return release(attached, &record, Err(failure));
    }
    let attachment = &with_isids(attachment, &record);
    let end = timeout.map(|limit| Instant::now() + limit);
    let cores = Arc::new(Cores::one().map_err(|e| cannot("start an event loop", &e))?);
    let shared_record = AttachmentRecord::of(attached, record);
    let channel = (&process.events, &process.inbox);
    let patience = (end, &mut watch.missing as &mut dyn FnMut(&str));
    let begun = open_and_export(&cores, attachment, &shared_record, &left, attached, channel, patience);
    let service = match begun {
        Ok(Some(service)) => service,
        // A signal came before the disk was open.
        end => return release(attached, &shared_record.end(), end.map(drop)),
    };
    // A device that was taken over has users, even if the attaching command is gone.
    let is_wanted = |record: &Record| (watch.ready)(record) || left.device.is_some();
    let stopped = process.run(service, &cores, is_wanted);
    // `lunar detach` waits for this lock.
    drop(alive);
    stopped
}

/// The state of the main thread, from its start to its end.
struct AttachProcess {
    events: Sender<AttachEvent>,
    inbox: Receiver<AttachEvent>,
    /// Whether a second SIGINT ends the process.
    stopping: Arc<AtomicBool>,
    force: Arc<ForcedDetach>,
}

impl AttachProcess {
    /// Starts to watch for signals.
    fn watch(attachment: &Attachment, ends_with_terminal: bool) -> Result<AttachProcess, Failure> {
        let (stopping, (events, inbox)) = (Arc::new(AtomicBool::new(false)), channel());
        let (attached, name, waits) = (open_attached()?, attachment.name.clone(), OnceLock::new());
        let force = Arc::new(ForcedDetach { attached, name, waits, failed: OnceLock::new() });
        watch_signals(events.clone(), &stopping, ends_with_terminal, force.clone())
            .map_err(|e| cannot("watch for signals", &e))?;
        Ok(AttachProcess { events, inbox, stopping, force })
    }

    /// Serves until a signal, detaches, and updates the record.
    fn run(
        &self,
        mut service: Service,
        cores: &Cores,
        is_wanted: impl FnOnce(&Record) -> bool,
    ) -> Result<(), Failure> {
        let (shared_record, force) = (service.shared_record.clone(), &self.force);
        let record = shared_record.record();
        let name = &record.name;
        _ = force.waits.set((service.disk.pending_io(), service.written.clone()));
        tracing::info!(device = record.device, "{name} is attached");
        if is_wanted(&record) {
            service.run(cores, &self.inbox);
        } else {
            tracing::warn!("the command that attaches {name} has ended: {name} is detached again");
        }
        tracing::info!("{name} is being detached");
        self.stopping.store(true, Ordering::SeqCst);
        let (stopped, left) = service.stop(cores, force);
        cores.stop();
        let record = shared_record.end();
        match &stopped {
            Ok(()) => force.attached.lock()?.clear(&record.name),
            Err(failure) => keep_record(&force.attached, record, failure, left),
        }
        stopped
    }
}

/// Keeps the record of an attachment that failed to end, for the next one of the same LUN.
fn keep_record(attached: &Attached, mut record: Record, failure: &Failure, left: Option<Vec<LeftSession>>) {
    failure.problems.iter().for_each(|problem| tracing::error!("{problem}"));
    record.left_behind = left_behind_by(&record, left);
    record.isids.clear();
    record.failure = failure.problems.first().map(|problem| problem.what.clone());
    let kept = attached.lock().and_then(|locked| locked.write(&record));
    _ = kept.inspect_err(|problem| tracing::error!("{problem}"));
}

/// The sessions whose writes the target may still execute. `left`: those found at logout; None if that is unknown. A path
/// that moved may have unfinished writes at earlier ports.
fn left_behind_by(record: &Record, left: Option<Vec<LeftSession>>) -> Vec<LeftSession> {
    let Some(mut left) = left else { return record.sessions() };
    if !left.is_empty() {
        left.extend(
            record.left_behind.iter().filter(|before| !left.contains(before)).cloned().collect::<Vec<_>>(),
        );
    }
    left
}

/// `lunar detach --force`: fails I/O that waits for an unreachable target.
struct ForcedDetach {
    attached: Attached,
    name: String,
    /// Waiting I/O and writes of the disk, once it is open.
    waits: OnceLock<(PendingIo, Arc<WriteTracker>)>,
    /// Failed writes before the forced detach.
    failed: OnceLock<u64>,
}

impl ForcedDetach {
    /// Fails waiting I/O, once, if the detach is forced.
    fn fail_io_if_forced(&self) {
        if let Some((pending_io, written)) = self.waits.get()
            && self.attached.is_forced(&self.name)
            && self.failed.set(written.failed()).is_ok()
        {
            let writes = written.waiting();
            tracing::warn!(writes, "{} is detached by force: pending I/O fails", self.name);
            pending_io.fail();
        }
    }
}

/// Removes the record. It stays if a block device must still be found, or if unfinished writes have not ended.
fn release(attached: &Attached, record: &Record, end: Result<(), Failure>) -> Result<(), Failure> {
    let locked = attached.lock()?;
    if left_behind(&locked, record)?.is_none() {
        unfinished_writes::hand_back(&locked, record)?;
    }
    end
}

/// A second SIGINT ends the process at once. A second SIGTERM does not: `lunar detach` may run twice.
fn watch_signals(
    events: Sender<AttachEvent>,
    stopping: &Arc<AtomicBool>,
    ends_with_terminal: bool,
    force: Arc<ForcedDetach>,
) -> io::Result<()> {
    signal_hook::flag::register_conditional_shutdown(SIGINT, 128 + SIGINT, stopping.clone())?;
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let watch = move || {
        for signal in signals.forever() {
            if signal == SIGHUP && !ends_with_terminal {
                tracing::info!("SIGHUP ignored: an attachment has no configuration file to reload");
                continue;
            }
            // The main thread reads no events while it waits for the target.
            force.fail_io_if_forced();
            _ = events.send(AttachEvent::Stop);
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(watch).map(drop)
}

fn cannot(what: &str, e: &io::Error) -> Failure {
    Diagnostic::new(format!("cannot {what}: {e}"), crate::error_hints::process_limits(e)).into()
}

/// The failure for writes that failed during the detach.
fn not_stored(count: u64) -> Option<Failure> {
    let hint = "the writers got an error if they were still running: check the target, and repeat the writes";
    (count > 0).then(|| Diagnostic::new(format!("{} not stored", were(count)), hint).into())
}

fn were(count: u64) -> String {
    let verb = if count == 1 { "was" } else { "were" };
    format!("{} {verb}", crate::output::count(count as usize, "write"))
}

/// The failure for data that could not be flushed.
pub fn unstable(e: io::Error) -> Failure {
    let hint = "unflushed writes may be lost: check the target";
    Diagnostic::new(format!("cannot flush all data: {e}"), hint).into()
}

/// Both ends of the channel of events.
type EventChannel<'a> = (&'a Sender<AttachEvent>, &'a Receiver<AttachEvent>);

/// Deadline for opening the disk, and a callback for the error of each attempt.
type OpenDeadline<'a> = (Option<Instant>, &'a mut dyn FnMut(&str));

/// Opens and exports the disk. None: a signal came first.
fn open_and_export(
    cores: &Arc<Cores>,
    attachment: &Attachment,
    shared_record: &Arc<AttachmentRecord>,
    left: &StaleAttachment,
    attached: &Attached,
    (events, inbox): EventChannel<'_>,
    patience: OpenDeadline<'_>,
) -> Result<Option<Service>, Failure> {
    let (events_sender, attachment, rows) = (events.clone(), attachment.clone(), shared_record.clone());
    cores.run_on(0, move || {
        // The receiver is gone if the process is already stopping.
        let open = async move {
            let missing = events_sender.clone();
            let missing = move |e: &Error| {
                tracing::warn!("{e}; trying again");
                drop(missing.send(AttachEvent::Missing(e.to_string())));
            };
            drop(
                events_sender
                    .send(AttachEvent::Opened(Box::new(disk::open(&attachment, &rows, missing).await))),
            );
        };
        lunar_runtime::spawn(open);
    });
    let Some(mut disk) = wait_until_open(inbox, patience)? else { return Ok(None) };
    if let Some(before) = &left.device {
        check_identity(before, &disk)?;
    }
    shared_record.change(|record| record.identity.clone_from(&disk.identity))?;
    settle(cores, &disk, shared_record, attached)?;
    let written = WriteTracker::over(disk.backend, left.is_unstable);
    disk.backend = written.clone();
    let record = shared_record.record();
    let export = HostExport::start(cores, &disk, &record, left.device.as_ref(), attached)?;
    serve_status(&attached.file(&record.name, "ctl"), events.clone())?;
    shared_record.change(|record| {
        record.device = Some(export.device());
        record.place = export.place().or(record.place.take());
        record.ublk_id = export.ublk_id();
        record.size_bytes = disk.backend.info().capacity;
        record.read_only |= disk.backend.info().read_only;
        record.recovery_timeout = disk.recovery;
    })?;
    Ok(Some(Service { disk, export, written, shared_record: shared_record.clone() }))
}

/// Ends unfinished writes of earlier processes before this one writes.
fn settle(
    cores: &Cores,
    disk: &Disk,
    shared_record: &AttachmentRecord,
    attached: &Attached,
) -> Result<(), Failure> {
    // Lock order: the record, then the folder, as at the login of a path.
    let record = shared_record.record();
    let owed = unfinished_writes::sessions(&attached.lock()?, &record)?;
    let reached = disk.reached();
    let ended =
        cores.wait(0, move || async move { unfinished_writes::end(owed, &reached, LOGIN_TIMEOUT).await });
    ended.map_err(|e| cannot("end old sessions", &e))??;
    shared_record.change(|record| record.left_behind.clear())?;
    let record = shared_record.record();
    unfinished_writes::clear_ended(&attached.lock()?, &record)
}

/// Waits until the disk is open. None: a signal came first.
fn wait_until_open(
    inbox: &Receiver<AttachEvent>,
    (end, missing): OpenDeadline<'_>,
) -> Result<Option<Disk>, Failure> {
    let mut last = None;
    loop {
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        let event = match left {
            Some(left) => inbox.recv_timeout(left),
            None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match event {
            Ok(AttachEvent::Opened(disk)) => return disk.map(Some),
            Ok(AttachEvent::Stop) => return Ok(None),
            Ok(AttachEvent::Status(_)) => {}
            Ok(AttachEvent::Missing(why)) => {
                missing(&why);
                last = Some(why);
            }
            Err(_) => {
                let why = last.map_or(String::new(), |why| format!(": {why}"));
                let hint = "check the network with lunar doctor, or raise --timeout";
                let what = format!("the disk could not be opened in time{why}");
                return Err(Failure::new(Exit::TimedOut, what, hint));
            }
        }
    }
}

/// Checks that the device to take over belongs to this logical unit.
fn check_identity(before: &Record, disk: &Disk) -> Result<(), Failure> {
    let is_other = !before.identity.is_empty() && before.identity != disk.identity;
    if !is_other {
        return Ok(());
    }
    let what = format!(
        "{} was left by an ended attachment of another LUN; its identity was {}, and this LUN has {}",
        before.name, before.identity, disk.identity
    );
    Err(Failure::new(
        Exit::Exists,
        what,
        format!("remove the ended attachment with: lunar detach {}", before.name),
    ))
}

/// Listens on the status socket. The main thread answers each client.
fn serve_status(path: &Path, events: Sender<AttachEvent>) -> Result<(), Failure> {
    // The claim proves that a socket at this path belongs to a dead process.
    _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path).map_err(|e| {
        let what = format!("cannot listen on {}: {e}", path.display());
        Diagnostic::new(what, "choose a shorter --name, or set LUNAR_RUN_DIR to a shorter path")
    })?;
    // For the service, which the folder admits by its group.
    _ = std::fs::set_permissions(path, Permissions::from_mode(0o660));
    let listen = move || {
        for client in listener.incoming().flatten() {
            if events.send(AttachEvent::Status(client)).is_err() {
                return;
            }
        }
    };
    let started = std::thread::Builder::new().name("questions".into()).spawn(listen);
    started.map(drop).map_err(|e| cannot("start a thread", &e))
}

/// An exported disk.
struct Service {
    disk: Disk,
    export: HostExport,
    written: Arc<WriteTracker>,
    shared_record: Arc<AttachmentRecord>,
}

impl Service {
    /// Handles events until the service must stop.
    fn run(&mut self, cores: &Cores, inbox: &Receiver<AttachEvent>) {
        let mut next_check = Instant::now() + POLL_INTERVAL;
        loop {
            match inbox.recv_timeout(next_check.saturating_duration_since(Instant::now())) {
                Ok(AttachEvent::Status(client)) => self.send_status(client),
                Ok(AttachEvent::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(AttachEvent::Opened(_) | AttachEvent::Missing(_)) => {}
                Err(RecvTimeoutError::Timeout) => {
                    next_check = Instant::now() + POLL_INTERVAL;
                    if let Some(why) = self.export.is_over() {
                        return tracing::warn!("the attachment ends: {why}");
                    }
                    if self.disk.backend.refresh() {
                        self.export.resize();
                    }
                    self.settle_moved(cores);
                }
            }
        }
    }

    /// Removes the sessions at earlier ports of moved paths from the record, once no write of a lost connection is pending.
    fn settle_moved(&self, cores: &Cores) {
        let (record, logins) = (self.shared_record.record(), self.shared_record.logins());
        if record.left_behind.is_empty() {
            return;
        }
        let reached = self.disk.reached();
        let has_orphans = cores.wait(0, move || async move { Disk::has_orphans(&reached).await });
        if has_orphans.is_ok_and(|has_orphans| !has_orphans)
            && let Err(problem) = self.shared_record.clear_left_behind(logins)
        {
            tracing::debug!("{problem}");
        }
    }

    fn send_status(&self, mut client: UnixStream) {
        let state = State {
            size_bytes: self.disk.backend.info().capacity,
            paths: self.disk.paths(),
            users: self.export.users(),
            waiting_writes: self.written.waiting(),
        };
        let written = serde_json::to_vec(&state).map_err(io::Error::other).and_then(|text| {
            client.set_write_timeout(Some(STATUS_TIMEOUT))?;
            client.write_all(&text)
        });
        _ = written.inspect_err(|e| tracing::debug!("cannot report to the command that attaches: {e}"));
    }

    /// Removes the export, flushes, and logs out. Also returns the sessions whose writes the target may still execute; None
    /// if that is unknown.
    fn stop(self, cores: &Cores, force: &ForcedDetach) -> (Result<(), Failure>, Option<Vec<LeftSession>>) {
        let (written, failed) = (self.written.clone(), self.written.failed());
        let stopped = self.export.stop();
        // An unmount by another program does not flush.
        let disk = self.disk.backend.clone();
        let flushed = cores.wait(0, move || async move { disk.flush().await }).and_then(|flushed| flushed);
        let (reached, open_namespace) = (self.disk.reached(), self.disk.namespace());
        let is_namespace = open_namespace.is_some();
        drop(self.disk);
        let closed = cores.wait(0, move || async move {
            if let Some(namespace) = open_namespace {
                namespace::warn_of_lost_paths(&namespace);
                namespace.close().await;
            }
            Disk::close(reached).await
        });
        let before = force.failed.get().copied().unwrap_or(failed);
        let failed = written.failed() - before;
        match closed {
            Err(e) => (Err(cannot("log out", &e)), None),
            Ok((left, writes)) if writes > 0 => (Err(unfinished_writes::failure(failed, writes)), Some(left)),
            Ok(_) if is_namespace && failed > 0 => (Err(namespace::unfinished(failed)), None),
            Ok((left, _)) => {
                let ended = stopped.and(flushed.map_err(unstable));
                (not_stored(failed).map_or(ended, Err), Some(left))
            }
        }
    }
}
