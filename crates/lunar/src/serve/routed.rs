//! Answers requests of the admin socket: status and control of routers.

use super::history::ConfigHistory;
use super::objects::Published;
use super::rollback::cause;
use super::{ServeEvent, Service};
use crate::attach::{detach::detach_for, list};
use crate::exit::{Exit, Failure};
use crate::server::TargetServer;
use lunar_admin::gateway::GatewayChange;
use lunar_admin::history::{RateHistory, Traffic};
use lunar_admin::metrics::MetricsReport;
use lunar_admin::router::{
    Failover, Hop, LunHealth, LunReport, NO_PATH, PathReport, PathTraffic, RouterReport, TargetReport,
    UpstreamReport,
};
use lunar_admin::{
    Asker, AttachmentReport, Capacities, ConfigSnapshot, ControlError, ControlErrorKind, DetachRequest,
    EventLog, GroupReport, HistoryEntry, HistoryPoint, HistoryTree, Request, Response, RouterAction,
    ServerControl, ServerEnd, SessionReport,
};
use lunar_gateway::Gateway;
use lunar_router::failover::{FailoverRequest, Pair, Role};
use lunar_router::namespaces::number_at;
use lunar_router::passthrough::HostPath;
use lunar_router::routes::{LuAddress, LuStatus, UpstreamStatus};
use lunar_router::upstream::{Health, PathState};
use lunar_runtime::latency::LatencyTotal;
use lunar_server::config::Source;
use lunar_server::config::router::UpstreamSource;
use lunar_server::routes::{Missing, missing};
use lunar_server::{Diagnostic, ErrorCode};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::UNIX_EPOCH;

/// Handles requests of the admin socket. The server answers for sessions, the main thread for the rest.
pub struct AdminHandler<S> {
    pub server: Arc<S>,
    pub gateway: Option<Arc<Gateway>>,
    pub events: Mutex<Sender<ServeEvent>>,
    pub published: Published,
    pub rates: Arc<RateHistory>,
    pub history: Arc<ConfigHistory>,
    pub end: Arc<ServerEnd>,
}

/// Sends an event to the main thread, if it still runs.
pub fn send_event(events: &Mutex<Sender<ServeEvent>>, event: ServeEvent) {
    _ = events.lock().unwrap_or_else(PoisonError::into_inner).send(event);
}

impl<S: TargetServer> ServerControl for AdminHandler<S> {
    fn sessions(&self) -> Vec<SessionReport> {
        self.server.sessions()
    }

    fn config(&self) -> Arc<ConfigSnapshot> {
        self.published.get()
    }

    fn warnings(&self) -> Vec<String> {
        let missing = self.server.missing_media();
        missing.into_iter().chain(self.published.get().warnings.iter().cloned()).collect()
    }

    fn end(&self) -> Arc<ServerEnd> {
        self.end.clone()
    }

    fn metrics(&self) -> MetricsReport {
        self.server.metrics()
    }

    fn traffic(&self) -> BTreeMap<u64, Traffic> {
        self.server.traffic()
    }

    fn group(&self) -> GroupReport {
        self.gateway.as_deref().map(|gateway| super::gateways::group(&gateway.status())).unwrap_or_default()
    }

    fn change_gateway(&self, change: GatewayChange) -> Result<String, ControlError> {
        super::gateways::change(self.gateway.as_deref(), &change)
    }

    fn capacities(&self) -> Capacities {
        self.server.capacities()
    }

    fn events(&self) -> Arc<EventLog> {
        crate::event_layer::events()
    }

    fn history(&self) -> Arc<RateHistory> {
        self.rates.clone()
    }

    fn config_history(&self) -> Vec<HistoryEntry> {
        self.history.settle();
        self.history.entries()
    }

    fn config_tree(&self, number: u64) -> Result<HistoryTree, ControlError> {
        self.history.settle();
        self.history.tree(HistoryPoint::Number(number)).map(HistoryTree::from)
    }

    fn attachments(&self, name: Option<&str>) -> Result<Vec<AttachmentReport>, ControlError> {
        list::existing(name).map_err(control_error)
    }

