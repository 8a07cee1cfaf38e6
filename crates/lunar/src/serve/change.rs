//! Changes of the configuration of a running server: by SIGHUP, by `lunar apply` with or without a trial, and by
//! discoveries at the upstreams of routers.

use super::in_use::TakenObject;
use super::journal::Journal;
use super::objects::cannot_write;
use super::retry::Retry;
use super::{ServeEvent, Service};
use crate::server::TargetServer;
use lunar_admin::{
    ApplyCause, ApplyOptions, Change, ConfigObject, ControlError, ControlErrorKind, ObjectOrigin,
    ReloadOutcome, Response,
};
use lunar_server::config::{self, Config, TransientFiles, TrialRecord};
use lunar_server::routes::{expand, expand_early, pairs, specs, users};
use lunar_server::{Diagnostic, Difference, standby};
use lunar_target::Quiesced;
use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A configuration on trial, which is rolled back unless it is confirmed.
#[derive(Default)]
pub struct Trial {
    /// The configuration before the trial.
    before: Option<Config>,
    /// Counts trials and attempts of a rollback, so that the timers of earlier ones are ignored.
    number: u64,
    retry: Retry,
    /// When it is rolled back, in seconds since 1970.
    confirm_by: u64,
    /// The files of the API before the trial; None if it changes none of them.
    journal: Option<Journal>,
    /// The transient objects before the trial, if it changes them.
    transient: Option<TransientFiles>,
}

impl Trial {
    /// When the configuration on trial is rolled back, in seconds since 1970; None if none is on trial.
    pub fn confirm_by(&self) -> Option<u64> {
        self.before.as_ref().map(|_| self.confirm_by)
    }

    fn end(&mut self) {
        *self = Trial { number: self.number + 1, ..Trial::default() };
    }

    /// Removes the journal: from now on, a crash keeps the files of the API as they are.
    fn keep_files(&mut self) -> Result<(), ControlError> {
        let removed = self.journal.as_ref().map_or(Ok(()), Journal::remove);
        removed.map_err(|(path, e)| cannot_write(&path, &e))?;
        self.journal = None;
        Ok(())
    }
}

impl<S: TargetServer> Service<S> {
    /// Ends the trial and keeps the current configuration.
    fn end_trial(&mut self) {
        self.trial.end();
        self.units.end_trial();
        self.publish();
    }

    /// Ends the trial because another configuration replaces the one on trial: it is neither confirmed nor rolled
    /// back.
    pub(super) fn replace_trial(&mut self, by: &str) {
        if self.trial.before.is_some() {
            tracing::info!("{by} replaces the configuration on trial: the rollback is cancelled");
        }
        if let Err(error) = self.trial.keep_files() {
            log_problems(&error.problems);
        }
        self.end_trial();
    }

    /// Applies a configuration. Logs and returns its changes. After an error, nothing has changed.
    pub(super) fn apply(&mut self, config: Config) -> Result<Vec<Difference>, Vec<Diagnostic>> {
        let changes = lunar_server::diff(&self.in_force, &config);
        self.replace(config, true)?;
        for change in &changes {
            log_change(change);
        }
        Ok(changes)
    }

    /// Applies a configuration although hosts may lose what they use, and logs that.
    pub(super) fn apply_unasked(&mut self, config: Config) -> Result<Vec<Difference>, Vec<Diagnostic>> {
        let taken = self.taken(&config);
        let changes = self.apply(config)?;
        taken.iter().for_each(TakenObject::warn);
        Ok(changes)
    }

