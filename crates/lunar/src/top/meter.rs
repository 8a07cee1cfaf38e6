//! Samples as rows: each sample is compared with the one before.

use super::activity::{Activity, Counters};
use super::row::{Place, Row, View};
use super::sample::Sample;
use lunar_admin::rows::utc;
use lunar_api::client::ServerReport;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Instant, UNIX_EPOCH};

/// The rows of one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// The moment (RFC 3339).
    pub time: String,
    /// Seconds since the sample before. None: there is none of this server process, and so no rate.
    pub seconds: Option<f64>,
    /// The server.
    pub server: ServerReport,
    /// The rows, by [`View`].
    pub rows: [Vec<Row>; 3],
}

/// Compares samples.
#[derive(Default)]
pub struct Meter(Option<Moment>);

type CountersByPlace = BTreeMap<Place, Counters>;

struct Moment {
    taken_at: Instant,
    uptime_s: f64,
    counters: [CountersByPlace; 3],
}

impl Meter {
    /// The rows of a sample. After a restart of the server, counters begin with 0, so the first sample has no rates.
    pub fn measure(&mut self, sample: &Sample) -> Snapshot {
        let (paths, states) = paths(sample);
        let now = Moment {
            taken_at: sample.taken_at,
            uptime_s: sample.metrics.uptime_s,
            counters: [luns(sample), sessions(sample), paths],
        };
        let before = self.0.take().filter(|before| before.uptime_s < now.uptime_s);
        let seconds = before
            .as_ref()
            .map(|before| now.taken_at.saturating_duration_since(before.taken_at).as_secs_f64())
            .filter(|seconds| *seconds > 0.0);
        let none = Counters::default();
        let activity = |view: usize, place: &Place, counters: &Counters| match (&before, seconds) {
            (Some(before), Some(seconds)) => {
                // A row that is new since then began with 0.
                let then = before.counters[view].get(place).unwrap_or(&none);
                counters.since(then, seconds, &sample.metrics.bounds_s)
            }
            _ => Activity::unmeasured(counters),
        };
        let row = |view: usize, place: &Place, counters: &Counters| Row {
            place: place.clone(),
            state: states.get(place).map(|states| states.iter().cloned().collect::<Vec<_>>().join(", ")),
            activity: activity(view, place, counters),
        };
        let rows = View::ALL.map(|view| {
            now.counters[view as usize]
                .iter()
                .map(|(place, counters)| row(view as usize, place, counters))
                .collect()
        });
        let time = sample.time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        self.0 = Some(now);
        Snapshot { time: utc(time), seconds, server: sample.server.clone(), rows }
    }
}

fn luns(sample: &Sample) -> CountersByPlace {
    let luns = sample.metrics.luns.iter();
    luns.map(|lun| (Place::Lun { target: lun.target.clone(), lun: lun.lun }, Counters::of_lun(lun))).collect()
}

fn sessions(sample: &Sample) -> CountersByPlace {
    let sessions = sample.sessions.iter().map(|session| {
        let place = Place::Session {
            tsih: session.tsih,
            initiator: session.initiator.clone(),
            initiator_address: session.initiator_address.clone(),
            target: session.target.clone(),
        };
        (place, Counters::of_session(&session.counters))
    });
    sessions.collect()
}

