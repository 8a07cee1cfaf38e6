//! Authorization of task management functions that affect other initiators (RFC 7143 section 11.6.1).

use super::front_end::FrontEnd;
use super::function::Function;
use super::nexus::NexusState;
use crate::LogicalUnit;
use lunar_wire::scsi::lun;
use std::sync::Arc;

impl<F: FrontEnd> NexusState<F> {
    /// Whether the access list allows this function on this LUN.
    ///
    /// ABORT TASK and ABORT TASK SET end tasks of the same session, so all initiators may request them. CLEAR TASK
    /// SET and resets require write access. TARGET COLD RESET ends every session of the target, so it requires access
    /// to all LUNs.
    pub(super) fn may_manage(&self, function: Function, field: u64) -> bool {
        let map = self.lun_map();
        let writes_all = || map.values().all(|visible| !visible.read_only);
        match function {
            Function::ClearTaskSet | Function::LunReset => {
                let visible = lun::of_request(field).and_then(|number| map.get(&number));
                visible.is_some_and(|visible| !visible.read_only)
            }
            Function::TargetWarmReset => writes_all(),
            Function::TargetColdReset => writes_all() && self.sees_whole_target(),
            Function::AbortTask { .. } | Function::AbortTaskSet | Function::ClearAca => true,
        }
    }

    /// Whether every logical unit of the target is among the LUNs of this session.
    fn sees_whole_target(&self) -> bool {
        let config = self.shared().config();
        let target = self.info().target.as_ref().and_then(|name| config.targets.get(name));
        let sees = |unit: &Arc<LogicalUnit>| self.lun_map().values().any(|v| Arc::ptr_eq(&v.unit, unit));
        target.is_some_and(|target| target.luns.values().all(sees))
    }
}
