//! `istgt.conf` of istgt, with the CHAP users of `auth.conf`.

mod access;
mod auth;
mod disks;
mod file;
mod portals;
mod targets;

use crate::files::{Found, Reader};
use crate::{ImportError, Imported};
use file::{IstgtSection, parse};
use std::path::Path;

/// Imports an `istgt.conf` and the file that `AuthFile` names.
///
/// # Errors
/// The text has no logical unit, or its `AuthFile` cannot be read.
pub fn istgt(text: &str, reader: Reader<'_>) -> Result<Imported, ImportError> {
    let mut sections = parse(text, "");
    if !sections.iter().any(|section| section.number("LogicalUnit").is_some()) {
        return Err(ImportError::new("the file has no [LogicalUnit1]", "give istgt.conf"));
    }
    let auth_file = sections.iter().find_map(|section| section.word("AuthFile", 0)).map(str::to_owned);
    if let Some(name) = auth_file {
        sections.extend(auth_sections(&name, reader)?);
    }
    let mut import = IstgtImport::default();
    import.globals(&sections);
    let portals = import.portal_groups(&sections);
    for section in &sections {
        if let Some(number) = section.number("LogicalUnit") {
            import.target(section, number, &sections, &portals);
        }
    }
    Ok(import.0.keep_identities_apart())
}

fn auth_sections(name: &str, reader: Reader<'_>) -> Result<Vec<IstgtSection>, ImportError> {
    let hint = "give the folder that has its path with --root";
    match reader(Path::new(name)) {
        Ok(Found::File(text)) => Ok(parse(&text, name)),
        Ok(Found::Folder(_)) => Err(ImportError::new(format!("AuthFile {name} is a folder"), hint)),
        Err(e) => Err(ImportError::new(format!("cannot read AuthFile {name}: {e}"), hint)),
    }
}

/// The import in progress.
#[derive(Default)]
struct IstgtImport(Imported);

impl IstgtImport {
    /// Carries over the authentication of discovery, and reports the other settings of the server.
    fn globals(&mut self, sections: &[IstgtSection]) {
        for section in sections {
            if section.name.eq_ignore_ascii_case("UnitControl") {
                self.0.notes.lost(&section.place, "[UnitControl]: istgtcontrol has no counterpart");
            }
            if section.name.eq_ignore_ascii_case("Global") {
                self.discovery(section, sections);
                section.keys.iter().for_each(|key| self.global_key(key));
            }
        }
    }

    fn global_key(&mut self, key: &file::IstgtKey) {
        let what = key.shown();
        match key.key.to_ascii_lowercase().as_str() {
            "comment"
            | "nodebase"
            | "authfile"
            | "pidfile"
            | "mediadirectory"
            | "discoveryauthmethod"
            | "discoveryauthgroup" => {}
            "logfacility" => self.0.notes.lost(&key.place, format!("{what}: Lunar logs to stderr")),
            "maxsessions" | "maxconnections" => self.0.notes.lost(&key.place, what),
            _ => {
                let what = format!("{what}: Lunar has its own value, see [session] in docs/operate.md");
                self.0.notes.changed(&key.place, what);
            }
        }
    }
}
