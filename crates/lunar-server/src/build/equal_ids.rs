//! Namespaces with equal identifiers, given or derived.

use super::UnitName;
use crate::config::{Config, LunConfig, Target};
use crate::{Diagnostic, identity};
use lunar_target::config::NamespaceIds;
use std::collections::BTreeMap;

/// Reports two namespaces with the same identifier: hosts ignore the second one.
pub(crate) fn identifier_twice(config: &Config) -> Result<(), Vec<Diagnostic>> {
    let given = |target: &Target| target.subsystem.as_ref().is_some_and(|own| !own.given_ids.is_empty());
    // Derived identifiers differ. Thousands of them take long.
    if !config.targets.iter().any(given) {
        return Ok(());
    }
    let mut first = BTreeMap::new();
    for (target, nsid, unit, lun) in config.targets.iter().flat_map(|target| namespaces(target, config)) {
        let naa = identity::identity(&unit, lun).naa;
        let ids = NamespaceIds::new(&target.name, &naa, target.given_ids(nsid));
        for (kind, id) in ids.named() {
            let here = format!("namespace {nsid} of {}", target.name);
            if let Some(other) = first.insert((kind, id.to_vec()), here.clone()) {
                let what = format!("{here}: {other} has the same {kind} {}", crate::config::hex(id));
                let key = kind.to_lowercase();
                return Err(vec![Diagnostic::new(what, format!("set another `{key}` for one of the two"))]);
            }
        }
    }
    Ok(())
}

/// The namespaces of a subsystem, and their logical units.
fn namespaces<'c>(
    target: &'c Target,
    config: &'c Config,
) -> impl Iterator<Item = (&'c Target, u16, UnitName, &'c LunConfig)> {
    let subsystem = target.subsystem.as_ref();
    let own = subsystem.map(|_| target.luns.iter()).into_iter().flatten();
    let own = own.map(move |(nsid, lun)| (target, *nsid, UnitName::of(&target.name, *nsid, lun), lun));
    let shared = subsystem.map(|subsystem| &subsystem.shared).into_iter().flatten();
    let shared = shared.filter_map(move |(nsid, (name, number))| {
        let of = config.targets.iter().find(|one| one.name == *name)?;
        let lun = of.luns.get(number)?;
        Some((target, *nsid, UnitName::of(name, *number, lun), lun))
    });
    own.chain(shared)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    /// A configuration with a namespace of its own and a LUN, whose namespace has these keys.
    fn config(keys: &str) -> Config {
        let text = format!(
            "[[target]]\nname = \"iqn.2026-11.org.example:a\"\n[[target.lun]]\nlun = 0\nbackend = \"null\"\nsize = \"1M\"\n\
             [[subsystem]]\nnqn = \"nqn.2026-11.org.example:s\"\n\
             [[subsystem.namespace]]\nnsid = 1\nbackend = \"null\"\nsize = \"1M\"\n\
             [[subsystem.namespace]]\nnsid = 2\ntarget = \"iqn.2026-11.org.example:a\"\nlun = 0\n{keys}\n"
        );
        parse(&text, "t.toml".as_ref()).expect("a configuration")
    }

    #[test]
    fn given_identifier_that_another_derives_is_reported() {
        assert!(identifier_twice(&config("")).is_ok());
        assert!(identifier_twice(&config("nguid = \"none\"")).is_ok());
        let plain = config("");
        let subsystem = plain.targets.iter().find(|target| target.subsystem.is_some()).expect("a subsystem");
        let (_, _, unit, lun) = namespaces(subsystem, &plain).next().expect("a namespace");
        let naa = identity::identity(&unit, lun).naa;
        let ids = NamespaceIds::new(&subsystem.name, &naa, Default::default());
        let uuid = lunar_initiator::nvme::uuid_text(&ids.uuid);
        let found =
            identifier_twice(&config(&format!("uuid = \"{uuid}\""))).expect_err("equal")[0].to_string();
        assert!(found.contains("namespace 1 of nqn.2026-11.org.example:s has the same UUID"), "{found}");
        // An NGUID of this value is another identifier.
        assert!(identifier_twice(&config(&format!("nguid = \"{uuid}\""))).is_ok());
    }
}
