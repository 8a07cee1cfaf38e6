//! The logical unit of a target, as its member sees it.

use crate::object::{MemberId, MemberPort, SharedView};
use crate::store::Unit;
use lunar_scsi::{Lu, NexusId, TargetPort, TransportProtocol};
use lunar_target::{LogicalUnit, RemotePort, ServedSessions};
use std::sync::{Arc, Mutex, PoisonError};

/// The target ports of the other members.
pub type RemotePorts = Mutex<Arc<[RemotePort]>>;

/// A served logical unit.
pub struct TargetUnit {
    pub unit: Arc<LogicalUnit>,
    pub sessions: ServedSessions,
    /// The member of this server.
    pub id: MemberId,
    pub ports: Arc<RemotePorts>,
}

impl Unit for TargetUnit {
    fn lu(&self) -> &Arc<Lu> {
        &self.unit.lu
    }

    async fn abort(&self, victims: Option<Vec<NexusId>>) {
        self.sessions.abort(&self.unit, victims).await;
    }

    fn follow_members(&self, view: &SharedView) {
        let ports = remote_ports(self.id, view);
        let before = std::mem::replace(
            &mut *self.ports.lock().unwrap_or_else(PoisonError::into_inner),
            ports.clone().into(),
        );
        if *before != *ports {
            self.sessions.follow_ports();
        }
    }
}

/// The ports of the other members. Those that are away have no addresses.
fn remote_ports(own: MemberId, view: &SharedView) -> Vec<RemotePort> {
    let others = view.ports.iter().filter(|(id, _)| **id != own);
    let of_member = |(id, ports): (&MemberId, &Vec<MemberPort>)| {
        let is_there = view.members.contains_key(id);
        let port = |port: &MemberPort| RemotePort {
            port: TargetPort {
                protocol: protocol(port.srp),
                portal_group_tag: port.tag,
                relative: port.relative,
            },
            addresses: if is_there { port.addresses.clone() } else { Vec::new() },
        };
        ports.iter().map(port).collect::<Vec<_>>()
    };
    others.flat_map(of_member).collect()
}

fn protocol(srp: bool) -> TransportProtocol {
    if srp { TransportProtocol::Srp } else { TransportProtocol::Iscsi }
}

/// The ports of this member for the others.
pub fn member_ports(own: Vec<RemotePort>) -> Vec<MemberPort> {
    let port = |RemotePort { port, addresses }| MemberPort {
        tag: port.portal_group_tag,
        relative: port.relative,
        srp: port.protocol == TransportProtocol::Srp,
        addresses,
    };
    own.into_iter().map(port).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::MemberRecord;

    #[test]
    fn ports_of_absent_members_have_no_addresses() {
        let port = |tag| MemberPort {
            tag,
            relative: tag,
            srp: false,
            addresses: vec![format!("10.0.0.{tag}:3260")],
        };
        let member = MemberRecord { incarnation: 1, addresses: String::new(), group: String::new() };
        let ports = [1, 2, 3].map(|id| (id, vec![port(u16::from(id))])).into();
        let members = [1, 2].map(|id| (id, member.clone())).into();
        let view = SharedView { ports, members, ..SharedView::default() };
        let ports = remote_ports(1, &view);
        let shown: Vec<_> = ports.iter().map(|one| (one.port.relative, one.addresses.clone())).collect();
        assert_eq!(shown, [(2, vec!["10.0.0.2:3260".to_owned()]), (3, Vec::new())]);
        assert_eq!(member_ports(ports)[0], port(2));
    }
}
