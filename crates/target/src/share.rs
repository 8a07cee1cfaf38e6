//! How much of a table one address may fill: most of it while nobody else needs it, and never the part that is kept for
//! others. A new address gets in whatever another one has done.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};

/// The part of a table that is kept for addresses with few entries.
const RESERVE: usize = 4;
/// Within the reserve an address may have this part of what is free.
const FEW: usize = 32;
/// The bits of an IPv6 address that tell hosts apart: each host chooses the others as it likes (RFC 4291 section 2.5.1).
const PREFIX: u128 = !0 << 64;

/// Who counts as one: an IPv4 address, or the first 64 bits of an IPv6 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Origin(IpAddr);

impl From<IpAddr> for Origin {
    fn from(address: IpAddr) -> Origin {
        Origin(match address.to_canonical() {
            IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & PREFIX).into(),
            v4 => v4,
        })
    }
}

/// Whether an address that has `own` of the `used` entries of a table may have one more.
pub fn admits(limit: usize, used: usize, own: usize) -> bool {
    let free = limit.saturating_sub(used);
    free > limit / RESERVE || free > 0 && own < (free / FEW).max(1)
}

/// A table of which only the numbers count.
#[derive(Default)]
pub struct Crowd {
    used: usize,
    of: HashMap<Origin, usize>,
}

impl Crowd {
    /// Entries in all.
    pub fn used(&self) -> usize {
        self.used
    }

    /// The limit and the share of this address allow one more.
    pub fn has_room(&self, origin: Origin, limit: usize) -> bool {
        admits(limit, self.used, self.of.get(&origin).copied().unwrap_or(0))
    }

    /// Takes an entry. False: there is no room.
    pub fn enter(&mut self, origin: Origin, limit: usize) -> bool {
        let may = self.has_room(origin, limit);
        if may {
            self.used += 1;
            *self.of.entry(origin).or_default() += 1;
        }
        may
    }

    /// Gives an entry back.
    pub fn leave(&mut self, origin: Origin) {
        self.used -= 1;
        match self.of.get_mut(&origin) {
            Some(own) if *own > 1 => *own -= 1,
            _ => drop(self.of.remove(&origin)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(address: &str) -> Origin {
        address.parse::<IpAddr>().expect("an address").into()
    }

    /// So many entries an address gets.
    fn fill(crowd: &mut Crowd, address: &str, limit: usize) -> usize {
        std::iter::from_fn(|| crowd.enter(origin(address), limit).then_some(())).count()
    }

    #[test]
    fn an_ipv4_address_and_an_ipv6_prefix_count_as_one() {
        assert_eq!(origin("2001:db8::1"), origin("2001:db8::ffff:1"));
        assert_ne!(origin("2001:db8::1"), origin("2001:db8:0:1::1"));
        assert_eq!(origin("::ffff:192.0.2.1"), origin("192.0.2.1"));
        assert_ne!(origin("192.0.2.1"), origin("192.0.2.2"));
    }

    #[test]
    fn one_address_fills_most_and_many_others_get_in() {
        for limit in [256, 2048, 4096] {
            let mut crowd = Crowd::default();
            assert_eq!(fill(&mut crowd, "192.0.2.1", limit), limit - limit / 4, "{limit}");
            for other in 0..60 {
                assert!(crowd.enter(origin(&format!("198.51.100.{other}")), limit), "{limit}: {other}");
            }
        }
    }

    #[test]
    fn many_greedy_addresses_leave_room_for_new_ones() {
        let mut crowd = Crowd::default();
        for greedy in 0..100 {
            assert!(fill(&mut crowd, &format!("192.0.2.{greedy}"), 2048) > 0, "{greedy}");
        }
        assert!(crowd.enter(origin("198.51.100.1"), 2048));
    }

    #[test]
    fn a_table_is_never_more_than_full_and_small_ones_are_used() {
        for limit in 0..9 {
            let mut crowd = Crowd::default();
            let first = fill(&mut crowd, "192.0.2.1", limit);
            let others = (0..20).map(|n| fill(&mut crowd, &format!("198.51.100.{n}"), limit));
            assert_eq!((first + others.sum::<usize>(), first), (limit, limit - limit / 4));
        }
    }

    #[test]
    fn what_is_given_back_is_there_again() {
        let mut crowd = Crowd::default();
        let all = fill(&mut crowd, "192.0.2.1", 16);
        (0..all).for_each(|_| crowd.leave(origin("192.0.2.1")));
        assert!(crowd.used() == 0 && crowd.of.is_empty());
        assert_eq!(fill(&mut crowd, "192.0.2.2", 16), all);
    }
}
