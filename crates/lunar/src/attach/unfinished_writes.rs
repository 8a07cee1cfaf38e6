//! Unfinished writes of a dead or failed process: the target may still execute them. They are ended before the disk is
//! attached again, or before its record is removed.

use super::claim::{same_disk, without_settings};
use super::disk::{Disk, ProbedLun};
use crate::exit::Failure;
use lunar_initiator::reinstatement::{self, OldInitiatorPort};
use lunar_initiator::{Error, ErrorCode, Lun, Url};
use lunar_runtime::Cores;
use lunar_server::Diagnostic;
use lunar_server::attached::{Attached, LeftSession, LockedFolder, ProcessLock, Record, UNKNOWN_PORT};
use lunar_server::config::attachment::{self, Attachment};
use std::io;
use std::time::Duration;

/// Hint of a failure that leaves unfinished writes.
pub const HINT: &str = "attach the LUN again before anything else writes to it: this ends the old writes at the target. \
    After a restart of the target: lunar detach NAME --forget";

/// The failure at a detach: `failed` writes of the host failed, and the target may still execute `left` commands.
pub fn failure(failed: u64, left: usize) -> Failure {
    let writes = |count: u64| crate::output::count(count as usize, "write");
    let what = match failed {
        0 => format!("the target may still execute {}", writes(left as u64)),
        // A write may have been sent as several commands.
        _ => format!(
            "{} failed; the target may still execute {} of them",
            writes(failed),
            failed.min(left as u64)
        ),
    };
    Diagnostic::new(what, HINT).into()
}

/// A session with unfinished writes, and its URL with secrets.
type UnfinishedSession = (LeftSession, Url);

/// Ends the unfinished writes of these sessions. A login with the same name and ISID ends the old session before the target
/// responds (RFC 7143 section 6.3.5). If a login fails within `limit`, LOGICAL UNIT RESET ends the commands of all sessions
/// (SAM-5 section 7.7).
///
/// # Errors
/// When a session was not ended by a login, and no path accepts the reset.
pub async fn end(
    mut left: Vec<UnfinishedSession>,
    reached: &[ProbedLun],
    limit: Duration,
) -> Result<(), Failure> {
    retain_others(&mut left, reached);
    let (more, failure) = log_in(&left, reached, limit).await;
    retain_others(&mut left, &more);
    let ended = left.is_empty() || reset(reached.iter().chain(&more)).await;
    Disk::close(more).await;
    match (ended, failure) {
        (true, _) => Ok(()),
        (false, Some(e)) if reached.is_empty() => Err(e.into()),
        (false, _) => Err(unsettled(&left)),
    }
}

fn retain_others(left: &mut Vec<UnfinishedSession>, reached: &[ProbedLun]) {
    let ours: Vec<LeftSession> = reached.iter().map(ProbedLun::session).collect();
    left.retain(|(session, _)| !ours.iter().any(|ours| is_replaced(session, ours)));
}

/// Resets the logical unit on the first path that accepts the reset; false if none does.
async fn reset(paths: impl Iterator<Item = &ProbedLun>) -> bool {
    for path in paths {
        let (session, lun) = (path.lun.session(), path.lun.address());
        if reinstatement::reset(session, lun, "unfinished writes remain on another path").await.is_some() {
            return true;
        }
    }
    false
}

fn unsettled(left: &[UnfinishedSession]) -> Failure {
    let urls: Vec<&str> = left.iter().map(|(session, _)| session.url.as_str()).collect();
    let what = format!("the target may still execute writes of an ended session at {}", urls.join(", "));
    let hint = "restore this path, or let the target accept LOGICAL UNIT RESET; after a restart of the target: \
        lunar detach NAME --forget";
    Diagnostic::new(what, hint).into()
}