    fn detach(&self, request: &DetachRequest, asker: &str) -> Response {
        let how = if request.force { ", also if it is in use" } else { "" };
        let name = request.name.escape_debug();
        tracing::info!(name: "request", "detach {name}{how}: requested by {asker}");
        detach_for(request).map_or_else(|failure| control_error(failure).into(), Response::Done)
    }

    fn ask(&self, request: Request, asker: &Asker) -> Response {
        if matches!(request, Request::DiffSince(_) | Request::RollBackTo(_)) {
            // Here, and not in the main thread, which must not wait for a disk.
            self.history.settle();
        }
        let (reply, answer) = channel();
        send_event(&self.events, ServeEvent::AdminRequest(request, asker.clone(), reply));
        // The client has its own timeout. The main thread executes the request even after that, except for targets on standby.
        answer.recv().unwrap_or_else(|_| ends().into())
    }
}

/// The error of a command that the API shares.
fn control_error(failure: Failure) -> ControlError {
    let kind = match failure.exit {
        Exit::NotFound => ControlErrorKind::NotFound,
        Exit::NoAccess => ControlErrorKind::Forbidden,
        Exit::InUse | Exit::Exists | Exit::Invalid => ControlErrorKind::Conflict,
        _ => ControlErrorKind::Failed,
    };
    ControlError { kind, problems: failure.problems }
}

/// Not the code of a server that does not run: it still has its media.
fn ends() -> Diagnostic {
    Diagnostic::new("the server is shutting down", "wait until its process has ended: read its log")
}

impl<S: TargetServer> Service<S> {
    pub(super) fn answer(&mut self, request: Request, asker: &Asker) -> Response {
        if !request.is_safe() {
            tracing::info!(name: "request", "{request}: requested by {}", asker.name);
        }
        let (cause, version) = (cause(&request), self.version.to_string());
        let response = self.execute(request, asker);
        if let Some(cause) = cause.filter(|_| self.version.to_string() != version) {
            self.keep(cause, Some(&asker.name));
        }
        response
    }

    fn execute(&mut self, request: Request, asker: &Asker) -> Response {
        match request {
            Request::Routers => Response::Routers(self.routers()),
            Request::ShowConfig => {
                let text = lunar_server::config::shown(&self.config.sources);
                Response::Config { version: self.version.to_string(), text }
            }
            Request::Router { name, action } => self.control(&name, action),
            Request::Diff { file } => self.diff(file),
            Request::DiffSince(point) => self.diff_since(point),
            Request::Apply(options) => self.try_out(options),
            Request::Confirm => self.confirm(),
            Request::Rollback => self.roll_back(),
            Request::RollBackTo(request) => self.roll_back_to(&request),
            Request::Change(change) => self.change_object(change),
            Request::Target { name, action } => self.control_target(&name, action, asker),
            Request::EndSession { tsih } => self.end_session(tsih),
            Request::Stop => {
                _ = self.events.send(ServeEvent::Stop);
                Response::Done("the server shuts down".into())
            }
        }
    }

    fn end_session(&self, tsih: u16) -> Response {
        if self.server.end_session(tsih) {
            return Response::Done(format!("session {tsih}: asked to log out"));
        }
        let what = format!("session {tsih} does not exist");
        let problem = Diagnostic::new(what, "lunar session list shows the sessions");
        problem.with_code(ErrorCode::NotFound).into()
    }

    /// Executes an action on a router.
    fn control(&mut self, name: &str, action: RouterAction) -> Response {
        if !self.config.routers.iter().any(|router| router.name == name) {
            let what = format!("router {name} does not exist");
            let problem = Diagnostic::new(what, "lunar router list shows the routers");
            return problem.with_code(ErrorCode::NotFound).into();
        }
        let pair = self.routes.pair(name);
        let leaves = matches!(action, RouterAction::Drain | RouterAction::Ineligible);
        let is_last =
            leaves && pair.as_ref().is_some_and(|p| p.status().role == Role::Active && !p.can_hand_over());
        let requested = match &pair {
            Some(pair) => request(name, pair, action),
            None => without_pair(name, action),
        };
        if let Err(problem) = requested {
            return problem.into();
        }
        self.set_draining(name, action);
        let warning = if is_last { "; the peer cannot take over now: no router serves" } else { "" };
        let done = done(action, pair.is_some(), &self.routes.state(name));
        Response::Done(format!("router {name}: {done}{warning}"))
    }

