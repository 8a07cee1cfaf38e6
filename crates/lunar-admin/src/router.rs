//! SCSI routing instances as text and JSON.

use super::rows::{self, duration, shown};
use serde::{Deserialize, Serialize};
use std::fmt::{self, Write};
use utoipa::ToSchema;

/// A SCSI routing instance.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RouterReport {
    /// Its name.
    pub name: String,
    /// `serving`, `no path`, `draining`, or its role in a failover pair: `active`, `standby`, `taking`, `yielding`.
    pub state: String,
    /// Whether it was drained, so that it rejects logins.
    pub draining: bool,
    /// When it started (RFC 3339), in seconds since 1970.
    #[serde(with = "crate::rfc3339::seconds")]
    #[schema(value_type = String)]
    pub started_at: u64,
    /// Logins that succeeded.
    pub logins_accepted: u64,
    /// Current sessions.
    pub logins_active: u64,
    /// Logins rejected for access, a missing or unavailable target, or a limit of sessions.
    pub target_access_failures: u64,
    /// Logins rejected by CHAP.
    pub authentication_failures: u64,
    /// Its targets.
    pub targets: Vec<TargetReport>,
    /// Its upstreams.
    pub upstreams: Vec<UpstreamReport>,
    /// From the arrival of a command to its execution.
    pub front: Hop,
    /// Wait for a path or for room in the upstream's queue.
    pub queue: Hop,
    /// From sending to response.
    pub upstream: Hop,
    /// The peer of its failover pair.
    pub failover: Option<Failover>,
}

/// A target of an instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TargetReport {
    /// Its name.
    pub name: String,
    /// Its logical units.
    pub luns: Vec<LunReport>,
}

/// A logical unit of an instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LunReport {
    /// Its LUN here.
    pub lun: u16,
    /// Its source.
    pub from: String,
    /// Its health, or why hosts do not see it.
    pub health: LunHealth,
}

/// The health of a logical unit of an instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum LunHealth {
    /// It works.
    #[default]
    Up,
    /// Its commands wait for a path.
    Holding,
    /// It has no path.
    Lost,
    /// All paths lead to a different logical unit.
    Another,
    /// Missing: its upstream was not seen yet.
    Awaited,
    /// Missing: its upstream has no such LUN.
    #[serde(rename = "not found")]
    NotFound,
    /// Missing: its upstream has it, and the log says what is wrong with it.
    #[serde(rename = "not served")]
    NotServed,
}

impl LunHealth {
    /// True if hosts see the logical unit.
    fn is_there(self) -> bool {
        !matches!(self, LunHealth::Awaited | LunHealth::NotFound | LunHealth::NotServed)
    }

    /// True if no path leads to the logical unit.
    fn lacks_path(self) -> bool {
        matches!(self, LunHealth::Holding | LunHealth::Lost | LunHealth::Another | LunHealth::Awaited)
    }
}

/// The word of the JSON output.
impl fmt::Display for LunHealth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LunHealth::Up => "up",
            LunHealth::Holding => "holding",
            LunHealth::Lost => "lost",
            LunHealth::Another => "another",
            LunHealth::Awaited => "awaited",
            LunHealth::NotFound => "not found",
            LunHealth::NotServed => "not served",
        })
    }
}

/// An upstream of an instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UpstreamReport {
    /// Its name.
    pub name: String,
    /// Its URLs, without secrets.
    pub urls: Vec<String>,
    /// Logical units that were found.
    pub luns: usize,
    /// The reason why it cannot be used.
    pub obstacle: Option<String>,
    /// The paths to its logical units.
    pub paths: Vec<PathReport>,
}

/// A path to a logical unit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PathReport {
    /// The logical unit.
    pub lun: String,
    /// Its URL, without secrets.
    pub url: String,
    /// Its state.
    pub state: String,
    /// The core that uses it.
    pub core: Option<String>,
    /// Host that owns the path; None if all hosts share it.
    pub host: Option<String>,
    /// I/Os in flight; None if not counted.
    pub in_flight: Option<usize>,
    /// Recoveries of its session; None without a session.
    pub recoveries: Option<u32>,
    /// Its reads and writes so far; None if not counted.
    #[serde(default)]
    pub total: Option<PathTraffic>,
}

