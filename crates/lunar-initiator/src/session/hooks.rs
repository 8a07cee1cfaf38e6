//! Callbacks of a session: its logins and its end.

use super::info::SessionInfo;
use crate::Error;
use lunar_block::LocalBoxFuture;
use std::fmt::Debug;

/// Callbacks for the logins and the end of a session. A program can record where a target may still execute commands
/// of the session. They run on the core of the session.
pub trait SessionHooks: Debug + Send + Sync {
    /// Runs after each login. No command is sent on the connection before it returns.
    ///
    /// # Errors
    /// An error closes the connection. [`Session::open`](crate::Session::open) returns the error of the first login.
    /// After a later login, the session connects again.
    fn logged_in<'a>(&'a self, login: SessionLogin<'a>) -> LocalBoxFuture<'a, Result<(), Error>>;

    /// Runs at the end of a session whose first login was accepted. `is_settled`: the target executes no more
    /// commands of the session.
    fn ended(&self, is_settled: bool) {
        let _ = is_settled;
    }
}

/// A successful login.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct SessionLogin<'a> {
    /// The session, on its new connection.
    pub info: &'a SessionInfo,
    /// Whether the login opened the session. Otherwise it replaces a lost connection.
    pub is_first: bool,
    /// Whether there are orphans: the target received them on an earlier connection and may still execute them.
    pub has_orphans: bool,
}

impl<'a> SessionLogin<'a> {
    /// The first login of a session.
    pub fn first(info: &'a SessionInfo) -> SessionLogin<'a> {
        SessionLogin { info, is_first: true, has_orphans: false }
    }

    /// A login after a lost connection.
    pub fn again(info: &'a SessionInfo, has_orphans: bool) -> SessionLogin<'a> {
        SessionLogin { info, is_first: false, has_orphans }
    }
}
