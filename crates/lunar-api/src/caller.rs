//! The sender of a request, and its rights.

use crate::problem::Problem;
use axum::http::{Method, StatusCode};
use lunar_config::ErrorCode;

tokio::task_local! {
    /// The sender of the request that the task handles.
    static CALLER: Caller;
}

/// The sender of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Its name for the log.
    pub name: String,
    /// Whether it may change something, and name files of the server.
    pub may_write: bool,
}

impl Caller {
    /// Handles a request of this sender.
    pub async fn handle<F: Future>(self, handler: F) -> F::Output {
        CALLER.scope(self, handler).await
    }

    /// Checks that the sender may use this method.
    pub fn check(&self, method: &Method) -> Result<(), Box<Problem>> {
        if method.is_safe() { Ok(()) } else { self.check_write() }
    }

    fn check_write(&self) -> Result<(), Box<Problem>> {
        match self.may_write {
            true => Ok(()),
            false => Err(forbidden(
                format!("{} may only read", self.name),
                "use a token with the role write, or add the certificate to client_writers",
            )),
        }
    }
}

/// The name of the sender of the current request.
pub fn name() -> String {
    CALLER.try_with(|caller| caller.name.clone()).unwrap_or_default()
}

/// Checks that the sender of the current request may do what changes something.
pub fn check_write() -> Result<(), Box<Problem>> {
    CALLER.try_with(Caller::check_write).unwrap_or(Ok(()))
}

/// The error of a sender without the right.
pub fn forbidden(what: String, hint: &str) -> Box<Problem> {
    let problem = Problem::new(StatusCode::FORBIDDEN, what, hint);
    Box::new(Problem { code: ErrorCode::PermissionDenied.name().to_owned(), ..*problem })
}
