//! The decisions of one server: a logical unit that has no other server, with a nexus of each host.

use interop::TARGET;
use lunar_scsi::{
    CommandError, InitiatorPort, Lu, LuIdentity, LuSettings, Nexus, NexusPorts, Op, PassthroughMode,
    PeripheralDeviceType, Plan, PlanResult, TargetPort, TargetPorts, TransportProtocol,
};
use std::sync::Arc;

/// A command with its parameter list, which may be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    pub cdb: Vec<u8>,
    pub parameters: Vec<u8>,
}

/// The answer to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u8,
    /// Sense key, ASC and ASCQ as one number.
    pub sense: u32,
    pub data: Vec<u8>,
}

/// The port of a host and the gateway of its session.
#[derive(Clone, Debug)]
pub struct HostPort {
    pub name: String,
    pub isid: [u8; 6],
    /// The member number of the gateway.
    pub gateway: u8,
}

/// A server that begins each command with a given state.
pub struct Model {
    lu: Arc<Lu>,
    nexuses: Vec<Nexus>,
}

/// The target port of a gateway. Its configuration has the portal group 1.
fn target_port(gateway: u8) -> TargetPort {
    TargetPort::new(TransportProtocol::Iscsi, u16::from(gateway) * 256 + 1, None)
}

fn settings() -> LuSettings {
    let identity = LuIdentity {
        vendor: "LUNAR".into(),
        product: "DISK".into(),
        revision: "1".into(),
        serial: "1".into(),
        naa: vec![0x30, 0, 0, 0, 0, 0, 0, 1],
        designators: None,
    };
    LuSettings {
        device_type: PeripheralDeviceType::Disk,
        identity,
        block_size: 512,
        physical_block_size: 512,
        capacity: 64 << 20,
        read_only: false,
        removable: false,
        write_cache: false,
        thin: true,
        max_atomic: 0,
        medium_compares: true,
        max_registrants: 128,
        reservable: true,
        passthrough: PassthroughMode::None,
        explicit_access: false,
        shared: true,
    }
}

impl Model {
    pub fn new(hosts: &[HostPort], gateways: &[u8]) -> Model {
        let lu = Arc::new(Lu::new(settings(), None).expect("settings"));
        lu.share(|| {});
        let ports: Arc<[TargetPort]> = gateways.iter().map(|gateway| target_port(*gateway)).collect();
        let nexuses = hosts.iter().map(|host| {
            let ports = NexusPorts {
                initiator: InitiatorPort::Iscsi { name: host.name.clone(), isid: host.isid },
                user: String::new(),
                target: TARGET.into(),
                own: target_port(host.gateway),
                ports: TargetPorts::new(ports.clone()),
            };
            lu.attach(Arc::new(ports), false)
        });
        let nexuses = nexuses.collect();
        Model { lu, nexuses }
    }

    /// The state without registrations.
    pub fn state(&self) -> Vec<u8> {
        self.lu.shared_state()
    }

    /// Executes a command of a host that begins with this state. Returns the answer, and the next state if it changes.
    pub fn execute(&mut self, state: &[u8], host: usize, command: &Command) -> (Answer, Option<Vec<u8>>) {
        self.lu.install_shared(state, &[], true).expect("a state of the gateways");
        let nexus = &mut self.nexuses[host];
        // The hosts repeat commands that end with a unit attention.
        while nexus.begin(&[0; 16]) != Ok(Plan::Done) {}
        let mut cdb = command.cdb.clone();
        cdb.resize(16, 0);
        let planned = match nexus.begin(&cdb) {
            Ok(Plan::Parameters { .. }) => nexus.parameters(&cdb, &command.parameters),
            other => other,
        };
        match planned {
            Ok(Plan::Op(op)) => match *op {
                Op::Persist(pending) => {
                    let next = pending.bytes().to_vec();
                    (answer(self.lu.commit_shared(pending)), Some(next))
                }
                op => (answer(Ok(Plan::Op(Box::new(op)))), None),
            },
            other => (answer(other), None),
        }
    }
}

fn answer(result: PlanResult) -> Answer {
    match result {
        Ok(Plan::Done | Plan::Op(_)) => Answer { status: 0, sense: 0, data: Vec::new() },
        Ok(Plan::Data(data)) => Answer { status: 0, sense: 0, data },
        Ok(other) => panic!("{other:?} is no plan of a reservation"),
        Err(CommandError { status, sense }) => {
            let code = |s: lunar_wire::scsi::Sense| {
                u32::from(s.key) << 16 | u32::from(s.asc) << 8 | u32::from(s.ascq)
            };
            Answer { status: status as u8, sense: sense.map_or(0, code), data: Vec::new() }
        }
    }
}
