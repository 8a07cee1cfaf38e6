//! Access lists, CHAP, and discovery.

use super::Import;
use super::file::{Credentials, LioPortalGroup, NodeAcl, SaveConfig};
use crate::common::count_of_luns;
use crate::{Access, Discovery, NewTarget, ReadOnly};
use std::collections::BTreeSet;

impl Import {
    /// Carries over the authentication of discovery.
    pub(super) fn discovery(&mut self, file: &SaveConfig) {
        for (n, module) in file.fabric_modules.iter().enumerate() {
            if module.name != "iscsi" || !module.discovery_enable_auth.0 {
                continue;
            }
            let place = format!("fabric_modules[{n}]");
            let credentials = Credentials {
                chap_userid: module.userid.clone(),
                chap_password: module.password.clone(),
                chap_mutual_userid: module.mutual_userid.clone(),
                chap_mutual_password: module.mutual_password.clone(),
            };
            let (chap, mutual) = self.users(&credentials, &place);
            self.0.notes.carried(place, "authentication of discovery");
            self.0.configuration.discovery = Discovery { disabled: false, chap, mutual };
        }
    }

    /// Carries over the access list of a portal group.
    pub(super) fn access(&mut self, target: &mut NewTarget, group: &LioPortalGroup, place: &str) {
        let has_chap = demands_chap(group, &group.credentials);
        for (n, acl) in group.node_acls.iter().enumerate() {
            let entry = self.node_acl(acl, group, target, &format!("{place}.node_acls[{n}]"));
            target.access.push(entry);
        }
        if group.attributes.is_set("generate_node_acls") == Some(true) {
            let is_protected = group.attributes.is_set("demo_mode_write_protect").unwrap_or(true);
            let mut everybody = Access {
                read_only: if is_protected { ReadOnly::All } else { ReadOnly::None },
                ..Access::default()
            };
            if has_chap {
                (everybody.chap, everybody.mutual) = self.users(&group.credentials, place);
            }
            self.0.notes.carried(place, format!("{}: demo mode, every host", target.name));
            // Without CHAP and without other entries, no list has the same meaning.
            if everybody != Access::default() || !target.access.is_empty() {
                target.access.push(everybody);
            }
        } else if group.node_acls.is_empty() {
            self.0.notes.carried(place, format!("{}: no host may log in", target.name));
            target.access.push(Access { deny: true, ..Access::default() });
        }
    }

    fn node_acl(&mut self, acl: &NodeAcl, group: &LioPortalGroup, target: &NewTarget, place: &str) -> Access {
        let own = acl.attributes.number("authentication").filter(|own| *own >= 0).map(|own| own != 0);
        let (chap, mutual) = match own.unwrap_or(demands_chap(group, &acl.credentials)) {
            true => self.users(&acl.credentials, place),
            false => (Vec::new(), None),
        };
        let mapped = acl.mapped_luns.iter().filter(|lun| target.luns.contains_key(&lun.tpg_lun));
        let protected: BTreeSet<u16> =
            mapped.clone().filter(|lun| lun.write_protect.0).map(|lun| lun.index).collect();
        for (n, lun) in acl.mapped_luns.iter().enumerate() {
            if !target.luns.contains_key(&lun.tpg_lun) {
                let what = format!(
                    "{}: LUN {}, which is LUN {} of the target",
                    acl.node_wwn, lun.index, lun.tpg_lun
                );
                self.0.notes.lost(format!("{place}.mapped_luns[{n}]"), what);
            }
        }
        self.0.notes.carried(place, format!("{}: {}", acl.node_wwn, count_of_luns(mapped.clone().count())));
        Access {
            initiators: vec![acl.node_wwn.clone()],
            chap,
            mutual,
            luns: Some(mapped.map(|lun| (lun.index, lun.tpg_lun)).collect()),
            read_only: if protected.is_empty() { ReadOnly::None } else { ReadOnly::Luns(protected) },
            ..Access::default()
        }
    }

    /// The ids of the users of some credentials. Without a name, no host can log in with CHAP in the kernel's target
    /// either, so a user with an unknown secret takes its place.
    fn users(&mut self, credentials: &Credentials, place: &str) -> (Vec<String>, Option<String>) {
        let name =
            Some(credentials.chap_userid.as_str()).filter(|name| !name.is_empty()).unwrap_or("unknown");
        let chap = vec![self.0.user(name, &credentials.chap_password, place)];
        let mutual = Some(credentials.chap_mutual_userid.as_str()).filter(|name| !name.is_empty());
        let secret = &credentials.chap_mutual_password;
        let mutual = mutual.map(|name| self.0.mutual_user(name, secret, &chap, place));
        (chap, mutual)
    }
}

/// Whether a portal group demands CHAP. The kernel's default is that it does, and a file without the attribute and
/// without credentials admits no host there.
fn demands_chap(group: &LioPortalGroup, credentials: &Credentials) -> bool {
    group.attributes.is_set("authentication").unwrap_or(!credentials.chap_userid.is_empty())
}
