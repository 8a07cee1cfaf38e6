//! The statistics of one session.

use crate::outcome::{DirectionTotals, IoCounts, Latency, SeriesStep};
use crate::time_series::TimeSeries;
use hdrhistogram::Histogram;
use std::time::{Duration, Instant};

/// Significant digits of a histogram.
const DIGITS: u8 = 3;
/// Reported percentiles: those of fio, and 99.999.
const PERCENTILES: [f64; 13] =
    [1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.99, 99.999];

/// The longest recorded time in nanoseconds: a day.
const LONGEST: u64 = 86_400 * 1_000_000_000;

/// The times of a command.
#[derive(Clone, Copy, Debug)]
pub struct CommandTimes {
    /// When it was due.
    pub due: Instant,
    /// When it was submitted.
    pub started_at: Instant,
    /// When it completed.
    pub done: Instant,
}

fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos().try_into().map_or(LONGEST, |ns: u64| ns.min(LONGEST))
}

fn histogram() -> Histogram<u64> {
    Histogram::new(DIGITS).expect("three digits are valid")
}

/// Returns the nanoseconds of the time.
fn note(histogram: &mut Histogram<u64>, time: Duration) -> u64 {
    note_many(histogram, time, 1)
}

fn note_many(histogram: &mut Histogram<u64>, time: Duration, many: u64) -> u64 {
    let ns = nanoseconds(time);
    histogram.record_n(ns, many).expect("a histogram without a limit grows");
    ns
}

/// The statistics of one direction.
struct DirectionStats {
    ios: u64,
    bytes: u64,
    /// Commands that count only in the histograms.
    late: u64,
    service: Histogram<u64>,
    /// With a given rate: the histograms of `submit` and `total`.
    paced: Option<(Histogram<u64>, Histogram<u64>)>,
}

impl DirectionStats {
    fn new(paced: bool) -> DirectionStats {
        let paced = paced.then(|| (histogram(), histogram()));
        DirectionStats { ios: 0, bytes: 0, late: 0, service: histogram(), paced }
    }

    /// Returns the nanoseconds since the command was due.
    fn add(&mut self, bytes: u32, times: CommandTimes) -> u64 {
        self.ios += 1;
        self.bytes += u64::from(bytes);
        self.time(times)
    }

    /// Returns the nanoseconds since the command was due. Without a rate, it was due when it started.
    fn time(&mut self, times: CommandTimes) -> u64 {
        let service = note(&mut self.service, times.done - times.started_at);
        let Some((submit, total)) = &mut self.paced else { return service };
        note(submit, times.started_at - times.due);
        note(total, times.done - times.due)
    }

    fn merge(&mut self, other: &DirectionStats) {
        let add = |to: &mut Histogram<u64>, from| to.add(from).expect("a histogram without a limit grows");
        self.ios += other.ios;
        self.bytes += other.bytes;
        self.late += other.late;
        add(&mut self.service, &other.service);
        if let (Some(to), Some(from)) = (&mut self.paced, &other.paced) {
            add(&mut to.0, &from.0);
            add(&mut to.1, &from.1);
        }
    }

    fn totals(&self) -> DirectionTotals {
        let service = latency(&self.service);
        let (submit, total) = match &self.paced {
            Some((submit, total)) => (latency(submit), latency(total)),
            None => (Latency::default(), service.clone()),
        };
        DirectionTotals { ios: self.ios, bytes: self.bytes, submit, service, total }
    }
}

fn latency(times: &Histogram<u64>) -> Latency {
    if times.is_empty() {
        return Latency::default();
    }
    let bins = times.iter_recorded().map(|v| (v.value_iterated_to(), v.count_since_last_iteration()));
    let mut latency = Latency {
        mean_ns: times.mean(),
        stddev_ns: times.stdev(),
        min_ns: times.min(),
        max_ns: times.max(),
        percentiles: Vec::new(),
        histogram: bins.collect(),
    };
    let at = |percent: &f64| Some((*percent, latency.quantile(percent / 100.0)?));
    latency.percentiles = PERCENTILES.iter().filter_map(at).collect();
    latency
}

/// All statistics of a session. Statistics of several sessions can be merged.
pub struct SessionStats {
    read: DirectionStats,
    write: DirectionStats,
    steps: TimeSeries,
}

impl SessionStats {
    /// Starts at `measured_from`; `paced` is true if the job has a rate.
    pub fn new(measured_from: Instant, interval: Duration, paced: bool) -> SessionStats {
        let (read, write) = (DirectionStats::new(paced), DirectionStats::new(paced));
        SessionStats { read, write, steps: TimeSeries::new(measured_from, interval) }
    }

    fn direction(&mut self, read: bool) -> &mut DirectionStats {
        if read { &mut self.read } else { &mut self.write }
    }

    /// Records a command that ended. The caller leaves out commands that ended before the start.
    pub fn add(&mut self, read: bool, bytes: u32, times: CommandTimes) {
        let total = self.direction(read).add(bytes, times);
        self.steps.add(read, bytes, times.done, total);
    }

