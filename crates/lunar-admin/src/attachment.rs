//! Attached disks, as their records, `lunar attach list` and the API show them.

mod seconds;

use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;
use utoipa::ToSchema;

/// The kind of device that the host sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = AttachmentKind)]
pub enum How {
    /// An NBD server.
    Nbd,
    /// A block device.
    Ublk,
    /// A file.
    Fuse,
}

impl How {
    /// Its name in arguments and files.
    pub fn name(self) -> &'static str {
        match self {
            How::Nbd => "nbd",
            How::Ublk => "ublk",
            How::Fuse => "fuse",
        }
    }
}

/// The policy that selects one of the best paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PathPolicy {
    /// The first usable path takes all operations.
    Failover,
    /// Paths take turns.
    RoundRobin,
    /// The path with the fewest operations in flight.
    #[default]
    LeastQueue,
}

impl PathPolicy {
    /// All of them.
    pub const ALL: [PathPolicy; 3] = [PathPolicy::Failover, PathPolicy::RoundRobin, PathPolicy::LeastQueue];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            PathPolicy::Failover => "failover",
            PathPolicy::RoundRobin => "round-robin",
            PathPolicy::LeastQueue => "least-queue",
        }
    }
}

/// The record of an attached disk. It holds no secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = AttachmentRecord)]
pub struct Record {
    /// Its name.
    pub name: String,
    /// The kind of device that the host sees.
    pub how: How,
    /// The NBD URI, the block device, or the file; None while it is being attached.
    pub device: Option<String>,
    /// The address of an NBD server or the folder of a file, if one was given.
    pub place: Option<String>,
    /// The number of a ublk device.
    pub ublk_id: Option<u32>,
    /// The URL of each path, without secrets.
    pub urls: Vec<String>,
    /// Capacity when it was attached, in bytes.
    pub size_bytes: u64,
    /// Identity of the logical unit, as `lunar ls` shows it: the best designator of VPD page 83h, or else the whole page
    /// in hexadecimal; empty if the unit reports none.
    pub identity: String,
    /// Whether writes are rejected.
    pub read_only: bool,
    /// How long to wait for a lost network, in seconds.
    #[serde(rename = "recovery_timeout_s", with = "crate::attachment::seconds")]
    #[schema(value_type = f64)]
    pub recovery_timeout: Duration,
    /// The policy that selects one of several paths, if one was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PathPolicy>,
    /// Its process.
    pub pid: u32,
    /// When it was attached, in seconds since 1970. Records of older versions have the number.
    #[serde(alias = "since_unix_s", with = "crate::rfc3339::seconds")]
    #[schema(value_type = String)]
    pub attached_at: u64,
    /// ISID of the session of each path, in hexadecimal. A process that attaches the disk after this one has died uses
    /// the same ISID. The target then ends the old session before it accepts the new one (RFC 7143 section 6.3.5), so no
    /// write of the old session is executed after a write of the new one.
    #[serde(default)]
    pub isids: Vec<String>,
    /// The initiator name of the session of each path; an ISID makes another nexus under another name. Records of older
    /// versions have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub initiators: Vec<String>,
    /// The target port of the session of each path, from `lunar_initiator::Facts::target_port`; empty for a path that
    /// was never connected. One URL may lead to several ports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<String>,
    /// The CHAP user of the session of each path; empty without CHAP. Records of older versions have none, and their
    /// `ports` are those of the first login.
    #[serde(rename = "chap_users", alias = "users", default, skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<String>,
    /// Ended sessions whose writes the target may still execute, including those of paths that reconnected at another
    /// port. The next process ends those writes before it serves the disk. `isids` is empty after the process has
    /// ended cleanly.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_behind: Vec<LeftSession>,
    /// The reason why its process failed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// An ended session whose writes the target may still execute. A login with its initiator name and ISID ends them
/// there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LeftSession {
    /// Its URL, without secrets.
    pub url: String,
    /// Its ISID, in hexadecimal.
    pub isid: String,
    /// Its initiator name; None in records of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initiator: Option<String>,
    /// Its target port, or [`UNKNOWN_PORT`]; None in records of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// Its CHAP user, empty without CHAP; None in records of older versions. For a target, the same name and ISID
    /// with another user may be another nexus.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

/// A target port that could not be determined.
pub const UNKNOWN_PORT: &str = "unknown";

impl Record {
    /// Sessions whose writes the target may still execute after the process is gone. If the process was killed, each
    /// path may have left writes.
    pub fn sessions(&self) -> Vec<LeftSession> {
        let mut sessions = self.left_behind.clone();
        let own = (0..self.urls.len()).filter_map(|at| self.session(at)).filter(|_| !self.read_only);
        sessions.extend(own.filter(|session| !self.left_behind.contains(session)));
        sessions
    }

    /// The session of a path; None if it was never connected.
    fn session(&self, at: usize) -> Option<LeftSession> {
        let known = |of: &[String]| of.get(at).filter(|text| !text.is_empty()).cloned();
        let (port, is_older) = (known(&self.ports), self.users.is_empty());
        if port.is_none() && !is_older {
            return None;
        }
        Some(LeftSession {
            url: self.urls.get(at)?.clone(),
            isid: self.isids.get(at)?.clone(),
            initiator: known(&self.initiators),
            port,
            user: self.users.get(at).cloned(),
        })
    }