/// The reads and writes of a path. One that is retried on another path counts there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PathTraffic {
    /// Reads that succeeded.
    pub reads: u64,
    /// Writes that succeeded.
    pub writes: u64,
    /// Bytes of these reads.
    pub read_bytes: u64,
    /// Bytes of these writes.
    pub written_bytes: u64,
    /// Commands that failed on the path.
    pub errors: u64,
    /// The sum of the latencies of these reads and writes in microseconds.
    pub time_us: u64,
}

impl PathTraffic {
    /// The sum with that of another core.
    #[must_use]
    pub fn and(self, other: PathTraffic) -> PathTraffic {
        PathTraffic {
            reads: self.reads + other.reads,
            writes: self.writes + other.writes,
            read_bytes: self.read_bytes + other.read_bytes,
            written_bytes: self.written_bytes + other.written_bytes,
            errors: self.errors + other.errors,
            time_us: self.time_us + other.time_us,
        }
    }
}

/// Latency of commands in one hop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Hop {
    /// Commands.
    pub commands: u64,
    /// The mean in microseconds.
    pub mean_us: f64,
    /// The longest in microseconds.
    pub max_us: f64,
}

/// The peer of a failover pair, as last reported.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Failover {
    /// Its portal.
    pub peer: String,
    /// Its state; None when it does not answer.
    pub state: Option<String>,
    /// Whether this router may become active.
    pub eligible: bool,
    /// Whether this router is the preferred one.
    pub preferred: bool,
}

/// The state of a router without a peer that serves, but has no path to any logical unit.
pub const NO_PATH: &str = "no path";

impl RouterReport {
    /// State for display: in a failover pair, draining and the loss of all paths combine with each role.
    fn state(&self) -> String {
        let is_pair = self.failover.is_some();
        let added = [(self.draining, "draining"), (self.has_no_path(), NO_PATH)];
        let added = added.iter().filter(|(is_set, _)| is_pair && *is_set).map(|(_, word)| *word);
        std::iter::once(&*self.state).chain(added).collect::<Vec<_>>().join(", ")
    }

    /// Whether no path works to any of its logical units, or no upstream was found yet.
    pub fn has_no_path(&self) -> bool {
        let mut luns = self.luns().peekable();
        match luns.peek() {
            None => !self.targets.is_empty() && self.upstreams.iter().all(|upstream| upstream.luns == 0),
            Some(_) => {
                luns.clone().any(|lun| lun.health.lacks_path()) && luns.all(|lun| lun.health != LunHealth::Up)
            }
        }
    }

    fn luns(&self) -> impl Iterator<Item = &LunReport> + Clone {
        self.targets.iter().flat_map(|target| &target.luns)
    }
}

/// All instances, one a line.
pub fn list(routers: &[RouterReport]) -> String {
    let row = |r: &RouterReport| {
        let (luns, there) = (r.luns().count(), r.luns().filter(|lun| lun.health.is_there()).count());
        let luns = if luns == there { luns.to_string() } else { format!("{there} of {luns}") };
        let peer = r.failover.as_ref().map_or("-".into(), |p| {
            format!("{} ({})", p.peer, p.state.as_deref().unwrap_or("does not answer"))
        });
        [
            r.name.clone(),
            r.state(),
            r.targets.len().to_string(),
            luns,
            r.upstreams.len().to_string(),
            r.logins_active.to_string(),
            peer,
        ]
    };
    rows::table(
        ["ROUTER", "STATE", ">TARGETS", ">LUNS", ">UPSTREAMS", ">SESSIONS", "PEER"],
        routers.iter().map(row),
    )
}

