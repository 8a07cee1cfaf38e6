//! Steps that several importers share.

use crate::Imported;
use crate::configuration::{Access, Disk, DiskMedium, NewPortal, NewTarget, NewTransport};
use crate::portals::PortalSets;
use std::collections::BTreeSet;
use std::fmt::Display;
use std::net::IpAddr;
use std::os::unix::fs::FileTypeExt;

/// The shortest secret in bytes (RFC 7143 section 9.2.1).
const MIN_SECRET: usize = 12;
/// The largest LUN.
pub(crate) const MAX_LUN: u16 = 16383;

impl Imported {
    /// The id of a CHAP user. Without a secret that may be used, a new one is needed.
    pub(crate) fn user(&mut self, name: &str, secret: &str, place: impl Display) -> String {
        let fits = secret.len() >= MIN_SECRET;
        if !fits {
            let what = format!(
                "the CHAP secret of {name:?}, which has {} bytes and needs {MIN_SECRET}",
                secret.len()
            );
            self.notes.lost(place, what);
        }
        self.configuration.chap_user(name, Some(secret).filter(|_| fits))
    }

    /// The id of a user for mutual CHAP. Its secret must differ from those of the hosts.
    pub(crate) fn mutual_user(&mut self, name: &str, secret: &str, hosts: &[String], place: &str) -> String {
        let has_secret = |id: &String| {
            let user = self.configuration.chap_users.iter().find(|user| user.id == *id);
            user.and_then(|user| user.secret.as_ref()).is_some_and(|other| other.as_str() == secret)
        };
        if !hosts.iter().any(has_secret) {
            return self.user(name, secret, place);
        }
        self.notes.lost(place, format!("the CHAP secret of {name:?}, which is also that of a host"));
        self.configuration.chap_user(name, None)
    }

    /// Adds a LUN to a target. A medium that another target shows already is one disk behind both.
    pub(crate) fn add_lun(&mut self, target: &mut NewTarget, lun: u16, disk: Disk, place: &str) {
        let path = disk.medium.to_string();
        let other = self.same_medium(&disk);
        let refused = refused(target, lun, other).or_else(|| self.is_written_elsewhere(&disk));
        if let Some(why) = refused {
            self.notes.lost(place, format!("{}: LUN {lun}, {path}: {why}", target.name));
            return;
        }
        self.notes.carried(place, format!("{}: LUN {lun}, {path}", target.name));
        let index = self.disk_index(disk, place);
        target.luns.insert(lun, index);
    }

    /// Adds a disk that targets show later. None: its medium is that of an earlier disk, and both cannot be served.
    pub(crate) fn add_disk(&mut self, disk: Disk, place: &str) -> Option<usize> {
        if let Some(why) = self.is_written_elsewhere(&disk) {
            self.notes.lost(place, format!("{}: {why}", disk.medium));
            return None;
        }
        self.notes.carried(place, format!("{}: {}", disk.name, disk.medium));
        Some(self.disk_index(disk, place))
    }

    /// Adds a LUN with an existing disk to a target.
    pub(crate) fn show_disk(&mut self, target: &mut NewTarget, lun: u16, index: usize, place: &str) {
        let name = &self.configuration.disks[index].name;
        if let Some(why) = refused(target, lun, Some(index)) {
            self.notes.lost(place, format!("{}: LUN {lun}, {name}: {why}", target.name));
            return;
        }
        self.notes.carried(place, format!("{}: LUN {lun}, {name}", target.name));
        target.luns.insert(lun, index);
    }

    /// Reports disks that no target shows, each with its index and its place. They are not written.
    pub(crate) fn unused_disks(&mut self, disks: impl IntoIterator<Item = (usize, String)>) {
        let Imported { configuration, notes } = self;
        for (index, place) in disks {
            let shows = |target: &NewTarget| target.luns.values().any(|disk| *disk == index);
            if !configuration.targets.iter().any(shows) {
                let name = &configuration.disks[index].name;
                notes.lost(place, format!("the disk {name}, which is a LUN of no target"));
            }
        }
    }

