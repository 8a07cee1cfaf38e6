//! A namespace as one of several paths.

use super::NvmeNamespace;
use crate::multipath::{LunPath, PathState, RangeLocks, state_after};
use crate::nvme::access_log;
use crate::{Error, Event, Lun};
use lunar_block::LocalBoxFuture;
use lunar_runtime::Buf;
use std::sync::Arc;

impl LunPath for NvmeNamespace {
    fn name(&self) -> String {
        let info = self.controller().info();
        format!("namespace {} of {} at {}", self.id, info.subsystem, info.portal)
    }

    fn identity(&self) -> Vec<u8> {
        self.properties().identity.to_string().into_bytes()
    }

    fn share(&self, ranges: &Arc<RangeLocks>) {
        // An earlier call counts.
        _ = self.ranges.set(ranges.clone());
    }

    fn lun(&self) -> Option<&Lun> {
        None
    }

    fn compare_and_write(&self, offset: u64, data: Buf) -> LocalBoxFuture<'_, (Result<bool, Error>, Buf)> {
        Box::pin(async move { (NvmeNamespace::compare_and_write(self, offset, &data).await, data) })
    }

    fn check(&self) -> LocalBoxFuture<'_, PathState> {
        Box::pin(self.access_state())
    }

    /// Does nothing: the connection of an unanswered command has been reset, and NVMe has no command that ends the commands
    /// of another controller.
    fn reset_abandoned(&self) -> LocalBoxFuture<'_, ()> {
        Box::pin(async {})
    }

    fn take_deferred_error(&self) -> Option<Error> {
        None
    }

    fn events(&self) -> flume::Receiver<Event> {
        self.controller().events()
    }
}

impl NvmeNamespace {
    /// The state of the path through this controller: its access state, and whether the namespace is still the same.
    async fn access_state(&self) -> PathState {
        // An answer without a state of the path means that it works, at least for some commands.
        let after = |e: Error| state_after(&e).unwrap_or(PathState::NonOptimized);
        let info = self.controller.info();
        if !info.connected {
            return if info.replaced { PathState::Changed } else { PathState::Down };
        }
        let group = self.properties().identify.access_group;
        let state = match access_log::is_reported(&info.identify) {
            true => access_log::read(&self.controller, self.id, group).await.unwrap_or_else(after),
            false => PathState::Optimized,
        };
        // A namespace that is not accessible may have no properties now.
        if !state.is_usable() {
            return state;
        }
        self.reload().await.map_or_else(after, |()| state)
    }
}
