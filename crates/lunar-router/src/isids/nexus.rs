//! The sessions of this process: the record follows each one from its login to its end.

use super::{Isid, OldSession, RouterIsids, State, user};
use lunar_block::LocalBoxFuture;
use lunar_initiator::{Error, Session, SessionHooks, SessionLogin, WeakSession};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

/// The time limit for the end of all sessions. It exceeds the sum of their command and logout timeouts.
const PARTING: Duration = Duration::from_secs(12);

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// The sessions that have not ended, by number: the ISID, and the session after its login.
pub(super) type Sessions = BTreeMap<u64, (Isid, Option<WeakSession>)>;

/// The effect of a login as an old session on the sessions of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reinstatement {
    /// None: no session of this process has its ISID at its port.
    Nobody,
    /// A session with its ISID is logging in or ending, at an unknown port.
    Login,
    /// A session of this process has logged in with its ISID at its port, which has ended the old one.
    Successor,
}

/// A session of this process.
#[derive(Debug)]
pub struct RecordedNexus {
    isids: Arc<RouterIsids>,
    id: u64,
    isid: Isid,
}

impl RecordedNexus {
    /// Whether this is the record of `session`.
    pub fn is(&self, session: &Session) {
        self.isids.sessions().insert(self.id, (self.isid, Some(session.downgrade())));
    }

    #[cfg(test)]
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Records the target port of a later login. The earlier port stays recorded while commands may be left there.
    pub(super) async fn logged_in_again(&self, at: Option<String>, has_orphans: bool) {
        self.isids.record_move(self.id, at, has_orphans);
        self.isids.save().await;
    }

    fn forget(&self) {
        self.isids.sessions().remove(&self.id);
        self.isids.notifier.notify(usize::MAX);
    }
}

impl Drop for RecordedNexus {
    fn drop(&mut self) {
        self.forget();
    }
}

impl SessionHooks for RecordedNexus {
    /// The owner records the first login itself, because it knows the path.
    fn logged_in<'a>(&'a self, login: SessionLogin<'a>) -> LocalBoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            if !login.is_first {
                self.logged_in_again(login.info.target_port(), login.has_orphans).await;
            }
            Ok(())
        })
    }

    fn ended(&self, is_settled: bool) {
        if is_settled {
            self.isids.record_end(self.id);
        }
        self.forget();
        let isids = self.isids.clone();
        lunar_runtime::spawn(async move { isids.save().await });
    }
}

impl RouterIsids {
    /// Creates the [`SessionHooks`] of a session that is about to log in with this ISID.
    pub fn nexus(self: &Arc<Self>, isid: Isid) -> Arc<RecordedNexus> {
        let id = NEXT_ID.fetch_add(1, Relaxed);
        self.sessions().insert(id, (isid, None));
        Arc::new(RecordedNexus { isids: self.clone(), id, isid })
    }

    /// The effect of a login as an old session on the sessions of this process.
    pub fn meets(&self, old: &OldSession) -> Reinstatement {
        let all: Vec<_> =
            self.sessions().values().filter(|(isid, _)| *isid == old.isid).map(|(_, s)| s.clone()).collect();
        // Outside the lock: dropping the last handle of a session takes it.
        let mut meets = Reinstatement::Nobody;
        for session in all {
            let Some(session) = session.and_then(|session| session.upgrade()) else {
                meets = Reinstatement::Login;
                continue;
            };
            let at = session.info().target_port();
            let is_its = old.initiator.as_ref() == Some(&session.options().initiator);
            if is_its
                && at.is_some()
                && at.as_deref() == old.port()
                && old.is_of(user(session.options()).as_deref())
            {
                return Reinstatement::Successor;
            }
        }
        meets
    }

    /// Logs out of all sessions, and records which have no commands left. Their cores must be running.
    pub async fn part(self: &Arc<Self>) {
        let open: Vec<(u64, WeakSession)> =
            self.sessions().iter().filter_map(|(id, (_, s))| Some((*id, s.clone()?))).collect();
        for session in open.iter().filter_map(|(_, session)| session.upgrade()) {
            lunar_runtime::spawn(async move { _ = session.close().await });
        }
        let are_over = async {
            loop {
                let rings = self.notifier.listen();
                if !open.iter().any(|(id, _)| self.sessions().contains_key(id)) {
                    return;
                }
                rings.await;
            }
        };
        // Sessions that have not ended by then stay recorded as they are.
        _ = compio::time::timeout(PARTING, are_over).await;
        self.save().await;
    }

    /// The number of a session of this process. 0 if it is unknown.
    pub(super) fn id_of(&self, session: &Session) -> u64 {
        let is_it = |known: &Option<WeakSession>| known.as_ref().is_some_and(|known| known.is(session));
        self.sessions().iter().find(|(_, (_, known))| is_it(known)).map_or(0, |(id, _)| *id)
    }

    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a later login of a session. While it may have commands at the earlier port, that port stays recorded
    /// too.
    pub(super) fn record_move(&self, id: u64, at: Option<String>, has_orphans: bool) {
        let at = super::known_or_not(at);
        for recorded in self.lock().values_mut() {
            let is_its = |entry: &super::SessionEntry| entry.state == State::Used && entry.by == id;
            let Some(first) = recorded.all.iter().find(|entry| is_its(entry)).cloned() else { continue };
            if has_orphans {
                let is_there = recorded.all.iter().any(|entry| is_its(entry) && entry.at == at);
                recorded.all.extend((!is_there).then(|| super::SessionEntry { at: at.clone(), ..first }));
            } else {
                recorded.all.retain(|entry| !is_its(entry));
                recorded.all.push(super::SessionEntry { at: at.clone(), ..first });
            }
        }
        self.note();
    }

    /// Records that a session has ended and the target executes no more of its commands.
    pub(super) fn record_end(&self, id: u64) {
        for recorded in self.lock().values_mut() {
            let is_its = |entry: &super::SessionEntry| entry.state == State::Used && entry.by == id;
            let Some(first) = recorded.all.iter().find(|entry| is_its(entry)).cloned() else { continue };
            recorded.all.retain(|entry| !is_its(entry));
            let ended = super::SessionEntry { at: None, state: State::Ended, ..first };
            recorded.all.extend((!ended.is_fixed).then_some(ended));
        }
        self.note();
    }
}