    /// The reason that a read-only disk cannot have the medium of another disk.
    pub(crate) fn is_written_elsewhere(&self, disk: &Disk) -> Option<String> {
        let other = self.same_medium(disk)?;
        let is_written = disk.read_only && !self.configuration.disks[other].read_only;
        is_written.then(|| "another target can write to it, and it is read-only here".into())
    }

    pub(crate) fn same_medium(&self, disk: &Disk) -> Option<usize> {
        let has_path = matches!(disk.medium, DiskMedium::File(_) | DiskMedium::Device(_));
        let same = |other: &Disk| has_path && other.medium == disk.medium;
        self.configuration.disks.iter().position(same)
    }

    pub(crate) fn disk_index(&mut self, mut disk: Disk, place: &str) -> usize {
        if let Some(index) = self.same_medium(&disk) {
            let first = &self.configuration.disks[index];
            if disk != (Disk { name: disk.name.clone(), ..first.clone() }) {
                let what = format!(
                    "{}: the settings and the identity, which are those of the first LUN with this medium",
                    disk.medium
                );
                self.notes.lost(place, what);
            }
            return index;
        }
        disk.name = self.configuration.free_disk_name(&disk.name);
        let other = |other: &Disk| {
            other.identity.serial.as_deref().map(str::trim) == disk.identity.serial.as_deref().map(str::trim)
        };
        if let Some(serial) = disk.identity.serial.clone()
            && self.configuration.disks.iter().any(other)
        {
            let what = format!("the serial number {:?}, which another disk has already", serial.trim());
            self.notes.lost(place, what);
            disk.identity.serial = None;
        }
        self.configuration.disks.push(disk);
        self.configuration.disks.len() - 1
    }

    /// Text of a SCSI field. Text that SCSI cannot carry is reported.
    pub(crate) fn scsi_text(&mut self, text: &str, what: &str, max: usize, place: &str) -> Option<String> {
        let cut: String = text.chars().take(max).collect();
        let cut = cut.trim_end_matches(' ');
        let fits = !cut.is_empty() && !cut.starts_with(' ') && cut.bytes().all(|b| (0x20..0x7f).contains(&b));
        if !fits || cut != text {
            self.notes.changed(
                place,
                format!("the {what} {text:?}, of which SCSI carries {:?}", if fits { cut } else { "" }),
            );
        }
        fits.then(|| cut.to_owned())
    }

    /// The name of a target in lower case, as RFC 3722 folds it. The underscore is kept, because hosts know the name. A
    /// name that is not valid has to be replaced.
    pub(crate) fn target_name(&mut self, name: &str, place: &str) -> String {
        let folded = name.to_lowercase();
        let is_named = ["iqn.", "eui.", "naa."].iter().any(|kind| folded.starts_with(kind));
        let is_plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '.' | ':' | '_');
        if !is_named || !folded.chars().all(is_plain) {
            let what = format!("the name {name:?}, which is no iSCSI name: change it before the first start");
            self.notes.lost(place, what);
        }
        folded
    }
}

impl Imported {
    /// Makes the portal groups. Returns the tags of each set.
    pub(crate) fn portal_groups(&mut self, sets: &mut PortalSets, place: &str) -> Vec<BTreeSet<u16>> {
        let resolved = sets.resolve();
        for address in resolved.with_tls {
            let what =
                format!("the portal {address}: hosts must use TLS, as at another portal with this address");
            self.notes.changed(place, what);
        }
        for address in resolved.replaced {
            let what = format!(
                "the portal {address}: only the addresses of the other portals, because it covers them"
            );
            self.notes.changed(place, what);
        }
        let (groups, tags) = sets.groups();
        self.configuration.portal_groups = groups;
        tags
    }
}

