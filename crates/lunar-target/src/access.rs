//! Access control: which initiators may log in, how they authenticate, and which LUNs they see.

use crate::config::{
    AccessRule, ChapAccount, DiscoveryConfig, GivenNamespaceIds, IpNetwork, NvmeSecret, NvmeTlsKey,
    TargetConfig, TargetNode,
};
use crate::session_info::{Addresses, SessionInfo};
use crate::{LogicalUnit, LoginError};
use lunar_proto::chap::{Algorithm, Authentication, ChapUser, Secret};
use lunar_proto::login::TargetInfo;
use lunar_proto::nvme::tls::TlsPsk;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// A LUN, with the access that one initiator has to it.
#[derive(Clone)]
pub struct LunEntry {
    /// The logical unit of the LUN.
    pub unit: Arc<LogicalUnit>,
    /// Whether the target rejects writes.
    pub read_only: bool,
    /// Whether the target sends asynchronous SCSI events.
    pub aen: bool,
    /// The identifiers that are given to it as a namespace.
    pub given_ids: GivenNamespaceIds,
}

/// The logical unit of each LUN that an initiator sees, by the initiator's LUN numbers.
pub type LunMap = BTreeMap<u16, LunEntry>;

/// The rules of access to a target.
#[derive(Clone, Copy)]
pub struct AccessRules<'a> {
    /// Its access list.
    pub list: &'a [AccessRule],
    /// The secrets of the hosts that must authenticate themselves, if it is an NVMe subsystem.
    pub secrets: Option<&'a BTreeMap<String, NvmeSecret>>,
    /// The keys of the hosts that must use TLS, if it is an NVMe subsystem. No other host can use TLS.
    pub tls_keys: Option<&'a BTreeMap<String, NvmeTlsKey>>,
}

impl AccessRules<'_> {
    /// Whether a session may stay: its initiator may log in, and has authenticated itself as it must.
    pub(crate) fn admit(self, info: &SessionInfo) -> bool {
        let rule = rule_of(self.list, &info.initiator, info.address.ip(), info.portal.ip());
        let demands_secret = self.secrets.is_some_and(|secrets| secrets.contains_key(&info.initiator));
        rule.is_ok_and(|rule| has_authenticated(rule, info.user.as_deref()))
            && (info.is_authenticated_nvme() || !demands_secret)
            && info.tls.is_some() == self.demand_tls_of(&info.initiator)
    }

    /// Whether an NVMe host must use TLS, and no other host can.
    pub(crate) fn demand_tls_of(self, host: &str) -> bool {
        self.tls_keys.is_some_and(|keys| keys.contains_key(host))
    }
}

impl TargetNode {
    /// Its rules of access.
    pub(crate) fn rules(&self) -> AccessRules<'_> {
        let subsystem = self.subsystem.as_ref();
        AccessRules {
            list: &self.access,
            secrets: subsystem.map(|subsystem| &subsystem.hosts),
            tls_keys: subsystem.map(|subsystem| &subsystem.tls_keys),
        }
    }
}

/// See [`LoginContext::entry`].
fn rule_of<'a>(
    list: &'a [AccessRule],
    initiator: &str,
    peer: IpAddr,
    local: IpAddr,
) -> Result<Option<&'a AccessRule>, LoginError> {
    if list.is_empty() {
        return Ok(None);
    }
    let rule = list.iter().find(|rule| has_rule(rule, initiator, peer, local));
    rule.filter(|rule| !rule.deny).map(Some).ok_or(LoginError::NotAllowed)
}

/// Whether a rule applies to an initiator.
fn has_rule(rule: &AccessRule, initiator: &str, peer: IpAddr, local: IpAddr) -> bool {
    let within = |all: &[IpNetwork], address| all.is_empty() || all.iter().any(|one| one.contains(address));
    has_name(rule, initiator) && within(&rule.networks, peer) && within(&rule.portals, local)
}

/// Whether a rule has the name of an initiator.
fn has_name(rule: &AccessRule, initiator: &str) -> bool {
    rule.initiators.is_empty() || rule.initiators.iter().any(|p| matches_pattern(p, initiator))
}

/// Whether an initiator with this CHAP user has authenticated itself as a rule demands.
fn has_authenticated(rule: Option<&AccessRule>, user: Option<&str>) -> bool {
    let users = rule.and_then(|rule| rule.chap.as_ref());
    users.is_none_or(|users| user.is_some_and(|user| users.iter().any(|one| one.name == user)))
}