/// The columns of `show scsirouter all stats` of the SN 5420, and the latency of each hop.
pub fn stats(routers: &[RouterReport]) -> String {
    const HEAD: [&str; 6] = [
        "Router",
        "Started",
        ">Logins Accepted",
        ">Logins Active",
        ">Target Access Failures",
        ">Authentication Failures",
    ];
    let row = |r: &RouterReport| {
        [
            r.name.clone(),
            started(r.started_at),
            r.logins_accepted.to_string(),
            r.logins_active.to_string(),
            r.target_access_failures.to_string(),
            r.authentication_failures.to_string(),
        ]
    };
    let hop = |router: &RouterReport, name: &str, hop: &Hop| {
        let us = |us: f64| format!("{us:.1}");
        [router.name.clone(), name.into(), hop.commands.to_string(), us(hop.mean_us), us(hop.max_us)]
    };
    let hops = routers.iter().flat_map(|r| {
        [("front", &r.front), ("queue", &r.queue), ("upstream", &r.upstream)].map(|(name, h)| hop(r, name, h))
    });
    let hops = rows::table(["Router", "Hop", ">Commands", ">Mean µs", ">Max µs"], hops);
    rows::table(HEAD, routers.iter().map(row)) + "\n" + &hops
}

/// A time as `2026-11-22 10:30:00 UTC`.
fn started(s: u64) -> String {
    let text = rows::utc(s);
    format!("{} {} UTC", &text[..10], &text[11..19])
}

/// All paths, one a line.
pub fn paths(routers: &[RouterReport]) -> String {
    let or_none = |text: Option<String>| text.unwrap_or("-".into());
    let row = |r: &RouterReport, u: &UpstreamReport, p: &PathReport| {
        [
            r.name.clone(),
            u.name.clone(),
            shown(&p.lun),
            p.url.clone(),
            p.state.clone(),
            or_none(p.core.clone()),
            or_none(p.in_flight.map(|n| n.to_string())),
            or_none(p.recoveries.map(|n| n.to_string())),
            or_none(p.host.as_deref().map(shown)),
        ]
    };
    let all = routers
        .iter()
        .flat_map(|r| r.upstreams.iter().flat_map(move |u| u.paths.iter().map(move |p| row(r, u, p))));
    const HEAD: [&str; 9] =
        ["ROUTER", "UPSTREAM", "LUN", "PATH", "STATE", ">CORE", ">IN FLIGHT", ">RECOVERIES", "HOST"];
    rows::table(HEAD, all)
}

