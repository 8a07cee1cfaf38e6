//! Asymmetric namespace access (ANA) of NVMe controllers.

use super::path_selector::PathState;
use lunar_wire::nvme::{AnaEntry, AnaState, NvmeStatus};

/// Status code type: path related.
const PATH_RELATED: u8 = 3;

/// The state of the path after this status, if the path is at fault. With Do Not Retry, another path would not help.
pub fn state_after(status: NvmeStatus) -> Option<PathState> {
    match (status.kind, status.code) {
        _ if is_absent(status) => Some(PathState::Down),
        (PATH_RELATED, _) if status.do_not_retry => None,
        (PATH_RELATED, 0x02) => Some(PathState::Standby),
        (PATH_RELATED, 0x03) => Some(PathState::Transitioning),
        // Persistent loss, and errors of the controller or of the connection.
        (PATH_RELATED, _) => Some(PathState::Down),
        _ => None,
    }
}

/// Whether a command with this status was certainly not executed, if the path is at fault. An internal path error may
/// come after the execution.
pub fn is_undone(status: NvmeStatus) -> bool {
    is_absent(status) || matches!((status.kind, status.code), (PATH_RELATED, 0x01..=0x03))
}

/// Whether this controller does not have the namespace. Another one may have it.
fn is_absent(status: NvmeStatus) -> bool {
    (status.kind, status.code) == (NvmeStatus::INVALID_NAMESPACE.kind, NvmeStatus::INVALID_NAMESPACE.code)
}

/// The state of a path. A reserved code, or a namespace that the controller does not list, is no reason to give the path
/// up: it is used if there is no better one, and its commands show whether it works.
fn path_state(state: Option<AnaState>) -> PathState {
    match state {
        Some(AnaState::Optimized) => PathState::Optimized,
        Some(AnaState::NonOptimized) | None => PathState::NonOptimized,
        Some(AnaState::Inaccessible) => PathState::Standby,
        Some(AnaState::PersistentLoss) => PathState::Down,
        Some(AnaState::Change) => PathState::Transitioning,
    }
}

/// The state of a namespace in the start of the page, and whether the rest cannot change it. The lists of namespaces decide;
/// without one, the group does.
pub fn state_in(page: &[u8], namespace: u32, group: u32) -> (PathState, bool) {
    let mut of_group = None;
    for entry in AnaEntry::all(page) {
        let Some(entry) = entry else { return (path_state(of_group), false) };
        if entry.namespaces().any(|id| id == namespace) {
            return (path_state(entry.state), true);
        }
        // Group 0 means no group.
        if entry.id == group && group != 0 {
            of_group = entry.state;
        }
    }
    (path_state(of_group), true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_wire::nvme::AnaGroup;

    fn group(id: u32, state: AnaState, namespaces: &[u32]) -> AnaGroup {
        AnaGroup { id, changes: 1, state, namespaces: namespaces.into() }
    }

    #[test]
    fn state_is_that_of_the_group_that_lists_the_namespace() {
        use AnaState::{Change, Inaccessible, NonOptimized, Optimized, PersistentLoss};
        let states = [Optimized, NonOptimized, Inaccessible, PersistentLoss, Change];
        let groups: Vec<_> = (1..).zip(states).map(|(id, state)| group(id, state, &[10 + id])).collect();
        let page = AnaGroup::encode(1, &groups, true);
        let found = [11, 12, 13, 14, 15].map(|namespace| state_in(&page, namespace, 1));
        let expected = [
            PathState::Optimized,
            PathState::NonOptimized,
            PathState::Standby,
            PathState::Down,
            PathState::Transitioning,
        ];
        assert_eq!(found, expected.map(|state| (state, true)), "the list counts, not the group");
    }

    #[test]
    fn group_decides_where_no_list_has_the_namespace() {
        let groups = [group(1, AnaState::Inaccessible, &[]), group(2, AnaState::Optimized, &[9])];
        let page = AnaGroup::encode(1, &groups, true);
        assert_eq!(state_in(&page, 7, 1), (PathState::Standby, true));
        assert_eq!(state_in(&page, 7, 2), (PathState::Optimized, true));
        assert_eq!(state_in(&page, 7, 3), (PathState::NonOptimized, true), "the group is missing");
        let mut page = page;
        page[16..20].fill(0);
        assert_eq!(state_in(&page, 7, 0), (PathState::NonOptimized, true), "0 is no group");
    }

    #[test]
    fn reserved_state_is_the_last_choice() {
        let mut page = AnaGroup::encode(1, &[group(1, AnaState::Optimized, &[7])], true);
        for code in [0, 5, 14] {
            page[32] = code;
            assert_eq!(state_in(&page, 7, 1), (PathState::NonOptimized, true), "state {code:x}h");
        }
    }

    #[test]
    fn part_of_a_log_is_final_once_it_lists_the_namespace() {
        let groups = [group(1, AnaState::Inaccessible, &[3, 4]), group(2, AnaState::Optimized, &[5])];
        let page = AnaGroup::encode(1, &groups, true);
        assert_eq!(page.len(), 92);
        for len in 0..page.len() {
            let is_listed = len >= 56;
            let expected = if is_listed { PathState::Standby } else { PathState::NonOptimized };
            assert_eq!(state_in(&page[..len], 4, 0), (expected, is_listed), "{len} bytes");
            assert!(!state_in(&page[..len], 5, 2).1, "{len} bytes");
        }
        let mut lie = page;
        lie[20..24].fill(0xff);
        assert_eq!(state_in(&lie, 4, 1), (PathState::NonOptimized, false), "more namespaces than bytes");
    }

    #[test]
    fn status_of_a_path_is_the_state_of_the_path() {
        let pathing = |code| NvmeStatus { code, ..NvmeStatus::PATH_ERROR };
        for (status, state, undone) in [
            (NvmeStatus::PATH_ERROR, Some(PathState::Down), false),
            (NvmeStatus::ANA_PERSISTENT_LOSS, Some(PathState::Down), true),
            (NvmeStatus::ANA_INACCESSIBLE, Some(PathState::Standby), true),
            (NvmeStatus::ANA_TRANSITION, Some(PathState::Transitioning), true),
            // Errors of the controller and of the host.
            (pathing(0x60), Some(PathState::Down), false),
            (pathing(0x70), Some(PathState::Down), false),
            (NvmeStatus::INVALID_NAMESPACE, Some(PathState::Down), true),
            (NvmeStatus { do_not_retry: true, ..NvmeStatus::ANA_INACCESSIBLE }, None, true),
            (NvmeStatus::READ_ERROR, None, false),
            (NvmeStatus::NAMESPACE_NOT_READY, None, false),
        ] {
            assert_eq!((state_after(status), is_undone(status)), (state, undone), "{status}");
        }
    }
}