    /// Applies a configuration. With `is_asked`, a user requested it, so the files at the paths are checked.
    fn replace(&mut self, config: Config, is_asked: bool) -> Result<(), Vec<Diagnostic>> {
        let _reloading = self.supervision.reloading();
        let listening = self.https.prepare(config.api.as_ref()).map_err(|problem| vec![problem])?;
        // Before any discovery, so that a loop is detected.
        for ((router, upstream), targets) in users(&config) {
            self.routes.uses(&router, &upstream, targets);
        }
        self.routes.try_out();
        self.routes.pairs(pairs(&config));
        self.routes.set(specs(&config));
        let before = self.standby.promoted.clone();
        self.standby.promoted = standby::after_change(&self.config, &before, &config);
        if let Err(problems) = self.make(&config, is_asked) {
            self.standby.promoted = before;
            self.routes.give_up();
            self.route();
            return Err(problems);
        }
        self.routes.keep();
        self.https.apply(listening);
        self.in_force = lunar_server::in_force(&self.in_force, &config);
        self.config = config;
        self.version.next();
        self.publish();
        self.route();
        tracing::info!(name: "config.applied", version = %self.version, "another configuration is in force");
        Ok(())
    }

    /// Serves the expanded configuration. `is_asked` as for [`Service::replace`]. Returns as [`Service::put`].
    pub(super) fn make(&mut self, config: &Config, is_asked: bool) -> Result<Vec<String>, Vec<Diagnostic>> {
        let whole = self.expanded(config)?;
        if is_asked {
            self.units.check_paths(&whole)?;
        }
        let unflushed = self.put(whole)?;
        self.unserved.log(config, &self.whole, &self.routes.found());
        Ok(unflushed)
    }

    /// Serves a configuration with all its targets. Returns the failed flushes of media that it closed.
    pub(super) fn put(&mut self, whole: Config) -> Result<Vec<String>, Vec<Diagnostic>> {
        // All binds before any change.
        let portals = self.server.prepare(&whole.portal_groups).map_err(|e| vec![super::cannot_serve(&e)])?;
        let (server, unflushed) = (self.server.clone(), RefCell::new(Vec::new()));
        let setup = self.units.setup(&whole, &|units| {
            let resting = server.rest(units)?;
            unflushed.borrow_mut().extend(resting.iter().filter_map(not_flushed));
            Ok(resting)
        })?;
        self.server.reload(setup, portals);
        self.units.record();
        self.whole = whole;
        self.supervision.serves(&self.whole);
        Ok(unflushed.into_inner())
    }

    /// The configuration, expanded by the discoveries at upstreams, without the LUNs of targets on standby.
    fn expanded(&self, config: &Config) -> Result<Config, Vec<Diagnostic>> {
        let expand = if Instant::now() < self.early_until { expand_early } else { expand };
        let mut whole = expand(config, &self.routes.found())?;
        standby::close(&mut whole, &self.standby.promoted);
        Ok(whole)
    }

    /// Passes the upstreams to watch, their users, and the visible LUNs to the routes.
    pub(super) fn route(&self) {
        for ((router, upstream), targets) in users(&self.whole) {
            self.routes.uses(&router, &upstream, targets);
        }
        for router in &self.config.routers {
            self.routes.limit(&router.name, router.max_sessions);
        }
        self.routes.pairs(pairs(&self.config));
        self.routes.set(specs(&self.config));
        self.routes.serve(self.units.routed(&self.whole));
    }

    /// Handles a change at the upstreams.
    pub(super) fn found(&mut self) {
        match self.expanded(&self.config) {
            Ok(whole) if (&whole.targets, &whole.awaited) == (&self.whole.targets, &self.whole.awaited) => {
                self.unserved.log(&self.config, &self.whole, &self.routes.found());
                return self.route();
            }
            Ok(_) => {}
            Err(problems) => return log_problems(&problems),
        }
        let config = self.config.clone();
        match self.make(&config, false) {
            Ok(_) => {
                if self.retry.succeeded() {
                    tracing::info!("the LUNs found at the upstreams are served now");
                }
                self.publish();
                self.route()
            }
            Err(problems) => {
                // It may succeed later, such as when a command in flight has ended.
                if let Some(pause) = self.retry.failed_once_more(&problems) {
                    later(&self.events, pause, ServeEvent::Retry);
                }
            }
        }
    }

    /// Handles the time of a retry.
    pub(super) fn found_before(&mut self) {
        self.retry.comes();
        self.found();
    }

