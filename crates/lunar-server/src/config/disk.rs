//! `[[disk]]`: a logical unit that LUNs of several targets may show. It has one set of reservations and one identity,
//! so hosts see the same disk through each target.

use super::lun::{LunConfig, UniqueValues, lun};
use lunar_config::{Diagnostics, Section, UniqueKeys, nearest, word};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

/// All disks by name; None for an invalid one, which is reported already.
pub(super) type Disks = BTreeMap<String, Option<LunConfig>>;

/// Reads all `[[disk]]`.
pub(super) fn disks(
    p: &mut Diagnostics<'_>,
    root: &mut Section<'_>,
    base: &Path,
    unique: &mut UniqueValues,
) -> Disks {
    let mut disks = Disks::new();
    let mut once = UniqueKeys::new("disk");
    for mut s in root.sections(p, "disk", "[[disk]]") {
        let at = s.find("name").map(|value| value.span());
        if at.is_none() {
            s.missing(p, "name", "\"disk1\"");
        }
        let name = s.parsed(p, "name", |text| word(text).map(|()| text.to_owned()));
        let disk = lun(p, &mut s, base, unique);
        if let (Some(name), Some(at)) = (name, at)
            && once.first(p, name.clone(), &at)
        {
            disks.insert(name.clone(), disk.map(|disk| LunConfig { disk: Some(name), ..disk }));
        }
        s.done(p);
    }
    disks
}

/// The disk that the key `disk` of a LUN names. `shown`: the disks of this target, which shows each once.
pub(super) fn named(
    p: &mut Diagnostics<'_>,
    s: &mut Section<'_>,
    disks: &Disks,
    shown: &mut UniqueKeys<String>,
    at: &Range<usize>,
) -> Option<LunConfig> {
    let (name, _) = s.text(p, "disk")?;
    if let Some(disk) = disks.get(name) {
        return shown.first(p, name.to_owned(), at).then(|| disk.clone()).flatten();
    }
    let hint = match nearest(name, disks.keys().map(String::as_str)) {
        Some(meant) => format!("did you mean \"{}\"?", meant.escape_debug()),
        None => "add [[disk]] with this name".to_string(),
    };
    p.add(at, format!("unknown disk \"{}\"", name.escape_debug()), hint);
    None
}
