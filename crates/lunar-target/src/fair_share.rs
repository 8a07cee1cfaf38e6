//! Fair shares of a table. One address may use most entries while no other needs them, but never the reserve for
//! other addresses. A new address therefore always gets an entry.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// The reserve is 1/`RESERVE` of a table, for addresses with few entries.
const RESERVE: usize = 4;
/// Within the reserve, an address gets 1/`FEW` of the free entries.
const FEW: usize = 32;
/// IPv6 prefix lengths of a link, a customer and a site (RFC 4291 section 2.5.1, RFC 6177), whose owner can choose
/// the rest of the address freely. The second number is the number of single-address shares that such a group gets
/// within the reserve.
const GROUPS: [(u32, usize); LEVELS] = [(64, 1), (56, 4), (48, 8)];
const LEVELS: usize = 3;
/// The largest group.
const SITE: usize = LEVELS - 1;

/// Numbers of entries that count for the groups of an address, smallest group first. The smallest group counts all
/// entries, larger groups only entries within the reserve. An address that fills a table therefore leaves the reserve
/// to its neighbours.
pub type GroupCounts = [usize; LEVELS];

/// An entry of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmissionSlot {
    origin: SourcePrefix,
    /// Whether the entry is within the reserve.
    is_reserved: bool,
}

impl AdmissionSlot {
    /// An entry for this address in a table with `used` entries. None: the limit or the share of the address is
    /// exhausted.
    pub fn new(origin: SourcePrefix, limit: usize, used: usize, own: GroupCounts) -> Option<AdmissionSlot> {
        let free = limit.saturating_sub(used);
        let is_few = |(own, (_, weight)): (usize, (u32, usize))| own < (free * weight / FEW).max(1);
        let is_reserved = free <= limit / RESERVE;
        let admits = !is_reserved || free > 0 && own.into_iter().zip(GROUPS).all(is_few);
        admits.then_some(AdmissionSlot { origin, is_reserved })
    }

    /// The contribution of this entry to the counts of an address.
    pub fn counts_for(self, other: SourcePrefix) -> GroupCounts {
        let (own, others) = (self.origin.groups(), other.groups());
        std::array::from_fn(|level| usize::from(own[level] == others[level] && self.counts_at(level)))
    }

    fn counts_at(self, level: usize) -> bool {
        level == 0 || self.is_reserved
    }
}

/// The source of a connection: an IPv4 address, or the first 64 bits of an IPv6 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SourcePrefix(IpAddr);

impl From<IpAddr> for SourcePrefix {
    fn from(address: IpAddr) -> SourcePrefix {
        SourcePrefix(prefix(address.to_canonical(), GROUPS[0].0))
    }
}

impl fmt::Display for SourcePrefix {
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

impl SourcePrefix {
    /// The groups of the address, smallest first. For IPv4 each group is the address itself.
    fn groups(self) -> [IpAddr; LEVELS] {
        GROUPS.map(|(bits, _)| prefix(self.0, bits))
    }
}

/// The number of entries of a table, in total and by group.
#[derive(Default)]
pub struct SlotTable {
    used: usize,
    /// Entries by level and group.
    of: HashMap<(usize, IpAddr), GroupCount>,
}

/// The number of entries of a group.
#[derive(Clone, Copy, Default)]
struct GroupCount {
    all: usize,
    /// Number of entries that count for shares.
    own: usize,
}

/// Selects the prefixes ([`SourcePrefix`]) with the most entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LargestPrefixes {
    /// The largest prefixes of each site that has this many entries.
    OfSites(usize),
    /// The prefixes of this site that have this many entries.
    OfSite(IpAddr, usize),
}

impl SlotTable {
    /// Number of entries in total.
    pub fn used(&self) -> usize {
        self.used
    }

    fn count(&self, origin: SourcePrefix, level: usize) -> GroupCount {
        self.of.get(&(level, origin.groups()[level])).copied().unwrap_or_default()
    }

    fn admission_slot(&self, origin: SourcePrefix, limit: usize) -> Option<AdmissionSlot> {
        let own = std::array::from_fn(|level| self.count(origin, level).own);
        AdmissionSlot::new(origin, limit, self.used, own)
    }

    /// Whether the limit and the share of this address allow one more entry.
    pub fn has_room(&self, origin: SourcePrefix, limit: usize) -> bool {
        self.admission_slot(origin, limit).is_some()
    }

