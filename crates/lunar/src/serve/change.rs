//! Another configuration while it serves: by SIGHUP, by `lunar apply` for good or on trial, and by what is found at
//! the upstreams of routers.

use super::retry::Retry;
use super::{ServeEvent, Service};
use crate::server::TargetServer;
use lunar_admin::Response;
use lunar_server::config::{self, Config};
use lunar_server::routes::{expand, expand_early, pairs, specs, users};
use lunar_server::{Difference, Problem};
use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

/// A configuration that goes by itself unless it is confirmed.
#[derive(Default)]
pub struct Trial {
    /// What was before.
    before: Option<Config>,
    /// Counts them, and the tries to roll one back: the time of an earlier one means nothing.
    number: u64,
    retry: Retry,
}

impl Trial {
    fn is_over(&mut self) {
        self.before = None;
        self.number += 1;
        self.retry = Retry::default();
    }
}

impl<S: TargetServer> Service<S> {
    /// What holds now stays.
    fn end_trial(&mut self) {
        self.trial.is_over();
        self.units.end_trial();
    }

    /// Another configuration holds for good: what is on trial, if anything, is neither confirmed nor rolled back.
    pub(super) fn replace_trial(&mut self, by: &str) {
        if self.trial.before.is_some() {
            tracing::info!("{by} replaces the configuration on trial: the rollback is cancelled");
        }
        self.end_trial();
    }

    /// Uses a configuration, and logs and returns what it changes. After an error everything stays as it was.
    pub(super) fn apply(&mut self, config: Config) -> Result<Vec<Difference>, Vec<Problem>> {
        let changes = lunar_server::diff(&self.in_force, &config);
        self.replace(config, true)?;
        for change in &changes {
            match change.needs_restart {
                true => tracing::warn!("not applied: {change}"),
                false => tracing::info!("applied: {change}"),
            }
        }
        Ok(changes)
    }

    /// `is_asked`: somebody has a configuration read, and means the files that are there now.
    fn replace(&mut self, config: Config, is_asked: bool) -> Result<(), Vec<Problem>> {
        // Before anything is looked at: a loop is to be seen.
        for ((router, upstream), targets) in users(&config) {
            self.routes.uses(&router, &upstream, targets);
        }
        self.routes.try_out();
        self.routes.pairs(pairs(&config));
        self.routes.set(specs(&config));
        if let Err(problems) = self.make(&config, is_asked) {
            self.routes.give_up();
            self.route();
            return Err(problems);
        }
        self.routes.keep();
        self.in_force = lunar_server::in_force(&self.in_force, &config);
        self.config = config;
        self.route();
        Ok(())
    }

    /// Serves what a configuration comes to by what was found. `is_asked` as for [`Service::replace`].
    fn make(&mut self, config: &Config, is_asked: bool) -> Result<(), Vec<Problem>> {
        let whole = self.expanded(config)?;
        if is_asked {
            self.units.look_at_paths(&whole)?;
        }
        let server = self.server.clone();
        let setup = self.units.setup(&whole, &|units| server.rest(units))?;
        self.server.reload(setup);
        self.units.record();
        self.whole = whole;
        Ok(())
    }

    /// What a configuration comes to by what was found.
    fn expanded(&self, config: &Config) -> Result<Config, Vec<Problem>> {
        let expand = if Instant::now() < self.early_until { expand_early } else { expand };
        expand(config, &self.routes.found())
    }

    /// Sets what the routes watch, the targets that use it, and the hosts that see it.
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

    /// Something else was found at the upstreams.
    pub(super) fn found(&mut self) {
        match self.expanded(&self.config) {
            Ok(whole) if (&whole.targets, &whole.awaited) == (&self.whole.targets, &self.whole.awaited) => {
                return self.route();
            }
            Ok(_) => {}
            Err(problems) => return log_problems(&problems),
        }
        let config = self.config.clone();
        match self.make(&config, false) {
            Ok(()) => {
                if self.retry.succeeded() {
                    tracing::info!("the LUNs found at the upstreams are served now");
                }
                self.route()
            }
            Err(problems) => {
                // What cannot be served now may be served when a command has ended.
                if let Some(pause) = self.retry.failed_once_more(&problems) {
                    later(&self.events, pause, ServeEvent::Retry);
                }
            }
        }
    }