    fn set_draining(&self, name: &str, action: RouterAction) {
        let draining = match action {
            RouterAction::Drain => true,
            RouterAction::Resume => false,
            RouterAction::Failover | RouterAction::Eligible | RouterAction::Ineligible => return,
        };
        self.routes.instance(name).draining.store(draining, Relaxed);
        if draining {
            self.server.dismiss(name);
        }
    }

    fn routers(&self) -> Vec<RouterReport> {
        self.config.routers.iter().map(|router| self.router(&router.name)).collect()
    }

    /// The mapped LUNs of an instance that its upstreams do not have.
    fn missing(&self, name: &str) -> Vec<Missing> {
        let router = self.config.routers.iter().find(|router| router.name == name);
        router.map_or(Vec::new(), |router| missing(router, &self.whole, &self.routes.found()))
    }

    /// All upstreams of an instance, including disks of this host, which need no discovery.
    fn upstreams(&self, name: &str, status: &[UpstreamStatus], missing: &[Missing]) -> Vec<UpstreamReport> {
        let Some(router) = self.config.routers.iter().find(|router| router.name == name) else {
            return Vec::new();
        };
        let is_used = |name: &str| router.targets.iter().any(|target| target.map.upstreams().contains(&name));
        let all = router.upstreams.iter();
        all.filter_map(|(name, config)| match &config.source {
            UpstreamSource::Local(source) => Some(local(name, source, is_used(name))),
            UpstreamSource::Remote { .. } | UpstreamSource::Sg { .. } => {
                let mine = missing.iter().filter(|missing| missing.address.upstream == *name);
                Some(upstream(status.iter().find(|status| status.name == *name)?, mine))
            }
        })
        .collect()
    }

    fn router(&self, name: &str) -> RouterReport {
        let instance = self.routes.instance(name);
        let status = self.routes.status(name);
        let units = || status.iter().flat_map(|upstream| &upstream.units);
        let sum = |total: fn(&LuStatus) -> LatencyTotal| {
            hop(units().map(total).fold(LatencyTotal::default(), LatencyTotal::and))
        };
        let missing = self.missing(name);
        let mut report = RouterReport {
            name: name.to_owned(),
            state: self.routes.state(name),
            draining: instance.draining.load(Relaxed),
            started_at: instance.started.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            logins_accepted: instance.logins_accepted.load(Relaxed),
            logins_active: instance.logins_active.load(Relaxed) as u64,
            target_access_failures: instance.target_access_failures.load(Relaxed),
            authentication_failures: instance.authentication_failures.load(Relaxed),
            targets: self.targets(name, &status, &missing),
            front: hop(instance.front.total()),
            queue: sum(|unit| unit.hops.queue),
            upstream: sum(|unit| unit.hops.upstream),
            upstreams: self.upstreams(name, &status, &missing),
            failover: self.failover(name),
        };
        if report.failover.is_none() && !report.draining && report.has_no_path() {
            report.state = NO_PATH.into();
        }
        report
    }

    fn failover(&self, name: &str) -> Option<Failover> {
        let pair = self.routes.pair(name)?;
        let status = pair.status();
        Some(Failover {
            peer: pair.spec().peer.to_string(),
            state: status.peer.map(|peer| peer.role.name().into()),
            eligible: status.eligible,
            preferred: status.preferred,
        })
    }

