//! Configurations of other targets. Input: the text of a file. A first line with `#` and a word chooses the format.

use lunar_import::{Found, ctld, iet, istgt, lio, open_iscsi, scst, tgt, toml};
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
        Some(("#open-iscsi", text)) => open_iscsi(&|path| found(text, path)),
        _ => lio(text),
    };
    match imported {
        Ok(imported) => {
            let configuration = &imported.configuration;
            let indices = configuration.targets.iter().flat_map(|target| target.luns.values());
            assert!(indices.into_iter().all(|index| *index < configuration.disks.len()));
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
