//! The interface of a server for its API.

use crate::attachment::AttachmentReport;
use crate::gateway::GatewayChange;
use crate::history::{RateHistory, Traffic, of_units};
use crate::metrics::MetricsReport;
use crate::{
    ConfigSnapshot, Difference, EventLog, GroupReport, HistoryEntry, HistoryPoint, HistoryTree, ObjectChange,
    RollbackRequest, RouterReport, ServerEnd, SessionReport,
};
use lunar_config::{Diagnostic, ErrorCode};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use utoipa::ToSchema;

/// A request to the server that its main thread executes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// All SCSI routing instances.
    Routers,
    /// The configuration in force as one text, without secrets.
    ShowConfig,
    /// Control one routing instance.
    Router {
        /// Its name.
        name: String,
        /// The operation.
        action: RouterAction,
    },
    /// Promote or demote a target.
    Target {
        /// Its name.
        name: String,
        /// The operation.
        action: TargetAction,
    },
    /// Compare another configuration with the current one.
    Diff {
        /// Its file; None: the server's own.
        file: Option<PathBuf>,
    },
    /// Compare an earlier tree with the current configuration.
    DiffSince(HistoryPoint),
    /// Apply another configuration.
    Apply(ApplyOptions),
    /// Keep the applied configuration.
    Confirm,
    /// Roll back the applied configuration now.
    Rollback,
    /// Return to an earlier tree.
    RollBackTo(RollbackRequest),
    /// Change an object of the configuration.
    Change(ObjectChange),
    /// End a session.
    EndSession {
        /// Its target session identifying handle.
        tsih: u16,
    },
    /// Shut down gracefully.
    Stop,
}

/// A configuration to apply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApplyOptions {
    /// Its file; None: the server's own.
    pub file: Option<PathBuf>,
    /// Seconds until an unconfirmed configuration is rolled back; None: no rollback.
    pub confirm_within_s: Option<u64>,
    /// Removes targets and LUNs that hosts use, or shows another disk in their place.
    pub force: bool,
    /// Checks the configuration and reports its effects, without changing anything.
    pub dry_run: bool,
}

impl Request {
    /// Whether the request changes nothing.
    pub fn is_safe(&self) -> bool {
        matches!(self, Request::Routers | Request::ShowConfig | Request::Diff { .. } | Request::DiffSince(_))
    }
}

/// The request in words, for the log.
impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let own = || "the configuration of the server".to_owned();
        let of = |file: &Option<PathBuf>| file.as_ref().map_or_else(own, |file| file.display().to_string());
        match self {
            Request::Routers => write!(f, "routers"),
            Request::ShowConfig => write!(f, "show the configuration"),
            Request::Router { name, action } => write!(f, "{} router {name}", action.name()),
            Request::Target { name, action } => write!(f, "{} target {}", action.name(), name.escape_debug()),
            Request::Diff { file } => write!(f, "compare {}", of(file)),
            Request::DiffSince(point) => write!(f, "compare {point} of the history"),
            Request::Apply(ApplyOptions { file, dry_run, .. }) => {
                write!(f, "apply {}{}", of(file), if *dry_run { " (dry run)" } else { "" })
            }
            Request::Confirm => write!(f, "confirm the applied configuration"),
            Request::Rollback => write!(f, "roll back the applied configuration"),
            Request::RollBackTo(RollbackRequest { to, dry_run, .. }) => {
                let how = if *dry_run { " (dry run)" } else { "" };
                write!(f, "roll back to entry {to} of the history{how}")
            }
            Request::Change(change) => write!(f, "{change}"),
            Request::EndSession { tsih } => write!(f, "end session {tsih}"),
            Request::Stop => write!(f, "stop"),
        }
    }
}

/// A control operation on a SCSI routing instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RouterAction {
    /// Reject logins and ask hosts to log out; in a failover pair, the peer takes over.
    Drain,
    /// Serve again after [`RouterAction::Drain`].
    Resume,
    /// Switch the active router of a failover pair.
    Failover,
    /// Allow this router to become active in its failover pair.
    Eligible,
    /// Forbid this router to become active in its failover pair.
    Ineligible,
}

