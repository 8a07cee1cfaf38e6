//! The logical unit of a target, as its member sees it.

use crate::object::{MemberId, MemberPort, SharedView};
use crate::status::UnitRecord;
use crate::store::Unit;
use crate::waiting::{CHECK_INTERVAL, on_thread, until};
use lunar_block::RbdBackend;
use lunar_runtime::{sleep_until, spawn};
use lunar_scsi::{AccessState, Lu, NexusId, TargetPort, TargetPortGroup, TransportProtocol};
use lunar_target::{LogicalUnit, RemotePort, ServedSessions};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// The target ports of the other members.
pub type RemotePorts = Mutex<Arc<[RemotePort]>>;

/// A served logical unit.
pub struct TargetUnit {
    pub unit: Arc<LogicalUnit>,
    pub sessions: ServedSessions,
    /// The member of this server.
    pub id: MemberId,
    pub ports: Arc<RemotePorts>,
    /// The sessions of this server will learn of changed ports, once for many units.
    pub will_refresh: Arc<AtomicBool>,
    pub backend: Arc<RbdBackend>,
    /// One member at a time serves the medium, with the lock of the image.
    pub is_passive: bool,
    pub record: Arc<UnitRecord>,
}

impl Unit for TargetUnit {
    fn lu(&self) -> &Arc<Lu> {
        &self.unit.lu
    }

    async fn abort(&self, victims: Option<Vec<NexusId>>) {
        self.sessions.abort(&self.unit, victims).await;
    }

    fn is_passive(&self) -> bool {
        self.is_passive
    }

    async fn take_medium(&self) -> io::Result<()> {
        let backend = self.backend.clone();
        on_thread(move || backend.take_lock()).await
    }

    async fn give_medium(&self) -> io::Result<()> {
        until(|| self.backend.is_idle()).await;
        let backend = self.backend.clone();
        on_thread(move || backend.release_lock()).await
    }

    fn snapshot(&self) -> Option<String> {
        self.backend.location().snapshot.clone()
    }

    fn fenced(&self, members: &[MemberId]) {
        let image = self.backend.location();
        tracing::warn!(name: "gateway.fenced", %image, ?members, "fenced gateways that did not answer");
    }

    fn activated(&self, member: MemberId) {
        let image = self.backend.location();
        tracing::info!(name: "gateway.active", %image, member, "the active gateway has changed");
    }

    fn published(&self) {
        self.record.published();
    }

    fn follow_members(&self, view: &SharedView, is_active: bool) {
        self.unit.lu.set_access(&port_groups(self.id, view, is_active, self.is_passive));
        self.record.follow(self.id, view);
        let ports = remote_ports(self.id, view);
        let before = std::mem::replace(
            &mut *self.ports.lock().unwrap_or_else(PoisonError::into_inner),
            ports.clone().into(),
        );
        if *before != *ports && !self.will_refresh.swap(true, SeqCst) {
            let (will_refresh, sessions) = (self.will_refresh.clone(), self.sessions.clone());
            spawn(async move {
                sleep_until(Instant::now() + CHECK_INTERVAL).await;
                will_refresh.store(false, SeqCst);
                sessions.follow_ports();
            });
        }
    }
}

/// The access states of the target port groups of all members.
fn port_groups(own: MemberId, view: &SharedView, is_active: bool, is_passive: bool) -> Vec<TargetPortGroup> {
    let access = |id: MemberId| match view.access.active {
        _ if !view.members.contains_key(&id) => AccessState::Unavailable,
        Some(active) if is_passive && active == id && (id != own || is_active) => AccessState::Optimized,
        _ if view.is_drained(id) => AccessState::Standby,
        _ if !is_passive => AccessState::Optimized,
        Some(active) if active != id => AccessState::Standby,
        _ => AccessState::Transitioning,
    };
    let of_member = |(id, ports): (&MemberId, &Vec<MemberPort>)| {
        let access = access(*id);
        let group = move |port: &MemberPort| TargetPortGroup { tag: port.tag, access, preferred: false };
        ports.iter().map(group).collect::<Vec<_>>()
    };
    let mut groups: Vec<_> = view.ports.iter().flat_map(of_member).collect();
    // A port group has a port for each protocol.
    groups.dedup();
    groups
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
    use crate::object::{Access, MemberRecord};

    fn group_view(active: Option<MemberId>, drained: &[MemberId]) -> SharedView {
        let port = |tag| MemberPort { tag, relative: tag, srp: false, addresses: Vec::new() };
        let member = MemberRecord { incarnation: 1, passive: true, ..MemberRecord::default() };
        SharedView {
            ports: [1, 2, 3].map(|id| (id, vec![port(u16::from(id)); 2])).into(),
            members: [1, 2].map(|id| (id, member.clone())).into(),
            access: Access { active, epoch: 1, drained: drained.iter().copied().collect() },
            ..SharedView::default()
        }
    }

    #[test]
    fn port_groups_have_the_states_of_their_members() {
        use AccessState::{Optimized, Standby, Transitioning, Unavailable};
        let states = |view: &SharedView, is_active, is_passive| {
            let groups = port_groups(1, view, is_active, is_passive);
            groups.iter().map(|group| group.access).collect::<Vec<_>>()
        };
        let first = group_view(Some(1), &[]);
        assert_eq!(states(&first, true, true), [Optimized, Standby, Unavailable]);
        assert_eq!(states(&first, false, true), [Transitioning, Standby, Unavailable], "before the lock");
        assert_eq!(states(&group_view(Some(2), &[]), false, true), [Standby, Optimized, Unavailable]);
        assert_eq!(states(&group_view(Some(2), &[2]), false, true), [Standby, Optimized, Unavailable]);
        assert_eq!(states(&group_view(None, &[]), false, true), [Transitioning, Transitioning, Unavailable]);
        assert_eq!(states(&group_view(None, &[2]), true, false), [Optimized, Standby, Unavailable]);
        assert_eq!(states(&group_view(None, &[1, 2]), true, false), [Optimized, Optimized, Unavailable]);
    }

    #[test]
    fn ports_of_absent_members_have_no_addresses() {
        let port = |tag| MemberPort {
            tag,
            relative: tag,
            srp: false,
            addresses: vec![format!("10.0.0.{tag}:3260")],
        };
        let member = MemberRecord { incarnation: 1, ..MemberRecord::default() };
        let ports = [1, 2, 3].map(|id| (id, vec![port(u16::from(id))])).into();
        let members = [1, 2].map(|id| (id, member.clone())).into();
        let view = SharedView { ports, members, ..SharedView::default() };
        let ports = remote_ports(1, &view);
        let shown: Vec<_> = ports.iter().map(|one| (one.port.relative, one.addresses.clone())).collect();
        assert_eq!(shown, [(2, vec!["10.0.0.2:3260".to_owned()]), (3, Vec::new())]);
        assert_eq!(member_ports(ports)[0], port(2));
    }
}
