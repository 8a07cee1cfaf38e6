//! Logical units of istgt, which are targets.

use super::IstgtImport;
use super::file::{IstgtKey, IstgtSection};
use super::portals::PortalTags;
use crate::NewTarget;

/// The default of `NodeBase`.
const NODE_BASE: &str = "iqn.2007-09.jp.ne.peach.istgt";

impl IstgtImport {
    pub(super) fn target(
        &mut self,
        unit: &IstgtSection,
        number: u16,
        sections: &[IstgtSection],
        portals: &PortalTags,
    ) {
        let full_name = full_name(unit, sections);
        let name = self.0.target_name(&full_name, &unit.place);
        let alias = unit.word("TargetAlias", 0).filter(|alias| !alias.is_empty()).map(Into::into);
        let mut target = NewTarget { name, alias, ..NewTarget::default() };
        let method = [unit.word("AuthMethod", 0), unit.word("AuthMethod", 1)];
        let group = unit.word("AuthGroup", 0).unwrap_or_default();
        let users = self.users(method, group, sections, &unit.place);
        self.mappings(&mut target, unit, sections, portals, users);
        let has_portals = !target.portal_groups.is_empty();
        target.offline = !has_portals || unit.is_yes("UnitOnline") == Some(false);
        if !has_portals {
            self.0.notes.lost(&unit.place, format!("{}: its portals, so it is offline", target.name));
            target.portal_groups.extend(self.0.configuration.portal_groups.first().map(|group| group.tag));
        }
        self.luns(&mut target, unit, (number, &full_name));
        unit.keys.iter().for_each(|key| self.unit_key(key, &target.name));
        self.0.notes.carried(&unit.place, format!("{}: the target", target.name));
        self.0.configuration.targets.push(target);
    }

    /// Reports a key that has no counterpart.
    fn unit_key(&mut self, key: &IstgtKey, of: &str) {
        let what = format!("{of}: {}", key.shown());
        match key.key.to_ascii_lowercase().as_str() {
            "comment" | "targetname" | "targetalias" | "mapping" | "authmethod" | "authgroup"
            | "unittype" | "unitinquiry" | "unitonline" | "readonly" | "blocklength" => {}
            lun if lun.starts_with("lun") => {}
            "usedigest" | "queuedepth" | "maxoutstandingr2t" | "maxburstlength" | "firstburstlength" => {
                let what = format!("{what}: Lunar has its own value, see [session] in docs/operate.md");
                self.0.notes.changed(&key.place, what);
            }
            _ => self.0.notes.lost(&key.place, what),
        }
    }
}

/// The name of a target. Without a kind of name, `NodeBase` is before it.
fn full_name(unit: &IstgtSection, sections: &[IstgtSection]) -> String {
    let name = unit.word("TargetName", 0).unwrap_or_default();
    let base = sections.iter().find_map(|section| section.word("NodeBase", 0)).unwrap_or(NODE_BASE);
    match ["iqn.", "eui.", "naa."].iter().any(|kind| name.to_ascii_lowercase().starts_with(kind)) {
        true => name.to_owned(),
        false => format!("{base}:{name}"),
    }
}
