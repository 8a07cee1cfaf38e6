//! `[limits]` and `[session]`: numbers, each with its range and its default.

use lunar_config::Diagnostics;
use lunar_config::{Section, kind, text};
use lunar_proto::chap::Algorithm;
use lunar_proto::duration;
use lunar_target::config::{AllowedDigests, SessionConfig, TargetLimits};
use std::time::Duration;

/// The limits of peers, and the maximum number of registrants of a LUN.
pub(super) fn limits(p: &mut Diagnostics<'_>, mut s: Section<'_>) -> (TargetLimits, usize) {
    let limits = TargetLimits {
        connections: s.number(p, "connections", 1..=1_000_000).unwrap_or(4096),
        connections_before_login: s.number(p, "connections_before_login", 1..=1_000_000).unwrap_or(256),
        login_timeout: time(p, &mut s, "login_timeout_s", 3600, 15),
        sessions: s.number(p, "sessions", 1..=65535).unwrap_or(2048),
        sessions_per_initiator: s.number(p, "sessions_per_initiator", 1..=65535).unwrap_or(128),
        discovery_sessions: s.number(p, "discovery_sessions", 1..=65535).unwrap_or(256),
        discovery_timeout: time(p, &mut s, "discovery_timeout_s", DAY_S, 60),
        commands_per_session: s.number(p, "commands_per_session", 1..=65535).unwrap_or(128),
        // RFC 7143 section 6.2 requires at least 8 KiB of key text.
        text_bytes: bytes(s.size(p, "text_bytes", 8 << 10..=16 << 20), 64 << 10),
        // The memory must hold at least one largest burst in each direction.
        memory: bytes(s.size(p, "memory", 32 << 20..=1 << 50), 1 << 30),
    };
    let max_registrants = s.number(p, "registrants", 1..=65535).unwrap_or(1024);
    s.done(p);
    (limits, max_registrants)
}

fn bytes(size: Option<u64>, default: usize) -> usize {
    size.and_then(|size| usize::try_from(size).ok()).unwrap_or(default)
}

const DAY_S: u64 = 86_400;
/// With shorter timeouts, a slow network would look like a dead peer.
const SHORTEST: Duration = Duration::from_secs(1);

/// A time of a second or more, or its default.
fn time(
    p: &mut Diagnostics<'_>,
    s: &mut Section<'_>,
    key: &'static str,
    max_s: u64,
    default_s: u64,
) -> Duration {
    let range = SHORTEST..=Duration::from_secs(max_s);
    s.time(p, key, range).unwrap_or(Duration::from_secs(default_s))
}

/// The interval of NOP-In; None: never.
fn nop_interval(p: &mut Diagnostics<'_>, s: &mut Section<'_>) -> Option<Duration> {
    const KEY: &str = "nop_interval_s";
    let range = Duration::ZERO..=Duration::from_secs(DAY_S);
    let interval = s.time(p, KEY, range).unwrap_or(Duration::from_secs(30));
    if (Duration::from_millis(1)..SHORTEST).contains(&interval)
        && let Some(value) = s.find(KEY)
    {
        let what = format!("`{KEY}` is out of range: {}", duration::show(interval));
        p.add(&value.span(), what, "use 0 (never), or 1s to 1d");
    }
    (!interval.is_zero()).then_some(interval)
}

/// Lengths of bursts and segments (RFC 7143 sections 13.12 to 13.14).
const LENGTH: std::ops::RangeInclusive<u64> = 512..=(1 << 24) - 1;

