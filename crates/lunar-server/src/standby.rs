//! Targets on standby. Two servers have the same target in their configurations, and one of them at a time has its
//! media. A cluster manager decides which one: it promotes the target there. Until then, the server opens neither the
//! media nor the state of the target, and rejects logins with 03/01, so that hosts try again.

use crate::config::{Config, Target};
use crate::{Diagnostic, io_text};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

/// The names of the promoted targets.
pub type Promoted = BTreeSet<String>;

/// The targets that are on standby now.
pub fn on_standby(config: &Config, promoted: &Promoted) -> BTreeSet<String> {
    config.targets.iter().filter(|target| waits(target, promoted)).map(|target| target.name.clone()).collect()
}

fn waits(target: &Target, promoted: &Promoted) -> bool {
    target.standby && !promoted.contains(&target.name)
}

/// Removes the LUNs of the targets that are on standby, and makes these targets reject logins. NVMe subsystems with LUNs of
/// theirs reject hosts too.
pub fn close(config: &mut Config, promoted: &Promoted) {
    for name in on_standby(config, promoted) {
        config.targets.iter_mut().filter(|target| target.has_luns_of(&name)).for_each(close_one);
    }
}

fn close_one(target: &mut Target) {
    (target.offline, target.luns) = (true, Arc::default());
    target.subsystem.iter_mut().for_each(|subsystem| subsystem.shared.clear());
}

/// The promoted targets after a change of the configuration. A target that is served when it gets `standby` is promoted:
/// the change must not take it from its hosts.
pub fn after_change(before: &Config, promoted: &Promoted, new: &Config) -> Promoted {
    let is_served = |name: &str| {
        before.targets.iter().any(|target| target.name == name && !target.standby) || promoted.contains(name)
    };
    let targets = new.targets.iter().filter(|target| target.standby && is_served(&target.name));
    targets.map(|target| target.name.clone()).collect()
}

/// Checks that the folder of the state of a target exists. The server never creates it: the folder is on a volume that
/// moves with the media, and without that volume the reservations would seem to be gone.
///
/// # Errors
/// When it is missing, or is no folder.
pub fn check_state_dir(folder: &Path) -> Result<(), Diagnostic> {
    let fault = match folder.metadata() {
        Ok(found) if found.is_dir() => return Ok(()),
        Ok(_) => "is no folder".into(),
        Err(e) => io_text(&e),
    };
    let what = format!("the state folder {}: {fault}", folder.display());
    Err(Diagnostic::new(what, "mount its volume first; the server does not create this folder"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    const NAME: &str = "iqn.2026-11.org.example:disks";

    fn config(keys: &str) -> Config {
        let lun = "[[target.lun]]\nlun = 0\nbackend = \"null\"\nsize = \"1G\"\n";
        parse(&format!("[[target]]\nname = \"{NAME}\"\n{keys}\n{lun}"), Path::new("t.toml")).unwrap()
    }

    fn names(list: &[&str]) -> Promoted {
        list.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn target_has_luns_only_while_it_is_promoted() {
        for (keys, promoted, luns) in
            [("", &[][..], 1), ("standby = true", &[], 0), ("standby = true", &[NAME], 1)]
        {
            let (mut config, promoted) = (config(keys), names(promoted));
            assert_eq!(on_standby(&config, &promoted).len(), 1 - luns, "{keys}");
            close(&mut config, &promoted);
            assert_eq!(
                (config.targets[0].luns.len(), config.targets[0].offline),
                (luns, luns == 0),
                "{keys}"
            );
        }
    }

    #[test]
    fn subsystem_waits_for_the_target_of_its_namespace() {
        let subsystem = format!(
            "[[subsystem]]\nnqn = \"nqn.2026-11.org.example:s\"\n\
             [[subsystem.namespace]]\nnsid = 1\ntarget = \"{NAME}\"\nlun = 0\n"
        );
        let lun = "[[target.lun]]\nlun = 0\nbackend = \"null\"\nsize = \"1G\"\n";
        for (keys, promoted, is_away) in [
            ("", &[][..], false),
            ("offline = true", &[], false),
            ("standby = true", &[], true),
            ("standby = true", &[NAME], false),
        ] {
            let text = format!("[[target]]\nname = \"{NAME}\"\n{keys}\n{lun}{subsystem}");
            let mut config = parse(&text, Path::new("t.toml")).unwrap();
            close(&mut config, &names(promoted));
            assert_eq!(config.targets[1].offline, is_away, "{keys}");
        }
    }

    #[test]
    fn change_takes_no_served_target_from_its_hosts() {
        let (served, standby) = (config(""), config("standby = true"));
        let after =
            |before: &Config, promoted: &[&str], new: &Config| after_change(before, &names(promoted), new);
        assert_eq!(after(&served, &[], &standby), names(&[NAME]));
        assert_eq!(after(&standby, &[NAME], &standby), names(&[NAME]));
        assert_eq!(after(&standby, &[], &standby), names(&[]));
        assert_eq!(after(&standby, &[NAME], &served), names(&[]), "it is served without a promotion");
    }
}
