//! How much of a table one address may fill: most of it while nobody else needs it, and never the part that is kept for
//! others. A new address gets in whatever another one has done.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// The part of a table that is kept for addresses with few entries.
const RESERVE: usize = 4;
/// Within the reserve an address may have this part of what is free.
const FEW: usize = 32;
/// The bits of an IPv6 address that a link, a customer and a site have (RFC 4291 section 2.5.1, RFC 6177): whoever has some
/// chooses the rest as it likes. Within the reserve each may have so many times the part of an address.
const GROUPS: [(u32, usize); LEVELS] = [(64, 1), (56, 2), (48, 4)];
const LEVELS: usize = 3;
/// The largest group.
const SITE: usize = LEVELS - 1;

/// Entries of the groups of an address, the smallest group first.
pub type Own = [usize; LEVELS];

/// Who counts as one: an IPv4 address, or the first 64 bits of an IPv6 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Origin(IpAddr);

impl From<IpAddr> for Origin {
    fn from(address: IpAddr) -> Origin {
        Origin(prefix(address.to_canonical(), GROUPS[0].0))
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An IPv4 address as it is, or the first bits of an IPv6 address.
fn prefix(address: IpAddr, bits: u32) -> IpAddr {
    match address {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & !0 << (128 - bits)).into(),
        v4 => v4,
    }
}

impl Origin {
    /// Its groups, the smallest first. An IPv4 address is alone in each.
    fn groups(self) -> [IpAddr; LEVELS] {
        GROUPS.map(|(bits, _)| prefix(self.0, bits))
    }

    /// The groups that both are in.
    pub fn shared_with(self, other: Origin) -> [bool; LEVELS] {
        let (own, others) = (self.groups(), other.groups());
        std::array::from_fn(|level| own[level] == others[level])
    }
}

/// Whether an address whose groups have `own` of the `used` entries of a table may have one more.
pub fn admits(limit: usize, used: usize, own: Own) -> bool {
    let free = limit.saturating_sub(used);
    let is_few = |(own, (_, weight)): (usize, (u32, usize))| own < (free * weight / FEW).max(1);
    free > limit / RESERVE || free > 0 && own.into_iter().zip(GROUPS).all(is_few)
}

/// A table of which only the numbers count.
#[derive(Default)]
pub struct Crowd {
    used: usize,
    /// Of each group of each level.
    of: HashMap<(usize, IpAddr), usize>,
}

impl Crowd {
    /// Entries in all.
    pub fn used(&self) -> usize {
        self.used
    }

    fn own(&self, origin: Origin) -> Own {
        let groups = origin.groups();
        std::array::from_fn(|level| self.of.get(&(level, groups[level])).copied().unwrap_or(0))
    }

    /// The limit and the share of this address allow one more.
    pub fn has_room(&self, origin: Origin, limit: usize) -> bool {
        admits(limit, self.used, self.own(origin))
    }

    /// The largest group, if it has more than that of this address would have with one more entry, or this one has none.
    pub fn largest_before(&self, origin: Origin) -> Option<Site> {
        let sites = self.of.iter().filter(|((level, _), _)| *level == SITE);
        let ((_, site), most) = sites.max_by_key(|(_, own)| **own)?;
        let own = self.own(origin)[SITE];
        (own == 0 || own + 1 < *most).then_some(Site(*site))
    }

    /// Takes an entry.
    pub fn enter(&mut self, origin: Origin) {
        self.used += 1;
        for key in origin.groups().into_iter().enumerate() {
            *self.of.entry(key).or_default() += 1;
        }
    }

    /// Gives an entry back.
    pub fn leave(&mut self, origin: Origin) {
        self.used -= 1;
        for key in origin.groups().into_iter().enumerate() {
            match self.of.get_mut(&key) {
                Some(own) if *own > 1 => *own -= 1,
                _ => drop(self.of.remove(&key)),
            }
        }
    }
}

/// The largest group of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site(IpAddr);

impl Site {
    /// The address is in it.
    pub fn has(self, origin: Origin) -> bool {
        origin.groups()[SITE] == self.0
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
        std::iter::from_fn(|| enter(crowd, address, limit).then_some(())).count()
    }

    /// Takes an entry, if there is room.
    fn enter(crowd: &mut Crowd, address: &str, limit: usize) -> bool {
        let may = crowd.has_room(origin(address), limit);
        may.then(|| crowd.enter(origin(address)));
        may
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
                assert!(enter(&mut crowd, &format!("198.51.100.{other}"), limit), "{limit}: {other}");
            }
        }
    }

    #[test]
    fn many_greedy_addresses_leave_room_for_new_ones() {
        let mut crowd = Crowd::default();
        for greedy in 0..100 {
            assert!(fill(&mut crowd, &format!("192.0.2.{greedy}"), 2048) > 0, "{greedy}");
        }
        assert!(enter(&mut crowd, "198.51.100.1", 2048));
    }

    /// A site of 65,536 networks counts as four addresses.
    #[test]
    fn a_site_of_many_networks_leaves_room_for_others() {
        for limit in [256, 2048] {
            let mut crowd = Crowd::default();
            let networks = 0..0x10000;
            let got = networks.filter(|n| enter(&mut crowd, &format!("2001:db8:1:{n:x}::1"), limit)).count();
            assert!(got <= limit - limit / 4 + limit / 16, "{got} of {limit}");
            for other in 0..40 {
                assert!(enter(&mut crowd, &format!("2001:db8:2:{other:x}00::1"), limit) || other > 3);
                assert!(enter(&mut crowd, &format!("198.51.100.{other}"), limit), "{limit}: {other}");
            }
        }
    }

    #[test]
    fn the_largest_site_gives_way_to_smaller_ones() {
        let mut crowd = Crowd::default();
        for address in ["2001:db8:1:1::1", "2001:db8:1:2::1", "2001:db8:1:ff00::1", "192.0.2.1", "192.0.2.1"]
        {
            crowd.enter(origin(address));
        }
        let largest = crowd.largest_before(origin("192.0.2.2")).expect("a site of three");
        assert!(largest.has(origin("2001:db8:1:2::9")) && !largest.has(origin("192.0.2.1")));
        assert_eq!(crowd.largest_before(origin("192.0.2.1")), None, "as large with one more");
        assert_eq!(crowd.largest_before(origin("2001:db8:1:7::1")), None, "the largest itself");
        assert_eq!(Crowd::default().largest_before(origin("192.0.2.1")), None);
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
