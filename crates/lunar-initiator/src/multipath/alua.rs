//! Asymmetric logical unit access, as a host reads it (SPC-5 section 5.18).

use super::State;
use lunar_wire::be;
use lunar_wire::scsi::{report, vpd};

/// The target port group behind which a logical unit was asked (VPD page 83h, designator type 5h of
/// association 1h).
pub fn port_group(page: &[u8]) -> Option<u16> {
    let of_port = |d: &vpd::Designator<'_>| (d.kind, d.association) == (5, 1) && d.value.len() >= 4;
    vpd::designators(page).find(of_port).map(|d| be::get16(&d.value[2..]))
}

/// The state of a group in the answer of REPORT TARGET PORT GROUPS (SPC-5 section 6.36); None if it is not
/// there.
pub fn state_of(answer: &[u8], group: u16) -> Option<State> {
    let found = report::groups(answer).find(|one| one.number == group)?;
    Some(match found.state {
        0 => State::Optimized,
        1 => State::NonOptimized,
        15 => State::Transitioning,
        _ => State::Standby,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_of_the_port_is_found_among_the_designators() {
        let page = [
            &[0, 0x83, 0, 28][..],
            &[1, 3, 0, 8, 0x60, 1, 2, 3, 4, 5, 6, 7],
            &[0x51, 0x94, 0, 4, 0, 0, 0, 1],
            &[0x51, 0x95, 0, 4, 0, 0, 0x01, 0x02],
        ]
        .concat();
        assert_eq!(port_group(&page), Some(0x0102));
        (0..page.len()).for_each(|n| assert_eq!(port_group(&page[..n]), None, "{n} bytes"));
    }

    #[test]
    fn the_state_of_a_group_is_read() {
        let group = |state, id, ports: u8| {
            [&[state, 0, 0, id, 0, 0, 0, ports][..], &vec![0; 4 * usize::from(ports)]].concat()
        };
        let body = [group(0x80, 1, 2), group(1, 2, 0), group(15, 3, 1), group(2, 4, 1)].concat();
        let answer = [&(body.len() as u32).to_be_bytes()[..], &body].concat();
        let states = [1, 2, 3, 4, 5].map(|g| state_of(&answer, g));
        use State::*;
        assert_eq!(states, [Some(Optimized), Some(NonOptimized), Some(Transitioning), Some(Standby), None]);
        (0..answer.len()).for_each(|n| {
            state_of(&answer[..n], 4);
        });
    }
}
