//! Promotes and demotes targets on standby, as a cluster manager requests.

use super::change::later;
use super::{ServeEvent, Service};
use crate::server::TargetServer;
use lunar_admin::{Asker, ControlError, ControlErrorKind, Response, TargetAction};
use lunar_config::io_text;
use lunar_server::config::{Config, Target};
use lunar_server::routes::{Found, expand_early};
use lunar_server::standby::{self, Promoted};
use lunar_server::{Diagnostic, ErrorCode, MediumWatch, Units};
use lunar_target::FlushFailure;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Time that the sessions of a demoted target have to end.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(20);
/// Time that the media of a demoted target have to be closed. The last commands of cut sessions may still use them.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 0 } else { 10 });
/// Time that the flush of a demoted target may take. With the other times, it is less than the watchdog allows for one
/// request (`TURN`).
const FLUSH_TIMEOUT: Duration = Duration::from_secs(240);
/// The pause between two looks whether the media of a demoted target are closed after that time.
const CLOSED_PAUSE: Duration = Duration::from_secs(1);
/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(10);

const MEDIUM_HINT: &str =
    "repeat the command; if the medium never answers, end the server before another one gets the medium";

/// The targets on standby that this process has promoted. A restart begins without any: the cluster manager decides.
#[derive(Default)]
pub struct StandbyTargets {
    pub promoted: Promoted,
    /// The media of demoted targets, until they are closed.
    closing: BTreeMap<String, Vec<MediumWatch>>,
    /// Whether [`ServeEvent::Closed`] is due.
    is_watched: bool,
}

impl StandbyTargets {
    /// The names of the demoted targets whose media are still open, so that no other server may have them.
    pub fn open_media(&self) -> BTreeSet<String> {
        self.closing.iter().filter(|(_, media)| is_open(media)).map(|(name, _)| name.clone()).collect()
    }

    /// The media of promoted targets, and those that are not closed yet.
    pub fn media(self, units: &Units) -> Vec<MediumWatch> {
        let promoted = self.promoted.iter().flat_map(|name| units.media_of(name));
        promoted.chain(self.closing.into_values().flatten()).collect()
    }

    /// Whether the media of a target that is not promoted are closed.
    fn is_closed(&mut self, name: &str) -> bool {
        self.closing.retain(|_, media| is_open(media));
        !self.closing.contains_key(name)
    }
}

fn is_open(media: &[MediumWatch]) -> bool {
    !media.iter().all(MediumWatch::is_closed)
}

/// Waits until media are closed. False: some are still in use.
pub fn are_closed(media: &[MediumWatch]) -> bool {
    within(CLOSE_TIMEOUT, || media.iter().all(MediumWatch::is_closed))
}

/// A configuration as a server starts: no upstream is known yet, and no target is promoted.
pub fn at_start(config: &Config) -> Result<Config, Vec<Diagnostic>> {
    let mut whole = expand_early(config, &Found::default())?;
    standby::close(&mut whole, &Promoted::new());
    Ok(whole)
}

impl<S: TargetServer> Service<S> {
    /// Promotes or demotes a target. An action that is done already succeeds.
    pub(super) fn control_target(&mut self, name: &str, action: TargetAction, asker: &Asker) -> Response {
        if asker.is_gone() {
            // Its cluster manager assumes a failure, and may have decided otherwise.
            let what = format!("target {name}: not {}d, because the client waits no longer", action.name());
            tracing::warn!("{what}");
            return Diagnostic::new(what, "repeat the command").into();
        }
        // Also for a target that is not in the configuration anymore.
        let closed = self.wait_closed(name).and_then(|()| self.standby_target(name));
        let result = closed.and_then(|target| match action {
            TargetAction::Promote => self.promote(&target),
            TargetAction::Demote => self.demote(&target, asker),
        });
        self.publish();
        result.map_or_else(Response::from, |done| Response::Done(format!("target {name}: {done}")))
    }

