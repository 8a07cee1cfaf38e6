//! Configurations of other targets. Input: the text of a file.

use lunar_import::{lio, toml};

pub fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    match lio(text) {
        Ok(imported) => {
            let configuration = &imported.configuration;
            let indices = configuration.targets.iter().flat_map(|target| target.luns.values());
            assert!(indices.into_iter().all(|index| *index < configuration.disks.len()));
            assert!(!toml(configuration, "secrets").contains('\0'));
        }
        Err(e) => assert!(!e.hint.is_empty()),
    }
}