/// Whether the login of session `by` ended session `left`. A URL may lead to several target ports, each with its own nexus,
/// and a target may have one nexus per CHAP user. Records of older versions lack name, port and user.
fn is_replaced(left: &LeftSession, by: &LeftSession) -> bool {
    let is_same_port = left.port == by.port && left.port.as_deref() != Some(UNKNOWN_PORT);
    (left.port.is_none() || is_same_port)
        && (left.user.is_none() || left.user == by.user)
        && without_settings(&left.url) == without_settings(&by.url)
        && is_same_initiator(left, by)
}

/// Whether a login for session `left` may end session `other`: both may be at the same port.
fn may_end(left: &LeftSession, other: &LeftSession) -> bool {
    let port = |session: &LeftSession| session.port.clone().filter(|port| port != UNKNOWN_PORT);
    let is_elsewhere = without_settings(&left.url) != without_settings(&other.url)
        && port(left).zip(port(other)).is_some_and(|(left, other)| left != other);
    is_same_initiator(left, other) && !is_elsewhere
}

/// Whether name and ISID are equal. A target may treat such sessions at one port as the same, whatever their users.
fn is_same_initiator(left: &LeftSession, other: &LeftSession) -> bool {
    let is_same_name = left.initiator.is_none() || name_of(left) == name_of(other);
    is_same_name && left.isid.eq_ignore_ascii_case(&other.isid)
}

/// Names are compared without regard to case (RFC 3722).
fn name_of(session: &LeftSession) -> Option<String> {
    session.initiator.as_deref().map(|name| lunar_proto::name::fold(name).into_owned())
}

/// Whether both records describe the same session.
fn is_same(a: &LeftSession, b: &LeftSession) -> bool {
    let [(a_url, b_url), (a_isid, b_isid)] = [
        (without_settings(&a.url), without_settings(&b.url)),
        (a.isid.to_lowercase(), b.isid.to_lowercase()),
    ];
    (a_url, a_isid, name_of(a), &a.port, &a.user) == (b_url, b_isid, name_of(b), &b.port, &b.user)
}

/// Records of dead processes that had this disk under other names.
fn others(locked: &LockedFolder<'_>, record: &Record) -> Result<Vec<Record>, Diagnostic> {
    let has_it = |other: &Record| {
        let is_same = !other.identity.is_empty() && other.identity == record.identity;
        other.name != record.name && (is_same || same_disk(&other.urls, &record.urls))
    };
    Ok(locked.all()?.into_iter().filter(|other| has_it(other) && !locked.is_alive(&other.name)).collect())
}

/// All sessions with unfinished writes to this disk, also at other URLs.
///
/// # Errors
/// When the folder cannot be read.
pub fn sessions(locked: &LockedFolder<'_>, record: &Record) -> Result<Vec<UnfinishedSession>, Failure> {
    let mut left = record.left_behind.clone();
    let others = others(locked, record)?;
    for session in others.iter().flat_map(Record::sessions) {
        if !left.iter().any(|known| is_same(known, &session)) {
            left.push(session);
        }
    }
    with_urls(record, left)
}

/// Updates the records of dead processes after their writes have ended: a record that was kept only for them is removed.
///
/// # Errors
/// When a record cannot be read or written.
pub fn clear_ended(locked: &LockedFolder<'_>, record: &Record) -> Result<(), Failure> {
    for mut other in others(locked, record)? {
        if other.sessions().is_empty() {
            continue;
        }
        let was_kept = other.isids.is_empty() && super::claim::left_behind(locked, &other)?.is_none();
        if was_kept {
            locked.clear(&other.name);
            continue;
        }
        other.isids.clear();
        other.left_behind.clear();
        locked.write(&other)?;
    }
    Ok(())
}

