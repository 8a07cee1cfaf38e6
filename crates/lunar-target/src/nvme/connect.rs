//! Connect: checks the first command of a connection, and makes an admin queue or an I/O queue of it.

use super::admin::{self, AdminParts};
use super::authenticate::authenticate;
use super::begin::{BeginFault, BegunConnection, ReceivedCommand};
use super::capsule::place_of;
use super::connection::NvmeConnection;
use super::controllers::{Controller, ControllerGuard, NvmeHost, QueueGuard, QueueRefusal};
use super::limits::{MAX_IO_QUEUES, MAX_QUEUE_LEN};
use super::queue_session;
use crate::LoginError;
use crate::access::LoginContext;
use crate::config::{HostSecrets, PortalProtocol};
use crate::open_portal::{BoundPortal, OpenPortal};
use crate::registry::Replaced;
use crate::server_state::{ConnectionGuard, ServerState};
use crate::session_entry::{self, RegisteredSession};
use crate::session_info::{
    Addresses, NvmeSessionInfo, SessionInfo, SessionProtocol, SessionTransport, TlsSessionInfo,
};
use crate::session_key::SessionKey;
use lunar_proto::nvme::ControllerKind;
use lunar_proto::nvme::auth::AuthNames;
use lunar_runtime::{SendPump, either};
use lunar_wire::nvme::{
    ConnectCommand, ConnectData, ConnectFault, DISCOVERY_NQN, DataPlace, NvmeStatus, Sqe, admin_opcode,
    fabrics_type,
};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Offsets of the parameters of Connect: in the entry, and in the data.
const QUEUE: u16 = 42;
const QUEUE_LEN: u16 = 44;
const CONTROLLER: u16 = 16;
const SUBSYSTEM: u16 = 256;
const HOST: u16 = 512;
/// Interval at which the connection of a waiting host is checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// The result of a Connect whose host must authenticate itself (ATR).
const AUTHENTICATION_REQUIRED: u64 = 1 << 17;

fn in_entry(offset: u16) -> ConnectFault {
    ConnectFault { status: NvmeStatus::CONNECT_PARAMETERS, offset, in_data: false }
}

fn in_data(status: NvmeStatus, offset: u16) -> ConnectFault {
    ConnectFault { status, offset, in_data: true }
}

/// A status that is not about a parameter.
fn without_parameter(status: NvmeStatus) -> ConnectFault {
    ConnectFault { status, offset: 0, in_data: false }
}

/// A Connect command that was refused: its fault for the host, and the text for the log.
struct ConnectRefusal(ConnectFault, &'static str);

/// A Connect command with its connection.
struct Attempt<'a> {
    shared: &'a Arc<ServerState>,
    command: ConnectCommand,
    data: ConnectData,
    addresses: Addresses,
    portal: &'a OpenPortal,
    count: ConnectionGuard,
    tls: Option<TlsSessionInfo>,
    is_authenticated: bool,
}

/// A queue that may be admitted, after the host has authenticated itself if it must.
enum Candidate {
    Admin(AdminCandidate),
    Queue { controller: Arc<Controller>, context: LoginContext },
}

struct AdminCandidate {
    context: LoginContext,
    controller: ControllerGuard,
    kind: ControllerKind,
}

impl Candidate {
    fn controller(&self) -> &Arc<Controller> {
        match self {
            Candidate::Admin(admin) => admin.controller.controller(),
            Candidate::Queue { controller, .. } => controller,
        }
    }

    /// The secrets with which the host must authenticate itself.
    fn secrets(&self) -> Option<HostSecrets> {
        let context = match self {
            Candidate::Admin(admin) => &admin.context,
            Candidate::Queue { context, .. } => context,
        };
        let node = context.config.targets.get(self.controller().subsystem())?;
        node.subsystem.as_ref()?.secrets_of(&self.controller().host().name)
    }
}

/// A queue that was admitted.
enum Admitted {
    Admin(AdminParts),
    Queue(RegisteredSession, LoginContext, QueueGuard),
}

