//! The hosts of a random history, and their commands.

use crate::model::{Command, HostPort};
use interop::Random;

/// The member numbers of the gateways.
pub const GATEWAYS: [u8; 3] = [1, 2, 3];
/// The gateways of the hosts.
pub const HOSTS: [u8; 4] = [1, 1, 2, 3];

pub fn host(number: usize) -> HostPort {
    HostPort {
        name: format!("iqn.2026-11.org.example:order-{number}"),
        isid: [0x80, 0, 0, 0, 1, number as u8],
        gateway: HOSTS[number],
    }
}

/// The ports of all hosts.
pub fn hosts() -> [HostPort; HOSTS.len()] {
    std::array::from_fn(host)
}

/// A random command. The keys are few, so that they are often those of registrations.
pub fn choose(host: usize, random: &mut Random) -> Command {
    let own = host as u64 + 1;
    if random.one_in(4) {
        let action = random.below(4) as u8;
        return Command { cdb: vec![0x5e, action, 0, 0, 0, 0, 0, 0x10, 0, 0], parameters: Vec::new() };
    }
    let key = if random.one_in(6) { random.below(6) } else { own };
    let action = *random.pick(&[0, 0, 1, 1, 1, 2, 2, 3, 4, 4, 4, 5, 5, 6, 6, 6, 7]);
    let kind = *random.pick(&[1, 3, 5, 5, 6, 7, 8]);
    let action_key = match action {
        0 => *random.pick(&[0, own, own]),
        6 => *random.pick(&[0, own, own, own, own]),
        7 => random.below(4) + 1,
        _ => random.below(5),
    };
    let key = if action == 0 && random.one_in(2) { 0 } else { key };
    let mut list = [key.to_be_bytes(), action_key.to_be_bytes(), [0; 8]].concat();
    match action {
        // APTPL, ALL_TG_PT.
        0 | 6 => list[20] = *random.pick(&[0, 0, 0, 1, 4]),
        7 => list = move_to(list, random),
        _ => {}
    }
    let [high, low] = (list.len() as u16).to_be_bytes();
    Command { cdb: vec![0x5f, action, kind, 0, 0, 0, 0, high, low, 0], parameters: list }
}

/// The parameter list of REGISTER AND MOVE to another host.
fn move_to(mut list: Vec<u8>, random: &mut Random) -> Vec<u8> {
    let to = host(random.below(HOSTS.len() as u64) as usize);
    let isid: String = to.isid.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut id = format!("{},i,0x{isid}", to.name).into_bytes();
    id.push(0);
    id.resize(id.len().next_multiple_of(4), 0);
    list[17] = random.below(2) as u8 * 2;
    list[18..20].copy_from_slice(&(u16::from(to.gateway) * 256 + 1).to_be_bytes());
    list[20..24].copy_from_slice(&(id.len() as u32 + 4).to_be_bytes());
    list.extend_from_slice(&[0x45, 0]);
    list.extend_from_slice(&(id.len() as u16).to_be_bytes());
    list.extend_from_slice(&id);
    list
}
