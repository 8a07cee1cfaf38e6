//! Tests of the page as text; `browser.rs` tests it in a browser.

use super::*;
use crate::document::TableCell;
use crate::sample;

/// The number of occurrences in a page.
fn count(page: &str, what: &str) -> usize {
    page.matches(what).count()
}

#[test]
fn page_of_experiment_has_table_plots_and_notes() {
    let page = html(&sample::large());
    assert_eq!(page, html(&sample::large()), "the same document gives the same page");
    assert!(page.starts_with("<!DOCTYPE html>\n<html lang=\"en\">"), "{}", &page[..60]);
    for part in [
        "<h1>SRP target of SCST, 2010",
        "<dt>Processor</dt><dd>Example CPU @ 2.60GHz, 2 cores</dd>",
        "Measured on moon at 2026-11-20T22:11:51Z, repeating scst-srpt-2010.",
        "<pre>lunar bench reproduce scst-srpt-2010</pre>",
        "<p class=\"overhead\">overhead: measuring takes 0.45 µs of the CPU time of each command (randread, 4k,",
        "<li>Amounts are scaled down",
        "MiB/s, mean of three rates. Larger is better.",
        "<th class=\"group first\" scope=\"colgroup\" colspan=\"2\">published</th>",
        "<td class=\"published first\">78.8</td>",
        "<dt>FirstBurstLength</dt><dd>262144</dd>",
        "All runs: depth 1, runtime 30.",
        "<li><b>4 KiB write</b>: rw write, bs 4096</li>",
        "MB/s is 10⁶ bytes a second, MiB/s 2²⁰.",
        "12 of 30 runs, evenly spaced",
        "Percentiles of latency, read; 5 of 15 block sizes",
    ] {
        assert!(page.contains(part), "{part}");
    }
    // The table, throughput, latency, two of percentiles, each for two widths, and twelve pairs over time.
    assert_eq!((count(&page, "<svg "), count(&page, "<figure>")), (34, 5));
    assert_eq!((count(&page, "<svg class=\"broad\""), count(&page, "<svg class=\"narrow\"")), (29, 5));
    for element in [
        "svg", "figure", "table", "section", "div", "text", "details", "ul", "li", "dl", "p", "td", "th",
        "nav", "a",
    ] {
        let opened = count(&page, &format!("<{element} ")) + count(&page, &format!("<{element}>"));
        assert_eq!(opened, count(&page, &format!("</{element}>")), "{element}");
    }
    assert_eq!(count(&page, "<title id=\"plot"), 34, "each plot has a title");
    assert_eq!(count(&page, "NaN") + count(&page, "inf\""), 0);
}

#[test]
fn page_begins_with_summary_and_contents() {
    let page = html(&sample::large());
    let at = |what: &str| page.find(what).unwrap_or_else(|| panic!("{what}"));
    let order =
        ["<h1>", ">Summary</h2>", "<nav ", ">Conditions</h2>", ">Published and measured</h2>"].map(at);
    assert!(order.is_sorted(), "{order:?}");
    let heads = ["", "unit", "published", "Lunar", "STGT", "istgt"];
    let heads = heads.map(|head| format!("<th scope=\"col\">{head}</th>")).concat();
    let row = "<th scope=\"row\">read, 64 MiB</th><td>MiB/s</td><td><span class=\"published\">2,851</span></td>\
               <td>2,500 <small class=\"ratio worse\">×0.88</small></td><td>–</td>";
    assert!(page.contains(&heads) && page.contains(row), "{}", &page[order[1]..order[2]]);
    let contents = &page[order[2]..order[3]];
    let links: Vec<&str> =
        contents.split("href=\"#").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert!(links.len() > 7 && contents.contains(">blockdev-perftest -f -d -s 30 -m 12</a>"), "{contents}");
    for link in links {
        assert_eq!(count(&page, &format!("id=\"{link}\"")), 1, "{link}");
    }
    let short = html(&sample::empty("nothing"));
    assert!(!short.contains("<nav") && !short.contains("Summary"), "nothing to list");
}

#[test]
fn load_of_other_processes_is_shown() {
    let mut document = sample::large();
    assert_eq!(count(&html(&document), "class=\"busy\""), 0);
    document.runs[3].outcome.load = Some(crate::outcome::MachineLoad { others: 0.7, stolen: 0.0, cores: 2 });
    let page = html(&document);
    let note =
        "<p class=\"busy\">busy: other processes used 0.70 of 2 cores during 1 of 30 runs, at most during";
    assert!(page.contains(note), "{page}");
    assert!(
        crate::text_report::text(&document).contains("\nnote: busy: other processes used 0.70 of 2 cores")
    );
}