    /// The changes that another configuration would make.
    pub(super) fn diff(&self, file: Option<PathBuf>) -> Response {
        match self.read(file) {
            Ok(config) => Response::Differences(lunar_server::diff(&self.in_force, &config)),
            Err(error) => error.into(),
        }
    }

    fn read(&self, file: Option<PathBuf>) -> Result<Config, ControlError> {
        let Some(file) = file.or_else(|| self.file.clone()) else {
            let what = "the server was started without a configuration file";
            let problem = Diagnostic::new(what, "name the file: lunar apply FILE");
            return Err(ControlError::one(ControlErrorKind::Conflict, problem));
        };
        // Transient objects belong to the server's own configuration.
        let is_own = self.file.as_ref() == Some(&file) || self.own.as_ref() == Some(&file);
        let none = TransientFiles::new();
        let loaded = config::load_with(&file, if is_own { &self.transient } else { &none });
        loaded.map_err(|problems| ControlError { kind: ControlErrorKind::Invalid, problems })
    }

    /// Publishes the outcome of a reload.
    pub(super) fn reloaded(&mut self, is_success: bool) {
        self.last_reload = Some(ReloadOutcome { is_success, at: now_s() });
        self.publish();
    }

    /// Applies another configuration, permanently or on trial.
    pub(super) fn try_out(&mut self, options: ApplyOptions) -> Response {
        let is_dry_run = options.dry_run;
        let result = self.try_now(options);
        if !is_dry_run {
            self.reloaded(result.is_ok());
        }
        result.unwrap_or_else(Response::from)
    }

    fn try_now(&mut self, options: ApplyOptions) -> Result<Response, ControlError> {
        let ApplyOptions { file, confirm_within_s, force, dry_run } = options;
        let config = self.read(file)?;
        if !force {
            self.check_taken(&config)?;
        }
        let warnings = self.left_out(&config).into_iter().chain(self.unread_by_next_start(&config));
        let warnings = warnings.chain(self.excluded(&config)).collect();
        if dry_run {
            let changes = lunar_server::diff(&self.in_force, &config);
            return Ok(self.changed(changes, warnings));
        }
        let changes = match confirm_within_s {
            None => {
                self.units.discard_deleted(force);
                let changes = self.apply_unasked(config);
                self.units.discard_deleted(false);
                changes.map_err(conflict)?
            }
            // A deleted file could not return with a rollback.
            Some(seconds) => self.apply_on_trial(config, seconds)?,
        };
        if confirm_within_s.is_none() {
            self.replace_trial("the applied configuration");
        }
        Ok(self.made(changes, warnings))
    }

    /// A warning if the server was started by arguments: its next start reads no configuration.
    pub(super) fn unread_by_next_start(&self, new: &Config) -> Option<String> {
        let file = new.sources.whole.display();
        self.own.is_none().then(|| {
            format!(
                "the next start of this server does not read {file}, because it was started without --config; hint: \
                 start it with --config {file}"
            )
        })
    }

    /// A warning if objects of the API are not in another configuration, which has its own folder of the API.
    fn left_out(&self, new: &Config) -> Option<String> {
        let (now, then) = (&self.config.sources, &new.sources);
        let is_of_api = |object: &ConfigObject| {
            matches!(object.source.origin, ObjectOrigin::Api | ObjectOrigin::Transient)
        };
        let all =
            now.document.iter().filter(|(id, object)| is_of_api(object) && !then.document.contains_key(id));
        let count = all.count();
        if count == 0 || now.whole == then.whole {
            return None;
        }
        let objects = if count == 1 { "object of the API is" } else { "objects of the API are" };
        let (file, folder) = (then.whole.display(), config::api_folder(&then.whole));
        Some(format!(
            "{count} {objects} not in {file}, whose own objects of the API are in {}; hint: lunar reload returns to the \
             server's own configuration",
            folder.display()
        ))
    }