/// The reason that a target cannot have this disk as this LUN.
fn refused(target: &NewTarget, lun: u16, disk: Option<usize>) -> Option<String> {
    match disk {
        _ if lun > MAX_LUN => Some(format!("the LUN number is above {MAX_LUN}")),
        _ if target.luns.contains_key(&lun) => Some("the number is given twice".into()),
        Some(disk) if target.luns.values().any(|shown| *shown == disk) => {
            Some("it is a LUN of this target already".into())
        }
        _ => None,
    }
}

/// A number of LUNs as text.
pub(crate) fn count_of_luns(luns: usize) -> String {
    if luns == 1 { "1 LUN".into() } else { format!("{luns} LUNs") }
}

/// Whether an initiator name may have this character.
pub(crate) fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | ':' | '_')
}

/// Whether a text is the name of an initiator, without wildcards.
pub(crate) fn is_initiator(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["iqn.", "eui.", "naa."].iter().any(|kind| name.starts_with(kind)) && name.chars().all(is_of_name)
}

/// The medium of a path: what this host has there. Without it, a path below `/dev` is a device, except for files in memory.
pub(crate) fn medium_of(path: &str) -> DiskMedium {
    let found = std::fs::metadata(path).map(|found| found.file_type());
    let is_device = match found {
        Ok(kind) if kind.is_block_device() => true,
        Ok(kind) if kind.is_file() => false,
        _ => path.starts_with("/dev/") && !path.starts_with("/dev/shm/"),
    };
    match is_device {
        true => DiskMedium::Device(path.into()),
        false => DiskMedium::File(path.into()),
    }
}

/// The name of a disk with this medium.
pub(crate) fn name_of(path: &str) -> &str {
    path.rsplit('/').find(|part| !part.is_empty()).unwrap_or("disk")
}

/// Every address of the host.
pub(crate) fn every_address(iser: bool) -> [NewPortal; 2] {
    let transport = NewTransport::iscsi(iser);
    ["0.0.0.0:3260", "[::]:3260"].map(|listen| NewPortal { listen: listen.into(), transport })
}

/// Every network.
pub(crate) fn everywhere() -> Vec<String> {
    ["0.0.0.0/0", "::/0"].map(String::from).into()
}

/// Limits access entries to portals in some networks. No networks are all.
pub(crate) fn limit_portals(access: &mut Vec<Access>, networks: &[String]) {
    if networks.is_empty() || everywhere().iter().all(|all| networks.contains(all)) {
        return;
    }
    if access.is_empty() {
        access.push(Access::default());
    }
    for entry in access.iter_mut() {
        match entry.portals.is_empty() {
            true => entry.portals = networks.to_vec(),
            false => entry.portals.retain(|portal| networks.iter().any(|all| contains(all, portal))),
        }
    }
    access.retain(|entry| !entry.portals.is_empty());
    if access.is_empty() {
        access.push(Access { deny: true, ..Access::default() });
    }
}

/// Whether a network or address contains another one, both in the form of [`network`].
fn contains(outer: &str, inner: &str) -> bool {
    let bits = |text: &str| text.split_once('/').map(|(_, bits)| bits.to_owned());
    let address = inner.split('/').next().unwrap_or_default();
    match (bits(outer), bits(inner)) {
        (None, inner_bits) => inner_bits.is_none() && outer == inner,
        (Some(outer_bits), inner_bits) => {
            let number = |bits: &str| bits.parse::<u32>().unwrap_or_default();
            let is_narrower = inner_bits.is_none_or(|bits| number(&bits) >= number(&outer_bits));
            is_narrower && network(&format!("{address}/{outer_bits}")).as_deref() == Some(outer)
        }
    }
}