/// The facts about a connection that decide which targets and LUNs its login can reach.
#[derive(Clone)]
pub struct LoginContext {
    /// The configuration in force when the connection arrived.
    pub config: Arc<TargetConfig>,
    /// Tag of the portal group that accepted the connection.
    pub group: u16,
    /// The initiator's address.
    pub peer: IpAddr,
    /// The address of this host to which the initiator connected.
    pub local: IpAddr,
}

impl LoginContext {
    /// The facts about a connection of a portal group.
    pub fn new(config: &Arc<TargetConfig>, group: u16, addresses: Addresses) -> LoginContext {
        let Addresses { local, peer } = addresses;
        LoginContext { config: config.clone(), group, peer: peer.ip(), local: local.ip() }
    }

    /// The access rule that applies to an initiator: the first that matches.
    ///
    /// None: the target has no access list, so every initiator may use all of it.
    ///
    /// # Errors
    /// [`LoginError::NotAllowed`] when no rule matches, or the first that matches denies access.
    pub fn entry<'a>(
        &self,
        target: &'a TargetNode,
        initiator: &str,
    ) -> Result<Option<&'a AccessRule>, LoginError> {
        rule_of(&target.access, initiator, self.peer, self.local)
    }

    /// The LUNs of a target as this initiator sees them.
    pub fn lun_map(&self, target: &TargetNode, initiator: &str) -> LunMap {
        match self.entry(target, initiator) {
            Err(_) => LunMap::new(),
            Ok(entry) => lun_map(target, entry),
        }
    }

    /// Whether discovery shows the target to this initiator.
    pub fn is_visible(&self, target: &TargetNode, initiator: &str) -> bool {
        self.entry(target, initiator).is_ok()
    }
}

fn lun_map(target: &TargetNode, entry: Option<&AccessRule>) -> LunMap {
    let is_read_only = |seen: u16| entry.is_some_and(|a| a.read_only || a.read_only_luns.contains(&seen));
    let aen = entry.is_some_and(|a| a.aen);
    let given_ids =
        |number: u16| target.subsystem.as_ref().and_then(|own| own.given_ids.get(&number)).copied();
    let visible = |seen: u16, unit: &Arc<LogicalUnit>| {
        let given_ids = given_ids(seen).unwrap_or_default();
        (seen, LunEntry { unit: unit.clone(), read_only: is_read_only(seen), aen, given_ids })
    };
    match entry.and_then(|a| a.luns.as_ref()) {
        None => target.luns.iter().map(|(lun, unit)| visible(*lun, unit)).collect(),
        Some(map) => {
            map.iter().filter_map(|(seen, lun)| Some(visible(*seen, target.luns.get(lun)?))).collect()
        }
    }
}

impl IpNetwork {
    /// Whether the network contains the address. An IPv4 address mapped into IPv6 counts as IPv4.
    pub fn contains(&self, peer: IpAddr) -> bool {
        match (self.address, peer.to_canonical()) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                same_prefix(a.to_bits() as u128, b.to_bits() as u128, 32, self.bits)
            }
            (IpAddr::V6(a), IpAddr::V6(b)) => same_prefix(a.to_bits(), b.to_bits(), 128, self.bits),
            _ => false,
        }
    }
}

fn same_prefix(a: u128, b: u128, width: u32, bits: u8) -> bool {
    (a ^ b).checked_shr(width.saturating_sub(bits as u32)).unwrap_or(0) == 0
}

/// Whether this is a continuation byte of UTF-8.
fn is_inside(byte: u8) -> bool {
    byte & 0xc0 == 0x80
}

/// Whether a name matches a pattern: `*` matches any characters, `?` matches one character.
pub fn matches_pattern(pattern: &str, name: &str) -> bool {
    let (p, n) = (pattern.as_bytes(), name.as_bytes());
    let (mut i, mut j) = (0, 0);
    // Position to resume from when the characters after the last `*` do not match: one byte further in the name.
    let mut retry = None;
    while j < n.len() {
        match p.get(i) {
            Some(b'*') => {
                retry = Some((i, j));
                i += 1;
            }
            // One character, however many bytes it has in UTF-8.
            Some(b'?') if !is_inside(n[j]) => {
                i += 1;
                j += 1 + n[j + 1..].iter().take_while(|byte| is_inside(**byte)).count();
            }
            Some(c) if *c == n[j] => (i, j) = (i + 1, j + 1),
            _ => match retry {
                Some((star, at)) => {
                    retry = Some((star, at + 1));
                    (i, j) = (star + 1, at + 1);
                }
                None => return false,
            },
        }
    }
    p[i..].iter().all(|c| *c == b'*')
}

