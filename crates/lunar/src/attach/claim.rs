//! The right to attach a LUN. A LUN is attached once per method; a ublk device of a dead process is taken over.

use crate::exit::{Exit, Failure};
use lunar_block::RbdLocation;
use lunar_initiator::Url;
use lunar_initiator::nvme::{self, NvmeUrl};
use lunar_server::attached::{Attached, LeftSession, LockedFolder, ProcessLock, Record};
use lunar_server::config::attachment::{self, Attachment, How};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// The right of this process to attach a LUN under a name.
pub struct AttachClaim {
    /// Lock that shows that the process is alive; held until it ends.
    pub alive: ProcessLock,
    /// The record, without device and identity yet.
    pub record: Record,
    /// Device and sessions of processes that are gone.
    pub left: StaleAttachment,
}

/// Device and sessions that dead processes left of the same LUN.
#[derive(Default)]
pub struct StaleAttachment {
    /// The record of the block device to take over.
    pub device: Option<Record>,
    /// A dead process had the LUN attached: its last writes may not be on stable storage.
    pub is_unstable: bool,
    /// Sessions whose writes the target may still execute.
    pub sessions: Vec<LeftSession>,
}

/// Claims the name for this process.
///
/// # Errors
/// [`Exit::Exists`] if the name or the LUN is already attached, or if the name left a device or unfinished writes of
/// another LUN.
pub fn claim(attached: &Attached, attachment: &Attachment) -> Result<AttachClaim, Failure> {
    let locked = attached.lock()?;
    let mut record = record(attachment);
    let left = left(&locked, &record)?;
    record.isids = isids(&locked, &record)?;
    record.left_behind.clone_from(&left.sessions);
    let Some(alive) = locked.take(&attachment.name)? else { return Err(already_attached(&record)) };
    match &left.device {
        // The next process must find the device even if this one dies early.
        Some(before) => {
            (record.ublk_id, record.identity) = (before.ublk_id, before.identity.clone());
            locked.write(&record)?;
            if before.name != record.name {
                locked.clear(&before.name);
            }
        }
        None => locked.write(&record)?,
    }
    Ok(AttachClaim { alive, record, left })
}

/// An ISID for each path: the one that a dead process used on this path, or else a new one.
fn isids(locked: &LockedFolder<'_>, record: &Record) -> Result<Vec<String>, Failure> {
    let (alive, dead): (Vec<Record>, Vec<Record>) =
        locked.all()?.into_iter().partition(|other| locked.is_alive(&other.name));
    let mut taken: Vec<String> = alive.into_iter().flat_map(|other| other.isids).collect();
    let without_settings = |url: &String| without_settings(url);
    let own =
        |other: &Record| other.urls.iter().map(without_settings).zip(other.isids.clone()).collect::<Vec<_>>();
    let before = |other: &Record| {
        other.left_behind.iter().map(|s| (without_settings(&s.url), s.isid.clone())).collect()
    };
    let left: Vec<(String, String)> =
        dead.iter().flat_map(|other| [before(other), own(other)].concat()).collect();
    let mut isid_of = |url: &String| {
        // Neither has sessions of SCSI.
        if attachment::is_image(url) || nvme::is_url(url) {
            return String::new();
        }
        let url = without_settings(url);
        let old = left.iter().find(|(of, isid)| *of == url && !taken.contains(isid));
        let isid =
            old.map_or_else(|| crate::hex::digits(&lunar_initiator::new_isid()), |(_, isid)| isid.clone());
        taken.push(isid.clone());
        isid
    };
    Ok(record.urls.iter().map(&mut isid_of).collect())
}

/// Adds the ISIDs of the record to URLs that have none.
pub fn with_isids(of: &Attachment, record: &Record) -> Attachment {
    let with = |(url, isid): (&String, &String)| attachment::with_setting(url, "isid", isid);
    let urls = of.urls.iter().zip(&record.isids).map(with).collect();
    Attachment { urls, ..of.clone() }
}

