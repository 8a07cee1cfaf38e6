//! Groups the runs of a document that do the same work with different block sizes.

use super::figures::read_size;
use super::tables::{directions, of_percentile};
use crate::document::JobRun;
use crate::outcome::DirectionTotals;

/// The same work in one direction, with different block sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct Sweep<'a> {
    /// The work.
    pub name: String,
    /// The block sizes, ascending.
    pub points: Vec<SweepPoint<'a>>,
}

/// One block size of a sweep.
#[derive(Clone, Debug, PartialEq)]
pub struct SweepPoint<'a> {
    /// Block size.
    pub bytes: u64,
    /// Bytes per second; the mean, if there are several runs.
    pub rate: f64,
    /// Mean latency in nanoseconds.
    pub mean_ns: f64,
    /// The 99th percentile of latency in nanoseconds.
    pub p99_ns: Option<f64>,
    /// The runs, and the direction.
    pub runs: Vec<(&'a JobRun, &'static str, &'a DirectionTotals)>,
}

/// Sweeps of at least two sizes, those of reads first.
pub fn sweeps<'a>(runs: &[&'a JobRun]) -> Vec<Sweep<'a>> {
    let mut sweeps: Vec<Sweep> = Vec::new();
    for run in runs {
        for (direction, totals) in directions(&run.outcome) {
            let Some(bytes) = block_size(run, totals) else { continue };
            let name = work(run, runs, bytes, direction);
            let at = sweeps.iter().position(|sweep| sweep.name == name).unwrap_or_else(|| {
                sweeps.push(Sweep { name, points: Vec::new() });
                sweeps.len() - 1
            });
            add(&mut sweeps[at], bytes, (run, direction, totals));
        }
    }
    sweeps.retain(|sweep| sweep.points.len() > 1);
    sweeps.iter_mut().for_each(finish);
    sweeps.sort_by_key(|sweep| sweep.points[0].runs[0].1);
    sweeps
}

fn add<'a>(sweep: &mut Sweep<'a>, bytes: u64, run: (&'a JobRun, &'static str, &'a DirectionTotals)) {
    match sweep.points.iter_mut().find(|point| point.bytes == bytes) {
        Some(point) => point.runs.push(run),
        None => {
            sweep.points.push(SweepPoint { bytes, rate: 0.0, mean_ns: 0.0, p99_ns: None, runs: vec![run] })
        }
    }
}

fn finish(sweep: &mut Sweep) {
    sweep.points.sort_by_key(|point| point.bytes);
    for point in &mut sweep.points {
        let many = point.runs.len() as f64;
        point.rate = point.runs.iter().map(|(run, _, t)| t.rate(run.outcome.elapsed_s)).sum::<f64>() / many;
        point.mean_ns = point.runs.iter().map(|run| run.2.total.mean_ns).sum::<f64>() / many;
        let p99: Option<f64> = point.runs.iter().map(|run| of_percentile(&run.2.total, 99.0)).sum();
        point.p99_ns = p99.map(|sum| sum / many);
    }
}

/// The block size of a run with only one.
fn block_size(run: &JobRun, totals: &DirectionTotals) -> Option<u64> {
    let requested = run.job.iter().find(|word| word.0 == "bs").map(|word| word.1.as_str());
    match requested {
        Some(list) if list.contains([',', ':', '/', '-']) => None,
        _ => totals
            .bytes
            .is_multiple_of(totals.ios)
            .then(|| totals.bytes / totals.ios)
            .filter(|size| *size > 0),
    }
}

/// The work of a run without its block size: from its label, or from the options in which runs differ.
fn work(run: &JobRun, all: &[&JobRun], bytes: u64, direction: &str) -> String {
    let rest = match without_size(&run.label, bytes) {
        Some(name) => without_number(&name, run, all).unwrap_or(name),
        None => differing(run, all),
    };
    match (rest.as_str(), directions(&run.outcome).count()) {
        ("", _) => direction.to_owned(),
        (_, 1) => rest,
        _ => format!("{rest}, {direction}"),
    }
}

/// A label without its block size; None if the label does not contain it.
fn without_size(label: &str, bytes: u64) -> Option<String> {
    const AROUND: [char; 6] = [',', ':', ';', '(', ')', '='];
    let words: Vec<&str> = label.split_whitespace().collect();
    let is_size = |words: &[&str]| {
        let text = words.join(" ");
        let text = text.strip_prefix("bs=").unwrap_or(&text);
        read_size(text.trim_matches(AROUND)) == Some(bytes)
    };
    let spans = [2, 1]
        .into_iter()
        .flat_map(|many| (0..=words.len().saturating_sub(many)).map(move |at| at..at + many));
    let found = spans.filter(|span| span.end <= words.len()).find(|span| is_size(&words[span.clone()]))?;
    let mut rest: Vec<&str> = words[..found.start].to_vec();
    rest.extend(&words[found.end..]);
    Some(rest.join(" ").trim_matches([' ', ',', ':', ';']).to_owned())
}