/// Handles the first command of a connection, and serves the queue to its end.
pub async fn connect(
    shared: &Arc<ServerState>,
    begun: BegunConnection,
    addresses: Addresses,
    portal: Arc<OpenPortal>,
    (count, tls): (ConnectionGuard, Option<TlsSessionInfo>),
) {
    let BegunConnection { connection, first: ReceivedCommand { sqe, data, intact } } = begun;
    let id = sqe.id();
    let (command, data) = match decode(&sqe, &data, intact) {
        Ok(decoded) => decoded,
        Err(fault) => {
            let reason = format!("the first command is no valid Connect: {}", fault.status);
            shared.log_closed_before_login(addresses.peer, &reason);
            return refuse(&connection, id, fault).await;
        }
    };
    connection.set_queue(command.queue_len, !command.disables_flow_control);
    let (host, subsystem) = (data.host.to_string(), data.subsystem.to_string());
    let attempt =
        Attempt { shared, command, data, addresses, portal: &portal, count, tls, is_authenticated: false };
    let mut is_answered = false;
    let admitted = match attempt.candidate() {
        Ok(candidate) => {
            is_answered = match attempt.authenticated(&connection, id, &candidate).await {
                Ok(is_answered) => is_answered,
                Err(fault) => {
                    shared.count_login(Some(&subsystem), LoginError::AuthenticationFailed.into());
                    let why = authentication_fault(&fault);
                    shared.log_login_refused(addresses.peer, &host, &subsystem, &why);
                    fault.report().await;
                    return connection.linger().await;
                }
            };
            let attempt = Attempt { is_authenticated: is_answered, ..attempt };
            either(gone(&connection), attempt.admit(candidate)).await
        }
        Err(refusal) => Err(refusal),
    };
    let complete = |controller: &Controller| {
        // The completion of Connect came before the authentication.
        if !is_answered {
            connection.complete(id, NvmeStatus::SUCCESS, controller.id().into());
        }
    };
    match admitted {
        Ok(Admitted::Admin(parts)) => {
            session_entry::log_begin(shared, &parts.entered.info, &parts.entered.guard);
            complete(parts.controller.controller());
            admin::run(shared, connection, parts, command.keep_alive_ms).await;
        }
        Ok(Admitted::Queue(entered, context, place)) => {
            session_entry::log_begin(shared, &entered.info, &entered.guard);
            complete(place.controller());
            queue_session::run(shared, entered, context, connection, (place, command.queue_len)).await;
        }
        Err(ConnectRefusal(fault, why)) => {
            shared.log_login_refused(addresses.peer, &host, &subsystem, why);
            match is_answered {
                true => connection.close(),
                false => refuse(&connection, id, fault).await,
            }
        }
    }
}

/// Why an authentication has failed, for the log.
fn authentication_fault(fault: &BeginFault) -> String {
    match fault {
        // `authenticate` itself denies a wrong proof.
        BeginFault::Io(e) if e.kind() != io::ErrorKind::PermissionDenied => {
            format!("the host has not ended its authentication: {e}")
        }
        _ => fault.to_string(),
    }
}

/// Ends when the host has left. Its Connect may wait for the end of its lost controller, and must not end the controller that
/// the host has opened since.
async fn gone(connection: &NvmeConnection) -> Result<Admitted, ConnectRefusal> {
    while connection.stale_reason().is_none() {
        compio::time::sleep(CHECK_INTERVAL).await;
    }
    Err(ConnectRefusal(without_parameter(NvmeStatus::CONNECT_BUSY), "the host has closed the connection"))
}

async fn refuse(connection: &Rc<NvmeConnection>, id: u16, fault: ConnectFault) {
    connection.complete(id, fault.status, fault.result());
    connection.linger().await;
}

fn decode(sqe: &Sqe, data: &[u8], intact: bool) -> Result<(ConnectCommand, ConnectData), ConnectFault> {
    let is_connect = sqe.opcode() == admin_opcode::FABRICS && sqe.fabrics_type() == fabrics_type::CONNECT;
    if !is_connect {
        return Err(without_parameter(NvmeStatus::SEQUENCE_ERROR));
    }
    if !intact {
        return Err(without_parameter(NvmeStatus::TRANSIENT_TRANSPORT_ERROR));
    }
    let place = place_of(sqe, data.len()).map_err(without_parameter)?;
    let data = data.first_chunk().filter(|_| place == DataPlace::Capsule);
    let data = data.ok_or(without_parameter(NvmeStatus::SGL_INVALID_LENGTH))?;
    let command = ConnectCommand::decode(sqe)?;
    if command.queue_len > MAX_QUEUE_LEN {
        return Err(in_entry(QUEUE_LEN));
    }
    Ok((command, ConnectData::decode(data)?))
}

