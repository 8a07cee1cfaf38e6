//! `lunar serve`: starts a server from its arguments, and handles events until it ends.

mod change;
mod gateways;
mod history;
mod in_use;
mod journal;
mod objects;
mod retry;
mod rollback;
mod routed;
mod standby;
mod supervised;
mod unflushed;
mod unserved;

use crate::args::Serve;
use crate::captive::Captive;
use crate::server::TargetServer;
use crate::service_manager::HandedState;
use crate::{connect_hints, output, service_manager};
use change::Trial;
use history::ConfigHistory;
use lunar_admin::{
    AdminSocket, ApplyCause, Asker, ReloadOutcome, Request, Response, ServerControl, ServerEnd,
};
use lunar_api::https::HttpsServer;
use lunar_api::{ApiServer, MetricsServer};
use lunar_gateway::Gateway;
use lunar_router::isids;
use lunar_router::loops::LoopDetector;
use lunar_router::routes::Routes;
use lunar_runtime::CoreSelection;
use lunar_server::config::{self, Config, GatewayConfig, TransientFiles};
use lunar_server::{Arguments, Diagnostic, ErrorCode, ServeContext, Units, folders, hints};
use lunar_target::config::TargetConfig;
use objects::{ConfigVersion, Published};
use retry::Retry;
use routed::{AdminHandler, send_event};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use standby::StandbyTargets;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};
use supervised::Supervision;

/// Events of the main thread.
pub enum ServeEvent {
    /// The heartbeat asks whether the main thread lives.
    SignOfLife,
    /// SIGINT or SIGTERM.
    Stop,
    /// SIGHUP.
    Reload,
    /// The captive command ended.
    Ended(ExitStatus),
    /// A change at the upstreams of routers.
    Found,
    /// Retry of a change that could not be served.
    Retry,
    /// Media of a demoted target may be closed now.
    Closed,
    /// A request of the API, with the user and process of its client.
    AdminRequest(Request, Asker, Sender<Response>),
    /// The confirmation timeout of the trial with this number.
    Unconfirmed(u64),
}

/// How long a stopping server keeps deleted files open, so that they can be copied. Less than the 90 s of systemd's
/// TimeoutStopSec.
const RESCUE: Duration = Duration::from_secs(60);

/// Interval of the warnings of a certificate that expires.
const DAY: Duration = Duration::from_secs(86400);

/// How long a stopping server waits for the history of its configuration.
const LAST_TREE: Duration = Duration::from_secs(2);

/// How long a stopping server waits for clients that take its result.
const LAST_RESPONSE: Duration = Duration::from_secs(2);

/// Serves until a signal, or until the captive command ends. `state` is what an earlier process of the service left.
pub fn serve<S: TargetServer>(
    args: Serve,
    state: Option<HandedState>,
    start: impl FnOnce(TargetConfig, &[usize]) -> io::Result<S>,
) -> Result<ExitCode, Vec<Diagnostic>> {
    let stopping = Arc::new(AtomicBool::new(false));
    let (events, inbox) = channel();
    watch_signals(events.clone(), &stopping).map_err(|e| vec![cannot("watch for signals", &e)])?;
    let mut service = Service::start(&args, &events, state.as_ref().and_then(HandedState::bytes), start)?;
    service.supervision.serves(&service.whole);
    state.into_iter().for_each(HandedState::forget);
    service_manager::ready();
    let captive = match &args.run {
        Some(command) => Some(service.captive(command, events)?),
        None => {
            service.print_banner();
            None
        }
    };
    let ended = wait(&inbox, &mut service, captive);
    service.announce_stop();
    // Requests now fail at once.
    drop(inbox);
    service.stop(args.run.is_none())?;
    Ok(ended.map_or(ExitCode::SUCCESS, exit_code))
}

