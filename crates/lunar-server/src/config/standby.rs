//! The keys of a target that one of several servers has at a time: `standby` and `state_dir`.

use super::{Config, LunConfig};
use lunar_block::DataLifetime;
use lunar_config::{Diagnostics, Section};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Reads the folder of the state of a target's LUNs. Only a target that moves between servers has its own.
pub(super) fn state_dir(
    p: &mut Diagnostics<'_>,
    s: &mut Section<'_>,
    is_standby: bool,
    base: &Path,
) -> Option<PathBuf> {
    let folder = s.parsed(p, "state_dir", |text| super::path(text, base));
    if let (false, Some(value)) = (is_standby, s.find("state_dir")) {
        let hint = "add standby = true, or set state_dir in [server]";
        p.add(&value.span(), "`state_dir` of a target requires standby = true", hint);
    }
    folder
}

/// The settings of a target that apply to its LUNs.
#[derive(Clone, Copy)]
pub(super) struct Kept<'a> {
    pub(super) is_standby: bool,
    pub(super) state_dir: &'a Option<PathBuf>,
}

impl Kept<'_> {
    /// A LUN of the target, with the folder of its state. `at`: its section.
    pub(super) fn lun(self, p: &mut Diagnostics<'_>, at: &Range<usize>, lun: LunConfig) -> Option<LunConfig> {
        if !self.is_standby {
            return Some(lun);
        }
        if lun.disk.is_some() {
            let what =
                "a target with standby = true cannot show a [[disk]], which other targets may show too";
            p.add(at, what, "define the medium in [[target.lun]]");
        } else if lun.source.data_lifetime() == DataLifetime::Process {
            let what =
                "a target with standby = true cannot have a memory disk, whose data no other server has";
            p.add(at, what, "use a device or a file that both servers can open");
        }
        Some(LunConfig { state_dir: self.state_dir.clone(), ..lun })
    }
}

/// One line for each target that moves between servers, and whose state does not.
pub fn state_left_behind(config: &Config) -> impl Iterator<Item = String> {
    let targets = config.targets.iter().filter(|target| target.standby && target.state_dir.is_none());
    targets.map(|target| {
        format!(
            "reservations and saved mode pages of {} stay on this server; hint: set state_dir of the target to a folder \
             that moves with its media (docs/ha.md)",
            target.name
        )
    })
}
