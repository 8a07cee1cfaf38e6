//! The saved state of logical units.

use super::UnitName;
use crate::config::LunConfig;
use crate::{Diagnostic, io_text};
use lunar_scsi::{Lu, LuSettings};
use std::io::Read;
use std::path::{Path, PathBuf};

/// The folder of the state of a unit: its own, or that of the server.
pub(super) fn own_state_dir<'a>(state_dir: &'a Path, lun: &'a LunConfig) -> &'a Path {
    lun.state_dir.as_deref().unwrap_or(state_dir)
}

/// The path of the state file of a unit.
pub(crate) fn state_path(state_dir: &Path, name: &UnitName, lun: &LunConfig) -> PathBuf {
    let own = name.state_file();
    let file = match &lun.state_name {
        Some(state_name) => own.with_file_name(state_name),
        None => own,
    };
    let mut path = own_state_dir(state_dir, lun).join("lu").join(file).into_os_string();
    path.push(".state");
    path.into()
}

/// Upper limit of a state file in bytes.
pub(super) const MAX_STATE_BYTES: u64 = 64 << 20;

/// A logical unit with its saved state. A damaged state file is rejected and left unchanged: it may hold reservations that
/// protect data.
pub(crate) fn load(settings: LuSettings, state_file: &Path) -> Result<Lu, Diagnostic> {
    let Some(saved) = read_state(state_file)? else {
        return Lu::new(settings, None).map_err(invalid);
    };
    // An invalid definition must not be reported as a damaged file.
    Lu::new(settings.clone(), None).map_err(invalid)?;
    Lu::new(settings, Some(&saved)).map_err(|e| {
        Diagnostic::new(
            format!("the saved state {} is damaged: {e}", state_file.display()),
            "restore the file from a backup, or move it away to start without reservations and saved mode pages",
        )
    })
}

/// As [`load`], and logs restored registrations and reservations, because they may deny access to hosts.
pub(super) fn restored(name: &UnitName, settings: LuSettings, state_file: &Path) -> Result<Lu, Diagnostic> {
    let lu = load(settings, state_file)?;
    let (registrations, reserved) = lu.reservations();
    if registrations > 0 {
        tracing::info!(
            "{name}: restored {registrations} registration{}{} from {}",
            if registrations == 1 { "" } else { "s" },
            if reserved { " and a reservation" } else { "" },
            state_file.display()
        );
    }
    Ok(lu)
}

fn read_state(path: &Path) -> Result<Option<Vec<u8>>, Diagnostic> {
    let failed = |what: String| {
        Diagnostic::new(
            format!("the saved state {} {what}", path.display()),
            "make the file readable, or move it away to start without reservations and saved mode pages",
        )
    };
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(failed(format!("cannot be read: {}", io_text(&e)))),
    };
    let mut bytes = Vec::new();
    let read = file.take(MAX_STATE_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|e| failed(format!("cannot be read: {}", io_text(&e))))?;
    if bytes.len() as u64 > MAX_STATE_BYTES {
        return Err(failed("is larger than 64 MiB".into()));
    }
    Ok(Some(bytes))
}

pub(super) fn invalid(e: lunar_scsi::InvalidDefinition) -> Diagnostic {
    Diagnostic::new(e.to_string(), "change the definition of the LUN")
}