fn authentication(
    algorithms: &[Algorithm],
    users: Option<&Vec<ChapAccount>>,
    mutual: Option<&ChapAccount>,
) -> Authentication {
    let chap = |u: &ChapAccount| ChapUser { name: u.name.clone(), secret: Secret::new(&u.secret) };
    Authentication {
        required: users.is_some(),
        users: users.into_iter().flatten().map(chap).collect(),
        mutual: mutual.map(chap),
        algorithms: algorithms.to_vec(),
    }
}

impl LoginContext {
    /// How initiators authenticate for discovery.
    ///
    /// # Errors
    /// [`LoginError::DiscoveryDisabled`].
    pub fn discovery(&self) -> Result<Authentication, LoginError> {
        let DiscoveryConfig { disabled, chap, mutual, nvme_referrals: _ } = &self.config.discovery;
        if *disabled {
            return Err(LoginError::DiscoveryDisabled);
        }
        Ok(authentication(&self.config.session.chap_algorithms, chap.as_ref(), mutual.as_ref()))
    }

    /// The target of this name, as this initiator may see it.
    ///
    /// # Errors
    /// The reason for which the initiator may not log in to it.
    pub fn target(&self, name: &str, initiator: &str) -> Result<TargetInfo, LoginError> {
        let target = self.config.targets.get(name).filter(|target| target.subsystem.is_none());
        let (target, entry) = self.admit(target, initiator)?;
        let redirect = target.redirects.iter().find(|r| r.portal_group_tag == self.group);
        Ok(TargetInfo {
            alias: target.alias.clone(),
            authentication: authentication(
                &self.config.session.chap_algorithms,
                entry.and_then(|a| a.chap.as_ref()),
                entry.and_then(|a| a.mutual.as_ref()).or(target.mutual.as_ref()),
            ),
            redirect: redirect.map(|r| (r.to.clone(), r.permanent)),
        })
    }

    /// The NVMe subsystem of this name, as this host may see it.
    ///
    /// # Errors
    /// The reason for which the host may not connect to it.
    pub fn subsystem(&self, name: &str, host: &str) -> Result<&TargetNode, LoginError> {
        let target = self.config.targets.get(name).filter(|target| target.subsystem.is_some());
        self.admit(target, host).map(|(target, _)| target)
    }

    /// Why a subsystem does not admit a host of this name and of this address, for the log.
    pub(crate) fn exclusion(&self, subsystem: &str, host: &str) -> &'static str {
        let rules = self.config.targets.get(subsystem).map_or(&[][..], |target| &target.access);
        let mut admitting = rules.iter().filter(|rule| !rule.deny);
        match admitting.clone().next().is_some() {
            false => "the subsystem admits no host",
            true if admitting.any(|rule| has_name(rule, host)) => {
                "the subsystem admits the name of the host, and not its address; hint: add the address to `networks`"
            }
            true => {
                "the subsystem does not admit the name of the host; hint: add it to `allowed_hosts`, or as \
                 [[subsystem.host]]"
            }
        }
    }

    /// The PSKs with this identity, of hosts that may use a subsystem of this portal group.
    pub(crate) fn tls_psks<'a>(&'a self, identity: &'a [u8]) -> impl Iterator<Item = &'a TlsPsk> {
        let TargetConfig { targets, tls_identities, .. } = &*self.config;
        let key = move |(name, host): &'a (String, String)| {
            let target = targets.get(name).filter(|target| target.portal_groups.contains(&self.group))?;
            let key = target.subsystem.as_ref()?.tls_keys.get(host)?;
            self.is_visible(target, host).then_some(key)
        };
        let keys = tls_identities.hosts(targets, identity).iter().filter_map(key);
        keys.flat_map(move |key| key.psks(identity))
    }

    /// A target that admits this initiator, and the rule that applies.
    fn admit<'a>(
        &self,
        target: Option<&'a TargetNode>,
        initiator: &str,
    ) -> Result<(&'a TargetNode, Option<&'a AccessRule>), LoginError> {
        let target = target.filter(|target| target.portal_groups.contains(&self.group));
        let target = target.ok_or_else(|| match self.config.awaited.contains(&self.group) {
            true => LoginError::NotServing,
            false => LoginError::TargetNotFound,
        })?;
        let entry = self.entry(target, initiator)?;
        match target.offline || target.is_draining() || !target.may_serve() {
            true => Err(LoginError::NotServing),
            false => Ok((target, entry)),
        }
    }

    /// Checks after authentication that this initiator, with this CHAP user, may use the target. None: discovery.
    ///
    /// # Errors
    /// [`LoginError::NotAllowed`].
    pub fn authorize(
        &self,
        target: Option<&str>,
        initiator: &str,
        user: Option<&str>,
    ) -> Result<(), LoginError> {
        // Authentication admitted only accounts of this rule. It remains to reject a login without an account.
        let Some(target) = target.and_then(|t| self.config.targets.get(t)) else { return Ok(()) };
        match has_authenticated(self.entry(target, initiator)?, user) {
            true => Ok(()),
            false => Err(LoginError::NotAllowed),
        }
    }
}

