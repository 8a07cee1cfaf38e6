//! Reports of a server to its service manager: state, status, and the watchdog.

use super::ServeEvent;
use crate::output::count;
use crate::server::TargetServer;
use crate::service_manager::{self, notify};
use lunar_server::config::{Config, Target};
use sd_notify::NotifyState;
use std::sync::mpsc::{Receiver, Sender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The longest interval of the status, which shows the number of sessions.
const STATUS_INTERVAL: Duration = Duration::from_secs(5);
/// Time that each heartbeat of a stopping server requests. The event loops still run then, and media are flushed.
const EXTENSION: Duration = Duration::from_secs(30);
/// After this time, a stopping server requests no more: a medium may never answer.
const MAX_STOP: Duration = Duration::from_secs(600);

/// The main thread may handle one event for as many times of the watchdog: a reload waits for commands and opens media,
/// and hosts are served meanwhile.
const TURN: u32 = 10;
/// The same time without a watchdog, after which only the log shows it.
const MAX_TURN: Duration = Duration::from_secs(300);

/// Reports of a server. Without a service manager, nothing is sent.
pub struct Supervision<S> {
    server: Arc<S>,
    /// Asks the main thread for signs of life.
    events: Sender<ServeEvent>,
    state: Mutex<Reported>,
}

/// The reported state.
#[derive(Default)]
struct Reported {
    targets: usize,
    luns: usize,
    /// NVMe subsystems, which are no targets.
    subsystems: usize,
    status: String,
    stopping: Option<Instant>,
    /// When the main thread was asked for a sign of life that it did not give yet.
    asked: Option<Instant>,
    /// Whether the log shows that the main thread gives none.
    is_hung: bool,
}

impl<S: TargetServer> Supervision<S> {
    /// Starts the heartbeat. It begins in the event loops of the server, so that a blocked loop stops it. The main
    /// thread, which handles the events, must answer too. A thread sends the messages, because the service manager may
    /// block them.
    pub fn start(server: Arc<S>, events: Sender<ServeEvent>) -> Arc<Supervision<S>> {
        let state = Mutex::default();
        let supervision = Arc::new(Supervision { server: server.clone(), events, state });
        if service_manager::is_there() {
            let (beats, heard) = sync_channel(1);
            let sends = supervision.clone();
            let send = move || sends.send_each(&heard);
            match std::thread::Builder::new().name("service manager".into()).spawn(send) {
                Ok(_) => server.heartbeat(interval(), Box::new(move || _ = beats.try_send(()))),
                Err(e) => tracing::warn!("cannot start the thread that reports to the service manager: {e}"),
            }
        }
        supervision
    }

    fn send_each(&self, heard: &Receiver<()>) {
        while heard.recv().is_ok() {
            self.beat();
        }
    }

    fn beat(&self) {
        let stopping = self.state().stopping;
        match stopping {
            None => {
                if self.is_main_alive(max_turn()) {
                    notify(&[NotifyState::Watchdog]);
                }
                self.report(|_| {});
            }
            Some(since) if since.elapsed() < MAX_STOP => extend(EXTENSION),
            Some(_) => {}
        }
    }

    /// Whether the main thread has answered lately. It is asked again after each answer.
    fn is_main_alive(&self, max: Duration) -> bool {
        let mut state = self.state();
        let Some(asked) = state.asked else {
            state.asked = Some(Instant::now());
            // Without a receiver, the server is about to report that it stops.
            _ = self.events.send(ServeEvent::SignOfLife);
            return true;
        };
        let is_alive = asked.elapsed() < max;
        if !is_alive && !state.is_hung {
            state.is_hung = true;
            let max_s = max.as_secs();
            tracing::error!(
                "the main thread has handled one event for {max_s} s, and no other: the watchdog gets no signs of life"
            );
        }
        is_alive
    }

    /// The main thread answers.
    pub fn lives(&self) {
        let mut state = self.state();
        (state.asked, state.is_hung) = (None, false);
    }

    fn state(&self) -> MutexGuard<'_, Reported> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends the status if it has changed.
    fn report(&self, change: impl FnOnce(&mut Reported)) {
        let sessions = self.server.session_count();
        let mut state = self.state();
        change(&mut state);
        let status = status(state.targets, state.luns, state.subsystems, sessions);
        if state.status != status && state.stopping.is_none() {
            notify(&[NotifyState::Status(&status)]);
            state.status = status;
        }
    }

    /// Reports the targets, LUNs and subsystems of a configuration.
    pub fn serves(&self, config: &Config) {
        let targets = || config.targets.iter().filter(|target| target.subsystem.is_none());
        let luns = targets().map(Target::disks).sum();
        let subsystems = config.targets.len() - targets().count();
        self.report(|state| {
            (state.targets, state.luns, state.subsystems) = (targets().count(), luns, subsystems)
        });
    }

    /// Reports that a configuration is applied. Dropping the result reports the end.
    pub fn reloading(&self) -> Reloading {
        // systemd 253 and later require the time.
        let time = NotifyState::monotonic_usec_now();
        notify(&[Some(NotifyState::Reloading), time.ok()].into_iter().flatten().collect::<Vec<_>>());
        Reloading
    }

    /// Reports that the server stops.
    pub fn stopping(&self) {
        self.state().stopping = Some(Instant::now());
        let status = "stopping: ends commands and sessions, and flushes all media";
        notify(&[NotifyState::Stopping, NotifyState::Status(status)]);
    }

    /// Reports that a stopping server keeps deleted files open for this time.
    pub fn rescues(&self, time: Duration) {
        notify(&[NotifyState::Status("stopping: keeps the data of deleted files available")]);
        extend(time + EXTENSION);
    }
}

/// A configuration is being applied.
pub struct Reloading;

impl Drop for Reloading {
    fn drop(&mut self) {
        service_manager::ready();
    }
}

/// Three heartbeats fit the time of the watchdog.
fn interval() -> Duration {
    service_manager::watchdog().map_or(STATUS_INTERVAL, |time| (time / 3).min(STATUS_INTERVAL))
}

/// The longest time for one event of the main thread.
fn max_turn() -> Duration {
    service_manager::watchdog().map_or(MAX_TURN, |time| time * TURN)
}

fn extend(time: Duration) {
    notify(&[NotifyState::ExtendTimeoutUsec(u32::try_from(time.as_micros()).unwrap_or(u32::MAX))]);
}

fn status(targets: usize, luns: usize, subsystems: usize, sessions: usize) -> String {
    let mut parts = vec![count(targets, "target"), count(luns, "LUN")];
    if subsystems > 0 {
        parts.push(count(subsystems, "subsystem"));
    }
    parts.push(count(sessions, "session"));
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_counts_targets_luns_and_sessions() {
        assert_eq!(status(1, 1, 0, 1), "1 target, 1 LUN, 1 session");
        assert_eq!(status(2, 0, 0, 12), "2 targets, 0 LUNs, 12 sessions");
        assert_eq!(status(1, 1, 1, 2), "1 target, 1 LUN, 1 subsystem, 2 sessions");
    }
}
