use super::args::tests::args;
use super::*;
use crate::testing::{TempDir, dropped, is_cached, play, served};
use lunar_bench::ErrorKind;
use lunar_bench::testing::RecordingDisk;

fn disktest(line: &str) -> Result<(Document, String), Error> {
    play(|context| run(&args(line), context))
}

/// The messages of a level.
fn messages<'a>(text: &'a str, level: &str) -> Vec<&'a str> {
    let level = format!("{level:5}");
    let message = |line: &'a str| {
        let fields: Vec<&str> = line.splitn(7, '|').collect();
        (fields.len() == 7 && fields[2].trim_start().starts_with(level.trim_end())).then(|| fields[6].trim())
    };
    text.lines().filter_map(message).collect()
}

fn figure(message: &str, before: &str) -> f64 {
    let at = message.find(before).unwrap_or_else(|| panic!("{before} in {message}")) + before.len();
    let rest = &message[at..];
    let end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(rest.len());
    rest[..end].trim_end_matches('.').parse().unwrap_or_else(|_| panic!("{message}"))
}

#[test]
fn pass_prints_start_stat_and_end_lines() {
    let (document, text) = disktest("-B 4k -K 2 -P A -r null:1M").expect("the tool runs");
    assert!(
        text.starts_with("| ")
            && text.contains(&format!(
                " | START | {} | v1.1.12 | null:1048576 | Start args: -r -B 4k -K 2 -P A (-I b) (-N 2048) (-c) (-p R) \
                 (-L 256) (-D 100:0)\n",
                std::process::id()
            )),
        "{text}"
    );
    assert_eq!(messages(&text, "INFO"), ["Starting pass"]);
    let stat = messages(&text, "STAT");
    assert_eq!(stat.len(), 4, "{text}");
    assert_eq!(stat[0], "Total bytes read in 256 transfers: 1048576");
    assert!(
        stat[1].starts_with("Total read throughput: ")
            && stat[3].starts_with("Total overall runtime: 1 seconds")
    );
    assert_eq!(messages(&text, "END"), ["Test Done (Passed)"]);
    assert_eq!((document.runs.len(), document.runs[0].outcome.read.ios), (1, 256));
}

#[test]
fn linear_passes_write_all_then_read_and_compare() {
    let scratch = TempDir::folder();
    let disk = scratch.file("disk", 1 << 20);
    let (document, text) =
        disktest(&format!("-B 8k -p L -r -w -n -E 8k -C 2 -h 1 -P TX -I f {disk}")).expect("the tool runs");
    assert_eq!(
        messages(&text, "INFO"),
        [
            "Starting write pass 1 of 2",
            "Starting read pass 1 of 2",
            "Starting write pass 2 of 2",
            "Starting read pass 2 of 2"
        ]
    );
    let stat = messages(&text, "STAT");
    assert_eq!(
        (stat[0], stat[2]),
        ("1048576 bytes written in 128 transfers.", "1048576 bytes read in 128 transfers.")
    );
    assert!(stat[1].starts_with("Write throughput: "), "{text}");
    assert!(stat.contains(&"Total bytes read in 256 transfers: 2097152"), "{text}");
    assert_eq!(document.runs.len(), 4);
    assert_eq!(std::fs::read(&disk).expect("there")[5 * 512 + 7], 5);
    // Other data: the comparison fails, and the error is printed.
    let (document, text) =
        disktest(&format!("-B 8k -p L -r -f a5 -E 8k -I f {disk}")).expect("the tool runs");
    assert_eq!(messages(&text, "ERROR"), ["byte 0 differs from the data written"]);
    assert_eq!(messages(&text, "END"), ["Test Done (Failed)"]);
    assert!(document.ended_early().is_some());
}