#[test]
fn tables_scroll_in_frames_with_a_cue() {
    let page = html(&sample::large());
    let frames = count(&page, "<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"");
    assert_eq!(frames, count(&page, "<table>"));
    assert_eq!(frames, count(&page, "<b class=\"cue\">Scroll sideways to see all columns.</b>"));
}

#[test]
fn columns_without_values_are_omitted() {
    let mut document = sample::large();
    for row in &mut document.tables[0].rows {
        row.1.iter_mut().for_each(|cell| *cell = TableCell::new(None, cell.measured));
    }
    document.summary = None;
    let page = html(&document);
    assert!(
        page.contains(">Tables</h2>") && !page.contains(">published</th>") && !page.contains(">ratio</th>")
    );
}

#[test]
fn block_sizes_in_columns_or_bare_are_plotted() {
    let cell = |n: usize| TableCell::new(Some(n as f64), Some(2.0 * n as f64));
    let mut document = sample::empty("tables");
    let table = |title: &str, columns: &[&str], rows: &[&str]| crate::document::ResultTable {
        title: title.into(),
        unit: "MB/s".into(),
        larger_is_better: true,
        columns: columns.iter().map(|head| head.to_string()).collect(),
        rows: rows.iter().map(|head| (head.to_string(), (1..=columns.len()).map(cell).collect())).collect(),
    };
    document.tables.push(table("dd by bs", &["64k", "128k", "256k"], &["direct disk", "through iSCSI"]));
    document.tables.push(table("by block size in KiB", &["READ"], &["1", "2", "4"]));
    document.tables.push(table("modes", &["READ", "WRITE", "BOTH"], &["NULLIO", "FILEIO"]));
    let page = html(&document);
    assert_eq!(count(&page, "<figure>"), 2, "the last one has no sizes");
    for part in [
        "through iSCSI, published</text>",
        "<title>direct disk, measured: 128k, 4.00 MB/s</title>",
        "block size, KiB</text>",
        "<title>READ, published: 4, 1.00 MB/s</title>",
    ] {
        assert!(page.contains(part), "{part}\n{page}");
    }
}

#[test]
fn plots_without_data_are_omitted() {
    let mut document = sample::empty("nothing");
    assert_eq!(count(&html(&document), "<figure>"), 0);
    document.runs.push(sample::run("4 KiB read", 4096, true, 1e8, 0.1));
    document.runs[0].outcome.series.truncate(2);
    let page = html(&document);
    assert_eq!(count(&page, "<figure>"), 1, "percentiles alone");
    assert!(!page.contains("Over time") && !page.contains("by block size"));
}

#[test]
fn hostile_document_adds_no_markup() {
    let page = html(&sample::hostile());
    for evil in ["<script", "<img", "onerror=alert(2)>", "onload='", "\u{0}", "\u{202e}"] {
        assert!(!page.contains(evil), "{evil:?}");
    }
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;"));
}

#[test]
fn invalid_figures_do_not_break_the_page() {
    let mut document = sample::large();
    for (n, run) in document.runs.iter_mut().enumerate() {
        let outcome = &mut run.outcome;
        outcome.elapsed_s = [0.0, -1.0, f64::MAX, 1e-300][n % 4];
        (outcome.read.ios, outcome.read.bytes) = (u64::MAX, u64::MAX);
        (outcome.write.ios, outcome.write.bytes) = (u64::MAX, u64::MAX);
        outcome.read.total.histogram = vec![(0, u64::MAX), (u64::MAX, u64::MAX)];
        outcome.series.iter_mut().rev().step_by(3).for_each(|step| step.until_s = -f64::MAX);
        outcome.series.iter_mut().step_by(2).for_each(|step| step.mean_ns = f64::MAX);
        run.label.clear();
    }
    for row in &mut document.tables[0].rows {
        row.1.truncate(1);
        row.1.iter_mut().for_each(|cell| cell.measured = Some(f64::MAX));
    }
    let page = html(&document);
    assert!(!page.contains("NaN") && page.contains("</html>"));
    let text = crate::terse(&document);
    assert_eq!(text.lines().count(), document.runs.len());
    crate::compare::compare(&document, &document, 5.0).expect("the same labels");
}

#[test]
fn run_at_given_rate_shows_service_and_total() {
    let page = html(&sample::measured());
    for part in
        ["mixed 4k at a rate, read, service</text>", "Throughput over time: read 64k", "memory:16777216"]
    {
        assert!(page.contains(part), "{part}\n{page}");
    }
}

#[test]
fn command_is_quoted_for_a_shell() {
    let words = ["lunar", "it's", "", "a b", "iscsi://h/t/0"].map(String::from);
    assert_eq!(command(&words), r"lunar 'it'\''s' '' 'a b' iscsi://h/t/0");
}
