//! The keys of an image of RBD.

use lunar_block::{BackendKind, RbdLocation};
use lunar_config::{Diagnostics, Section};
use std::ops::Range;
use std::path::Path;

/// The keys of the names, and those of the files.
const NAMES: [&str; 6] = ["pool", "namespace", "image", "snapshot", "cluster", "user"];
const FILES: [&str; 2] = ["ceph_conf", "keyring"];

/// Reads the keys of an image. Relative paths begin at `base`.
pub(super) fn location(p: &mut Diagnostics<'_>, s: &mut Section<'_>, base: &Path) -> RbdLocation {
    let [pool, namespace, image, snapshot, cluster, user] =
        NAMES.map(|key| s.text(p, key).map(|(text, _)| text.to_owned()));
    let [conf, keyring] = FILES.map(|key| s.parsed(p, key, |text| crate::config::path(text, base)));
    let [pool, namespace, image] = [pool, namespace, image].map(Option::unwrap_or_default);
    RbdLocation { pool, namespace, image, snapshot, cluster, user, conf, keyring }
}

/// Checks the keys of an image. `at`: the backend.
pub(super) fn check(p: &mut Diagnostics<'_>, at: &Range<usize>, image: RbdLocation) -> Option<RbdLocation> {
    for (name, value) in [("pool", &image.pool), ("image", &image.image)] {
        if value.is_empty() {
            p.add(at, format!("the backend \"rbd\" needs `{name}`"), format!("add {name} = \"{name}1\""));
            return None;
        }
    }
    match image.check() {
        Ok(()) => Some(image),
        Err(what) => {
            p.add(at, format!("{image}: {what}"), "write each name alone: pool, namespace, image, snapshot");
            None
        }
    }
}

/// Reports keys of an image in a LUN of another backend.
pub(super) fn refuse(p: &mut Diagnostics<'_>, s: &mut Section<'_>, kind: BackendKind) {
    for key in NAMES.into_iter().chain(FILES) {
        if let Some(value) = s.find(key) {
            let what = format!("the backend \"{}\" takes no `{key}`", kind.name());
            p.add(&value.span(), what, format!("remove `{key}`, or write backend = \"rbd\""));
        }
    }
}