/// Handles events until the server must stop. Returns the exit status of the captive command.
fn wait<S: TargetServer>(
    inbox: &Receiver<ServeEvent>,
    service: &mut Service<S>,
    captive: Option<Captive>,
) -> Option<ExitStatus> {
    loop {
        let now = Instant::now();
        if now >= service.next_look {
            service.look(now);
        }
        match inbox.recv_timeout(service.next_look - now) {
            Ok(ServeEvent::SignOfLife) => service.supervision.lives(),
            Ok(ServeEvent::Reload) => service.reload(),
            Ok(ServeEvent::Ended(status)) => return Some(status),
            Ok(ServeEvent::Found) => service.found(),
            Ok(ServeEvent::Retry) => service.found_before(),
            Ok(ServeEvent::Closed) => service.closed(),
            Ok(ServeEvent::AdminRequest(request, asker, reply)) => {
                // The client may have stopped waiting.
                _ = reply.send(service.answer(request, &asker));
            }
            Ok(ServeEvent::Unconfirmed(number)) => service.unconfirmed(number),
            Ok(ServeEvent::Stop) => {
                match &captive {
                    // The server stops when the command ends.
                    Some(captive) => captive.terminate(),
                    None => return None,
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return None,
        }
    }
}

/// The exit code of a shell for this status.
fn exit_code(status: ExitStatus) -> ExitCode {
    use std::os::unix::process::ExitStatusExt;
    let code = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

/// A second SIGINT or SIGTERM ends the process at once, even while the server waits for I/O.
fn watch_signals(events: Sender<ServeEvent>, stopping: &Arc<AtomicBool>) -> io::Result<()> {
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, stopping.clone())?;
    }
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let stopping = stopping.clone();
    let watch = move || {
        for signal in signals.forever() {
            let event = if signal == SIGHUP { ServeEvent::Reload } else { ServeEvent::Stop };
            stopping.fetch_or(signal != SIGHUP, Ordering::SeqCst);
            if events.send(event).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(watch).map(drop)
}

fn cannot(what: &str, e: &io::Error) -> Diagnostic {
    Diagnostic::new(format!("cannot {what}: {e}"), crate::error_hints::process_limits(e))
}

/// A running server and its configuration.
struct Service<S> {
    file: Option<PathBuf>,
    /// As read from the file.
    config: Config,
    /// `config` as it is in force: settings that need a restart have the values of the start.
    in_force: Config,
    /// `config` with the targets that result from the upstreams of its routers.
    whole: Config,
    units: Units,
    routes: Arc<Routes>,
    gateway: Option<Arc<Gateway>>,
    server: Arc<S>,
    supervision: Arc<Supervision<S>>,
    admin: Option<ApiServer>,
    https: HttpsServer,
    /// Keeps the metrics listening.
    _metrics: Option<MetricsServer>,
    trial: Trial,
    standby: StandbyTargets,
    history: Arc<ConfigHistory>,
    /// The absolute path of `file`; None without a file.
    own: Option<PathBuf>,
    version: ConfigVersion,
    published: Published,
    /// Objects that the API keeps until the next start only.
    transient: TransientFiles,
    /// Retries of changes at upstreams that cannot be served yet.
    retry: Retry,
    unserved: unserved::UnservedLog,
    last_reload: Option<ReloadOutcome>,
    is_stopping: bool,
    /// The time of the next look at the certificate of the API.
    next_look: Instant,
    /// For clients that wait for its end.
    end: Arc<ServerEnd>,
    events: Sender<ServeEvent>,
    /// Until then, returning hosts must not lose LUNs that were not rediscovered yet.
    early_until: Instant,
}

/// The configuration of the file, or of the arguments.
fn configuration(args: &Serve) -> Result<Config, Vec<Diagnostic>> {
    if let Some(file) = &args.config {
        journal::recover(file).map_err(|problem| vec![problem])?;
        return config::load(file);
    }
    let state_dir = &folders::state().map_err(|problem| vec![problem])?;
    arguments(args).config(ServeContext { state_dir, host: &lunar_runtime::host::name() })
}

/// Faults that do not prevent the service.
pub fn warnings(config: &Config) -> impl Iterator<Item = String> {
    let of_targets = config::exposed(config).into_iter().chain(config::state_left_behind(config));
    let of_targets = of_targets.chain(config::subsystem_lint(config));
    of_targets.chain(certificate_warning(config, SystemTime::now()))
}

fn certificate_warning(config: &Config, now: SystemTime) -> Option<String> {
    config.api.as_ref()?.credentials.warning(now)
}

/// The cores of the arguments, or else of the configuration.
fn usable_cores(args: &Serve, config: &Config) -> Result<Vec<usize>, Diagnostic> {
    let Some(text) = &args.cores else { return config.server.cores.usable().map_err(Diagnostic::from) };
    let cores = CoreSelection::parse(text).map_err(|e| of_argument("--cores", e.into()))?;
    cores.usable().map_err(|e| of_argument("--cores", e.into()))
}

fn start_routes(state_dir: &Path, events: &Sender<ServeEvent>) -> Result<Arc<Routes>, Diagnostic> {
    let found = Mutex::new(events.clone());
    // A reload may add the first router. Until then, the file is neither read nor written.
    let loops = LoopDetector::kept_in(&state_dir.join("router.id"));
    let ports = isids::IsidStore::kept_in(state_dir);
    let routes = Routes::start(loops, ports, hints::words, move || send_event(&found, ServeEvent::Found));
    routes.map(Arc::new).map_err(|e| cannot_serve(&e))
}

fn start_history(state_dir: &Path, config: &Config) -> Result<Arc<ConfigHistory>, Diagnostic> {
    let history = ConfigHistory::start(state_dir, &config.sources);
    history.map(Arc::new).map_err(|e| cannot("start a thread", &e))
}

/// This server as a member of its group. Its units join when they are served.
fn start_gateway(config: Option<&GatewayConfig>) -> Result<Option<Arc<Gateway>>, Diagnostic> {
    let start = |config: &GatewayConfig| Gateway::new(&config.group, config.id, config.pool.clone());
    config.map(|config| start(config).map(Arc::new).map_err(|e| cannot_serve(&e))).transpose()
}

/// The server has started: its units join the group.
fn join<S: TargetServer>(gateway: Option<&Gateway>, server: &S) {
    if let Some((gateway, sessions)) = gateway.zip(server.served_sessions()) {
        gateway.serve(sessions);
    }
}

/// How long LUNs that were not rediscovered yet are kept. Then a search for changes follows. Commands wait no longer
/// than this for a lost path either.
fn patience(config: &Config, events: &Sender<ServeEvent>) -> Duration {
    let patience = config.routers.iter().map(|router| router.path_loss_timeout).max();
    patience.iter().for_each(|patience| change::later(events, *patience, ServeEvent::Found));
    patience.unwrap_or_default()
}

/// Serves the metrics at an address, if there is one.
fn start_metrics(
    address: Option<SocketAddr>,
    desk: Arc<dyn ServerControl>,
) -> Result<Option<MetricsServer>, Diagnostic> {
    let metrics = address.map(|address| MetricsServer::start(address, desk)).transpose()?;
    metrics.iter().for_each(|server| tracing::info!("metrics: http://{}/metrics", server.address()));
    Ok(metrics)
}

impl<S: TargetServer> Service<S> {
    fn start(
        args: &Serve,
        events: &Sender<ServeEvent>,
        state: Option<&[u8]>,
        start: impl FnOnce(TargetConfig, &[usize]) -> io::Result<S>,
    ) -> Result<Service<S>, Vec<Diagnostic>> {
        let one = |problem| vec![problem];
        let config = configuration(args)?;
        warnings(&config).for_each(|line| tracing::warn!("{line}"));
        let cores = usable_cores(args, &config).map_err(one)?;
        let state_dir = config.server.state_dir.clone().map_or_else(folders::state, Ok).map_err(one)?;
        let routes = start_routes(&state_dir, events).map_err(one)?;
        let history = start_history(&state_dir, &config).map_err(one)?;
        let gateway = start_gateway(config.gateway.as_ref()).map_err(one)?;
        let mut units = Units::new(state_dir).with(routes.clone()).sharing(gateway.clone());
        let whole = standby::at_start(&config)?;
        let setup = units.setup(&whole, &|_| Ok(Vec::new()))?;
        state.iter().for_each(|state| units.take_over(state));
        let server = Arc::new(start(setup, &cores).map_err(|e| vec![cannot_serve(&e)])?);
        units.record();
        join(gateway.as_deref(), &*server);
        let (published, end) = (Published::default(), Arc::new(ServerEnd::default()));
        let desk = Arc::new(AdminHandler {
            server: server.clone(),
            gateway: gateway.clone(),
            events: Mutex::new(events.clone()),
            published: published.clone(),
            rates: Arc::default(),
            history: history.clone(),
            end: end.clone(),
        });
        let admin = admin(config.server.admin_socket.as_deref(), desk.clone()).map_err(one)?;
        let mut https = HttpsServer::new(desk.clone());
        let listening = https.prepare(config.api.as_ref()).map_err(one)?;
        let metrics = start_metrics(config.server.metrics, desk).map_err(one)?;
        let mut service = Service {
            file: args.config.clone(),
            own: args.config.as_ref().map(|_| config.sources.whole.clone()),
            version: ConfigVersion::first(),
            published,
            transient: TransientFiles::new(),
            in_force: config.clone(),
            early_until: Instant::now() + patience(&config, events),
            config,
            whole,
            units,
            routes,
            gateway,
            supervision: Supervision::start(server.clone(), events.clone()),
            server,
            admin,
            https,
            _metrics: metrics,
            trial: Trial::default(),
            standby: StandbyTargets::default(),
            history,
            retry: Retry::default(),
            unserved: Default::default(),
            last_reload: None,
            is_stopping: false,
            next_look: Instant::now() + DAY,
            end,
            events: events.clone(),
        };
        service.publish();
        service.keep(ApplyCause::Start, None);
        service.route();
        service.https.apply(listening);
        Ok(service)
    }

    fn captive(&self, command: &str, events: Sender<ServeEvent>) -> Result<Captive, Vec<Diagnostic>> {
        let environment = connect_hints::environment(&self.config, &self.server.portals());
        if environment.is_empty() {
            let hint = "add [[target.lun]] and a portal for iSCSI or iSER, or [[subsystem.namespace]] and a portal for \
                        NVMe/TCP without TLS: with SRP alone there is no LUNAR_URL";
            return Err(vec![Diagnostic::new("--run: no LUN is served over iSCSI, iSER or NVMe/TCP", hint)]);
        }
        Captive::start(command, environment, events).map_err(|e| {
            vec![Diagnostic::new(format!("cannot run the --run command: {e}"), "install a shell as /bin/sh")]
        })
    }

    /// Prints the banner. A failure is only logged, because the server works without it.
    fn print_banner(&self) {
        let banner = connect_hints::banner(&self.config, &self.server.portals());
        let write = move || {
            if let Err(problem) = output::stdout(banner) {
                tracing::warn!("{}", problem.what);
            }
        };
        // A reader that stalls must not delay the handling of signals.
        if let Err(e) = std::thread::Builder::new().name("greeting".into()).spawn(write) {
            tracing::warn!("cannot start the thread that prints the banner: {e}");
        }
    }

    /// Reloads the configuration file. After an error, nothing has changed.
    fn reload(&mut self) {
        let Some(file) = &self.file else {
            tracing::info!("SIGHUP ignored: the server has no configuration file");
            return;
        };
        let file = file.clone();
        match config::load_with(&file, &self.transient).and_then(|config| self.apply_unasked(config)) {
            Ok(_) => {
                self.reloaded(true);
                self.keep(ApplyCause::Reload, None);
                self.replace_trial(&file.display().to_string());
                tracing::info!(name: "config.reloaded", "{} reloaded", file.display());
            }
            Err(problems) => {
                self.reloaded(false);
                change::log_problems(&problems);
                tracing::error!(name: "config.rejected", "{} rejected: the configuration is unchanged", file.display());
            }
        }
    }

    /// Warns each day of a certificate that expires.
    fn look(&mut self, now: Instant) {
        self.next_look = now + DAY;
        certificate_warning(&self.config, SystemTime::now()).iter().for_each(|line| tracing::warn!("{line}"));
        self.publish();
    }

    /// Shows to clients that the server stops.
    fn announce_stop(&mut self) {
        self.is_stopping = true;
        self.publish();
    }

    /// With `may_wait`, the server stays for a while if it holds deleted files, so that they can be copied.
    fn stop(self, may_wait: bool) -> Result<(), Vec<Diagnostic>> {
        self.supervision.stopping();
        if service_manager::is_there() {
            // The service manager may hold the sockets for the next server.
            self.server.stop_accepting();
        }
        let unlinked = self.units.unlinked();
        for problem in &unlinked {
            // An administrator who reads the log may still copy the data in time.
            tracing::error!("{}; hint: {}", problem.what, problem.hint.as_deref().unwrap_or_default());
        }
        // Hosts and the peer router must be informed while the server still responds.
        self.routes.leave();
        let result = self.server.stop(&|| self.routes.part());
        self.gateway.iter().for_each(|gateway| gateway.stop());
        if let Some(state) = service_manager::is_there().then(|| self.units.hand_over()).flatten() {
            service_manager::hand_over(&state);
        }
        self.history.settle_within(LAST_TREE);
        let problems = match result {
            Err(failures) => unflushed::diagnostics(&failures, &self.whole),
            Ok(()) => {
                if may_wait && !unlinked.is_empty() {
                    self.supervision.rescues(RESCUE);
                    wait_for_rescue();
                }
                let hint = "restore the file from your copy or from a backup";
                let gone = |problem: Diagnostic| Diagnostic { hint: Some(hint.into()), ..problem };
                unlinked.into_iter().map(gone).collect()
            }
        };
        self.end.set(problems.clone(), LAST_RESPONSE);
        let media = self.standby.media(&self.units);
        drop((self.units, self.https));
        if standby::are_closed(&media) {
            drop(self.admin);
        } else {
            // A missing socket shows to cluster managers that no server has the media. The end of the process closes it.
            tracing::error!(
                "the media of targets with `standby` are still in use: the admin socket stays until the process has ended"
            );
            std::mem::forget(self.admin);
        }
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }
}

/// Waits for an administrator to copy deleted files, whose data is lost when this process ends. Hosts no longer write
/// to them, so a copy is consistent. A second signal ends the wait.
fn wait_for_rescue() {
    let wait_s = RESCUE.as_secs();
    tracing::error!(
        "the data of deleted files stays available for {wait_s} s; hint: copy the data now, or send a second signal to \
         end at once"
    );
    std::thread::sleep(RESCUE);
}

fn arguments(args: &Serve) -> Arguments {
    Arguments {
        luns: args.luns.clone(),
        size: args.size.clone(),
        raw: args.raw,
        listen: args.listen.clone(),
        iser: args.iser,
        srp: args.srp.clone(),
        nvme: args.nvme.clone(),
        target: args.target.clone(),
    }
}

fn of_argument(argument: &str, problem: Diagnostic) -> Diagnostic {
    Diagnostic {
        what: format!("{argument}: {}", problem.what),
        ..problem.with_code(ErrorCode::InvalidArgument)
    }
}

/// The error of a server that cannot start.
pub fn cannot_serve(e: &io::Error) -> Diagnostic {
    let general = match e.kind() {
        io::ErrorKind::AddrInUse => {
            "stop the program that listens at this address, or choose another address or port"
        }
        io::ErrorKind::AddrNotAvailable => "choose an address of this host: `ip address` lists all",
        io::ErrorKind::PermissionDenied => {
            "ports below 1024 require privileges: choose another port, such as 3260"
        }
        _ => crate::error_hints::process_limits(e),
    };
    // A hint attached to the error is more specific.
    let hint = lunar_runtime::error::hint(e).map_or(general, |hint| hint);
    Diagnostic::new(format!("cannot serve: {e}"), hint).with_code(ErrorCode::from(e.kind()))
}

/// Starts the admin socket. A failure is only logged, unless its path is configured.
fn admin(configured: Option<&Path>, server: Arc<dyn ServerControl>) -> Result<Option<ApiServer>, Diagnostic> {
    if let Some(path) = configured {
        return ApiServer::start(AdminSocket::bind(path)?, server).map(Some);
    }
    let started = folders::admin_socket().and_then(|path| {
        if let Some(folder) = path.parent() {
            lunar_server::create_folder(folder)?;
        }
        let socket = AdminSocket::bind_beside(&path)?;
        ApiServer::start(socket, server).map(|admin| (admin, path))
    });
    match started {
        Ok((admin, path)) => {
            if admin.path() != path {
                tracing::info!("use lunar session list --socket {} for this server", admin.path().display());
            }
            Ok(Some(admin))
        }
        Err(problem) => {
            tracing::warn!("no admin socket: lunar session cannot query this server: {}", problem.what);
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests;