/// An address for SendTargets: `host:port,tag`.
///
/// A portal that listens on every address is reported with the local address of the connection, which the initiator
/// can reach. None: that address has the other IP version, which the portal does not accept.
pub fn target_address(
    advertised: Option<&str>,
    bound: SocketAddr,
    local: SocketAddr,
    tag: u16,
) -> Option<String> {
    match advertised {
        Some(host) => Some(format!("{host},{tag}")),
        None if !bound.ip().is_unspecified() => Some(format!("{bound},{tag}")),
        None if bound.is_ipv4() != local.is_ipv4() => None,
        None => Some(format!("{},{tag}", SocketAddr::new(local.ip(), bound.port()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_pattern_wildcards_match() {
        for (pattern, name, fits) in [
            ("*", "", true),
            ("*", "iqn.x", true),
            ("iqn.1993-08.org.debian:*", "iqn.1993-08.org.debian:01:ab", true),
            ("iqn.1993-08.org.debian:*", "iqn.1993-08.org.debian", false),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("m?ller", "m\u{fc}ller", true),
            ("m??ller", "m\u{fc}ller", false),
            ("*?ler", "m\u{fc}ler", true),
            ("abc", "abcd", false),
        ] {
            assert_eq!(matches_pattern(pattern, name), fits, "{pattern} {name}");
        }
    }

    #[test]
    fn send_targets_address_follows_binding() {
        let at = |a: &str| a.parse().expect("an address");
        for (advertised, bound, local, address) in [
            (None, "192.0.2.1:1", "192.0.2.9:2", Some("192.0.2.1:1,7")),
            (None, "[2001:db8::1]:1", "192.0.2.9:2", Some("[2001:db8::1]:1,7")),
            (None, "0.0.0.0:1", "192.0.2.9:2", Some("192.0.2.9:1,7")),
            (None, "[::]:1", "[2001:db8::9]:2", Some("[2001:db8::9]:1,7")),
            (None, "0.0.0.0:1", "[2001:db8::9]:2", None),
            (None, "[::]:1", "192.0.2.9:2", None),
            (Some("storage.example.org"), "[::]:1", "192.0.2.9:2", Some("storage.example.org,7")),
        ] {
            assert_eq!(
                target_address(advertised, at(bound), at(local), 7).as_deref(),
                address,
                "{bound} {local}"
            );
        }
    }

    /// The context of a login to the first target of the test configuration, with these rules.
    fn with_rules(access: Vec<AccessRule>) -> LoginContext {
        let mut config = crate::test_target::config();
        config.targets.values_mut().for_each(|target| {
            target.access = access.clone();
            target.mutual = Some(account("lunar"));
        });
        LoginContext {
            config: Arc::new(config),
            group: 1,
            peer: [192, 0, 2, 1].into(),
            local: [10, 0, 0, 1].into(),
        }
    }

    fn account(name: &str) -> ChapAccount {
        ChapAccount { name: name.into(), secret: b"twelve bytes".to_vec().into() }
    }

    #[test]
    fn denied_initiator_sees_and_reaches_nothing() {
        let denied =
            AccessRule { initiators: vec!["iqn.x:guest*".into()], deny: true, ..AccessRule::default() };
        let login = with_rules(vec![denied, AccessRule::default()]);
        let (name, target) = login.config.targets.first_key_value().expect("a target");
        for (initiator, admitted) in [("iqn.x:guest1", false), ("iqn.x:host", true)] {
            assert_eq!(login.is_visible(target, initiator), admitted, "{initiator}");
            assert_eq!(login.lun_map(target, initiator).is_empty(), !admitted, "{initiator}");
            assert_eq!(login.target(name, initiator).is_ok(), admitted, "{initiator}");
            assert_eq!(login.authorize(Some(name), initiator, None).is_ok(), admitted, "{initiator}");
        }
    }

    #[test]
    fn exclusion_names_the_name_or_the_address() {
        let far = IpNetwork { address: [10, 9, 0, 0].into(), bits: 16 };
        let rule = |deny| AccessRule {
            initiators: vec!["nqn.x:ho*".into()],
            networks: vec![far],
            deny,
            ..AccessRule::default()
        };
        for (rules, host, expected) in [
            (vec![rule(false)], "nqn.x:host", "and not its address"),
            (vec![rule(false)], "nqn.x:guest", "does not admit the name"),
            (vec![rule(true)], "nqn.x:host", "admits no host"),
        ] {
            let login = with_rules(rules);
            let name = login.config.targets.first_key_value().expect("a target").0;
            let why = login.exclusion(name, host);
            assert!(why.contains(expected), "{host}: {why}");
        }
    }

    #[test]
    fn rule_applies_at_its_portals_alone() {
        let at = |address: &str| IpNetwork { address: address.parse().expect("an address"), bits: 24 };
        let here = AccessRule { portals: vec![at("198.51.100.0"), at("10.0.0.0")], ..AccessRule::default() };
        let login = with_rules(vec![here]);
        let elsewhere = LoginContext { local: [192, 0, 2, 1].into(), ..login.clone() };
        let mapped = LoginContext { local: "::ffff:10.0.0.9".parse().expect("an address"), ..login.clone() };
        let name = login.config.targets.first_key_value().expect("a target").0;
        let admits = |login: &LoginContext| login.target(name, "iqn.x:host").is_ok();
        assert_eq!([&login, &mapped, &elsewhere].map(admits), [true, true, false]);
    }

    #[test]
    fn some_luns_of_a_rule_are_read_only() {
        let rule = AccessRule {
            luns: Some(BTreeMap::from([(5, 0), (6, 1)])),
            read_only_luns: [6].into(),
            ..AccessRule::default()
        };
        let login = with_rules(vec![rule]);
        let target = login.config.targets.first_key_value().expect("a target").1;
        let map = login.lun_map(target, "iqn.x:host");
        assert_eq!(
            map.iter().map(|(lun, entry)| (*lun, entry.read_only)).collect::<Vec<_>>(),
            [(5, false), (6, true)]
        );
    }

    #[test]
    fn mutual_account_of_a_rule_precedes_that_of_the_target() {
        let own = AccessRule {
            initiators: vec!["iqn.x:a".into()],
            mutual: Some(account("own")),
            ..AccessRule::default()
        };
        let login = with_rules(vec![own, AccessRule::default()]);
        let name = login.config.targets.first_key_value().expect("a target").0;
        for (initiator, expected) in [("iqn.x:a", "own"), ("iqn.x:b", "lunar")] {
            let authentication = login.target(name, initiator).expect("admitted").authentication;
            assert_eq!(authentication.mutual.expect("an account").name, expected);
        }
    }

    #[test]
    fn chap_offers_allowed_algorithms_only() {
        let users = vec![ChapAccount { name: "alice".into(), secret: b"twelve bytes".to_vec().into() }];
        let demand = authentication(&[Algorithm::Sha3], Some(&users), None);
        assert!(demand.required);
        assert_eq!(demand.algorithms, [Algorithm::Sha3]);
    }

    #[test]
    fn network_contains_its_addresses() {
        let net = |a: &str, bits| IpNetwork { address: a.parse().expect("an address"), bits };
        let ip = |a: &str| a.parse().expect("an address");
        for (network, peer, inside) in [
            (net("10.0.0.0", 8), "10.255.1.2", true),
            (net("10.0.0.0", 8), "11.0.0.1", false),
            (net("0.0.0.0", 0), "192.0.2.1", true),
            (net("192.0.2.7", 32), "192.0.2.7", true),
            (net("192.0.2.7", 32), "192.0.2.6", false),
            (net("10.0.0.0", 8), "::ffff:10.1.1.1", true),
            (net("::", 0), "2001:db8::1", true),
            (net("2001:db8::", 32), "2001:db9::1", false),
            (net("::1", 128), "127.0.0.1", false),
        ] {
            assert_eq!(network.contains(ip(peer)), inside, "{network:?} {peer}");
        }
    }
}