impl RouterAction {
    /// The word of the command line and of the API.
    pub fn name(self) -> &'static str {
        match self {
            RouterAction::Drain => "drain",
            RouterAction::Resume => "resume",
            RouterAction::Failover => "failover",
            RouterAction::Eligible => "eligible",
            RouterAction::Ineligible => "ineligible",
        }
    }
}

/// A control operation on a target with `standby`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetAction {
    /// Open its media, and accept logins.
    Promote,
    /// End its sessions, flush its media, and close them.
    Demote,
}

impl TargetAction {
    /// The word of the command line and of the API.
    pub fn name(self) -> &'static str {
        match self {
            TargetAction::Promote => "promote",
            TargetAction::Demote => "demote",
        }
    }
}

/// An attachment to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DetachRequest {
    /// Its name.
    pub name: String,
    /// Ends it even if it is in use.
    pub force: bool,
}

impl DetachRequest {
    /// The error of an attachment that does not exist.
    pub fn absent(&self) -> Diagnostic {
        let what = format!("\"{}\" is not attached", self.name.escape_debug());
        Diagnostic::new(what, "lunar attach list shows the attachments").with_code(ErrorCode::NotFound)
    }
}

/// A response of the server.
#[derive(Clone, Debug, PartialEq)]
pub enum Response {
    /// All SCSI routing instances.
    Routers(Vec<RouterReport>),
    /// The differences between two configurations.
    Differences(Vec<Difference>),
    /// The configuration was changed, or would be in a dry run.
    Changed {
        /// The version after the change.
        version: String,
        /// The differences.
        changes: Vec<Difference>,
        /// Effects that the user may not expect: faults that the configuration did not have before and that do not prevent its
        /// use, and objects that it leaves out.
        warnings: Vec<String>,
    },
    /// The configuration in force: its version, and its text.
    Config {
        /// The version.
        version: String,
        /// TOML.
        text: String,
    },
    /// Success, with a message for the user.
    Done(String),
    /// Failure.
    Failed(ControlError),
}

/// The reason why a request failed.
#[derive(Clone, Debug, PartialEq)]
pub struct ControlError {
    /// The class of the failure.
    pub kind: ControlErrorKind,
    /// The faults, at least one.
    pub problems: Vec<Diagnostic>,
}

/// The class of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlErrorKind {
    /// The object does not exist.
    NotFound,
    /// The request conflicts with the state of the server.
    Conflict,
    /// The configuration has another version than the request expects.
    Stale,
    /// The configuration that would result is invalid.
    Invalid,
    /// The user of the server lacks a right.
    Forbidden,
    /// The server could not execute the request.
    Failed,
}

impl ControlError {
    /// A failure with one fault.
    pub fn one(kind: ControlErrorKind, problem: Diagnostic) -> ControlError {
        ControlError { kind, problems: vec![problem] }
    }

    /// A conflict with the state of the server.
    pub fn conflict(what: impl Into<String>, hint: impl Into<String>) -> ControlError {
        ControlError::one(ControlErrorKind::Conflict, Diagnostic::new(what, hint))
    }

    /// An entry of the history that does not exist.
    pub fn no_entry(point: HistoryPoint) -> ControlError {
        let problem =
            Diagnostic::new(format!("the history has no {point}"), "lunar history shows the entries");
        ControlError::one(ControlErrorKind::NotFound, problem.with_code(ErrorCode::NotFound))
    }

    /// A configuration that would be invalid.
    pub fn invalid(what: impl Into<String>, hint: impl Into<String>) -> ControlError {
        ControlError::one(ControlErrorKind::Invalid, Diagnostic::new(what, hint))
    }
}

impl From<ControlError> for Response {
    fn from(error: ControlError) -> Response {
        Response::Failed(error)
    }
}

impl From<Diagnostic> for Response {
    fn from(problem: Diagnostic) -> Response {
        let kind = match problem.code {
            ErrorCode::NotFound => ControlErrorKind::NotFound,
            ErrorCode::TimedOut | ErrorCode::Unreachable => ControlErrorKind::Failed,
            _ => ControlErrorKind::Conflict,
        };
        ControlError::one(kind, problem).into()
    }
}