/// Device and sessions that other attachments left of this LUN.
///
/// # Errors
/// [`Exit::Exists`] if one of them prevents this attachment.
fn left(locked: &LockedFolder<'_>, record: &Record) -> Result<StaleAttachment, Failure> {
    let mut left = StaleAttachment::default();
    for other in locked.all()? {
        let had_it = same_disk(&other.urls, &record.urls);
        let is_same = other.how == record.how && had_it;
        if locked.is_alive(&other.name) {
            // The other process is ending unfinished writes of this LUN.
            let is_settling = had_it && !other.left_behind.is_empty();
            if is_same || other.name == record.name || is_settling {
                return Err(already_attached(&other));
            }
            continue;
        }
        left.is_unstable |= had_it;
        let sessions = other.sessions();
        if other.name == record.name && !had_it && !sessions.is_empty() {
            let what = format!("{} has unfinished writes at {}", other.name, other.urls.join(", "));
            let hint =
                format!("attach that LUN again, run lunar detach {}, or choose another --name", other.name);
            return Err(Failure::new(Exit::Exists, what, hint));
        }
        if had_it {
            let new = sessions.into_iter().filter(|session| !left.sessions.contains(session));
            left.sessions.extend(new.collect::<Vec<_>>());
        }
        if let Some(id) = left_behind(locked, &other)? {
            if let Some(which) = takeover_obstacle(&other, record, is_same) {
                let what = format!("the ended attachment {} left /dev/ublkb{id}, {which}", other.name);
                let hint = format!("attach that LUN again, or run lunar detach {}", other.name);
                return Err(Failure::new(Exit::Exists, what, hint));
            }
            if is_same {
                left.device = Some(other);
            }
        }
    }
    Ok(left)
}

/// Why a device that a dead process left prevents this attachment, if it does.
fn takeover_obstacle(device: &Record, record: &Record, is_same: bool) -> Option<String> {
    match is_same {
        false if device.name == record.name => Some(format!("of {}", device.urls.join(", "))),
        // Programs that have the device open continue to write.
        true if record.read_only && !device.read_only => Some("which is writable".into()),
        _ => None,
    }
}

/// The live attachment of this LUN by the same method, if there is one.
///
/// # Errors
/// When the folder cannot be read.
pub fn alive(locked: &LockedFolder<'_>, attachment: &Attachment) -> Result<Option<Record>, Failure> {
    let wanted = record(attachment);
    let has_it = |other: &Record| {
        other.how == wanted.how && same_disk(&other.urls, &wanted.urls) && locked.is_alive(&other.name)
    };
    Ok(locked.all()?.into_iter().find(has_it))
}

/// The error for a LUN or a name that is already attached.
pub fn already_attached(record: &Record) -> Failure {
    let what = match &record.device {
        Some(device) => format!("the LUN is already attached: {} as {device}", record.name),
        None => format!("{} is being attached by process {}", record.name, record.pid),
    };
    Failure::new(
        Exit::Exists,
        what,
        format!("lunar attach list {0} shows the attachment; lunar detach {0} ends it", record.name),
    )
}

/// The number of the block device that outlived its process. None if another live attachment has that number now.
///
/// # Errors
/// When the folder cannot be read.
pub fn left_behind(locked: &LockedFolder<'_>, record: &Record) -> Result<Option<u32>, Failure> {
    let Some(id) = record.ublk_id.filter(|id| Path::new(&format!("/dev/ublkb{id}")).exists()) else {
        return Ok(None);
    };
    let is_anothers = |other: &Record| {
        other.name != record.name && other.ublk_id == Some(id) && locked.is_alive(&other.name)
    };
    let is_taken = locked.all()?.iter().any(is_anothers);
    Ok((!is_taken).then_some(id))
}

/// Whether both lists of URLs share a path, regardless of other URL settings.
pub fn same_disk(a: &[String], b: &[String]) -> bool {
    let b: Vec<String> = b.iter().flat_map(|url| plain_paths(url)).collect();
    a.iter().flat_map(|url| plain_paths(url)).any(|path| b.contains(&path))
}