/// An address or a network in the form of `lunar.toml`, without the bits beyond its prefix. The network may have a mask
/// in place of the length of its prefix.
pub(crate) fn network(text: &str) -> Option<String> {
    let (address, prefix) =
        text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
    let address = address.trim_start_matches('[').trim_end_matches(']');
    let address: IpAddr = address.parse().ok()?;
    let Some(prefix) = prefix else { return Some(address.to_string()) };
    let max = if address.is_ipv4() { 32 } else { 128 };
    let bits = match prefix.parse::<u32>() {
        Ok(bits) => bits,
        Err(_) => bits_of_mask(prefix.parse().ok()?)?,
    };
    let cut = |value: u128| value.checked_shr(max - bits).unwrap_or(0).checked_shl(max - bits).unwrap_or(0);
    if bits > max {
        return None;
    }
    let first = match address {
        IpAddr::V4(v4) => IpAddr::V4((cut(u32::from(v4).into()) as u32).into()),
        IpAddr::V6(v6) => IpAddr::V6(cut(v6.into()).into()),
    };
    Some(format!("{first}/{bits}"))
}

fn bits_of_mask(mask: IpAddr) -> Option<u32> {
    let IpAddr::V4(mask) = mask else { return None };
    let mask = u32::from(mask);
    (mask.leading_ones() + mask.trailing_zeros() == 32).then_some(mask.leading_ones())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_limited_to_portals_in_the_networks() {
        let entry = |portals: &[&str]| Access {
            portals: portals.iter().map(|p| p.to_string()).collect(),
            ..Access::default()
        };
        let limited = |mut access: Vec<Access>| {
            limit_portals(&mut access, &["10.0.0.0/24".into(), "2001:db8::1".into()]);
            access
        };
        let all = entry(&["10.0.0.0/24", "2001:db8::1"]);
        assert_eq!(limited(Vec::new()), std::slice::from_ref(&all));
        let own = entry(&["10.0.0.7", "10.0.0.128/25", "10.0.0.0/16", "10.0.1.1", "2001:db8::1"]);
        let expected = entry(&["10.0.0.7", "10.0.0.128/25", "2001:db8::1"]);
        assert_eq!(limited(vec![own, entry(&["10.0.1.1"]), Access::default()]), [expected, all]);
        assert!(limited(vec![entry(&["10.0.1.1"])])[0].deny, "no entry is left, so no host may log in");
        let mut open = Vec::new();
        limit_portals(&mut open, &everywhere());
        assert_eq!(open, []);
    }

    #[test]
    fn medium_of_a_path_is_what_is_there() {
        let is_device = |path: &str| matches!(medium_of(path), DiskMedium::Device(_));
        let path = std::env::temp_dir().join(format!("lunar-medium-{}", std::process::id()));
        std::fs::write(&path, "").expect("written");
        let name = path.to_str().expect("text");
        assert!(!is_device(name) && !is_device(&format!("/dev/..{name}")));
        std::fs::remove_file(path).expect("removed");
        assert!(is_device("/dev/vg0/no-such-volume") && !is_device("/dev/shm/no-such-file"));
        assert!(!is_device("/srv/no-such-file"));
    }

    #[test]
    fn network_has_no_bits_beyond_its_prefix() {
        let shown = |text| network(text).unwrap_or_default();
        assert_eq!(shown("192.0.2.7/24"), "192.0.2.0/24");
        assert_eq!(shown("192.0.2.7/255.255.0.0"), "192.0.0.0/16");
        assert_eq!(shown("192.0.2.7/0"), "0.0.0.0/0");
        assert_eq!(shown("[2001:db8:1::1]/48"), "2001:db8:1::/48");
        assert_eq!(shown("[2001:db8::]/64"), "2001:db8::/64");
        assert_eq!(shown("2001:db8::7"), "2001:db8::7");
        for bad in ["", "ALL", "192.0.2.0/33", "192.0.2.0/255.0.255.0", "::/129", "::/x"] {
            assert_eq!(network(bad), None, "{bad}");
        }
    }
}