/// Capacities in bytes, by target and LUN.
pub type Capacities = BTreeMap<(String, u16), u64>;

/// A server that the API controls.
pub trait ServerControl: Send + Sync + 'static {
    /// All sessions.
    fn sessions(&self) -> Vec<SessionReport>;

    /// The configuration in force.
    fn config(&self) -> Arc<ConfigSnapshot>;

    /// Facts that an administrator should know now: faults of the configuration, and missing media.
    fn warnings(&self) -> Vec<String> {
        self.config().warnings.clone()
    }

    /// The end of the server.
    fn end(&self) -> Arc<ServerEnd> {
        Arc::default()
    }

    /// The counters of the server; empty if it has none.
    fn metrics(&self) -> MetricsReport {
        MetricsReport::default()
    }

    /// The traffic of each logical unit, by its number: what the sampler needs of the counters.
    fn traffic(&self) -> BTreeMap<u64, Traffic> {
        of_units(&self.metrics())
    }

    /// The group of gateways; empty if the server is in none.
    fn group(&self) -> GroupReport {
        GroupReport::default()
    }

    /// Changes the access of a gateway. It waits for the other gateways.
    ///
    /// # Errors
    /// The gateway or the image does not exist, or the change is not possible.
    fn change_gateway(&self, change: GatewayChange) -> Result<String, ControlError> {
        let what = format!("gateway {} does not exist: the server has no [gateway]", change.id);
        let problem = Diagnostic::new(what, "lunar gateway list shows the gateways");
        Err(ControlError::one(ControlErrorKind::NotFound, problem.with_code(ErrorCode::NotFound)))
    }

    /// The capacities that hosts see, in bytes, by target and LUN.
    fn capacities(&self) -> Capacities {
        Capacities::new()
    }

    /// The events of the process; none if it keeps none.
    fn events(&self) -> Arc<EventLog> {
        Arc::default()
    }

    /// The rates of the past hour; no samples if the server keeps none.
    fn history(&self) -> Arc<RateHistory> {
        Arc::default()
    }

    /// The applied trees that the server keeps, the newest first; none if it keeps none. It may wait for the disk.
    fn config_history(&self) -> Vec<HistoryEntry> {
        Vec::new()
    }

    /// A tree that the server keeps. It may wait for the disk.
    ///
    /// # Errors
    /// When there is no such entry, or it cannot be read.
    fn config_tree(&self, number: u64) -> Result<HistoryTree, ControlError> {
        Err(ControlError::no_entry(HistoryPoint::Number(number)))
    }

    /// The disks that this host attached, with one name or all. It may wait for their processes.
    ///
    /// # Errors
    /// When the user of the server cannot read their records.
    fn attachments(&self, name: Option<&str>) -> Result<Vec<AttachmentReport>, ControlError> {
        _ = name;
        Ok(Vec::new())
    }

    /// Detaches a disk of this host, and waits for the end of its process.
    ///
    /// # Errors
    /// When it does not exist, is in use, or belongs to another user.
    fn detach(&self, detach: &DetachRequest, asker: &str) -> Response {
        _ = asker;
        ControlError::one(ControlErrorKind::NotFound, detach.absent()).into()
    }

    /// Executes any other request. It may take long; the client limits its own wait.
    fn ask(&self, request: Request, asker: &Asker) -> Response;
}

/// The client of a request.
#[derive(Clone, Debug, Default)]
pub struct Asker {
    /// Its user and process, for the log.
    pub name: String,
    is_gone: Arc<AtomicBool>,
}

/// A client that waits for its response. Dropping it reports that the client is gone.
pub struct WaitingAsker(Arc<AtomicBool>);

impl Asker {
    /// A client with this name.
    pub fn new(name: impl Into<String>) -> Asker {
        Asker { name: name.into(), is_gone: Arc::default() }
    }

    /// Reports that the client waits for its response.
    pub fn waits(&self) -> WaitingAsker {
        WaitingAsker(self.is_gone.clone())
    }

    /// Whether the client waits no longer, so that it acts as if the request had failed.
    pub fn is_gone(&self) -> bool {
        self.is_gone.load(Relaxed)
    }
}

impl Drop for WaitingAsker {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}
