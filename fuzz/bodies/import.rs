//! Configurations of other targets. Input: the text of a file. A first line with `#` and a word chooses the format.

use lunar_import::{
    Found, TreeEntry, ctld, iet, istgt, lio, nvmet, nvmet_tree, open_iscsi, scst, spdk, tgt, toml,
};
use std::io;
use std::path::Path;

pub fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let imported = match text.split_once('\n') {
        Some(("#tgt", text)) => tgt(text, &|path| found(text, path)),
        Some(("#iet", text)) => iet(text, &|path| found(text, path)),
        Some(("#istgt", text)) => istgt(text, &|path| found(text, path)),
        Some(("#scst", text)) => scst(text),
        Some(("#ctld", text)) => ctld(text),
        Some(("#nvmet", text)) => nvmet(text),
        Some(("#nvmet-tree", text)) => nvmet_tree(&|path| in_tree(text, path)),
        Some(("#spdk", text)) => spdk(text, &|path| found(text, path)),
        Some(("#open-iscsi", text)) => open_iscsi(&|path| found(text, path)),
        _ => lio(text),
    };
    match imported {
        Ok(imported) => {
            let configuration = &imported.configuration;
            let indices = configuration.targets.iter().flat_map(|target| target.luns.values());
            assert!(indices.into_iter().all(|index| *index < configuration.disks.len()));
            let namespaces = configuration.subsystems.iter().flat_map(|one| one.namespaces.values());
            assert!(namespaces.into_iter().all(|namespace| namespace.disk < configuration.disks.len()));
            assert!(!toml(configuration, "secrets").contains('\0'));
            for attachment in &configuration.attachments {
                assert!(!attachment.toml(configuration, "secrets").contains('\0'));
            }
        }
        Err(e) => assert!(!e.hint.is_empty()),
    }
}

/// Each path leads to the text itself, except that some are folders and some do not exist.
fn found(text: &str, path: &Path) -> io::Result<Found> {
    match path.as_os_str().len() % 3 {
        0 => Ok(Found::Folder(vec!["a".into(), "b.conf".into()])),
        1 => Ok(Found::File(text.into())),
        _ => Err(io::ErrorKind::NotFound.into()),
    }
}

/// A folder has the first parts of the lines below its path, and the text behind `=` is that of a file. An arrow is before the
/// target of a link.
fn in_tree(tree: &str, path: &Path) -> io::Result<TreeEntry> {
    let mut names = Vec::new();
    for line in tree.lines() {
        let (file, text) = line.split_once('=').unwrap_or((line, ""));
        let (file, target) = file.split_once(" -> ").map_or((file, None), |(file, to)| (file, Some(to)));
        match Path::new(file).strip_prefix(path) {
            Ok(rest) if rest.as_os_str().is_empty() && target.is_some() => {
                return Ok(TreeEntry::Link(target.unwrap_or_default().into()));
            }
            Ok(rest) if rest.as_os_str().is_empty() => return Ok(TreeEntry::File(text.into())),
            Ok(rest) => names.extend(rest.iter().next().map(|name| name.to_string_lossy().into_owned())),
            Err(_) => {}
        }
    }
    names.dedup();
    Ok(TreeEntry::Folder(names))
}