    /// Records the login of a path, which sends no command before the record is written. `has_orphans`: the target
    /// may still execute commands of its earlier session.
    pub fn enter(&mut self, at: usize, session: LeftSession, has_orphans: bool) {
        let before = self.session(at);
        let LeftSession { isid, initiator, port, user, .. } = session;
        let port = port.unwrap_or_else(|| UNKNOWN_PORT.to_owned());
        let [initiator, user] = [initiator, user].map(Option::unwrap_or_default);
        let rows = [&mut self.isids, &mut self.initiators, &mut self.ports, &mut self.users];
        for (row, value) in rows.into_iter().zip([isid, initiator, port, user]) {
            if let Some(old) = row.get_mut(at) {
                *old = value;
            }
        }
        if has_orphans && before != self.session(at) {
            self.left_behind.extend(before.filter(|before| !self.left_behind.contains(before)));
        }
    }
}

/// A path to the target, as its process reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AttachedPath {
    /// Its URL, without secrets.
    pub url: String,
    /// With several paths, the state that path selection uses; `connected` or `lost` for a single one.
    pub state: String,
    /// Whether it is connected.
    pub connected: bool,
    /// Number of reconnections.
    pub recoveries: u32,
}

/// An attachment with its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct AttachmentReport {
    /// The record.
    #[serde(flatten)]
    pub record: Record,
    /// `attached`; `degraded` or `lost` if some or all paths are lost; `starting`; `silent` if the process does not
    /// answer; `ended` if it is gone; `unsettled` if it is gone and the target may still execute its writes.
    pub state: &'static str,
    /// Its paths, as its process reports them.
    pub paths: Vec<AttachedPath>,
    /// Its users, as text.
    pub users: Vec<String>,
    /// Writes in flight.
    pub waiting_writes: u64,
    /// The file of its log.
    #[schema(value_type = String)]
    pub log: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(name: &str) -> Record {
        Record {
            name: name.into(),
            how: How::Ublk,
            device: Some("/dev/ublkb0".into()),
            place: None,
            ublk_id: Some(0),
            urls: vec!["iscsi://h:3260/iqn.2026-11.org.example:a/0".into()],
            size_bytes: 1 << 30,
            identity: "00ff".into(),
            read_only: false,
            recovery_timeout: Duration::from_secs(120),
            policy: None,
            pid: std::process::id(),
            attached_at: 1,
            isids: vec!["800000000001".into()],
            initiators: vec!["iqn.2026-11.org.example:host".into()],
            ports: vec!["group:1,iqn.2026-11.org.example:a".into()],
            users: vec![String::new()],
            left_behind: Vec::new(),
            failure: None,
        }
    }

    #[test]
    fn sessions_of_a_record_are_those_that_may_have_written() {
        let killed = record("a");
        let [session] = &killed.sessions()[..] else { panic!("one path") };
        assert_eq!((&session.url, &session.isid), (&killed.urls[0], &killed.isids[0]));
        assert_eq!(session.initiator.as_ref(), Some(&killed.initiators[0]));
        assert_eq!(session.port.as_ref(), Some(&killed.ports[0]));
        assert_eq!(session.user.as_deref(), Some(""));
        let older = Record { initiators: Vec::new(), ports: Vec::new(), users: Vec::new(), ..killed.clone() };
        let text = serde_json::to_string(&older).unwrap();
        assert!(!["initiator", "port", "user"].iter().any(|key| text.contains(key)), "{text}");
        let [session] = &serde_json::from_str::<Record>(&text).unwrap().sessions()[..] else {
            panic!("one path")
        };
        assert_eq!((&session.initiator, &session.port, &session.user), (&None, &None, &None));
        let [session] = &killed.sessions()[..] else { panic!("one path") };
        let read_only = Record { read_only: true, ..record("a") };
        assert_eq!(read_only.sessions(), []);
        let left_behind = vec![session.clone()];
        let ended = Record { isids: Vec::new(), left_behind: left_behind.clone(), ..read_only };
        assert_eq!(ended.sessions(), left_behind);
        assert_eq!(
            Record { left_behind: left_behind.clone(), ..killed }.sessions(),
            left_behind,
            "each session once"
        );
        let text = serde_json::to_string(&ended).unwrap();
        assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), ended);
    }

    #[test]
    fn path_that_was_never_open_has_left_nothing() {
        let unopened = Record { ports: vec![String::new()], ..record("a") };
        assert_eq!(unopened.sessions(), []);
        let older = Record { users: Vec::new(), ..unopened };
        assert_eq!(older.sessions()[0].port, None, "the path may have been connected later");
    }

    #[test]
    fn path_that_moves_with_orphans_keeps_both_ports() {
        let mut kept = record("a");
        let [first] = &kept.sessions()[..] else { panic!("one path") };
        let first = first.clone();
        let at = |port: Option<&str>| LeftSession { port: port.map(str::to_owned), ..first.clone() };
        let second = at(Some("group:2,iqn.2026-11.org.example:a"));
        kept.enter(0, first.clone(), true);
        assert_eq!(kept.sessions(), std::slice::from_ref(&first), "the path kept its port");
        kept.enter(0, second.clone(), false);
        assert_eq!(kept.sessions(), std::slice::from_ref(&second), "no orphans at the first port");
        kept.enter(0, first.clone(), true);
        assert_eq!(kept.sessions(), [second.clone(), first.clone()]);
        kept.enter(0, at(None), true);
        assert_eq!(kept.sessions().last(), Some(&at(Some(UNKNOWN_PORT))));
        assert_eq!(kept.sessions().len(), 3);
    }
}