fn refusal(error: LoginError) -> ConnectRefusal {
    match error {
        LoginError::TargetNotFound => ConnectRefusal(
            in_data(NvmeStatus::CONNECT_PARAMETERS, SUBSYSTEM),
            "the subsystem is not in this portal group",
        ),
        LoginError::NotAllowed | LoginError::AuthenticationFailed => {
            ConnectRefusal(in_data(NvmeStatus::CONNECT_HOST, HOST), "no access rule matches the host")
        }
        LoginError::DiscoveryDisabled => {
            ConnectRefusal(in_data(NvmeStatus::CONNECT_PARAMETERS, SUBSYSTEM), "discovery is disabled")
        }
        LoginError::OutOfResources => ConnectRefusal(
            without_parameter(NvmeStatus::CONNECT_BUSY),
            "the session limits of [limits] are used up",
        ),
        LoginError::NotServing | LoginError::TooManyConnections | LoginError::NoSuchSession => {
            ConnectRefusal(
                without_parameter(NvmeStatus::CONNECT_BUSY),
                "the subsystem accepts no connections now",
            )
        }
    }
}

/// The same, with the reason for which a subsystem does not admit a host.
fn host_refusal(
    context: &LoginContext,
    (subsystem, host): (&str, &str),
    error: LoginError,
) -> ConnectRefusal {
    let ConnectRefusal(fault, why) = refusal(error);
    let is_excluded = error == LoginError::NotAllowed;
    ConnectRefusal(fault, if is_excluded { context.exclusion(subsystem, host) } else { why })
}

fn queue_refusal(refusal: QueueRefusal) -> ConnectRefusal {
    match refusal {
        QueueRefusal::TooHigh => ConnectRefusal(in_entry(QUEUE), "the controller has no such I/O queue"),
        QueueRefusal::InUse => ConnectRefusal(
            without_parameter(NvmeStatus::SEQUENCE_ERROR),
            "the I/O queue is connected already",
        ),
        QueueRefusal::NotReady => {
            ConnectRefusal(without_parameter(NvmeStatus::SEQUENCE_ERROR), "the controller is not enabled")
        }
    }
}

/// The portal of a connection as it is now. A reload may have removed it, or have changed whether it demands TLS.
fn bound(portal: &OpenPortal, has_tls: bool) -> Result<Arc<BoundPortal>, ConnectRefusal> {
    let refused = |why| ConnectRefusal(in_data(NvmeStatus::CONNECT_PARAMETERS, SUBSYSTEM), why);
    let bound = portal.open().map_err(|_| refused("the portal was removed"))?;
    match bound.transports.tls == has_tls {
        true => Ok(bound),
        false => Err(refused("the portal has changed whether it demands TLS")),
    }
}