    /// Records a command that was in flight at the end of the time.
    pub fn add_late(&mut self, read: bool, times: CommandTimes) {
        let direction = self.direction(read);
        direction.late += 1;
        direction.time(times);
    }

    /// Records commands that had not started at the end of the time, with the time that they had waited.
    pub fn add_waiting(&mut self, read: bool, many: u64, waited: Duration) {
        if let Some((submit, total)) = self.direction(read).paced.as_mut().filter(|_| many > 0) {
            note_many(submit, waited, many);
            note_many(total, waited, many);
        }
    }

    /// Adds the statistics of another session.
    pub fn merge(&mut self, other: &SessionStats) {
        self.read.merge(&other.read);
        self.write.merge(&other.write);
        self.steps.merge(&other.steps);
    }

    /// The totals of reads and writes.
    pub fn totals(&self) -> (DirectionTotals, DirectionTotals) {
        (self.read.totals(), self.write.totals())
    }

    /// Commands that ended after the end of the time.
    pub fn late(&self) -> u64 {
        self.read.late + self.write.late
    }

    /// The counts of the session.
    pub fn counts(&self) -> IoCounts {
        IoCounts {
            read_ios: self.read.ios,
            read_bytes: self.read.bytes,
            write_ios: self.write.ios,
            write_bytes: self.write.bytes,
        }
    }

    /// The time series of a measurement that ended at `end`; the last interval may be shorter.
    pub fn series(&self, end: Instant) -> Vec<SeriesStep> {
        self.steps.series(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(measured_from: Instant, ms: u64) -> Instant {
        measured_from + Duration::from_millis(ms)
    }

    #[test]
    fn merged_sessions_add_each_direction_and_interval() {
        let measured_from = Instant::now();
        let new = || SessionStats::new(measured_from, Duration::from_secs(1), true);
        let (mut a, mut b) = (new(), new());
        a.add(
            true,
            512,
            CommandTimes {
                due: measured_from,
                started_at: at(measured_from, 100),
                done: at(measured_from, 400),
            },
        );
        b.add(
            false,
            1024,
            CommandTimes { due: measured_from, started_at: measured_from, done: at(measured_from, 2500) },
        );
        a.merge(&b);
        let (read, write) = a.totals();
        assert_eq!((read.ios, read.bytes, write.ios, write.bytes), (1, 512, 1, 1024));
        let ms = |ns: u64| (ns as f64 / 1e6).round() as u64;
        assert_eq!((ms(read.submit.max_ns), ms(read.service.max_ns), ms(read.total.max_ns)), (100, 300, 400));
        let series = a.series(at(measured_from, 2600));
        assert_eq!(series.len(), 3);
        assert_eq!(
            (series[0].share.read_ios, series[1].share, series[2].share.write_ios),
            (1, IoCounts::default(), 1)
        );
        assert_eq!((series[1].until_s, series[2].until_s), (2.0, 2.6));
        assert_eq!(a.series(at(measured_from, 4200)).len(), 5, "including intervals without commands");
        assert_eq!((a.counts().read_bytes, a.counts().write_bytes), (512, 1024));
    }

    #[test]
    fn histogram_keeps_three_digits_and_every_count() {
        let measured_from = Instant::now();
        let mut record = SessionStats::new(measured_from, Duration::from_secs(1), false);
        for us in 1..=1000 {
            record.add(
                true,
                1,
                CommandTimes {
                    due: measured_from,
                    started_at: measured_from,
                    done: measured_from + Duration::from_micros(us),
                },
            );
        }
        let (read, _) = record.totals();
        let of = |percent: f64| {
            read.total.percentiles.iter().find(|p| p.0 == percent).expect("a percentile").1 as f64
        };
        assert!((of(50.0) / 500_000.0 - 1.0).abs() < 0.002, "{}", of(50.0));
        assert!((of(99.9) / 999_000.0 - 1.0).abs() < 0.002, "{}", of(99.9));
        assert_eq!(read.total.histogram.iter().map(|bin| bin.1).sum::<u64>(), 1000);
        assert_eq!(read.submit, Latency::default(), "in a closed loop, commands are due when they start");
    }

    #[test]
    fn one_slow_command_of_thousand_is_above_p99_9() {
        let measured_from = Instant::now();
        let mut record = SessionStats::new(measured_from, Duration::from_secs(2), false);
        let mut took =
            |done| record.add(true, 1, CommandTimes { due: measured_from, started_at: measured_from, done });
        (0..999).for_each(|_| took(measured_from + Duration::from_nanos(10)));
        took(measured_from + Duration::from_secs(1));
        let total = record.totals().0.total;
        assert_eq!(total.quantile(99.9 / 100.0), Some(10));
        assert_eq!(total.percentiles.iter().find(|p| p.0 == 99.9), Some(&(99.9, 10)));
        assert!(total.quantile(1.0) > Some(999_000_000));
    }
}