/// Keeps the record of a failed start while it names unfinished sessions that no other record names; else removes it.
///
/// # Errors
/// When a record cannot be read or written.
pub fn hand_back(locked: &LockedFolder<'_>, record: &Record) -> Result<(), Failure> {
    let others: Vec<LeftSession> = others(locked, record)?.iter().flat_map(Record::sessions).collect();
    let is_ours = |session: &LeftSession| !others.iter().any(|other| is_same(session, other));
    let left_behind: Vec<LeftSession> = record.left_behind.iter().filter(|s| is_ours(s)).cloned().collect();
    if left_behind.is_empty() {
        locked.clear(&record.name);
        return Ok(());
    }
    Ok(locked.write(&Record { isids: Vec::new(), device: None, left_behind, ..record.clone() })?)
}

/// Ends the unfinished writes of this record, by logins with its ISIDs. The returned lock prevents an attachment of the name.
///
/// # Errors
/// When the target cannot be reached within `limit`, or the writes cannot be ended: the record stays.
pub fn end_of_record(attached: &Attached, record: &Record, limit: Duration) -> Result<ProcessLock, Failure> {
    let left = record.sessions();
    let locked = attached.lock()?;
    let Some(alive) = locked.take(&record.name)? else { return Err(super::claim::already_attached(record)) };
    locked.write(&Record { isids: Vec::new(), left_behind: left.clone(), ..record.clone() })?;
    drop(locked);
    let owed = with_urls(record, left)?;
    let cores = Cores::one().map_err(cannot)?;
    let ended = cores.wait(0, move || async move { end(owed, &[], limit).await });
    cores.stop();
    ended.map_err(cannot)?.map_err(|failure| named(&record.name, failure))?;
    Ok(alive)
}

fn cannot(e: io::Error) -> Failure {
    super::cannot("start an event loop", &e)
}

/// The error for a record that stays.
fn named(name: &str, failure: Failure) -> Failure {
    let why = failure.problems.first().map(|problem| problem.what.clone()).unwrap_or_default();
    let what =
        format!("cannot detach {name}: its target may still execute writes, and they cannot be ended: {why}");
    let hint = format!(
        "repeat the command when the target is reachable, or attach the LUN again; after a restart of the target: lunar detach {name} \
         --forget"
    );
    Failure::new(failure.exit, what, hint)
}

/// Adds the URL for the login. Only the file of a saved attachment holds secrets.
fn with_urls(record: &Record, left: Vec<LeftSession>) -> Result<Vec<UnfinishedSession>, Failure> {
    let saved = attachment::load(&record.name).ok().flatten();
    let saved: Vec<String> = saved.into_iter().flat_map(|Attachment { urls, .. }| urls).collect();
    let url = |session: LeftSession| {
        let with_secret = saved.iter().find(|url| without_settings(url) == without_settings(&session.url));
        let url = Url::parse(with_secret.unwrap_or(&session.url))?;
        Ok((session, url))
    };
    left.into_iter().map(url).collect()
}

/// Logs in once for each session, concurrently, each within `limit`. Returns the logins that succeeded, and the first error.
/// Skips a login that may end a session in `own`, or the login of another session.
async fn log_in(
    left: &[UnfinishedSession],
    own: &[ProbedLun],
    limit: Duration,
) -> (Vec<ProbedLun>, Option<Error>) {
    let mut taken: Vec<LeftSession> = own.iter().map(ProbedLun::session).collect();
    let is_free = |owed: &&UnfinishedSession| {
        let is_free = !taken.iter().any(|taken| may_end(&owed.0, taken));
        taken.push(owed.0.clone());
        is_free
    };
    let free: Vec<&UnfinishedSession> = left.iter().filter(is_free).collect();
    let (mut reached, mut failure) = (Vec::new(), None);
    let tasks: Vec<_> =
        free.into_iter().map(|owed| compio::runtime::spawn(open(owed.clone(), limit))).collect();
    for task in tasks {
        match task.await {
            Ok(Ok(path)) => reached.push(path),
            Ok(Err(e)) => failure = failure.or(Some(e)),
            Err(_) => {}
        }
    }
    (reached, failure)
}