#[test]
fn default_options_are_printed_in_parentheses() {
    let (_, text) = disktest("-w -B 256k -T 1 null:1M").expect("the tool runs");
    assert!(
        text.contains("Start args: -w -B 256k -T 1 (-I b) (-N 2048) (-K 4) (-c) (-p R) (-L 4) (-D 0:100)\n"),
        "{text}"
    );
    let (_, text) = disktest("-p L -r -w -I fd -n -s 8:15 -K 1 null:1M").expect("the tool runs");
    let expected = "Start args: -n -r -w -K 1 -p L -I fd -s 8:15 (-B 512) (-N 8) (-L 16) (-p u)\n";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn seeks_are_exact_for_any_sizes() {
    let ios = |line: &str| -> Vec<(u64, u64)> {
        let (document, _) = disktest(line).expect("the tool runs");
        document.runs.iter().map(|run| (run.outcome.write.ios, run.outcome.read.ios)).collect()
    };
    assert_eq!(ios("-B 4k -p L -r -w -L 35 null:1M"), [(17, 0), (0, 17)]);
    assert_eq!(ios("-B 4k -p l -r -w -L 35 null:1M"), [(18, 17)]);
    assert_eq!(ios("-B 1:64 -r -L 1K null:1M"), [(0, 1000)]);
    let (document, _) = disktest("-B 3:64 -w -L 500 memory:1M").expect("the tool runs");
    assert_eq!((document.runs[0].outcome.ios(), document.runs[0].outcome.bytes() % 512), (500, 0));
}

#[test]
fn interleaved_passes_stay_within_the_threads() {
    for threads in [1, 5] {
        let probe = RecordingDisk::new(1 << 20);
        let disk = served(probe.clone());
        let line = format!("-B 4k -p l -r -w -K {threads} -L 100 --destroy {}", disk.url);
        disktest(&line).expect("the tool runs");
        assert_eq!(probe.max_in_flight(), threads, "{line}");
        let places = |all: Vec<(u64, usize)>| all.into_iter().map(|io| io.0).max();
        assert_eq!((places(probe.writes()), probe.writes().len()), (Some(49 * 4096), 50));
    }
}

#[test]
fn ranges_and_data_options_are_applied() {
    let scratch = TempDir::folder();
    let written = |line: &str| {
        let disk = scratch.file("disk", 64 << 10);
        disktest(&format!("-w -I f -p L {line} {disk}")).expect("the tool runs");
        let bytes = std::fs::read(&disk).expect("there");
        let first = bytes.iter().position(|byte| *byte != 0).expect("something was written");
        let last = bytes.iter().rposition(|byte| *byte != 0).expect("something was written");
        (first, last + 1, bytes)
    };
    let (first, end, bytes) = written("-s 2:5 -f a5");
    assert_eq!((first, end), (1024, 3072));
    assert!(bytes[1024..3072].iter().all(|byte| *byte == 0xa5));
    let (first, end, _) = written("-B 8k -S 1:2 -f 5a");
    assert_eq!((first, end), (8192, 24576));
    let (.., bytes) = written("-B 1k -c");
    assert!(bytes.chunks(256).all(|chunk| chunk.iter().copied().eq(0..=255)));
    let (.., bytes) = written("-B 1k");
    assert!(bytes.chunks(256).all(|chunk| chunk.iter().copied().eq(0..=255)), "-c is the default");
    let (.., bytes) = written("-B 64k -z -a 1");
    let mut count = [0; 256];
    bytes.iter().for_each(|byte| count[usize::from(*byte)] += 1);
    assert!(count.iter().all(|n| (128..512).contains(n)), "{count:?}");
    assert!(written("-B 64k -z -a 2").2 != bytes, "another seed, other bytes");
}

#[test]
fn io_type_with_d_bypasses_the_page_cache() {
    let scratch = TempDir::folder();
    let disk = scratch.file("disk", 0);
    std::fs::write(&disk, [0; 1 << 20]).expect("written");
    for (kind, is_there) in [("f", true), ("fd", false), ("b", true), ("bd", false), ("r", false)] {
        if !dropped(&disk) {
            return;
        }
        disktest(&format!("-r -p L -B 4k -I {kind} {disk}")).expect("the tool runs");
        assert_eq!(is_cached(&disk), is_there, "-I {kind}");
    }
}

#[test]
fn option_a_reports_failures_and_completes_the_pass() {
    let probe = RecordingDisk::new(64 << 10);
    probe.spoil(8192..8193);
    let disk = served(probe);
    let (document, text) =
        disktest(&format!("-r -p L -B 4k -A -C 2 -P X {}", disk.url)).expect("the tool runs");
    let errors = messages(&text, "ERROR");
    assert_eq!((errors.len(), errors[1]), (2, "1 command failed"), "{text}");
    assert!(errors[0].starts_with("Read failed: lba 16 (0x10), asked for = 4096: "), "{text}");
    assert_eq!(messages(&text, "STAT"), ["Total bytes read in 15 transfers: 61440"]);
    assert_eq!(messages(&text, "END"), ["Test Done (Failed)"]);
    assert_eq!((document.runs.len(), document.runs[0].outcome.errors), (1, 1), "no further pass");
    assert_eq!(document.ended_early(), Some("1 command failed"));
    let (document, text) = disktest(&format!("-r -p L -B 4k -K 1 {}", disk.url)).expect("the tool runs");
    assert_eq!((document.runs[0].outcome.read.ios, messages(&text, "ERROR").len()), (2, 1), "{text}");
}

#[test]
fn heartbeats_average_since_start_and_mixed_rates_are_right() {
    let (document, text) =
        disktest("-B 4k -r -w -D 50:50 -T 3 -h 1 -P T memory:1M --destroy").expect("the tool runs");
    let stat = messages(&text, "STAT");
    let reads: Vec<f64> =
        stat.iter().filter(|m| m.starts_with("Read ")).map(|m| figure(m, "throughput: ")).collect();
    assert!((3..=4).contains(&reads.len()), "{text}");
    let outcome = &document.runs[0].outcome;
    assert_eq!(document.runs.len(), 1, "a run time continues past the pass");
    let true_rate = outcome.read.rate(outcome.elapsed_s);
    // The load of the machine may vary between seconds.
    assert!((reads[1] / true_rate - 1.0).abs() < 0.5, "{reads:?} {true_rate}");
    let total = stat.iter().find(|m| m.starts_with("Total read ")).expect("a total");
    assert!((figure(total, "throughput: ") / true_rate - 1.0).abs() < 0.1, "{total} {true_rate}");
}

#[test]
fn first_heartbeat_uses_the_time_of_its_counts() {
    // Each command takes two ms, so that the rate is constant.
    let disk = served(RecordingDisk::new(1 << 20));
    let line = format!("-B 4k -r -K 1 -T 2 -h 1 -P T {}", disk.url);
    let (handle, mut out) = (RunHandle::default(), Vec::new());
    let document = run(&args(&line), RunContext { handle: &handle, out: &mut out }).expect("the tool runs");
    let text = String::from_utf8(out).expect("text");
    let first = messages(&text, "STAT").into_iter().find(|m| m.starts_with("Read ")).expect("a heartbeat");
    let outcome = &document.runs[0].outcome;
    let series = &outcome.series[0];
    let expected = series.share.read_ios as f64 / series.until_s;
    assert!((figure(first, "IOPS ") / expected - 1.0).abs() < 0.04, "{first} {expected}");
}

#[test]
fn missed_heartbeats_are_skipped() {
    let at = |ms, printed| due_heartbeat(Duration::from_millis(ms), Duration::from_secs(1), printed);
    assert_eq!([at(0, 0), at(999, 0), at(1000, 0), at(1999, 1)], [None, None, Some(1), None]);
    assert_eq!(at(3200, 1), Some(3), "a missed heartbeat is skipped");
}

#[test]
fn several_devices_run_at_once_and_are_summed() {
    let (document, text) = disktest("-B 64k -T 1 -P T -r null:1M null:2M").expect("the tool runs");
    let stat = messages(&text, "STAT");
    assert_eq!(stat.len(), 3, "{text}");
    let rates: Vec<f64> = stat.iter().map(|m| figure(m, "throughput: ")).collect();
    assert!(((rates[0] + rates[1]) / rates[2] - 1.0).abs() < 1e-6, "{text}");
    assert!(text.contains("| 2 devices | Total read throughput: "), "{text}");
    assert_eq!(document.runs.len(), 2);
    assert_eq!(messages(&text, "END").len(), 2);
}

#[test]
fn lines_are_omitted_or_bare_on_request() {
    let (_, text) = disktest("-q -P X null:1M").expect("the tool runs");
    assert!(messages(&text, "INFO").is_empty() && messages(&text, "STAT").len() == 1, "{text}");
    let (_, text) = disktest("-Q -B 4k -P PX null:1M").expect("the tool runs");
    assert!(text.contains("\nnull:1048576;1048576;TRbytes;256;TRxfers;0;TWbytes;0;TWxfers;\n"), "{text}");
    assert!(text.contains("\nStarting pass\n") && text.ends_with("\nTest Done (Passed)\n"), "{text}");
    assert_eq!(disktest("-v").expect("the tool runs").1, "v1.1.12\n");
}

#[test]
fn unusable_targets_are_rejected() {
    let scratch = TempDir::folder();
    let disk = scratch.file("disk", 4096);
    std::fs::write(&disk, [1; 4096]).expect("written");
    assert_eq!(
        disktest(&format!("-w -I f {disk}")).expect_err("the disk holds data").kind,
        ErrorKind::HoldsData
    );
    disktest(&format!("-w -I f --destroy {disk}")).expect("--destroy permits it");
    assert!(disktest("-N 4096 null:1M").expect_err("too small").what.contains("past the end"));
    let gone = disktest("iscsi://127.0.0.1:1/iqn.2026-11.org.example:none/0").expect_err("no server");
    assert!(matches!(gone.kind, ErrorKind::Target(Some(_))), "{gone}");
    assert!(
        disktest("-B 2m null:1M").expect_err("too large").what.contains("exceed the tested range of 1048576")
    );
}

#[test]
fn ended_test_prints_totals() {
    let (handle, mut out) = (RunHandle::default(), Vec::new());
    let ender = handle.clone();
    let thread = thread::spawn(move || {
        thread::sleep(Duration::from_millis(300));
        ender.end();
    });
    let document = run(&args("-C 0 -T 1h -P T null:1M"), RunContext { handle: &handle, out: &mut out })
        .expect("the tool ends");
    thread.join().expect("the thread that ends the run");
    let text = String::from_utf8(out).expect("text");
    assert!(messages(&text, "STAT")[0].starts_with("Total read throughput: "), "{text}");
    assert!(!document.runs.is_empty());
}
