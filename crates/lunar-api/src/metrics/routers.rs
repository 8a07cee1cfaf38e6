//! Metrics of routers, their pairs, upstreams and paths.

use super::text::MetricType::{self, Counter, Gauge};
use super::text::MetricsText;
use lunar_admin::RouterReport;
use lunar_admin::router::{Hop, LunHealth, PathReport, PathTraffic};
use std::collections::BTreeMap;

/// The states of a router.
const STATES: [&str; 7] = ["serving", "no path", "draining", "active", "standby", "taking", "yielding"];
/// The states of a path that serves I/O.
const USABLE: [&str; 3] = ["optimized", "non-optimized", "up"];

pub fn add(text: &mut MetricsText, routers: &[RouterReport]) {
    states(text, routers);
    hops(text, routers);
    luns(text, routers);
    upstreams(text, routers);
    paths(text, routers);
}

fn states(text: &mut MetricsText, routers: &[RouterReport]) {
    let mut state =
        text.metric("lunar_router_state", Gauge, "1 for the state of a router, 0 for the others.");
    for router in routers {
        for one in STATES {
            let labels = [("router", &*router.name), ("state", &*one.replace(' ', "_"))];
            state.add(&labels, u8::from(one == router.state));
        }
    }
    let mut draining = text.metric("lunar_router_draining", Gauge, "Whether a router rejects logins.");
    routers.iter().for_each(|router| draining.add(&[("router", &router.name)], u8::from(router.draining)));
    let mut no_path =
        text.metric("lunar_router_without_path", Gauge, "Whether no path leads to any LUN of a router.");
    routers
        .iter()
        .for_each(|router| no_path.add(&[("router", &router.name)], u8::from(router.has_no_path())));
    let mut logins = text.metric("lunar_router_logins_total", Counter, "Logins to a router by result.");
    for router in routers {
        let counts = [
            ("accepted", router.logins_accepted),
            ("access", router.target_access_failures),
            ("authentication", router.authentication_failures),
        ];
        for (result, count) in counts {
            logins.add(&[("router", &router.name), ("result", result)], count);
        }
    }
    let pairs = || routers.iter().filter_map(|router| Some((router, router.failover.as_ref()?)));
    let mut peer = text.metric("lunar_router_pair_peer_up", Gauge, "Whether the peer of a pair answers.");
    pairs().for_each(|(router, pair)| peer.add(&[("router", &router.name)], u8::from(pair.state.is_some())));
    let mut eligible =
        text.metric("lunar_router_pair_eligible", Gauge, "Whether a router of a pair may become active.");
    pairs().for_each(|(router, pair)| eligible.add(&[("router", &router.name)], u8::from(pair.eligible)));
}

