//! ALUA states (SPC-5 section 5.18): the states of the target port groups that hosts see follow the health of the
//! upstream.

use super::{LuAddress, RoutesInner, State};
use crate::upstream::{Health, UpstreamLu};
use lunar_scsi::{AccessState, Lu, TargetPortGroup};
use std::sync::Arc;
use std::time::Duration;

/// A logical unit that hosts see.
#[derive(Clone)]
pub struct ServedLu {
    /// The address of the logical unit.
    pub address: LuAddress,
    /// The device server of the logical unit.
    pub lu: Arc<Lu>,
    /// The portal groups through which hosts see it.
    pub tags: Vec<u16>,
}

/// Without a connection the path is in transition: hosts try another path, or this one again. While commands wait,
/// the state stays optimized. A changed identity needs an administrator.
fn access(health: Option<Health>) -> AccessState {
    match health {
        Some(Health::Lost(_)) => AccessState::Transitioning,
        Some(Health::Changed) => AccessState::Unavailable,
        Some(Health::Up | Health::Holding(_)) | None => AccessState::Optimized,
    }
}

impl State {
    /// Publishes the state of the paths to hosts.
    pub(super) fn settle(&self) {
        for one in &self.served {
            one.lu.set_access(&self.groups(one));
        }
    }
}

impl State {
    /// The target port groups of a logical unit. In a pair they include the peer's.
    fn groups(&self, one: &ServedLu) -> Vec<TargetPortGroup> {
        let (open_lus, pairs) = self.serving();
        let mut access = access(open_lus.health(&one.address));
        let pair = pairs.get(&one.address.router);
        if let Some(pair) = pair {
            let own = pair.access(open_lus.is_open(&one.address));
            access = if access == AccessState::Optimized { own } else { access };
        }
        let preferred = pair.is_some_and(|pair| pair.spec().preferred);
        let own = one.tags.iter().map(|tag| TargetPortGroup { tag: *tag, access, preferred });
        let peer = pair.map(|pair| {
            let (access, preferred) = pair.peer_access();
            TargetPortGroup { tag: pair.spec().group, access, preferred }
        });
        own.chain(peer).collect()
    }
}

/// Resets within this time count as one: each core and each path reports it.
const ONE_RESET: Duration = Duration::from_millis(500);

/// Notifies hosts of an upstream reset: their unflushed writes may be lost.
async fn notify_hosts_of_resets(address: LuAddress, resets: flume::Receiver<()>, shared: Arc<RoutesInner>) {
    while resets.recv_async().await.is_ok() {
        let served = shared.state().served.clone();
        served.iter().filter(|one| one.address == address).for_each(|one| one.lu.backing_device_reset());
        compio::time::sleep(ONE_RESET).await;
        resets.drain().for_each(drop);
    }
}

/// Follows the health of one logical unit while it is open.
pub(super) async fn watch_lu(address: LuAddress, remote: Arc<UpstreamLu>, shared: Arc<RoutesInner>) {
    let changes = remote.watch();
    lunar_runtime::spawn(notify_hosts_of_resets(address, remote.resets(), shared.clone()));
    drop(remote);
    while changes.recv_async().await.is_ok() {
        shared.state().settle();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn only_lost_lus_change_alua_state() {
        let now = Instant::now();
        for (health, is) in [
            (None, AccessState::Optimized),
            (Some(Health::Up), AccessState::Optimized),
            (Some(Health::Holding(now)), AccessState::Optimized),
            (Some(Health::Lost(now)), AccessState::Transitioning),
            (Some(Health::Changed), AccessState::Unavailable),
        ] {
            assert_eq!(access(health), is, "{health:?}");
        }
    }
}