    /// Applies a configuration until the trial ends.
    fn apply_on_trial(&mut self, config: Config, seconds: u64) -> Result<Vec<Difference>, ControlError> {
        let before = self.config.clone();
        let journal = self.journal(&config)?;
        self.units.begin_trial();
        match self.apply_unasked(config) {
            Ok(changes) => {
                self.begin_trial(before, journal, None, seconds);
                Ok(changes)
            }
            Err(problems) => {
                if self.trial.before.is_none() {
                    self.units.end_trial();
                }
                self.forget(journal);
                Err(conflict(problems))
            }
        }
    }

    /// The journal of a trial of this configuration; None if it changes no files of the server.
    fn journal(&self, config: &Config) -> Result<Option<Journal>, ControlError> {
        // Of consecutive trials, the configuration before the first one is the last confirmed one.
        let before = &self.trial.before.as_ref().unwrap_or(&self.config).sources;
        let (old, new) = (&before.whole, &config.sources.whole);
        if self.own.as_ref() != Some(old) || old != new {
            return Ok(None);
        }
        let record = TrialRecord::of(before, &config.sources);
        let is_needed = !record.files.is_empty();
        if !is_needed && record.others.is_empty() && self.trial.journal.is_none() {
            return Ok(None);
        }
        match Journal::write(old, record) {
            Ok(journal) => Ok(Some(journal)),
            Err((path, e)) if is_needed => Err(cannot_write(&path, &e)),
            Err((path, e)) => {
                log_problems(&cannot_write(&path, &e).problems);
                Ok(None)
            }
        }
    }

    /// Removes the journal of a trial that did not begin. The journal of an earlier trial counts again.
    fn forget(&self, journal: Option<Journal>) {
        let Some(journal) = journal else { return };
        let restored = match &self.trial.journal {
            Some(earlier) => Journal::write(earlier.whole(), earlier.record.clone()).map(drop),
            None => journal.remove(),
        };
        if let Err((path, e)) = restored {
            log_problems(&cannot_write(&path, &e).problems);
        }
    }

    /// Begins a trial of the configuration in force, or extends it.
    pub(super) fn begin_trial(
        &mut self,
        before: Config,
        journal: Option<Journal>,
        transient: Option<TransientFiles>,
        seconds: u64,
    ) {
        self.trial.before.get_or_insert(before);
        self.trial.journal = journal.or(self.trial.journal.take());
        self.trial.transient = self.trial.transient.take().or(transient);
        self.trial.number += 1;
        self.trial.confirm_by = now_s() + seconds;
        self.wake(seconds, self.trial.number);
        self.publish();
    }

    fn wake(&self, seconds: u64, number: u64) {
        later(&self.events, Duration::from_secs(seconds), ServeEvent::Unconfirmed(number));
    }

    /// Puts the files of the API and the transient objects back, as they were before the trial.
    fn put_back(&mut self) -> Result<(), Vec<Diagnostic>> {
        let undone = self.trial.journal.as_ref().map_or(Ok(()), Journal::undo);
        undone.map_err(|(path, e)| cannot_write(&path, &e).problems)?;
        if let Some(transient) = self.trial.transient.take() {
            self.transient = transient;
        }
        Ok(())
    }

    /// Confirms the applied configuration.
    pub(super) fn confirm(&mut self) -> Response {
        if self.trial.before.is_none() {
            return Diagnostic::new(
                "no configuration is on trial: there is nothing to confirm",
                "start a trial: lunar apply FILE --confirm-within 60s",
            )
            .into();
        }
        if let Err(error) = self.trial.keep_files() {
            return error.into();
        }
        if let Some(before) = self.trial.before.take().filter(|_| self.trial.transient.is_some()) {
            self.discard_secrets(&before);
        }
        self.end_trial();
        tracing::info!(name: "config.confirmed", "the applied configuration is confirmed");
        Response::Done("confirmed".into())
    }

    /// Handles the timeout of a trial, or the time of another attempt to roll it back.
    pub(super) fn unconfirmed(&mut self, number: u64) {
        if number != self.trial.number || self.trial.before.is_none() {
            return;
        }
        if !self.trial.retry.is_in_progress() {
            tracing::warn!("the configuration on trial was not confirmed in time, and is rolled back");
        }
        let version = self.version.to_string();
        self.roll_back();
        if self.version.to_string() != version {
            self.keep(ApplyCause::Rollback, None);
        }
    }