async fn open((session, url): UnfinishedSession, limit: Duration) -> Result<ProbedLun, Error> {
    let bad = || {
        Error::new(
            ErrorCode::InvalidArgument,
            format!("the record of the attachment has the invalid ISID \"{}\"", session.isid.escape_debug()),
        )
    };
    let isid = lunar_initiator::parse_isid(&session.isid).ok_or_else(bad)?;
    let port = OldInitiatorPort { initiator: session.initiator.as_deref(), isid };
    let opened = async {
        let session = reinstatement::log_in(&url, port).await?;
        Lun::open(&session, lunar_initiator::lun_of(&url, &session).await?).await
    };
    let late = |_| {
        let time = humantime::format_duration(limit);
        Error::new(ErrorCode::TimedOut, format!("no answer from {url} within {time}"))
    };
    let lun = compio::time::timeout(limit, opened).await.map_err(late)??;
    Ok(ProbedLun { url, lun })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_left_behind_are_not_called_lost() {
        let what = |failed, left| failure(failed, left).problems[0].what.clone();
        assert_eq!(what(3, 1), "3 writes failed; the target may still execute 1 of them");
        assert_eq!(what(1, 4), "1 write failed; the target may still execute 1 of them");
        assert_eq!(what(0, 2), "the target may still execute 2 writes");
    }

    #[test]
    fn session_is_replaced_by_its_own_isid_at_its_portal() {
        let of = |host: &str, isid: &str| LeftSession {
            url: format!("iscsi://{host}:3260/iqn.2026-11.org.example:a/0"),
            isid: isid.into(),
            initiator: Some("iqn.2026-11.org.example:a".into()),
            port: Some("group:1,iqn.2026-11.org.example:a".into()),
            user: Some("alice".into()),
        };
        let left = of("h", "80000000000a");
        let same = LeftSession {
            url: left.url.clone() + "?commands=3",
            isid: "80000000000A".into(),
            initiator: Some("iqn.2026-11.org.example:A".into()),
            ..left.clone()
        };
        assert!(is_replaced(&left, &same));
        assert!(!is_replaced(&left, &of("i", "80000000000a")), "another portal");
        assert!(!is_replaced(&left, &of("h", "80000000000b")), "another ISID");
        let named = |name: Option<&str>| LeftSession { initiator: name.map(str::to_owned), ..left.clone() };
        assert!(!is_replaced(&left, &named(Some("iqn.2026-11.org.example:b"))), "another name");
        let at = |port: Option<&str>| LeftSession { port: port.map(str::to_owned), ..left.clone() };
        assert!(!is_replaced(&left, &at(Some("group:2,iqn.2026-11.org.example:a"))), "another port");
        assert!(!is_replaced(&left, &at(None)), "an unknown port");
        assert!(is_replaced(&at(None), &left), "a record of an older version");
        let unknown = at(Some(UNKNOWN_PORT));
        assert!(!is_replaced(&unknown, &unknown), "a port that could not be determined");
        assert!(
            may_end(&at(Some("group:2,iqn.2026-11.org.example:a")), &left),
            "the URL may lead to another port now"
        );
        let elsewhere = LeftSession { url: of("i", "").url, ..at(Some("group:2,iqn.2026-11.org.example:a")) };
        assert!(!may_end(&elsewhere, &left) && may_end(&LeftSession { port: None, ..elsewhere }, &left));
        let by = |user: Option<&str>| LeftSession { user: user.map(str::to_owned), ..left.clone() };
        assert!(may_end(&left, &by(Some("bob"))) && !may_end(&left, &of("h", "80000000000b")));
        assert!(!is_replaced(&left, &by(Some("bob"))) && !is_replaced(&left, &by(Some(""))), "another user");
        assert!(is_replaced(&by(None), &left) && !is_same(&by(None), &left), "a record of an older version");
        let older = named(None);
        assert!(is_replaced(&older, &left) && !is_same(&older, &left));
    }
}