    /// The largest prefixes, which yield to this address. They belong to the largest sites, if these would still have
    /// more entries than the site of this address with one more, or if that site has none. Otherwise they are
    /// prefixes of its own site, by the same rule.
    pub fn largest_before(&self, origin: SourcePrefix) -> Option<LargestPrefixes> {
        let is_less = |own, max| own == 0 || own + 1 < max;
        let sites = self.of.iter().filter(|((level, _), _)| *level == SITE);
        let max = sites.map(|(_, count)| count.all).max()?;
        if is_less(self.count(origin, SITE).all, max) {
            return Some(LargestPrefixes::OfSites(max));
        }
        let site = origin.groups()[SITE];
        let entries = self.largest_of(site);
        is_less(self.count(origin, 0).all, entries).then_some(LargestPrefixes::OfSite(site, entries))
    }

    /// The maximum number of entries of a prefix in a site.
    fn largest_of(&self, site: IpAddr) -> usize {
        let is_in = |prefix: &IpAddr| SourcePrefix(*prefix).groups()[SITE] == site;
        let prefixes = self.of.iter().filter(|((level, prefix), _)| *level == 0 && is_in(prefix));
        prefixes.map(|(_, count)| count.all).max().unwrap_or_default()
    }

    /// Whether the address belongs to one of these prefixes.
    pub fn is_of(&self, largest: LargestPrefixes, origin: SourcePrefix) -> bool {
        let (site, own) = (origin.groups()[SITE], self.count(origin, 0).all);
        match largest {
            LargestPrefixes::OfSites(max) => {
                self.count(origin, SITE).all == max && own == self.largest_of(site)
            }
            LargestPrefixes::OfSite(of, entries) => site == of && own == entries,
        }
    }

    /// Adds an entry. Beyond the limit it counts as an entry within the reserve.
    pub fn enter(&mut self, origin: SourcePrefix, limit: usize) -> AdmissionSlot {
        let slot = self.admission_slot(origin, limit).unwrap_or(AdmissionSlot { origin, is_reserved: true });
        self.used += 1;
        for key in origin.groups().into_iter().enumerate() {
            let count = self.of.entry(key).or_default();
            count.all += 1;
            count.own += usize::from(slot.counts_at(key.0));
        }
        slot
    }

