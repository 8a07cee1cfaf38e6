//! The user and groups of `lunar.service`, as systemd reads them from its unit file and drop-ins.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The folders of units below the root of the file system. The first one that has a file decides.
const FOLDERS: [&str; 5] = [
    "etc/systemd/system",
    "run/systemd/system",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
    "lib/systemd/system",
];
/// The unit of the service.
pub(super) const UNIT: &str = "lunar.service";

/// Names of the user and the groups of a unit.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct UnitUser {
    /// The user; root without one.
    pub(super) user: Option<String>,
    /// The group; None: that of the user.
    pub(super) group: Option<String>,
    /// Groups beside it.
    pub(super) groups: Vec<String>,
}

/// The user of the unit on this host. None: no unit is installed.
pub(super) fn installed(root: &Path) -> Option<UnitUser> {
    let folders = || FOLDERS.iter().map(|folder| root.join(folder));
    let unit = folders().find_map(|folder| std::fs::read_to_string(folder.join(UNIT)).ok())?;
    let mut drop_ins: BTreeMap<_, PathBuf> = BTreeMap::new();
    for folder in folders() {
        let entries = std::fs::read_dir(folder.join(format!("{UNIT}.d"))).into_iter().flatten().flatten();
        for entry in entries.filter(|entry| entry.file_name().as_encoded_bytes().ends_with(b".conf")) {
            drop_ins.entry(entry.file_name()).or_insert(entry.path());
        }
    }
    let mut user = UnitUser::default();
    user.read(&unit);
    drop_ins.values().filter_map(|path| std::fs::read_to_string(path).ok()).for_each(|text| user.read(&text));
    Some(user)
}

impl UnitUser {
    /// Reads the keys of a file. Those of later files replace them, or add to a list, which an empty value clears.
    fn read(&mut self, text: &str) {
        for line in text.lines() {
            let Some((key, value)) = line.split_once('=') else { continue };
            let value = value.trim();
            let one = Some(value.to_owned()).filter(|value| !value.is_empty());
            match key.trim() {
                "User" => self.user = one,
                "Group" => self.group = one,
                "SupplementaryGroups" if value.is_empty() => self.groups.clear(),
                "SupplementaryGroups" => self.groups.extend(value.split_whitespace().map(String::from)),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_of_the_packaged_unit_is_found() {
        let mut user = UnitUser::default();
        user.read(include_str!("../../../../dist/lunar.service"));
        let lunar = || Some("lunar".to_owned());
        assert_eq!(user, UnitUser { user: lunar(), group: lunar(), groups: vec!["disk".into()] });
    }

    #[test]
    fn drop_ins_change_the_unit_in_the_order_of_their_names() {
        let root = std::env::temp_dir().join(format!("lunar-unit-{}", std::process::id()));
        assert_eq!(installed(&root), None);
        for (path, text) in [
            ("usr/lib/systemd/system/lunar.service", "[Service]\nUser=lunar\nSupplementaryGroups=disk\n"),
            ("etc/systemd/system/lunar.service.d/10-a.conf", "SupplementaryGroups=\nUser=storage\n"),
            ("usr/lib/systemd/system/lunar.service.d/10-a.conf", "User=hidden\n"),
            ("run/systemd/system/lunar.service.d/20-b.conf", "SupplementaryGroups=tape cdrom\n# User=x\n"),
            ("run/systemd/system/lunar.service.d/30-c", "User=ignored\n"),
        ] {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let groups = vec!["tape".into(), "cdrom".into()];
        let expected = UnitUser { user: Some("storage".into()), group: None, groups };
        assert_eq!(installed(&root), Some(expected));
        std::fs::remove_dir_all(root).unwrap();
    }
}