    fn targets(&self, router: &str, status: &[UpstreamStatus], missing: &[Missing]) -> Vec<TargetReport> {
        let mine = self.whole.targets.iter().filter(|target| target.router.as_deref() == Some(router));
        let health = |lun: &lunar_server::config::LunConfig| {
            let address = lun.source.lu_address()?;
            let both =
                status.iter().flat_map(|upstream| upstream.units.iter().map(move |unit| (upstream, unit)));
            let (upstream, unit) = both.into_iter().find(|(_, unit)| unit.address == *address)?;
            let states: Vec<PathState> = unit.paths.iter().filter_map(|(_, path)| path.state).collect();
            // The path to a device of this host belongs to no host.
            let is_gone =
                unit.paths.iter().any(|(host, p)| host.is_none() && p.state == Some(PathState::Down));
            Some(lun_health(unit.health.as_ref(), &states, is_gone || upstream.obstacle.is_some()))
        };
        let lun = |(number, lun): (&u16, &lunar_server::config::LunConfig)| LunReport {
            lun: *number,
            from: lun.source.to_string(),
            health: health(lun).unwrap_or_default(),
        };
        let absent = |missing: &Missing| LunReport {
            lun: missing.lun,
            from: Source::Routed(missing.address.clone()).to_string(),
            health: missing.why,
        };
        let luns = |target: &lunar_server::config::Target| {
            let missing = missing.iter().filter(|missing| missing.target == target.name);
            let mut luns: Vec<LunReport> = target.luns.iter().map(lun).chain(missing.map(absent)).collect();
            luns.sort_by_key(|lun| lun.lun);
            luns
        };
        mine.map(|target| TargetReport { name: target.name.clone(), luns: luns(target) }).collect()
    }
}

/// Submits the request of an action to a failover pair.
fn request(name: &str, pair: &Pair, action: RouterAction) -> Result<(), Diagnostic> {
    let request = request_of(action);
    if request == FailoverRequest::Failover {
        check_failover(name, pair)?;
    }
    pair.request(request);
    Ok(())
}

fn check_failover(name: &str, pair: &Pair) -> Result<(), Diagnostic> {
    let status = pair.status();
    if status.role != Role::Active && !status.eligible {
        let what = format!("router {name} is not eligible to become active");
        let hint = format!("make the router eligible: lunar router eligible {name} on");
        return Err(Diagnostic::new(what, hint));
    }
    if status.role == Role::Active && !pair.can_hand_over() {
        let what = format!("the peer of router {name} cannot take over now");
        return Err(Diagnostic::new(what, "lunar router show reports the state of the peer"));
    }
    Ok(())
}

/// Rejects an action that needs a failover pair.
fn without_pair(name: &str, action: RouterAction) -> Result<(), Diagnostic> {
    match action {
        RouterAction::Drain | RouterAction::Resume => Ok(()),
        RouterAction::Failover | RouterAction::Eligible | RouterAction::Ineligible => Err(Diagnostic::new(
            format!("router {name} has no failover pair"),
            "add [router.NAME.failover] to the configurations of both routers",
        )),
    }
}

/// The request to the failover pair for an action.
fn request_of(action: RouterAction) -> FailoverRequest {
    match action {
        RouterAction::Failover => FailoverRequest::Failover,
        RouterAction::Drain | RouterAction::Ineligible => FailoverRequest::Ineligible,
        RouterAction::Resume | RouterAction::Eligible => FailoverRequest::Eligible,
    }
}

/// The response text. A pair switches after the response.
fn done(action: RouterAction, is_pair: bool, state: &str) -> String {
    if !is_pair {
        return state.to_owned();
    }
    let what = match action {
        RouterAction::Failover => "switches to the peer",
        RouterAction::Drain => "rejects logins, and hands over to the peer",
        RouterAction::Resume => "accepts logins, and may become active",
        RouterAction::Eligible => "may become active",
        RouterAction::Ineligible => "does not become active",
    };
    format!("{what} (it was {state})")
}

/// The health of a LUN, from the states of its used paths. While no path is used, the last probe counts. In passthrough
/// mode, each host has its own path, and `health` is None.
fn lun_health(health: Option<&Health>, states: &[PathState], is_obstructed: bool) -> LunHealth {
    let has_usable = states.iter().any(|state| state.is_usable());
    match health {
        Some(Health::Up) if states.is_empty() && is_obstructed => LunHealth::Lost,
        Some(health) => health_of(health),
        None if states.contains(&PathState::Changed) => LunHealth::Another,
        None if !has_usable && is_obstructed => LunHealth::Lost,
        None if !has_usable && states.contains(&PathState::Down) => LunHealth::Holding,
        None => LunHealth::Up,
    }
}