/// A name without the number at its end, if that number only counts runs of the same job: `write 1`, `write 2`.
fn without_number(name: &str, run: &JobRun, all: &[&JobRun]) -> Option<String> {
    let ending = |name: &str| {
        let (rest, number) = name.rsplit_once(' ')?;
        number.parse::<u16>().ok().map(|_| rest.to_owned())
    };
    let rest = ending(name)?;
    let words = |run: &JobRun| -> Vec<(String, String)> {
        run.job.iter().filter(|word| !matches!(word.0.as_str(), "bs" | "amount")).cloned().collect()
    };
    let own = words(run);
    let is_other = |other: &&&JobRun| {
        let mut sizes = directions(&other.outcome).filter_map(|(_, totals)| block_size(other, totals));
        let label = sizes.next().and_then(|bytes| without_size(&other.label, bytes));
        label.and_then(|label| ending(&label)).is_some_and(|label| label == rest)
    };
    all.iter().filter(is_other).all(|other| words(other) == own).then_some(rest)
}

fn differing(run: &JobRun, all: &[&JobRun]) -> String {
    let differs = |word: &&(String, String)| {
        !matches!(word.0.as_str(), "bs" | "amount") && !all.iter().all(|other| other.job.contains(word))
    };
    let words: Vec<String> =
        run.job.iter().filter(differs).map(|word| format!("{} {}", word.0, word.1)).collect();
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::JobOutcome;

    fn run(label: &str, bs: &str, depth: &str, bytes: u64) -> JobRun {
        let read = DirectionTotals { ios: 10, bytes: 10 * bytes, ..DirectionTotals::default() };
        let job = vec![("bs".into(), bs.into()), ("depth".into(), depth.into())];
        let outcome = JobOutcome { elapsed_s: 1.0, read, ..JobOutcome::default() };
        JobRun { label: label.into(), job, targets: vec![], outcome }
    }

    fn names(runs: &[JobRun]) -> Vec<(String, Vec<u64>)> {
        let sweeps = sweeps(&runs.iter().collect::<Vec<_>>());
        sweeps.into_iter().map(|s| (s.name, s.points.iter().map(|p| p.bytes).collect())).collect()
    }

    #[test]
    fn labels_differing_in_block_size_are_one_sweep() {
        let runs = [
            run("8 KiB read", "8k", "1", 8192),
            run("4 KiB read", "4k", "1", 4096),
            run("direct, bs=4k", "4k", "1", 4096),
            run("direct, bs=8k", "8k", "1", 8192),
            run("once 4096", "4k", "1", 4096),
        ];
        assert_eq!(names(&runs), [("read".into(), vec![4096, 8192]), ("direct".into(), vec![4096, 8192])]);
    }

    #[test]
    fn trailing_number_counts_runs_only_of_equal_jobs() {
        let runs = ["4096 write 1", "4096 write 2", "8192 write 1", "8192 write 2"];
        let sizes = [4096, 4096, 8192, 8192];
        let same: Vec<JobRun> =
            runs.iter().zip(sizes).map(|(label, size)| run(label, "4k", "1", size)).collect();
        assert_eq!(names(&same), [("write".into(), vec![4096, 8192])]);
        let mut depths = same;
        depths.iter_mut().skip(1).step_by(2).for_each(|run| run.job[1].1 = "2".into());
        let expected = [("write 1".into(), vec![4096, 8192]), ("write 2".into(), vec![4096, 8192])];
        assert_eq!(names(&depths), expected);
    }

    #[test]
    fn label_without_size_uses_options_as_name() {
        let runs = [
            run("a", "4k", "1", 4096),
            run("b", "8k", "1", 8192),
            run("c", "4k", "32", 4096),
            run("d", "8k", "32", 8192),
        ];
        assert_eq!(
            names(&runs),
            [("depth 1".into(), vec![4096, 8192]), ("depth 32".into(), vec![4096, 8192])]
        );
    }

    #[test]
    fn repeated_runs_are_averaged_without_mixed_sizes() {
        let mut again = run("4k read", "4k", "1", 4096);
        again.outcome.elapsed_s = 2.0;
        let runs = [
            run("4k read", "4k", "1", 4096),
            again,
            run("8k read", "8k", "1", 8192),
            run("6k read", "4k:8k", "1", 6144),
        ];
        let refs: Vec<&JobRun> = runs.iter().collect();
        let sweeps = sweeps(&refs);
        assert_eq!((sweeps.len(), sweeps[0].points.len()), (1, 2));
        assert_eq!((sweeps[0].points[0].rate, sweeps[0].points[0].runs.len()), (30720.0, 2));
    }
}
