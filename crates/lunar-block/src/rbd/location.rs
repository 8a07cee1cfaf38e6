//! The name of an image, and of the cluster that has it.

use std::fmt;
use std::path::{Path, PathBuf};

/// An image of RBD, and how to reach it. The text form is `rbd:POOL/[NAMESPACE/]IMAGE[@SNAPSHOT][:OPTION=VALUE...]`, as
/// QEMU has it. The options are `id` (the user without `client.`), `conf`, `keyring` and `cluster`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RbdLocation {
    /// The pool.
    pub pool: String,
    /// The namespace of the pool; empty for the default one.
    pub namespace: String,
    /// The image.
    pub image: String,
    /// The snapshot. It is read-only.
    pub snapshot: Option<String>,
    /// The user without `client.`; None for `admin`.
    pub user: Option<String>,
    /// The configuration file of Ceph; None for the files that librados looks for.
    pub conf: Option<PathBuf>,
    /// The file with the key of the user; None for those that librados looks for.
    pub keyring: Option<PathBuf>,
    /// The name of the cluster; None for `ceph`.
    pub cluster: Option<String>,
}

/// The prefix of the text form.
pub const RBD_PREFIX: &str = "rbd:";

impl RbdLocation {
    /// Parses the text form.
    ///
    /// # Errors
    /// The fault and the fix, when a part is missing, empty or unknown.
    pub fn parse(text: &str) -> Result<RbdLocation, (String, &'static str)> {
        const FORM: &str = "write rbd:POOL/IMAGE, rbd:POOL/NAMESPACE/IMAGE or rbd:POOL/IMAGE@SNAPSHOT";
        let bad = |what: &str| (format!("{}: {what}", text.escape_debug()), FORM);
        let rest = text.strip_prefix(RBD_PREFIX).ok_or_else(|| bad("the prefix rbd: is missing"))?;
        let mut parts = rest.split(':');
        let name = parts.next().unwrap_or_default();
        let (path, snapshot) = match name.split_once('@') {
            Some((path, snapshot)) => (path, Some(snapshot.to_owned())),
            None => (name, None),
        };
        let (pool, namespace, image) = match *path.split('/').collect::<Vec<_>>() {
            [pool, image] => (pool, "", image),
            [pool, namespace, image] if !namespace.is_empty() => (pool, namespace, image),
            _ => return Err(bad("pool or image is missing")),
        };
        let mut found = RbdLocation {
            pool: pool.into(),
            namespace: namespace.into(),
            image: image.into(),
            snapshot,
            ..RbdLocation::default()
        };
        for option in parts {
            found.set(option).map_err(|what| bad(&what))?;
        }
        found.check().map_err(bad)?;
        Ok(found)
    }

    /// The whole text form, whose relative paths of files start at `base`.
    pub fn whole(&self, base: &Path) -> String {
        let file = |path: &PathBuf| base.join(path).display().to_string();
        let options = [
            ("id", self.user.clone()),
            ("conf", self.conf.as_ref().map(file)),
            ("keyring", self.keyring.as_ref().map(file)),
            ("cluster", self.cluster.clone()),
        ];
        let given = options.into_iter().filter_map(|(key, value)| Some(format!(":{key}={}", value?)));
        given.fold(self.to_string(), |text, option| text + &option)
    }

    /// `POOL/[NAMESPACE/]IMAGE[@SNAPSHOT]`, as the commands of Ceph take it.
    pub fn path(&self) -> String {
        self.to_string().trim_start_matches(RBD_PREFIX).to_owned()
    }

    fn set(&mut self, option: &str) -> Result<(), String> {
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        if value.is_empty() {
            return Err(format!("the option {} has no value", key.escape_debug()));
        }
        match key {
            "id" => self.user = Some(value.into()),
            "conf" => self.conf = Some(value.into()),
            "keyring" => self.keyring = Some(value.into()),
            "cluster" => self.cluster = Some(value.into()),
            _ => {
                let known = "the options are id, conf, keyring and cluster";
                return Err(format!("unknown option {}; {known}", key.escape_debug()));
            }
        }
        Ok(())
    }

    /// Checks the names, which no text form and no call of librbd could carry otherwise.
    ///
    /// # Errors
    /// The fault.
    pub fn check(&self) -> Result<(), &'static str> {
        let names = [&self.pool, &self.image].into_iter().chain(&self.snapshot);
        let texts = names.clone().chain([&self.namespace]).chain(&self.user).chain(&self.cluster);
        if names.clone().any(String::is_empty) {
            return Err("the name of pool, image or snapshot is empty");
        }
        if texts.clone().any(|text| text.contains(['/', '@', ':'])) {
            return Err("a name has one of the characters / @ :");
        }
        if texts.clone().any(|text| text.contains(char::is_control)) {
            return Err("a name has a control character");
        }
        Ok(())
    }
}

/// The text form without options: what a message needs.
impl fmt::Display for RbdLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{RBD_PREFIX}{}/", self.pool)?;
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        f.write_str(&self.image)?;
        self.snapshot.iter().try_for_each(|snapshot| write!(f, "@{snapshot}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_pool_namespace_image_and_snapshot() {
        for text in ["rbd:p/i", "rbd:p/n/i", "rbd:p/i@s", "rbd:p/n/i@s"] {
            assert_eq!(RbdLocation::parse(text).expect(text).to_string(), text);
        }
        let full =
            RbdLocation::parse("rbd:p/i:id=iscsi:conf=/c/ceph.conf:keyring=/k:cluster=x").expect("all");
        let expected = RbdLocation {
            pool: "p".into(),
            image: "i".into(),
            user: Some("iscsi".into()),
            conf: Some("/c/ceph.conf".into()),
            keyring: Some("/k".into()),
            cluster: Some("x".into()),
            ..RbdLocation::default()
        };
        assert_eq!(full, expected);
        let relative = RbdLocation { conf: Some("ceph.conf".into()), ..full };
        let whole = "rbd:p/i:id=iscsi:conf=/c/ceph.conf:keyring=/k:cluster=x";
        assert_eq!(relative.whole(Path::new("/c")), whole);
    }

    #[test]
    fn malformed_text_is_refused_with_its_fault() {
        for (text, fault) in [
            ("p/i", "prefix"),
            ("rbd:", "pool or image is missing"),
            ("rbd:p", "pool or image is missing"),
            ("rbd:p/", "is empty"),
            ("rbd:/i", "is empty"),
            ("rbd:p//i", "pool or image is missing"),
            ("rbd:p/i@", "is empty"),
            ("rbd:p/i@s@t", "one of the characters"),
            ("rbd:p/n/i/j", "pool or image is missing"),
            ("rbd:p/i\n", "control character"),
            ("rbd:p/i:id", "the option id has no value"),
            ("rbd:p/i:id=", "the option id has no value"),
            ("rbd:p/i:user=x", "unknown option user"),
        ] {
            let (what, _) = RbdLocation::parse(text).expect_err(text);
            assert!(what.contains(fault), "{text}: {what}");
        }
    }
}
