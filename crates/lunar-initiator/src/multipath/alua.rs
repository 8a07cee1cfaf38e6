//! Asymmetric logical unit access (SPC-5 section 5.18).

use super::path_selector::PathState;
use lunar_wire::scsi::report;

/// The ALUA state of a group in the data of REPORT TARGET PORT GROUPS (SPC-5 section 6.36). None if the group is
/// missing.
pub fn state_of(data: &[u8], group: u16) -> Option<PathState> {
    let found = report::groups(data).find(|one| one.number == group)?;
    Some(match found.state {
        0 => PathState::Optimized,
        1 => PathState::NonOptimized,
        15 => PathState::Transitioning,
        _ => PathState::Standby,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_of_a_group_is_read() {
        let group = |state, id, ports: u8| {
            [&[state, 0, 0, id, 0, 0, 0, ports][..], &vec![0; 4 * usize::from(ports)]].concat()
        };
        let body = [group(0x80, 1, 2), group(1, 2, 0), group(15, 3, 1), group(2, 4, 1)].concat();
        let data = [&(body.len() as u32).to_be_bytes()[..], &body].concat();
        let states = [1, 2, 3, 4, 5].map(|g| state_of(&data, g));
        use PathState::*;
        assert_eq!(states, [Some(Optimized), Some(NonOptimized), Some(Transitioning), Some(Standby), None]);
        (0..data.len()).for_each(|n| {
            state_of(&data[..n], 4);
        });
    }
}