    fn standby_target(&self, name: &str) -> Result<Target, ControlError> {
        let found = self.config.targets.iter().find(|target| target.name == name).cloned();
        let target = found.ok_or_else(|| {
            let what = format!("target {} does not exist", name.escape_debug());
            let problem = Diagnostic::new(what, "lunar target list shows those that exist");
            ControlError::one(ControlErrorKind::NotFound, problem.with_code(ErrorCode::NotFound))
        })?;
        if !target.standby {
            let what = format!("target {name} is always served");
            return Err(ControlError::conflict(what, "set standby = true of the target"));
        }
        Ok(target)
    }

    /// Opens the media and the state of a target, and accepts logins.
    fn promote(&mut self, target: &Target) -> Result<&'static str, ControlError> {
        let name = &target.name;
        if self.standby.promoted.contains(name) {
            return Ok("is promoted already");
        }
        target.state_dir.as_deref().map_or(Ok(()), standby::check_state_dir).map_err(|e| failed(vec![e]))?;
        self.standby.promoted.insert(name.clone());
        if let Err(problems) = self.make(&self.config.clone(), false) {
            self.standby.promoted.remove(name);
            tracing::error!(name: "target.rejected", target = %name, "the target cannot be promoted");
            return Err(failed(problems));
        }
        tracing::info!(name: "target.promoted", target = %name, "the target is promoted");
        Ok("promoted")
    }

    /// Ends the sessions of a target after their commands, flushes its media, and closes media and state. If the media
    /// cannot be closed, the target stays promoted. If a flush fails, they are closed: another flush would not write the
    /// lost data either.
    fn demote(&mut self, target: &Target, asker: &Asker) -> Result<&'static str, ControlError> {
        let name = &target.name;
        if !self.standby.promoted.contains(name) {
            return Ok("is on standby already");
        }
        self.drain(name).map_err(failed)?;
        let closed = self.flush(name, asker).and_then(|lost| Ok((lost, self.close(name)?)));
        let (mut unflushed, at_close) = closed.map_err(|problems| {
            self.serve_again(name);
            failed(problems)
        })?;
        if unflushed.is_empty() {
            unflushed = at_close;
        }
        let is_lost = !unflushed.is_empty();
        let open = self.wait_closed(name).err().into_iter().flat_map(|error| error.problems);
        let problems: Vec<Diagnostic> = open.chain(unflushed.iter().map(|fault| lost(name, fault))).collect();
        if is_lost {
            tracing::error!(name: "target.demoted", target = %name, "the target is on standby, and written data are lost");
        } else if problems.is_empty() {
            tracing::info!(name: "target.demoted", target = %name, "the target is on standby");
        }
        if problems.is_empty() { Ok("demoted") } else { Err(failed(problems)) }
    }

    /// Rejects logins to a target, and waits for the end of its sessions.
    fn drain(&mut self, name: &str) -> Result<(), Vec<Diagnostic>> {
        let mut whole = self.whole.clone();
        let mut drained = BTreeSet::new();
        for target in whole.targets.iter_mut().filter(|target| target.has_luns_of(name)) {
            target.offline = true;
            drained.insert(target.name.clone());
        }
        self.put(whole)?;
        let has_sessions = || {
            let sessions = self.server.sessions();
            sessions.iter().any(|one| one.target.as_ref().is_some_and(|target| drained.contains(target)))
        };
        if !within(DRAIN_TIMEOUT, || !has_sessions()) {
            tracing::warn!("sessions of {name} did not end in time; their commands are cut off");
        }
        Ok(())
    }

    /// Flushes the media of a target without sessions. A change of the configuration waits only shortly for a flush, and
    /// has little to flush then. Returns the failed flushes.
    fn flush(&self, name: &str, asker: &Asker) -> Result<Vec<String>, Vec<Diagnostic>> {
        let (begin, end) = (Instant::now(), Instant::now() + FLUSH_TIMEOUT);
        let flushed =
            self.server.flush(name, &|| Instant::now() < end && !asker.is_gone()).ok_or_else(|| {
                let waited_s = begin.elapsed().as_secs();
                let what = format!(
                    "target {name} is still promoted: the flush of its media did not end within {waited_s} s"
                );
                tracing::error!("{what}");
                vec![Diagnostic::new(what, MEDIUM_HINT)]
            })?;
        let text = |failure: &FlushFailure| match &failure.lun {
            Some((_, lun)) => format!("LUN {lun}: {}", io_text(&failure.error)),
            None => io_text(&failure.error),
        };
        Ok(flushed.err().iter().flatten().map(text).collect())
    }

    /// Closes the media and the state of a target. Returns the failed flushes.
    fn close(&mut self, name: &str) -> Result<Vec<String>, Vec<Diagnostic>> {
        let media = self.units.media_of(name);
        self.standby.promoted.remove(name);
        let unflushed = self.make(&self.config.clone(), false)?;
        self.standby.closing.insert(name.to_owned(), media);
        Ok(unflushed)
    }

    /// Accepts logins again after a demotion that failed.
    fn serve_again(&mut self, name: &str) {
        self.standby.promoted.insert(name.to_owned());
        let made = self.make(&self.config.clone(), false);
        made.err().iter().for_each(|problems| super::change::log_problems(problems));
    }

    /// Shows which media have been closed since the last look, and looks again until all are.
    pub(super) fn closed(&mut self) {
        self.publish();
        self.standby.is_watched = !self.standby.open_media().is_empty();
        if self.standby.is_watched {
            later(&self.events, CLOSED_PAUSE, ServeEvent::Closed);
        }
    }

    /// Waits until the media of a target that is not promoted are closed.
    fn wait_closed(&mut self, name: &str) -> Result<(), ControlError> {
        if within(CLOSE_TIMEOUT, || self.standby.is_closed(name)) {
            return Ok(());
        }
        if !std::mem::replace(&mut self.standby.is_watched, true) {
            later(&self.events, CLOSED_PAUSE, ServeEvent::Closed);
        }
        let what = format!("target {name} is demoted, but its media are not closed yet");
        Err(failed(vec![Diagnostic::new(what, MEDIUM_HINT)]))
    }
}