fn hops(text: &mut MetricsText, routers: &[RouterReport]) {
    let of = |router: &RouterReport| -> [(&'static str, Hop); 3] {
        [("front", router.front), ("queue", router.queue), ("upstream", router.upstream)]
    };
    let mut commands =
        text.metric("lunar_router_hop_commands_total", Counter, "Commands in a hop of a router.");
    for router in routers {
        for (hop, total) in of(router) {
            commands.add(&[("router", &router.name), ("hop", hop)], total.commands);
        }
    }
    let mut time = text.metric(
        "lunar_router_hop_time_seconds_total",
        Counter,
        "Sum of the latencies in a hop of a router.",
    );
    for router in routers {
        for (hop, total) in of(router) {
            let sum_s = total.mean_us * total.commands as f64 / 1e6;
            time.add(&[("router", &router.name), ("hop", hop)], sum_s);
        }
    }
}

fn luns(text: &mut MetricsText, routers: &[RouterReport]) {
    let mut up = text.metric("lunar_router_lun_up", Gauge, "Whether a LUN of a router works.");
    for router in routers {
        for target in &router.targets {
            for lun in &target.luns {
                let labels =
                    [("router", &*router.name), ("target", &target.name), ("lun", &lun.lun.to_string())];
                up.add(&labels, u8::from(lun.health == LunHealth::Up));
            }
        }
    }
}

fn upstreams(text: &mut MetricsText, routers: &[RouterReport]) {
    let all = || routers.iter().flat_map(|router| router.upstreams.iter().map(move |one| (router, one)));
    let mut up = text.metric("lunar_upstream_up", Gauge, "Whether an upstream can be used.");
    for (router, upstream) in all() {
        let labels = [("router", &*router.name), ("upstream", &upstream.name)];
        up.add(&labels, u8::from(upstream.obstacle.is_none()));
    }
    let mut luns = text.metric("lunar_upstream_luns", Gauge, "LUNs that were found at an upstream.");
    for (router, upstream) in all() {
        luns.add(&[("router", &router.name), ("upstream", &upstream.name)], upstream.luns);
    }
}

/// A path: router, upstream, LUN and URL. Its users are cores, or hosts in passthrough mode.
type PathKey<'a> = (&'a str, &'a str, &'a str, &'a str);

/// The facts that all users of a path have in common.
#[derive(Default)]
struct PathTotal {
    is_up: bool,
    in_flight: usize,
    recoveries: u64,
    /// None: it counts none.
    traffic: Option<PathTraffic>,
}

fn paths(text: &mut MetricsText, routers: &[RouterReport]) {
    let mut all: BTreeMap<PathKey<'_>, PathTotal> = BTreeMap::new();
    for router in routers {
        for upstream in &router.upstreams {
            let is_used = |path: &&PathReport| path.state != "unused";
            for path in upstream.paths.iter().filter(is_used) {
                let total = all.entry((&router.name, &upstream.name, &path.lun, &path.url)).or_default();
                total.is_up |= USABLE.contains(&&*path.state);
                total.in_flight += path.in_flight.unwrap_or_default();
                total.recoveries += u64::from(path.recoveries.unwrap_or_default());
                if let Some(more) = path.total {
                    total.traffic = Some(total.traffic.unwrap_or_default().and(more));
                }
            }
        }
    }
    let labels = |&(router, upstream, lun, path): &PathKey<'_>| {
        [("router", router), ("upstream", upstream), ("lun", lun), ("path", path)]
            .map(|(n, l)| (n, l.to_owned()))
    };
    for (name, metric_type, help, value) in PATH_METRICS {
        let mut metric = text.metric(name, metric_type, help);
        for (key, total) in &all {
            let labels = labels(key);
            if let Some(value) = value(total) {
                metric.add(&labels.each_ref().map(|(name, label)| (*name, &**label)), value);
            }
        }
    }
}

/// Name, type, help and value of a metric of a path.
type PathMetric = (&'static str, MetricType, &'static str, fn(&PathTotal) -> Option<f64>);

const PATH_METRICS: [PathMetric; 9] = [
    ("lunar_path_up", Gauge, "Whether a path that is in use works.", |path| {
        Some(u8::from(path.is_up).into())
    }),
    ("lunar_path_commands_in_flight", Gauge, "Commands on a path.", |path| Some(path.in_flight as f64)),
    ("lunar_path_reconnects_total", Counter, "Sessions of a path that were opened again.", |path| {
        Some(path.recoveries as f64)
    }),
    ("lunar_path_reads_completed_total", Counter, "Reads on a path.", |path| {
        Some(path.traffic?.reads as f64)
    }),
    ("lunar_path_writes_completed_total", Counter, "Writes on a path.", |path| {
        Some(path.traffic?.writes as f64)
    }),
    ("lunar_path_read_bytes_total", Counter, "Bytes read on a path.", |path| {
        Some(path.traffic?.read_bytes as f64)
    }),
    ("lunar_path_written_bytes_total", Counter, "Bytes written on a path.", |path| {
        Some(path.traffic?.written_bytes as f64)
    }),
    ("lunar_path_errors_total", Counter, "Commands that failed on a path.", |path| {
        Some(path.traffic?.errors as f64)
    }),
    (
        "lunar_path_time_seconds_total",
        Counter,
        "Sum of the latencies of reads and writes on a path.",
        |path| Some(path.traffic?.time_us as f64 / 1e6),
    ),
];