/// The paths, and the states that they have on cores and for hosts.
fn paths(sample: &Sample) -> (CountersByPlace, BTreeMap<Place, BTreeSet<String>>) {
    let (mut counters, mut states) = (CountersByPlace::new(), BTreeMap::<Place, BTreeSet<String>>::new());
    for router in &sample.routers {
        for (upstream, path) in
            router.upstreams.iter().flat_map(|one| one.paths.iter().map(move |p| (one, p)))
        {
            let place = Place::Path {
                router: router.name.clone(),
                upstream: upstream.name.clone(),
                lun: path.lun.clone(),
                url: path.url.clone(),
            };
            states.entry(place.clone()).or_default().insert(path.state.clone());
            counters.entry(place).or_default().add(&Counters::of_path(path));
        }
    }
    (counters, states)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_admin::metrics::{LunMetrics, MetricsReport, OpMetrics};
    use lunar_admin::router::{PathReport, PathTraffic, RouterReport, UpstreamReport};
    use std::time::{Duration, SystemTime};

    pub(crate) fn sample(start: Instant, at_s: u64, uptime_s: f64, reads: u64) -> Sample {
        let op = OpMetrics { op: "read".into(), commands: reads, latency: None };
        let lun = LunMetrics { target: "iqn.t".into(), lun: 3, ops: vec![op], ..LunMetrics::default() };
        Sample {
            taken_at: start + Duration::from_secs(at_s),
            time: SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_343_400 + at_s),
            server: ServerReport {
                version: "1.0".into(),
                process: 1,
                uptime_s: uptime_s as u64,
                config_file: None,
                config_version: "1".into(),
                confirm_by: None,
                stopping: false,
                targets: 1,
                luns: 1,
                subsystems: 0,
                namespaces: 0,
                sessions: 0,
                warnings: Vec::new(),
            },
            metrics: MetricsReport { uptime_s, luns: vec![lun], ..MetricsReport::default() },
            sessions: Vec::new(),
            routers: Vec::new(),
        }
    }

    fn reads_s(snapshot: &Snapshot) -> Option<f64> {
        snapshot.rows[View::Luns as usize][0].activity.reads_s
    }

    #[test]
    fn rates_need_two_samples_of_one_process() {
        let (mut meter, start) = (Meter::default(), Instant::now());
        let first = meter.measure(&sample(start, 0, 10.0, 100));
        assert_eq!((first.seconds, reads_s(&first)), (None, None));
        let second = meter.measure(&sample(start, 2, 12.0, 300));
        assert_eq!((second.seconds, reads_s(&second)), (Some(2.0), Some(100.0)));
        assert_eq!(second.time, "2026-11-22T10:30:02Z");
        // The server was started again: its counters are smaller, or by chance larger.
        for reads in [5, 900] {
            let third = meter.measure(&sample(start, 4, 1.0, reads));
            assert_eq!((third.seconds, reads_s(&third)), (None, None));
            meter.measure(&sample(start, 5, 2.0, reads));
        }
        let last = meter.measure(&sample(start, 6, 3.0, 910));
        assert_eq!(reads_s(&last), Some(10.0));
    }

    #[test]
    fn row_that_is_new_began_with_0() {
        let (mut meter, start) = (Meter::default(), Instant::now());
        let empty = Sample {
            metrics: MetricsReport { uptime_s: 1.0, ..MetricsReport::default() },
            ..sample(start, 0, 1.0, 0)
        };
        meter.measure(&empty);
        assert_eq!(reads_s(&meter.measure(&sample(start, 1, 2.0, 40))), Some(40.0));
    }

    #[test]
    fn path_is_one_row_for_all_cores() {
        let path = |core: &str, state: &str, in_flight| PathReport {
            lun: "iqn.up/0".into(),
            url: "iscsi://a/iqn.up/0".into(),
            state: state.into(),
            core: Some(core.into()),
            in_flight: Some(in_flight),
            total: Some(PathTraffic { reads: 10, writes: 30, errors: 2, time_us: 400, ..Default::default() }),
            ..PathReport::default()
        };
        let paths =
            vec![path("core-0", "optimized", 3), path("core-1", "down", 2), path("core-2", "down", 0)];
        let upstream = UpstreamReport { name: "up".into(), paths, ..UpstreamReport::default() };
        let router = RouterReport { name: "r".into(), upstreams: vec![upstream], ..RouterReport::default() };
        let start = Instant::now();
        let at = |seconds, uptime_s| Sample {
            routers: vec![router.clone()],
            ..sample(start, seconds, uptime_s, 0)
        };
        let mut meter = Meter::default();
        let snapshot = meter.measure(&at(0, 1.0));
        let rows = &snapshot.rows[View::Paths as usize];
        assert_eq!((rows.len(), rows[0].activity.in_flight), (1, Some(5)));
        assert_eq!(rows[0].state.as_deref(), Some("down, optimized"));
        assert_eq!(rows[0].activity.reads_s, None, "one sample has no rates");
        let then = meter.measure(&at(1, 2.0));
        let activity = then.rows[View::Paths as usize][0].activity;
        assert_eq!((activity.reads_s, activity.latency_s), (Some(0.0), None));
        let mut meter = Meter::default();
        meter.measure(&sample(start, 0, 1.0, 0));
        let activity = meter.measure(&at(1, 2.0)).rows[View::Paths as usize][0].activity;
        assert_eq!(
            (activity.reads_s, activity.writes_s, activity.errors_s),
            (Some(30.0), Some(90.0), Some(6.0))
        );
        assert!(activity.latency_s.is_some_and(|mean| (mean - 1e-5).abs() < 1e-12), "{activity:?}");
    }

    #[test]
    fn counters_of_a_session_become_rates() {
        let counted = lunar_admin::Counters {
            writes: 6,
            write_bytes: 600,
            in_flight: 3,
            timed: 4,
            time_us: 2000,
            ..Default::default()
        };
        let activity = Counters::of_session(&counted).since(&Counters::default(), 2.0, &[]);
        assert_eq!((activity.writes_s, activity.written_bytes_s), (Some(3.0), Some(300.0)));
        assert_eq!((activity.in_flight, activity.latency_s), (Some(3), Some(0.0005)));
    }
}