    /// It is time to try again to serve what was found.
    pub(super) fn found_before(&mut self) {
        self.retry.comes();
        self.found();
    }

    /// What another configuration would change.
    pub(super) fn diff(&self, file: Option<PathBuf>) -> Response {
        match self.read(file) {
            Ok(config) => Response::Differences(lunar_server::diff(&self.in_force, &config)),
            Err(problem) => problem.into(),
        }
    }

    fn read(&self, file: Option<PathBuf>) -> Result<Config, Problem> {
        let Some(file) = file.or_else(|| self.file.clone()) else {
            return Err(Problem::new(
                "the server was started without a file",
                "name the file: lunar apply FILE",
            ));
        };
        config::load(&file).map_err(|problems| joined(&problems))
    }

    /// Uses another configuration, for good or until its time is over.
    pub(super) fn try_out(&mut self, file: Option<PathBuf>, within_s: Option<u64>) -> Response {
        let before = self.config.clone();
        let config = match self.read(file) {
            Ok(config) => config,
            Err(problem) => return problem.into(),
        };
        if within_s.is_some() {
            self.units.begin_trial();
        }
        let changes = match self.apply(config) {
            Ok(changes) => changes,
            Err(problems) => {
                if self.trial.before.is_none() {
                    self.units.end_trial();
                }
                return joined(&problems).into();
            }
        };
        let mut text: String = changes.iter().map(|change| format!("{change}\n")).collect();
        match within_s {
            None => {
                self.replace_trial("the applied configuration");
                text += "applied; to keep it after a restart, write it to the server's configuration file";
            }
            Some(seconds) => {
                // Of two trials in a row, the first holds what is known to be good.
                self.trial.before.get_or_insert(before);
                self.trial.number += 1;
                self.wake(seconds, self.trial.number);
                text += &format!(
                    "applied; it is rolled back in {seconds} s unless you run lunar apply --confirm"
                );
            }
        }
        Response::Done(text)
    }

    fn wake(&self, seconds: u64, number: u64) {
        later(&self.events, Duration::from_secs(seconds), ServeEvent::Unconfirmed(number));
    }

    /// What was applied stays.
    pub(super) fn confirm(&mut self) -> Response {
        if self.trial.before.is_none() {
            return Problem::new(
                "no configuration waits for confirmation",
                "lunar apply FILE --confirm-within 60s",
            )
            .into();
        }
        self.end_trial();
        tracing::info!("the applied configuration is confirmed");
        Response::Done("confirmed".into())
    }

    /// The time of a trial is over, or it is time to try again to roll it back.
    pub(super) fn unconfirmed(&mut self, number: u64) {
        if number != self.trial.number || self.trial.before.is_none() {
            return;
        }
        if !self.trial.retry.is_under_way() {
            tracing::warn!("the configuration was not confirmed in time: rolled back");
        }
        self.roll_back();
    }

    /// Back to what was before. A failure is tried again until it works: a file that others use may come back.
    pub(super) fn roll_back(&mut self) -> Response {
        let Some(before) = self.trial.before.clone() else {
            return Problem::new("no configuration to roll back to", "lunar apply FILE --confirm-within 60s")
                .into();
        };
        // Nothing that happened to a file keeps hosts from what worked before.
        match self.replace(before, false) {
            Ok(()) => {
                self.end_trial();
                tracing::info!("the applied configuration is rolled back");
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

fn not_rolled_back(problems: &[Problem]) -> Problem {
    let hint =
        "the server retries automatically; to keep the current configuration, run lunar apply --confirm";
    Problem { hint: Some(hint.into()), ..joined(problems) }
}

pub(super) fn later(events: &Sender<ServeEvent>, time: Duration, event: ServeEvent) {
    let events = events.clone();
    std::thread::spawn(move || {
        std::thread::sleep(time);
        // The server may be gone.
        _ = events.send(event);
    });
}

pub(super) fn log_problems(problems: &[Problem]) {
    for problem in problems {
        tracing::error!("{problem}");
    }
}

/// All of them as one.
fn joined(problems: &[Problem]) -> Problem {
    let texts: Vec<String> = problems.iter().map(Problem::to_string).collect();
    let what = format!("{}\nthe configuration is unchanged", texts.join("\n"));
    Problem::new(what, "correct the file, and repeat the command")
        .with_code(crate::exit::common_code(problems))
}
