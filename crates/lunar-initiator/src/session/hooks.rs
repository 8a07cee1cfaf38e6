//! Callbacks of a session: its logins and its end.

use super::info::SessionInfo;
use crate::Error;
use std::fmt::Debug;

/// Callbacks for the logins of a session and for its end. A program records here where the target may carry out commands of
/// the session. They run on the core of the session.
pub trait SessionHooks: Debug + Send + Sync {
    /// Runs after each login. No command goes out on the connection before it ends.
    ///
    /// # Errors
    /// An error closes the connection. [`Session::open`](crate::Session::open) returns that of the first login; after a later
    /// one, the session connects again.
    fn logged_in<'a>(&'a self, login: SessionLogin<'a>)
    -> lunar_block::LocalBoxFuture<'a, Result<(), Error>>;

    /// The session has ended after its first login was accepted. `is_settled`: the target carries out no command of it any more.
    fn ended(&self, is_settled: bool) {
        let _ = is_settled;
    }
}

/// A login that has succeeded.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct SessionLogin<'a> {
    /// The session, on its new connection.
    pub facts: &'a SessionInfo,
    /// The login opened the session. Otherwise it replaces a connection that was lost.
    pub is_first: bool,
    /// Commands wait that the target may still carry out: it received them on an earlier connection.
    pub has_orphans: bool,
}

impl<'a> SessionLogin<'a> {
    /// The first login of a session.
    pub fn first(facts: &'a SessionInfo) -> SessionLogin<'a> {
        SessionLogin { facts, is_first: true, has_orphans: false }
    }

    /// A login after a lost connection.
    pub fn again(facts: &'a SessionInfo, has_orphans: bool) -> SessionLogin<'a> {
        SessionLogin { facts, is_first: false, has_orphans }
    }
}
