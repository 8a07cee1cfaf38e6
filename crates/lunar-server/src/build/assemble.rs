//! The configuration of the target from the open units.

use super::{OpenUnit, UnitName, Units};
use crate::config::{Config, LunConfig, SubsystemConfig, Target, unfit};
use lunar_router::routes::ServedLu;
use lunar_target::config::{SubsystemSettings, TargetConfig, TargetNode, TextKeyHandler};
use lunar_target::{Instance, LogicalUnit};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};

impl Units {
    pub(super) fn assemble(&self, config: &Config) -> TargetConfig {
        let targets =
            config.targets.iter().map(|target| (target.name.clone(), self.target(target, config))).collect();
        TargetConfig {
            limits: config.limits.clone(),
            busy_poll: config.server.busy_poll,
            session: config.session.clone(),
            discovery: config.discovery.clone(),
            portal_groups: config.portal_groups.clone(),
            targets,
            awaited: config.awaited.clone(),
            instances: self.instances(config),
            text_keys: self.answers(),
            tls_identities: Default::default(),
        }
    }

    /// The instances with their own portal group.
    fn instances(&self, config: &Config) -> BTreeMap<u16, Arc<Instance>> {
        let Some(routes) = &self.routes else { return BTreeMap::new() };
        let mut own = BTreeMap::new();
        for group in &config.portal_groups {
            let is_of = |tags: &[u16]| tags.contains(&group.tag);
            let mut here = config.routers.iter().filter(|router| is_of(&router.portal_groups));
            let is_other = |target: &Target| target.router.is_none() && target.subsystem.is_none();
            let is_shared =
                config.targets.iter().any(|target| is_other(target) && is_of(&target.portal_groups));
            if let (Some(router), None, false) = (here.next(), here.next(), is_shared) {
                own.insert(group.tag, routes.instance(&router.name));
            }
        }
        own
    }

    /// Answers text keys for the targets behind a routed target, and for the role in a failover pair.
    fn answers(&self) -> TextKeyHandler {
        let Some(routes) = &self.routes else { return TextKeyHandler::default() };
        let routes = routes.clone();
        TextKeyHandler::new(move |target, key, value| routes.answer(target, key, value))
    }

    /// The logical unit of a LUN of a target.
    fn unit(&self, target: &str, number: u16, lun: &LunConfig) -> Option<Arc<LogicalUnit>> {
        self.open.get(&UnitName::of(target, number, lun)).map(|open| open.unit.clone())
    }

    /// The namespaces of a subsystem that are LUNs of targets.
    fn shared(&self, subsystem: &SubsystemConfig, config: &Config) -> BTreeMap<u16, Arc<LogicalUnit>> {
        let unit = |(nsid, (name, number)): (&u16, &(String, u16))| {
            let target = config.targets.iter().find(|target| target.name == *name)?;
            let lun = target.luns.get(number).filter(|lun| unfit(lun).is_none())?;
            Some((*nsid, self.unit(name, *number, lun)?))
        };
        subsystem.shared.iter().filter_map(unit).collect()
    }

    /// The routers whose LUNs are namespaces of a subsystem.
    fn routed_by(&self, subsystem: &SubsystemConfig, config: &Config) -> Vec<Arc<Instance>> {
        let Some(routes) = &self.routes else { return Vec::new() };
        let is_shared = |target: &&Target| subsystem.shared.values().any(|(name, _)| *name == target.name);
        let targets = config.targets.iter().filter(is_shared);
        let routers: BTreeSet<&str> = targets.filter_map(|target| target.router.as_deref()).collect();
        routers.into_iter().map(|name| routes.instance(name)).collect()
    }

    /// Whether a subsystem waits for a namespace before hosts may connect.
    fn waits(&self, name: &str, subsystem: &SubsystemConfig) -> bool {
        let mut served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        if !subsystem.is_awaited {
            served.insert(name.to_owned());
        }
        !served.contains(name)
    }

    fn target(&self, target: &Target, config: &Config) -> TargetNode {
        let own = |(number, lun): (&u16, &LunConfig)| Some((*number, self.unit(&target.name, *number, lun)?));
        let mut luns: BTreeMap<u16, Arc<LogicalUnit>> = target.luns.iter().filter_map(own).collect();
        let subsystem = target.subsystem.as_ref();
        luns.extend(subsystem.into_iter().flat_map(|subsystem| self.shared(subsystem, config)));
        TargetNode {
            name: target.name.clone(),
            alias: target.alias.clone(),
            portal_groups: target.portal_groups.clone(),
            relative_ports: target.relative_ports.clone(),
            redirects: target.redirects.clone(),
            offline: target.offline || subsystem.is_some_and(|subsystem| self.waits(&target.name, subsystem)),
            mutual: target.mutual.clone(),
            luns,
            access: target.access.clone(),
            instance: self.routes.as_ref().zip(target.router.as_deref()).map(|(r, name)| r.instance(name)),
            routed_by: subsystem.map(|subsystem| self.routed_by(subsystem, config)).unwrap_or_default(),
            depth: target.depth,
            subsystem: subsystem.map(
                |SubsystemConfig {
                     serial,
                     model,
                     hosts,
                     secret,
                     tls_keys,
                     given_ids,
                     shared: _,
                     is_awaited: _,
                 }| {
                    SubsystemSettings {
                        given_ids: given_ids.clone(),
                        hosts: hosts.clone(),
                        secret: secret.clone(),
                        tls_keys: tls_keys.clone(),
                        ..SubsystemSettings::new(&target.name, serial.as_deref(), model.as_deref())
                    }
                },
            ),
        }
    }

    /// The routed logical units that hosts see.
    pub fn routed(&self, config: &Config) -> Vec<ServedLu> {
        let mut tags: BTreeMap<(&str, u16), BTreeSet<u16>> = BTreeMap::new();
        for target in &config.targets {
            let shared = target.subsystem.iter().flat_map(|subsystem| subsystem.shared.values());
            let shared = shared.map(|(target, number)| (target.as_str(), *number));
            for lun in target.luns.keys().map(|number| (target.name.as_str(), *number)).chain(shared) {
                tags.entry(lun).or_default().extend(&target.portal_groups);
            }
        }
        let one = |(name, open): (&UnitName, &OpenUnit)| {
            let address = open.lun.source.lu_address().filter(|_| open.medium.commands.is_none())?.clone();
            // A router serves no `[[disk]]`.
            let UnitName::Lun(target, number) = name else { return None };
            let tags = tags.get(&(target.as_str(), *number))?.iter().copied().collect();
            Some(ServedLu { address, lu: open.unit.lu.clone(), tags })
        };
        self.open.iter().filter_map(one).collect()
    }
}