    /// Removes an entry.
    pub fn leave(&mut self, slot: AdmissionSlot) {
        self.used -= 1;
        for key in slot.origin.groups().into_iter().enumerate() {
            let Some(count) = self.of.get_mut(&key) else { continue };
            count.all -= 1;
            count.own -= usize::from(slot.counts_at(key.0));
            if count.all == 0 {
                self.of.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(address: &str) -> SourcePrefix {
        address.parse::<IpAddr>().expect("an address").into()
    }

    /// Adds entries for an address until there is no room. Returns their number.
    fn fill(table: &mut SlotTable, address: &str, limit: usize) -> usize {
        std::iter::from_fn(|| enter(table, address, limit).then_some(())).count()
    }

    /// Adds an entry if there is room.
    fn enter(table: &mut SlotTable, address: &str, limit: usize) -> bool {
        let may = table.has_room(origin(address), limit);
        may.then(|| table.enter(origin(address), limit));
        may
    }

    #[test]
    fn ipv4_address_and_ipv6_prefix_count_as_one() {
        assert_eq!(origin("2001:db8::1"), origin("2001:db8::ffff:1"));
        assert_ne!(origin("2001:db8::1"), origin("2001:db8:0:1::1"));
        assert_eq!(origin("::ffff:192.0.2.1"), origin("192.0.2.1"));
        assert_ne!(origin("192.0.2.1"), origin("192.0.2.2"));
    }

    #[test]
    fn full_share_of_one_address_admits_others() {
        for limit in [256, 2048, 4096] {
            let mut table = SlotTable::default();
            assert_eq!(fill(&mut table, "192.0.2.1", limit), limit - limit / 4, "{limit}");
            for other in 0..60 {
                assert!(enter(&mut table, &format!("198.51.100.{other}"), limit), "{limit}: {other}");
            }
        }
    }

    #[test]
    fn many_greedy_addresses_admit_new_one() {
        let mut table = SlotTable::default();
        for greedy in 0..100 {
            assert!(fill(&mut table, &format!("192.0.2.{greedy}"), 2048) > 0, "{greedy}");
        }
        assert!(enter(&mut table, "198.51.100.1", 2048));
    }

    /// A site of 65,536 networks counts as eight addresses.
    #[test]
    fn site_of_many_networks_admits_others() {
        for limit in [256, 2048] {
            let mut table = SlotTable::default();
            let networks = 0..0x10000;
            let got = networks.filter(|n| enter(&mut table, &format!("2001:db8:1:{n:x}::1"), limit)).count();
            assert!(got <= limit - limit / 4 + limit / 16, "{got} of {limit}");
            for other in 0..40 {
                assert!(enter(&mut table, &format!("2001:db8:2:{other:x}00::1"), limit) || other > 3);
                assert!(enter(&mut table, &format!("198.51.100.{other}"), limit), "{limit}: {other}");
            }
        }
    }

    /// Many hosts belong to one site: all hosts of a company, or most hosts with unique local addresses (RFC 4193).
    #[test]
    fn greedy_network_admits_others_of_its_site() {
        for (limit, of_customer, of_site) in [(256, 7, 12), (2048, 56, 102)] {
            for (step, count) in [(1, of_customer), (0x100, of_site)] {
                let mut table = SlotTable::default();
                assert_eq!(fill(&mut table, "fd00::1", limit), limit - limit / 4, "{limit}");
                for network in 1..=count {
                    let address = format!("fd00:0:0:{:x}::1", network * step);
                    assert!(enter(&mut table, &address, limit), "{limit}: {address}");
                }
                assert!(!enter(&mut table, "fd00::2", limit), "{limit}: no more of the greedy one");
            }
        }
    }

    #[test]
    fn reserved_entry_counts_for_site_until_released() {
        let (mut table, limit) = (SlotTable::default(), 256);
        let all = fill(&mut table, "fd00::1", limit);
        let (first, second) = (origin("fd00:0:0:1::1"), origin("fd00:0:0:2::1"));
        let reserved = table.enter(first, limit);
        let own = |table: &SlotTable| [0, 1, 2].map(|level| table.count(second, level).own);
        assert_eq!((reserved.counts_for(second), own(&table)), ([0, 1, 1], [0, 1, 1]));
        table.leave(reserved);
        assert_eq!((table.used(), own(&table)), (all, [0; LEVELS]));
    }

    fn table_of(addresses: &[&str]) -> SlotTable {
        let mut table = SlotTable::default();
        for address in addresses {
            table.enter(origin(address), 256);
        }
        table
    }

    #[test]
    fn largest_site_gives_way_to_smaller_ones() {
        let sites = ["2001:db8:1:1::1", "2001:db8:1:2::1", "2001:db8:1:ff00::1", "192.0.2.1", "192.0.2.1"];
        let table = table_of(&sites);
        let largest = table.largest_before(origin("192.0.2.2")).expect("a site of three");
        let is_of = |address| table.is_of(largest, origin(address));
        assert!(is_of("2001:db8:1:2::9") && !is_of("192.0.2.1"));
        assert_eq!(table.largest_before(origin("192.0.2.1")), None, "as large with one more entry");
        assert_eq!(table.largest_before(origin("2001:db8:1:1::1")), None, "one of the largest itself");
        assert_eq!(SlotTable::default().largest_before(origin("192.0.2.1")), None);
    }

    #[test]
    fn largest_prefix_gives_way_within_its_site() {
        let (greedy, modest) = ("fd00:0:0:1::1", "fd00:0:0:2::1");
        let table = table_of(&[modest, greedy, greedy, greedy, "192.0.2.1"]);
        for other in ["fd00:0:0:3::1", modest, "192.0.2.1", "192.0.2.2"] {
            let largest = table.largest_before(origin(other)).expect("a prefix of three");
            assert!(table.is_of(largest, origin(greedy)) && !table.is_of(largest, origin(modest)), "{other}");
        }
        assert_eq!(table.largest_before(origin(greedy)), None, "the largest itself");
    }

    #[test]
    fn small_table_is_used_to_its_limit() {
        for limit in 0..9 {
            let mut table = SlotTable::default();
            let first = fill(&mut table, "192.0.2.1", limit);
            let others = (0..20).map(|n| fill(&mut table, &format!("198.51.100.{n}"), limit));
            assert_eq!((first + others.sum::<usize>(), first), (limit, limit - limit / 4));
        }
    }

    #[test]
    fn released_entries_are_free_again() {
        let mut table = SlotTable::default();
        let all: Vec<_> = (0..12).map(|_| table.enter(origin("192.0.2.1"), 16)).collect();
        assert!(!table.has_room(origin("192.0.2.1"), 16));
        all.into_iter().for_each(|slot| table.leave(slot));
        assert!(table.used() == 0 && table.of.is_empty());
        assert_eq!(fill(&mut table, "192.0.2.2", 16), 12);
    }
}