/// Negotiation and keepalive.
pub(super) fn session(p: &mut Diagnostics<'_>, mut s: Section<'_>) -> SessionConfig {
    let first_burst_at = s.find("first_burst_length").map(|value| value.span());
    let session = SessionConfig {
        initial_r2t: s.flag(p, "initial_r2t", false),
        immediate_data: s.flag(p, "immediate_data", true),
        max_recv_data_segment_length: length(p, &mut s, "max_recv_data_segment_length", 256 << 10),
        max_burst_length: length(p, &mut s, "max_burst_length", 1 << 20),
        first_burst_length: length(p, &mut s, "first_burst_length", 256 << 10),
        max_outstanding_r2t: s.number(p, "max_outstanding_r2t", 1..=32).unwrap_or(8),
        default_time2wait: s.number(p, "default_time2wait", 0..=3600).unwrap_or(2),
        default_time2retain: s.number(p, "default_time2retain", 0..=3600).unwrap_or(20),
        header_digest: digests(p, &mut s, "header_digest"),
        data_digest: digests(p, &mut s, "data_digest"),
        nop_interval: nop_interval(p, &mut s),
        nop_timeout: time(p, &mut s, "nop_timeout_s", DAY_S, 30),
        data_out_timeout: time(p, &mut s, "data_out_timeout_s", DAY_S, 30),
        chap_algorithms: algorithms(p, &mut s, "chap_algorithms"),
    };
    if session.first_burst_length > session.max_burst_length {
        p.add(
            &first_burst_at.unwrap_or(s.at.clone()),
            format!(
                "`first_burst_length` ({}) exceeds `max_burst_length` ({})",
                session.first_burst_length, session.max_burst_length
            ),
            "decrease first_burst_length, or increase max_burst_length (RFC 7143 section 13.14)",
        );
    }
    s.done(p);
    session
}

fn length(p: &mut Diagnostics<'_>, s: &mut Section<'_>, key: &'static str, default: u32) -> u32 {
    s.size(p, key, LENGTH).and_then(|length| u32::try_from(length).ok()).unwrap_or(default)
}

/// A list of accepted digests.
fn digests(p: &mut Diagnostics<'_>, s: &mut Section<'_>, key: &'static str) -> AllowedDigests {
    const HINT: &str = "write [\"None\"], [\"CRC32C\"] or both";
    let mut digests = AllowedDigests { none: false, crc32c: false };
    let Some(value) = s.find(key) else { return AllowedDigests { none: true, crc32c: true } };
    let Some(list) = value.get_ref().as_array() else {
        kind(p, key, value, "a list", HINT);
        return digests;
    };
    for value in list.iter() {
        match text(p, key, value) {
            Some("None") => digests.none = true,
            Some("CRC32C") => digests.crc32c = true,
            Some(other) => p.add(&value.span(), format!("unknown digest \"{}\"", other.escape_debug()), HINT),
            None => {}
        }
    }
    if list.is_empty() {
        p.add(&value.span(), format!("`{key}` is empty"), HINT);
    }
    digests
}

/// A list of accepted CHAP algorithms.
fn algorithms(p: &mut Diagnostics<'_>, s: &mut Section<'_>, key: &'static str) -> Vec<Algorithm> {
    const HINT: &str = "write one or more of \"md5\", \"sha1\", \"sha256\" and \"sha3-256\" in brackets";
    let Some(value) = s.find(key) else { return Algorithm::ALL.to_vec() };
    let Some(list) = value.get_ref().as_array() else {
        kind(p, key, value, "a list", HINT);
        return Vec::new();
    };
    if list.is_empty() {
        p.add(&value.span(), format!("`{key}` is empty"), HINT);
    }
    let mut algorithms = Vec::new();
    for value in list.iter() {
        let Some(name) = text(p, key, value) else { continue };
        match Algorithm::ALL.into_iter().find(|algorithm| algorithm.name() == name) {
            Some(algorithm) => algorithms.push(algorithm),
            None => p.add(&value.span(), format!("unknown CHAP algorithm \"{}\"", name.escape_debug()), HINT),
        }
    }
    // In a fixed order, so that equal sets compare as equal.
    Algorithm::ALL.into_iter().filter(|algorithm| algorithms.contains(algorithm)).collect()
}