impl Attempt<'_> {
    fn bound(&self) -> Result<Arc<BoundPortal>, ConnectRefusal> {
        bound(self.portal, self.tls.is_some())
    }

    fn host(&self) -> NvmeHost {
        NvmeHost { name: self.data.host.to_string(), id: self.data.host_id }
    }

    fn info(&self, group: u16, controller: &Controller, kind: ControllerKind) -> Arc<SessionInfo> {
        let protocol = SessionProtocol::Nvme(NvmeSessionInfo {
            host_id: controller.host().id,
            controller: controller.id(),
            queue: self.command.queue,
            queue_len: self.command.queue_len,
            keep_alive_ms: self.command.keep_alive_ms,
            discovery: kind == ControllerKind::Discovery,
            authenticated: self.is_authenticated,
        });
        let target = (kind == ControllerKind::Io).then(|| controller.subsystem().to_owned());
        let name = controller.host().name.clone();
        let info = SessionInfo::new(name, self.addresses, (target, group), SessionTransport::Tcp, protocol);
        Arc::new(SessionInfo { tls: self.tls.clone(), ..info })
    }

    /// Authenticates the host if it must. Returns whether Connect was completed for that.
    async fn authenticated(
        &self,
        connection: &Rc<NvmeConnection>,
        id: u16,
        candidate: &Candidate,
    ) -> Result<bool, BeginFault> {
        let Some(secrets) = candidate.secrets() else { return Ok(false) };
        let result = u64::from(candidate.controller().id()) | AUTHENTICATION_REQUIRED;
        connection.complete(id, NvmeStatus::SUCCESS, result);
        SendPump::flush(connection);
        let names = AuthNames { host: self.data.host.clone(), subsystem: self.data.subsystem.clone() };
        let limit = self.shared.config().limits.login_timeout;
        let authenticated =
            self.count.evicted().or(limit, async { Ok(authenticate(connection, names, secrets).await) });
        authenticated.await.unwrap_or_else(|e| Err(BeginFault::Io(e))).map(|()| true)
    }

    /// Checks the names and numbers of a Connect.
    fn candidate(&self) -> Result<Candidate, ConnectRefusal> {
        self.check_tls()?;
        match self.command.queue {
            0 => self.admin_candidate().map(Candidate::Admin),
            _ => self.queue_candidate(),
        }
    }

    /// Checks that the names of a Connect are those of the PSK, and that a host with a key uses it.
    fn check_tls(&self) -> Result<(), ConnectRefusal> {
        let (host, subsystem) = (self.data.host.as_str(), self.data.subsystem.as_str());
        let config = self.shared.config();
        let demands =
            || config.targets.get(subsystem).is_some_and(|target| target.rules().demand_tls_of(host));
        let fault = match &self.tls {
            Some(tls) if !tls.is_of(host, subsystem) => {
                "the names are not those of the identity of TLS; hint: connect each subsystem with a key of its own"
            }
            None if demands() => {
                "the host has a key of TLS, and this portal has none; hint: connect with --tls to a portal with \
                 tls = \"required\""
            }
            _ => return Ok(()),
        };
        self.shared.count_login(Some(subsystem), LoginError::AuthenticationFailed.into());
        Err(ConnectRefusal(in_data(NvmeStatus::CONNECT_HOST, HOST), fault))
    }

    /// Registers the queue.
    async fn admit(self, candidate: Candidate) -> Result<Admitted, ConnectRefusal> {
        match candidate {
            Candidate::Admin(admin) => self.admit_admin(admin).await,
            Candidate::Queue { controller, context } => self.admit_queue(&controller, context).await,
        }
    }

    fn refused(&self, context: &LoginContext, error: LoginError) -> ConnectRefusal {
        let subsystem = self.data.subsystem.as_str();
        context.config.refused(context.group, subsystem, error);
        self.shared.count_login(Some(subsystem), error.into());
        host_refusal(context, (subsystem, self.data.host.as_str()), error)
    }

    fn admin_candidate(&self) -> Result<AdminCandidate, ConnectRefusal> {
        if self.data.controller.is_some() {
            return Err(ConnectRefusal(
                in_data(NvmeStatus::CONNECT_PARAMETERS, CONTROLLER),
                "the host asks for a static controller",
            ));
        }
        let (config, bound) = (self.shared.config(), self.bound()?);
        let context = LoginContext::new(&config, bound.tag, self.addresses);
        let subsystem = self.data.subsystem.as_str();
        let kind = if subsystem == DISCOVERY_NQN { ControllerKind::Discovery } else { ControllerKind::Io };
        let admitted = match kind {
            ControllerKind::Discovery if config.discovery.disabled => Err(LoginError::DiscoveryDisabled),
            ControllerKind::Discovery => Ok(()),
            ControllerKind::Io if bound.transports.protocol == PortalProtocol::NvmeDiscovery => {
                Err(LoginError::TargetNotFound)
            }
            ControllerKind::Io => context.subsystem(subsystem, self.data.host.as_str()).map(drop),
        };
        admitted.map_err(|error| self.refused(&context, error))?;
        let controller = self.shared.controllers.add(subsystem, self.host(), (bound.tag, MAX_IO_QUEUES));
        let controller = controller.ok_or_else(|| self.refused(&context, LoginError::OutOfResources))?;
        Ok(AdminCandidate { context, controller, kind })
    }

    /// Admits an admin queue, after the end of all queues of the host's lost controller.
    async fn admit_admin(self, admin: AdminCandidate) -> Result<Admitted, ConnectRefusal> {
        let AdminCandidate { context, controller, kind } = admin;
        let info = self.info(context.group, controller.controller(), kind);
        let replaced = if kind == ControllerKind::Io { Replaced::Channels } else { Replaced::Nothing };
        let key = SessionKey::new(&info, self.bound()?.address);
        let has_tls = self.tls.is_some();
        let Attempt { shared, portal, count, ref data, .. } = self;
        let entered = RegisteredSession::register(shared, &context.config, info, key, replaced, count).await;
        bound(portal, has_tls)?;
        let entered = entered.map_err(|error| {
            context.config.refused(context.group, data.subsystem.as_str(), error);
            shared.count_login(Some(data.subsystem.as_str()), error.into());
            refusal(error)
        })?;
        Ok(Admitted::Admin(AdminParts { entered, context, controller, kind }))
    }

    fn queue_candidate(&self) -> Result<Candidate, ConnectRefusal> {
        let (config, bound) = (self.shared.config(), self.bound()?);
        let controller = self.controller()?;
        if controller.portal_group_tag() != bound.tag {
            let parameter = in_data(NvmeStatus::CONNECT_PARAMETERS, CONTROLLER);
            return Err(ConnectRefusal(parameter, "the controller belongs to another portal group"));
        }
        QueueGuard::check(&controller, self.command.queue).map_err(queue_refusal)?;
        let context = LoginContext::new(&config, bound.tag, self.addresses);
        let names = (controller.subsystem(), controller.host().name.as_str());
        let admitted = context.subsystem(names.0, names.1).map(drop);
        admitted.map_err(|error| host_refusal(&context, names, error))?;
        Ok(Candidate::Queue { controller, context })
    }

    /// Admits an I/O queue of a controller.
    async fn admit_queue(
        self,
        controller: &Arc<Controller>,
        context: LoginContext,
    ) -> Result<Admitted, ConnectRefusal> {
        let place = QueueGuard::new(controller, self.command.queue).map_err(queue_refusal)?;
        let info = self.info(context.group, controller, ControllerKind::Io);
        let key = SessionKey::new(&info, self.bound()?.address);
        let has_tls = self.tls.is_some();
        let Attempt { shared, portal, count, .. } = self;
        let entered =
            RegisteredSession::register(shared, &context.config, info, key, Replaced::Nothing, count).await;
        bound(portal, has_tls)?;
        let entered = entered.map_err(refusal)?;
        // The end of a controller ends the queues that are registered.
        match place.is_ready() {
            true => Ok(Admitted::Queue(entered, context, place)),
            false => Err(queue_refusal(QueueRefusal::NotReady)),
        }
    }

    /// The controller that an I/O queue names. Its host has the identifier of the admin queue: some clients choose a new one for
    /// each queue.
    fn controller(&self) -> Result<Arc<Controller>, ConnectRefusal> {
        let found = self.data.controller.and_then(|id| self.shared.controllers.find(id));
        let controller = found.ok_or(ConnectRefusal(
            in_data(NvmeStatus::CONNECT_PARAMETERS, CONTROLLER),
            "there is no such controller",
        ))?;
        let foreign = |status, offset| {
            Err(ConnectRefusal(
                in_data(status, offset),
                "the controller belongs to another host or subsystem",
            ))
        };
        let subsystem = self.data.subsystem.as_str();
        if controller.subsystem() != subsystem {
            return foreign(NvmeStatus::CONNECT_PARAMETERS, SUBSYSTEM);
        }
        if controller.host().name != self.data.host.as_str() {
            return foreign(NvmeStatus::CONNECT_HOST, HOST);
        }
        Ok(controller)
    }
}