/// Each path of a URL, without settings.
fn plain_paths(url: &str) -> Vec<String> {
    match url.parse::<NvmeUrl>() {
        Ok(url) => url.paths().iter().map(NvmeUrl::plain).collect(),
        Err(_) => vec![without_settings(url)],
    }
}

/// A URL without its query, or an image without options.
pub fn without_settings(url: &str) -> String {
    if let Ok(location) = RbdLocation::parse(url) {
        return location.to_string();
    }
    if let Ok(url) = url.parse::<NvmeUrl>() {
        return url.plain();
    }
    Url::parse(url).map_or_else(|_| url.to_owned(), |url| url.plain())
}

fn record(attachment: &Attachment) -> Record {
    // A path whose initiator name is invalid is never opened, so its name does not matter.
    let name = |url: &String| Url::parse(url).and_then(|url| url.initiator()).unwrap_or_default();
    let shown = |url: &String| match Url::parse(url) {
        Ok(url) => url.to_string(),
        // These hold no secrets.
        Err(_) if attachment::is_image(url) || nvme::is_url(url) => url.clone(),
        Err(_) => String::new(),
    };
    let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    Record {
        name: attachment.name.clone(),
        how: attachment.how,
        device: None,
        place: attachment.place.clone().filter(|_| attachment.how != How::Ublk),
        ublk_id: None,
        urls: attachment.urls.iter().map(shown).collect(),
        size_bytes: 0,
        identity: String::new(),
        read_only: attachment.read_only,
        recovery_timeout: attachment.recovery_timeout.unwrap_or(super::disk::DEFAULT_RECOVERY_TIMEOUT),
        policy: attachment.policy,
        pid: std::process::id(),
        attached_at: since,
        isids: Vec::new(),
        initiators: attachment.urls.iter().map(name).collect(),
        ports: vec![String::new(); attachment.urls.len()],
        users: vec![String::new(); attachment.urls.len()],
        left_behind: Vec::new(),
        failure: None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::unfinished_writes;
    use super::*;

    fn attachment(name: &str, url: &str, how: How) -> Attachment {
        let urls = vec![url.to_owned()];
        let (place, read_only, recovery_timeout, policy) = (None, false, None, None);
        Attachment { name: name.into(), urls, how, place, read_only, recovery_timeout, policy }
    }

    const A: &str = "iscsi://h/iqn.2026-11.org.example:a/0";

    #[test]
    fn second_attachment_of_a_name_or_lun_is_rejected() {
        let folder = std::env::temp_dir().join(format!("lunar-claim-{}", std::process::id()));
        let attached = Attached::at(folder.clone()).unwrap();
        let first = claim(&attached, &attachment("a", &format!("{A}?commands=3"), How::Nbd)).unwrap();
        assert!(first.left.device.is_none() && !first.left.is_unstable);
        let again =
            |name, url: &str, how| claim(&attached, &attachment(name, url, how)).map(|c| c.record.name);
        assert_eq!(again("a", "iscsi://other", How::Fuse).unwrap_err().exit, Exit::Exists, "the name");
        assert_eq!(again("b", A, How::Nbd).unwrap_err().exit, Exit::Exists, "the disk");
        assert_eq!(again("b", A, How::Fuse).unwrap(), "b", "by another method");
        drop(first);
        assert_eq!(again("a", A, How::Nbd).unwrap(), "a", "the process is gone");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn next_process_takes_over_the_isids() {
        let folder = std::env::temp_dir().join(format!("lunar-isids-{}", std::process::id()));
        let attached = Attached::at(folder.clone()).unwrap();
        let claimed =
            |name, how| claim(&attached, &attachment(name, &format!("{A}?commands=3"), how)).unwrap();
        let first = claimed("a", How::Nbd);
        let other = claimed("b", How::Fuse);
        let isids = first.record.isids.clone();
        assert!(isids.len() == 1 && isids != other.record.isids);
        drop(first);
        let second = claimed("c", How::Nbd);
        assert_eq!(second.record.isids, isids, "the same disk under another name");
        let urls = with_isids(&attachment("c", &format!("{A}?commands=3"), How::Nbd), &second.record).urls;
        assert_eq!(urls, [format!("{A}?commands=3&isid={}", isids[0])]);
        let named = attachment("c", &format!("{A}?isid=800000000001"), How::Nbd);
        assert_eq!(with_isids(&named, &second.record).urls, named.urls);
        drop((second, other));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn next_one_owes_the_end_of_writes_left_behind() {
        let folder = std::env::temp_dir().join(format!("lunar-owed-{}", std::process::id()));
        let attached = Attached::at(folder.clone()).unwrap();
        let claimed = |name, url: &str, how| claim(&attached, &attachment(name, url, how));
        let refused = |name, url| claimed(name, url, How::Nbd).map(|_| ()).unwrap_err();
        let mut first = claimed("a", A, How::Nbd).unwrap().record;
        first.ports = vec!["group:1,iqn.2026-11.org.example:a".into()];
        let owed = first.sessions();
        let ended = Record { isids: Vec::new(), left_behind: owed.clone(), ..first };
        attached.lock().unwrap().write(&ended).unwrap();
        assert!(refused("a", "iscsi://other").problems[0].what.contains("has unfinished writes"));
        let second = claimed("b", &format!("{A}?commands=3"), How::Fuse).unwrap();
        assert_eq!((&second.record.left_behind, &second.record.isids[0]), (&owed, &owed[0].isid));
        assert_eq!(refused("c", A).exit, Exit::Exists, "the writes have not ended");
        drop(second.alive);
        let locked = attached.lock().unwrap();
        unfinished_writes::hand_back(&locked, &second.record).unwrap();
        assert_eq!(locked.all().unwrap(), [ended], "after a failed start");
        drop(locked);
        let third = claimed("a", A, How::Nbd).unwrap().record;
        let locked = attached.lock().unwrap();
        unfinished_writes::hand_back(&locked, &third).unwrap();
        assert_eq!(locked.record("a").unwrap().sessions(), owed);
        unfinished_writes::clear_ended(&locked, &second.record).unwrap();
        assert_eq!(locked.all().unwrap(), [], "after a successful start");
        drop(locked);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn namespaces_with_a_common_path_are_one_disk() {
        let at = |text: &str| vec![format!("nvme://{text}")];
        let several = at("a/nqn.2026-11.org.example:x/1?paths=b,c:9&queue_len=4");
        for path in ["a", "b:4420", "c:9"] {
            assert!(same_disk(&several, &at(&format!("{path}/nqn.2026-11.org.example:x/1"))), "{path}");
        }
        assert!(same_disk(&several, &at("d/nqn.2026-11.org.example:x/1?paths=c:9")));
        for other in ["c/nqn.2026-11.org.example:x/1", "b/nqn.2026-11.org.example:x/2"] {
            assert!(!same_disk(&several, &at(other)), "{other}");
        }
    }

    #[test]
    fn stale_device_is_taken_over_with_its_type() {
        let of = |name: &str, read_only| record(&Attachment { read_only, ..attachment(name, A, How::Ublk) });
        assert_eq!(takeover_obstacle(&of("a", false), &of("a", false), true), None);
        assert_eq!(takeover_obstacle(&of("a", true), &of("b", false), true), None);
        assert!(takeover_obstacle(&of("a", false), &of("a", true), true).unwrap().contains("is writable"));
        assert!(takeover_obstacle(&of("a", false), &of("a", false), false).unwrap().starts_with("of iscsi:"));
        assert_eq!(takeover_obstacle(&of("a", false), &of("b", false), false), None);
    }

    #[test]
    fn record_holds_no_secret() {
        let record = record(&attachment("a", "iscsi://ann%secret@h/iqn.2026-11.org.example:a/0", How::Nbd));
        assert_eq!(record.urls, ["iscsi://ann@h:3260/iqn.2026-11.org.example:a/0"]);
    }
}