    /// Rolls back to the configuration before the trial. Retries until it succeeds: a file in use may become free.
    pub(super) fn roll_back(&mut self) -> Response {
        let Some(before) = self.trial.before.clone() else {
            return Diagnostic::new(
                "no configuration is on trial: there is nothing to roll back",
                "start a trial: lunar apply FILE --confirm-within 60s",
            )
            .into();
        };
        // A replaced file must not prevent hosts from using the previous configuration.
        match self.replace(before, false).and_then(|()| self.put_back()) {
            Ok(()) => {
                self.end_trial();
                tracing::info!(name: "config.reverted", "the applied configuration is rolled back");
                Response::Done("rolled back".into())
            }
            Err(problems) => {
                let pause = self.trial.retry.failed(&problems);
                self.trial.number += 1;
                later(&self.events, pause, ServeEvent::Unconfirmed(self.trial.number));
                not_rolled_back(&problems).into()
            }
        }
    }
}

/// The failed flush of a quiesced logical unit.
fn not_flushed(unit: &Quiesced) -> Option<String> {
    let is_stable = unit.unit.backend().info().write_through;
    let e = unit.flushed.as_ref().err().filter(|_| !is_stable)?;
    Some(format!("the LUN with the serial number {}: {e}", unit.unit.lu.settings().identity.serial))
}

/// The error of a configuration that cannot be applied.
fn conflict(problems: Vec<Diagnostic>) -> ControlError {
    ControlError { kind: ControlErrorKind::Conflict, problems }
}

/// Logs a change. Changes of LUNs and namespaces are events of their own kinds.
fn log_change(change: &Difference) {
    let unit = |of: &str, kind: &str| match &change.place[..] {
        [parent, unit] => Some((parent.strip_prefix(of)?, unit.strip_prefix(kind)?.parse::<u16>().ok()?)),
        _ => None,
    };
    let (target, lun) = unit("target ", "LUN ").unzip();
    let (subsystem, nsid) = unit("subsystem ", "namespace ").unzip();
    macro_rules! applied {
        ($kind:literal) => {
            tracing::info!(name: $kind, target, lun, subsystem, nsid, "applied: {change}")
        };
    }
    match (&change.change, nsid) {
        _ if change.needs_restart => tracing::warn!(name: "config.pending", "not applied: {change}"),
        _ if lun.is_none() && nsid.is_none() => applied!("config.changed"),
        (Change::Added { .. }, None) => applied!("lun.added"),
        (Change::Removed, None) => applied!("lun.removed"),
        (Change::Changed { .. }, None) => applied!("lun.changed"),
        (Change::Added { .. }, Some(_)) => applied!("namespace.added"),
        (Change::Removed, Some(_)) => applied!("namespace.removed"),
        (Change::Changed { .. }, Some(_)) => applied!("namespace.changed"),
    }
}

fn not_rolled_back(problems: &[Diagnostic]) -> Diagnostic {
    let hint =
        "the server retries automatically; to keep the current configuration, run lunar apply --confirm";
    Diagnostic { hint: Some(hint.into()), ..joined(problems) }
}

/// Seconds since 1970.
fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

pub(super) fn later(events: &Sender<ServeEvent>, time: Duration, event: ServeEvent) {
    let events = events.clone();
    std::thread::spawn(move || {
        std::thread::sleep(time);
        // The server may have ended.
        _ = events.send(event);
    });
}

pub(super) fn log_problems(problems: &[Diagnostic]) {
    for problem in problems {
        tracing::error!("{problem}");
    }
}

/// Joins all problems in one.
fn joined(problems: &[Diagnostic]) -> Diagnostic {
    let texts: Vec<String> = problems.iter().map(Diagnostic::to_string).collect();
    let what = format!("{}\nthe configuration is unchanged", texts.join("\n"));
    Diagnostic::new(what, "correct the file, and repeat the command")
        .with_code(crate::exit::common_code(problems))
}
