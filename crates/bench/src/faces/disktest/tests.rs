use super::args::tests::args;
use super::*;
use crate::Kind;
use crate::faces::testing::{Scratch, play};

fn disktest(line: &str) -> Result<(Document, String), Error> {
    play(|stage| run(&args(line), stage))
}

/// Messages of lines of a level.
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
fn a_pass_has_its_lines_from_start_to_end() {
    let (document, text) = disktest("-B 4k -K 2 -P A -r null:1M").expect("it runs");
    assert!(
        text.starts_with("| ")
            && text.contains(&format!(
                " | START | {} | v1.1.12 | null:1048576 | Start args: -B 4k -K 2",
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
fn linear_passes_write_all_and_then_read_and_compare_it() {
    let scratch = Scratch::folder();
    let disk = scratch.file("disk", 1 << 20);
    let (document, text) =
        disktest(&format!("-B 8k -p L -r -w -n -E 8k -C 2 -h 1 -P TX -I f {disk}")).expect("it runs");
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
    // Other contents: the comparison fails, and that is told.
    let (document, text) = disktest(&format!("-B 8k -p L -r -f a5 -E 8k -I f {disk}")).expect("it runs");
    assert_eq!(messages(&text, "ERROR"), ["byte 0 is not what was written there"]);
    assert_eq!(messages(&text, "END"), ["Test Done (Failed)"]);
    assert!(document.ended_early().is_some());
}

#[test]
fn heartbeats_are_averages_since_the_start_and_rates_of_mixes_are_true() {
    let (document, text) =
        disktest("-B 4k -r -w -D 50:50 -T 3 -h 1 -P T memory:1M --destroy").expect("it runs");
    let stat = messages(&text, "STAT");
    let reads: Vec<f64> =
        stat.iter().filter(|m| m.starts_with("Read ")).map(|m| figure(m, "throughput: ")).collect();
    assert!((3..=4).contains(&reads.len()), "{text}");
    let outcome = &document.runs[0].outcome;
    assert_eq!(document.runs.len(), 1, "a run time goes on where a pass would end");
    let true_rate = outcome.read.rate(outcome.elapsed_s);
    // Counts reach the heartbeat a few times a second.
    assert!((reads[1] / true_rate - 1.0).abs() < 0.5, "{reads:?} {true_rate}");
    let total = stat.iter().find(|m| m.starts_with("Total read ")).expect("a total");
    assert!((figure(total, "throughput: ") / true_rate - 1.0).abs() < 0.1, "{total} {true_rate}");
}

#[test]
fn a_heartbeat_tells_of_the_time_that_passed_and_those_that_were_missed_are_left_out() {
    let at = |ms, told| beat(Duration::from_millis(ms), Duration::from_secs(1), told);
    assert_eq!([at(0, 0), at(999, 0), at(1000, 0), at(1999, 1)], [None, None, Some(1), None]);
    assert_eq!(at(3200, 1), Some(3), "one line, and not one more for the second before");
}

#[test]
fn several_devices_run_at_once_and_are_summed_up() {
    let (document, text) = disktest("-B 64k -T 1 -P T -r null:1M null:2M").expect("it runs");
    let stat = messages(&text, "STAT");
    assert_eq!(stat.len(), 3, "{text}");
    let rates: Vec<f64> = stat.iter().map(|m| figure(m, "throughput: ")).collect();
    assert!(((rates[0] + rates[1]) / rates[2] - 1.0).abs() < 1e-6, "{text}");
    assert!(text.contains("| 2 devices | Total read throughput: "), "{text}");
    assert_eq!(document.runs.len(), 2);
    assert_eq!(messages(&text, "END").len(), 2);
}

#[test]
fn lines_are_left_out_or_bare_as_wanted() {
    let (_, text) = disktest("-q -P X null:1M").expect("it runs");
    assert!(messages(&text, "INFO").is_empty() && messages(&text, "STAT").len() == 1, "{text}");
    let (_, text) = disktest("-Q -B 4k -P PX null:1M").expect("it runs");
    assert!(text.contains("\nnull:1048576;1048576;TRbytes;256;TRxfers;0;TWbytes;0;TWxfers;\n"), "{text}");
    assert!(text.contains("\nStarting pass\n") && text.ends_with("\nTest Done (Passed)\n"), "{text}");
    assert_eq!(disktest("-v").expect("it runs").1, "v1.1.12\n");
}

#[test]
fn targets_that_cannot_be_used_are_refused() {
    let scratch = Scratch::folder();
    let disk = scratch.file("disk", 4096);
    std::fs::write(&disk, [1; 4096]).expect("written");
    assert_eq!(disktest(&format!("-w -I f {disk}")).expect_err("it holds data").kind, Kind::HoldsData);
    disktest(&format!("-w -I f --destroy {disk}")).expect("it is wanted");
    assert!(disktest("-N 4096 null:1M").expect_err("too small").what.contains("behind the end"));
    let gone = disktest("iscsi://127.0.0.1:1/iqn.2026-11.org.example:none/0").expect_err("nobody there");
    assert!(matches!(gone.kind, Kind::Target(Some(_))), "{gone}");
    assert!(disktest("-B 2m null:1M").expect_err("too large").what.contains("do not fit into 1048576"));
}

#[test]
fn whoever_ends_it_gets_totals() {
    let (watch, mut out) = (Watch::default(), Vec::new());
    let ender = watch.clone();
    let thread = thread::spawn(move || {
        thread::sleep(Duration::from_millis(300));
        ender.end();
    });
    let document =
        run(&args("-C 0 -T 1h -P T null:1M"), Stage { watch: &watch, out: &mut out }).expect("it ends");
    thread.join().expect("it ended it");
    let text = String::from_utf8(out).expect("text");
    assert!(messages(&text, "STAT")[0].starts_with("Total read throughput: "), "{text}");
    assert!(!document.runs.is_empty());
}