/// Waits until it is so, or for this time. Returns whether it is so.
fn within(limit: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit;
    loop {
        let is = is_so();
        if is || Instant::now() >= end {
            return is;
        }
        std::thread::sleep(PAUSE);
    }
}

/// The failure of an action. Its exit status is 1, whatever the reason, because agents know only success and failure.
fn failed(problems: Vec<Diagnostic>) -> ControlError {
    let problems = problems.into_iter().map(|problem| problem.with_code(ErrorCode::Other)).collect();
    ControlError { kind: ControlErrorKind::Conflict, problems }
}

fn lost(target: &str, fault: &str) -> Diagnostic {
    let what = format!("target {target} is on standby, but writes that were not flushed are lost: {fault}");
    Diagnostic::new(what, "check the medium, and let the hosts check their file systems")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::tests::{Fake, Folder, args, service};
    use lunar_admin::TargetState;

    const NAME: &str = "iqn.2026-11.org.example:a";

    fn standby(folder: &Folder, keys: &str) -> Service<Fake> {
        let file = folder.config(2);
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, text.replacen("[[target.lun]]", &format!("{keys}\n[[target.lun]]"), 1))
            .unwrap();
        service(&args(file), &Fake::default())
    }

    fn state(service: &Service<Fake>) -> TargetState {
        let config = service.published.get();
        let (_, object) =
            config.objects.iter().find(|(id, _)| id.to_string() == format!("target {NAME}")).unwrap();
        config.target_state(NAME, object)
    }

    fn act(service: &mut Service<Fake>, action: TargetAction) -> String {
        act_for(&Asker::default(), service, action)
    }

    fn act_for(asker: &Asker, service: &mut Service<Fake>, action: TargetAction) -> String {
        match service.control_target(NAME, action, asker) {
            Response::Done(text) => text.replace(NAME, "a"),
            Response::Failed(error) => error.problems[0].to_string().replace(NAME, "a"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn promotion_and_demotion_are_idempotent() {
        let folder = Folder::new("standby");
        let mut service = standby(&folder, "standby = true");
        for (action, texts, then) in [
            (TargetAction::Demote, ["target a: is on standby already"; 2], TargetState::Standby),
            (
                TargetAction::Promote,
                ["target a: promoted", "target a: is promoted already"],
                TargetState::Serving,
            ),
            (
                TargetAction::Demote,
                ["target a: demoted", "target a: is on standby already"],
                TargetState::Standby,
            ),
        ] {
            assert_eq!([(); 2].map(|()| act(&mut service, action)), texts);
            assert_eq!(state(&service), then);
        }
        assert_eq!(
            service.server.notes(),
            ["reload 2", "reload 2", "flush", "reload 0"],
            "it drains and flushes before its LUNs go"
        );
    }

    #[test]
    fn reload_keeps_a_promoted_target() {
        let folder = Folder::new("standby-reload");
        let mut service = standby(&folder, "standby = true");
        act(&mut service, TargetAction::Promote);
        service.reload();
        assert_eq!(state(&service), TargetState::Serving);
    }

    #[test]
    fn served_target_that_gets_standby_stays_promoted() {
        let folder = Folder::new("standby-new");
        let mut service = standby(&folder, "");
        let file = folder.0.join("lunar.toml");
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, text.replacen("[[target.lun]]", "standby = true\n[[target.lun]]", 1)).unwrap();
        service.reload();
        assert_eq!((state(&service), service.whole.targets[0].luns.len()), (TargetState::Serving, 2));
    }

    #[test]
    fn missing_state_folder_fails_the_promotion() {
        let folder = Folder::new("standby-folder");
        let mut service = standby(&folder, "standby = true\nstate_dir = \"away\"");
        let text = act(&mut service, TargetAction::Promote);
        assert!(text.contains("away: no such file or directory\n  hint: mount its volume first"), "{text}");
        assert_eq!(state(&service), TargetState::Standby);
        assert!(!folder.0.join("away").exists(), "it is never created");
    }

    #[test]
    fn request_of_a_client_that_is_gone_is_not_executed() {
        let folder = Folder::new("standby-gone");
        let mut service = standby(&folder, "standby = true");
        let asker = Asker::new("user 7");
        drop(asker.waits());
        let text = act_for(&asker, &mut service, TargetAction::Promote);
        assert_eq!(
            text,
            "target a: not promoted, because the client waits no longer\n  hint: repeat the command"
        );
        assert_eq!(state(&service), TargetState::Standby);
    }

    #[test]
    fn target_is_closing_until_its_medium_is_closed() {
        let folder = Folder::new("standby-closing");
        let mut service = standby(&folder, "standby = true");
        let medium = lunar_block::nothing();
        service.standby.closing.insert(NAME.into(), vec![MediumWatch::of(&medium)]);
        let open = "target a is demoted, but its media are not closed yet";
        for action in [TargetAction::Demote, TargetAction::Promote] {
            assert!(act(&mut service, action).starts_with(open));
            assert_eq!(state(&service), TargetState::Closing);
        }
        drop(medium);
        service.closed();
        assert_eq!(state(&service), TargetState::Standby);
        assert_eq!(act(&mut service, TargetAction::Demote), "target a: is on standby already");
        assert_eq!(act(&mut service, TargetAction::Promote), "target a: promoted");
    }

    #[test]
    fn stopped_server_keeps_its_socket_while_a_medium_is_open() {
        for is_open in [true, false] {
            let folder = Folder::new("standby-socket");
            let mut service = standby(&folder, "standby = true");
            act(&mut service, TargetAction::Promote);
            let medium = lunar_block::nothing();
            service.standby.closing.insert(NAME.into(), vec![MediumWatch::of(&medium)]);
            let _medium = is_open.then_some(medium);
            service.stop(false).unwrap();
            assert_eq!(folder.0.join("lunar.sock").exists(), is_open);
        }
    }
}