/// Everything about an instance.
pub fn show(r: &RouterReport, now: u64) -> String {
    let mut text =
        format!("router {}: {}, for {}\n", r.name, r.state(), duration(now.saturating_sub(r.started_at)));
    if let Some(failover) = &r.failover {
        let state = failover.state.as_deref().unwrap_or("does not answer");
        let is = |flag: bool, word: &str| if flag { word.into() } else { format!("not {word}") };
        let (preferred, eligible) = (is(failover.preferred, "preferred"), is(failover.eligible, "eligible"));
        _ = writeln!(text, "failover: {preferred}, {eligible}; peer {}: {state}", failover.peer);
    }
    for upstream in &r.upstreams {
        let luns = upstream.luns;
        let luns = if luns == 1 { "1 LUN".into() } else { format!("{luns} LUNs") };
        _ = writeln!(text, "upstream {}: {luns} at {}", upstream.name, upstream.urls.join(", "));
        if let Some(obstacle) = &upstream.obstacle {
            _ = writeln!(text, "  unusable: {}", shown(obstacle));
        }
    }
    for target in &r.targets {
        _ = writeln!(text, "target {}", shown(&target.name));
        for lun in &target.luns {
            _ = writeln!(text, "  LUN {}: {} ({})", lun.lun, shown(&lun.from), lun.health);
        }
        if target.luns.is_empty() {
            text += "  no LUN yet: the upstream was not found\n";
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn router() -> RouterReport {
        RouterReport {
            name: "r1".into(),
            state: "active".into(),
            started_at: 1_795_343_400,
            logins_accepted: 7,
            logins_active: 2,
            target_access_failures: 1,
            front: Hop { commands: 3, mean_us: 1.25, max_us: 9.0 },
            targets: vec![TargetReport {
                name: "iqn.2026-11.org.example:t1".into(),
                luns: vec![LunReport { lun: 0, from: "a, LUN 3".into(), health: LunHealth::Up }],
            }],
            upstreams: vec![UpstreamReport {
                name: "a".into(),
                urls: vec!["iscsi://h/t".into()],
                luns: 1,
                ..Default::default()
            }],
            failover: Some(Failover { peer: "10.0.0.6:3260".into(), preferred: true, ..Failover::default() }),
            ..RouterReport::default()
        }
    }

    #[test]
    fn columns_are_those_of_the_sn_5420() {
        let text = stats(&[router()]);
        let head = "Router  Started                  Logins Accepted  Logins Active  \
            Target Access Failures  Authentication Failures\n";
        assert!(text.starts_with(head), "{text}");
        let row = "r1      2026-11-22 10:30:00 UTC                7              2                       1                        0\n";
        assert_eq!(&text[head.len()..head.len() + row.len()], row);
        assert!(text.contains("r1      front            3      1.2     9.0\n"), "{text}");
    }

    #[test]
    fn router_show_lists_missing_luns_and_draining() {
        let mut router = router();
        let absent = |lun, health| LunReport { lun, from: "a, LUN 4".into(), health };
        router.targets[0].luns.extend([
            absent(1, LunHealth::Awaited),
            absent(2, LunHealth::NotFound),
            absent(3, LunHealth::NotServed),
        ]);
        router.draining = true;
        let text = show(&router, 1_795_343_460);
        assert!(text.starts_with("router r1: active, draining, for 1m 0s\n"), "{text}");
        assert!(text.contains("  LUN 0: a, LUN 3 (up)\n  LUN 1: a, LUN 4 (awaited)\n"), "{text}");
        let all = list(std::slice::from_ref(&router));
        assert!(all.contains("r1      active, draining        1  1 of 4          1         2  10"), "{all}");
        let one = RouterReport { failover: None, state: "draining".into(), ..router };
        assert!(show(&one, 1_795_343_460).starts_with("router r1: draining, for 1m 0s\n"));
    }

    #[test]
    fn router_has_no_path_if_no_lun_has_one() {
        let with = |healths: &[LunHealth]| {
            let mut router = router();
            let lun = |health: &LunHealth| LunReport { health: *health, ..LunReport::default() };
            router.targets[0].luns = healths.iter().map(lun).collect();
            router
        };
        use LunHealth::*;
        for healths in [&[Lost][..], &[Holding, NotFound], &[Another], &[Awaited]] {
            assert!(with(healths).has_no_path(), "{healths:?}");
        }
        for healths in [&[][..], &[Up], &[Lost, Up], &[NotFound]] {
            assert!(!with(healths).has_no_path(), "{healths:?}");
        }
        assert!(list(&[with(&[Lost])]).contains("r1      active, no path        1 "));
        let mut unseen = with(&[]);
        unseen.upstreams[0].luns = 0;
        assert!(unseen.has_no_path());
    }

    #[test]
    fn health_has_one_word_in_text_and_json() {
        use LunHealth::*;
        for health in [Up, Holding, Lost, Another, Awaited, NotFound, NotServed] {
            assert_eq!(serde_json::to_string(&health).unwrap(), format!("\"{health}\""));
        }
    }

    #[test]
    fn path_row_shows_counters_and_host() {
        let mut router = router();
        let used = PathReport {
            lun: "t/0".into(),
            url: "iscsi://h/t/0".into(),
            state: "optimized".into(),
            ..PathReport::default()
        };
        let own = PathReport {
            host: Some("iqn.x:h".into()),
            in_flight: Some(2),
            recoveries: Some(1),
            ..used.clone()
        };
        router.upstreams[0].paths = vec![used, own];
        let text = paths(&[router]);
        assert!(text.contains("t/0  iscsi://h/t/0  optimized     -          -           -  -\n"), "{text}");
        assert!(
            text.contains("t/0  iscsi://h/t/0  optimized     -          2           1  iqn.x:h\n"),
            "{text}"
        );
    }

    #[test]
    fn router_show_lists_targets_and_peer() {
        let text = show(&router(), 1_795_343_460);
        assert_eq!(
            text,
            "router r1: active, for 1m 0s\n\
             failover: preferred, not eligible; peer 10.0.0.6:3260: does not answer\n\
             upstream a: 1 LUN at iscsi://h/t\n\
             target iqn.2026-11.org.example:t1\n  LUN 0: a, LUN 3 (up)\n"
        );
        assert!(list(&[router()]).contains(
            "r1      active        1     1          1         2  10.0.0.6:3260 (does not answer)\n"
        ));
    }
}
