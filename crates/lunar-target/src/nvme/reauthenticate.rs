//! A host that proves its secret again, on a queue that is served (NVM Express Base, in-band authentication). Linux does so when
//! its administrator changes the secret.

use super::authenticate::{ExchangeStep, execute, failure_of};
use super::begin::ReceivedCommand;
use super::controllers::Controller;
use crate::config::HostSecrets;
use crate::server_state::ServerState;
use lunar_proto::nvme::auth::{AuthNames, ControllerAuth};
use lunar_wire::nvme::{Nqn, NvmeStatus};
use std::cell::Cell;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

/// An exchange, and the files of its secrets.
struct Exchange {
    auth: ControllerAuth,
    file: PathBuf,
    own_file: Option<PathBuf>,
}

/// The state of the exchange of a queue.
#[derive(Default)]
enum ExchangeState {
    /// There is none.
    #[default]
    None,
    /// The host sends the next command.
    Waits(Box<Exchange>),
    /// A command is executed on a thread.
    Computes,
}

/// The exchanges of a queue that is served.
pub struct Reauthentication {
    shared: Arc<ServerState>,
    controller: Arc<Controller>,
    /// The address of the host.
    peer: SocketAddr,
    state: Cell<ExchangeState>,
}

/// The end of a command of an exchange.
pub struct Reauthenticated {
    /// The outcome of the command.
    pub executed: Result<ExchangeStep, NvmeStatus>,
    /// The host has not proved its secret. Then the controller ends.
    pub has_failed: bool,
}

impl Reauthentication {
    /// A queue without an exchange. `peer`: the address of the host.
    pub fn new(
        shared: &Arc<ServerState>,
        controller: &Arc<Controller>,
        peer: SocketAddr,
    ) -> Reauthentication {
        let (shared, controller) = (shared.clone(), controller.clone());
        Reauthentication { shared, controller, peer, state: Cell::default() }
    }

    /// An exchange with the secrets of now. None: the host has no secret.
    fn begin(&self) -> Option<Box<Exchange>> {
        let (config, host) = (self.shared.config(), &self.controller.host().name);
        let subsystem = config.targets.get(self.controller.subsystem())?.subsystem.as_ref()?;
        let HostSecrets { secrets, file, own_file } = subsystem.secrets_of(host)?;
        let [host, subsystem] = [host, self.controller.subsystem()].map(|name| Nqn::new(name).ok());
        let names = AuthNames { host: host?, subsystem: subsystem? };
        Some(Box::new(Exchange { auth: ControllerAuth::new(names, secrets), file, own_file }))
    }

    /// Executes Authentication Send or Receive. A host that does not wait for the end of one gets an error for the next.
    pub async fn execute(&self, command: ReceivedCommand) -> Reauthenticated {
        let refused = |status| Reauthenticated { executed: Err(status), has_failed: false };
        let exchange = match self.state.replace(ExchangeState::Computes) {
            ExchangeState::Computes => return refused(NvmeStatus::SEQUENCE_ERROR),
            ExchangeState::Waits(exchange) => Some(exchange),
            ExchangeState::None => self.begin(),
        };
        let Some(exchange) = exchange else {
            self.state.take();
            return refused(NvmeStatus::INVALID_FIELD);
        };
        let Exchange { auth, file, own_file } = *exchange;
        let computed = execute(auth, command).await;
        self.state.take();
        let Ok((auth, executed)) = computed else { return refused(NvmeStatus::INTERNAL_ERROR) };
        let failure = failure_of(&auth, &file, own_file.as_deref());
        match &failure {
            Some(why) => {
                let (host, subsystem) = (&self.controller.host().name, self.controller.subsystem());
                self.shared.log_login_refused(self.peer, host, subsystem, why);
            }
            None if auth.is_done() => {}
            None => self.state.set(ExchangeState::Waits(Box::new(Exchange { auth, file, own_file }))),
        }
        Reauthenticated { executed, has_failed: failure.is_some() }
    }
}
