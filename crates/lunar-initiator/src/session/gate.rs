//! What has to be done between a login and the first command on its connection.

use super::home::Home;
use super::{Facts, facts};
use crate::Error;
use crate::connect::Connected;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

/// Ends when commands may go out on a new connection. After an error it is given up, and another one is made.
pub type Admission = Pin<Box<dyn Future<Output = Result<(), Error>>>>;

/// Is asked after each login of a session, before a command goes out. A record of where the commands of a session
/// may be needs it: one that is written later lacks the commands that were sent before.
pub trait Gate: Send + Sync {
    /// The session has logged in there. `has_orphans`: commands wait that the target may still carry out, over a connection
    /// that was lost before.
    fn admit(&self, facts: &Facts, has_orphans: bool) -> Admission;
}

impl super::Session {
    /// From now on this gate is asked. Of two gates the first one stays.
    pub fn set_gate(&self, gate: Arc<dyn Gate>) {
        // It has one already.
        _ = self.0.listeners.gate.set(gate);
    }
}

impl Home {
    /// Commands may go out on this connection.
    pub(super) async fn admit(self: &Rc<Self>, connected: &Connected) -> Result<(), Error> {
        let Some(gate) = self.listeners.gate.get() else { return Ok(()) };
        let facts = facts(connected, &self.goal.borrow(), &self.options);
        let admitted = gate.admit(&facts, self.has_orphans());
        admitted.await
    }
}