fn health_of(health: &Health) -> LunHealth {
    match health {
        Health::Up => LunHealth::Up,
        Health::Holding(_) => LunHealth::Holding,
        Health::Lost(_) => LunHealth::Lost,
        Health::Changed => LunHealth::Another,
    }
}

fn hop(total: LatencyTotal) -> Hop {
    let us = |ns: u64| ns as f64 / 1e3;
    let mean_us = if total.count == 0 { 0.0 } else { us(total.sum_ns) / total.count as f64 };
    Hop { commands: total.count, mean_us, max_us: us(total.max_ns) }
}

/// The status of an upstream, with mapped LUNs that it does not have.
fn upstream<'a>(status: &UpstreamStatus, missing: impl Iterator<Item = &'a Missing>) -> UpstreamReport {
    let path = |unit: &LuStatus, (host, path): &HostPath| PathReport {
        lun: shown(&unit.address),
        url: path.url.clone(),
        state: path.state.map_or("unused".into(), |state| state.to_string()),
        core: path.core.clone(),
        host: host.clone(),
        in_flight: path.core.is_some().then_some(path.in_flight),
        recoveries: path.core.is_some().then_some(path.recoveries),
        total: path.total.map(|total| PathTraffic {
            reads: total.reads,
            writes: total.writes,
            read_bytes: total.read_bytes,
            written_bytes: total.written_bytes,
            errors: total.errors,
            time_us: total.latency.sum_ns / 1000,
        }),
    };
    let of_unit = |unit: &LuStatus| unit.paths.iter().map(|p| path(unit, p)).collect::<Vec<_>>();
    let absent = |missing: &Missing| {
        let one = |url: &String| PathReport {
            lun: shown(&missing.address),
            ..plain(url, &missing.why.to_string())
        };
        status.urls.iter().map(one).collect::<Vec<_>>()
    };
    let mut paths: Vec<PathReport> =
        status.units.iter().flat_map(of_unit).chain(missing.flat_map(absent)).collect();
    if paths.is_empty() {
        let state = if status.luns == 0 { "awaited" } else { "unused" };
        paths.extend(status.urls.iter().map(|place| plain(place, state)));
    }
    let mut obstacles =
        status.units.iter().flat_map(|unit| &unit.paths).filter_map(|(_, path)| path.obstacle.clone());
    UpstreamReport {
        name: status.name.clone(),
        urls: status.urls.clone(),
        luns: status.luns,
        obstacle: obstacles.next().or_else(|| status.obstacle.clone()),
        paths,
    }
}

/// A path with only its location and state.
fn plain(place: &str, state: &str) -> PathReport {
    PathReport { lun: "-".into(), url: place.into(), state: state.into(), ..PathReport::default() }
}

/// A logical unit of an upstream, as text: `TARGET/LUN`, or `NQN/NSID`; `-` for a disk of this host.
fn shown(address: &LuAddress) -> String {
    match address.target.as_str() {
        "" => "-".into(),
        target => format!("{target}/{}", number_at(target, address.lun)),
    }
}

/// The status of a disk of this host.
fn local(name: &str, source: &Source, is_used: bool) -> UpstreamReport {
    let place = source.to_string();
    let state = if is_used { "up" } else { "unused" };
    let paths = vec![plain(&place, state)];
    UpstreamReport { name: name.to_owned(), urls: vec![place], luns: 1, obstacle: None, paths }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_lun_of_unreachable_upstream_is_lost() {
        let up = Some(&Health::Up);
        for (health, states, is_obstructed, expected) in [
            (up, &[][..], false, LunHealth::Up),
            (up, &[], true, LunHealth::Lost),
            (up, &[PathState::Optimized], true, LunHealth::Up),
            (None, &[], false, LunHealth::Up),
            (None, &[], true, LunHealth::Lost),
            (None, &[PathState::Down, PathState::Optimized], true, LunHealth::Up),
            (None, &[PathState::Down], false, LunHealth::Holding),
            (None, &[PathState::Changed], true, LunHealth::Another),
        ] {
            assert_eq!(lun_health(health, states, is_obstructed), expected, "{health:?} {states:?}");
        }
    }
}
