//! A document as one page of HTML that loads nothing and runs no script.
//!
//! Everything that comes from a document is escaped, because targets choose some names.

mod chart;
mod figures;
mod labels;
mod plots;
mod scale;
mod series;
mod sweep;
mod tables;

use crate::document::{JobRun, MeasuredTarget};
use crate::text_report::count;
use crate::{Document, machine_load, overhead};
use chart::ChartLayout;
use figures::{escape, whole};
use plots::CaptionedChart;

/// The style sheet: print, light and dark.
const STYLE: &str = include_str!("style.css");
/// The content security policy: show only. Markup in a name could do nothing even if escaping failed.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";
/// The maximum number of time series.
const SERIES: usize = 12;

/// The page under construction.
struct HtmlPage {
    body: String,
    /// The number of plots.
    plots: usize,
    /// The headings of sections, and those of tables in them.
    headings: Vec<(String, Vec<String>)>,
}

/// The place of the contents, whose headings follow. No text of a document can contain it, because text is escaped.
const CONTENTS: &str = "<!-- contents -->";
/// The minimum number of headings for a list of contents.
const MANY: usize = 3;

/// The page of a document. Equal documents give equal pages.
pub fn html(document: &Document) -> String {
    let runs: Vec<&JobRun> = document.runs.iter().collect();
    let mut page = HtmlPage { body: String::new(), plots: 0, headings: Vec::new() };
    page.title(document);
    page.summary(document);
    page.add(CONTENTS);
    page.conditions(document);
    page.tables(document);
    page.runs(&runs);
    page.over_time(&runs);
    page.setup(document, &runs);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{}</title>\n<style>\n{STYLE}</style>\n</head>\n\
         <body>\n<main>\n{}</main>\n<footer>Made by Lunar {} from a document of schema {}.</footer>\n</body>\n</html>\n",
        escape(&document.title),
        page.body.replacen(CONTENTS, &contents(&page.headings), 1),
        escape(&document.host.lunar),
        escape(&document.schema)
    )
}

impl HtmlPage {
    fn add(&mut self, markup: &str) {
        self.body += markup;
        self.body.push('\n');
    }

    fn heading(&mut self, text: &str) {
        self.headings.push((text.to_owned(), Vec::new()));
        self.add(&format!("<h2 id=\"s{}\">{}</h2>", self.headings.len(), escape(text)));
    }

    /// A heading of a table, in the contents as well.
    fn subheading(&mut self, text: &str) {
        let section = self.headings.len();
        let Some((_, tables)) = self.headings.last_mut() else { return };
        tables.push(text.to_owned());
        let id = format!("s{section}-{}", tables.len());
        self.add(&format!("<h3 id=\"{id}\">{}</h3>", escape(text)));
    }

    fn title(&mut self, document: &Document) {
        let host = &document.host;
        self.add(&format!("<header>\n<h1>{}</h1>", escape(&document.title)));
        let seed =
            document.seed.as_ref().map(|seed| format!(", repeating {}", escape(seed))).unwrap_or_default();
        self.add(&format!(
            "<p class=\"byline\">Measured on {} at {}{seed}.</p>\n</header>",
            escape(&host.name),
            escape(&document.begun)
        ));
        for run in document.runs.iter() {
            if let Some(why) = &run.outcome.ended_early {
                let (label, why) = (escape(&run.label), escape(why));
                self.add(&format!("<p class=\"failed\"><b>{label}</b> ended early: {why}. The results up to then are valid.</p>"));
            }
        }
    }

    fn summary(&mut self, document: &Document) {
        if let Some(summary) = &document.summary {
            self.heading("Summary");
            self.add(&tables::summary(summary));
        }
    }

    /// The machine, the command and the notes.
    fn conditions(&mut self, document: &Document) {
        let host = &document.host;
        self.heading("Conditions");
        let governor = host.governor.as_deref().unwrap_or("not reported by the kernel");
        self.add(&list(&[
            ("Processor", &format!("{}, {}", host.cpu, count(host.cores, "core"))),
            ("Frequency policy", governor),
            ("Memory", &figures::size(host.memory as f64)),
            ("Kernel", &host.kernel),
            ("Software", &format!("Lunar {}", host.lunar)),
        ]));
        self.add(&format!("<pre>{}</pre>", escape(&command(&document.command))));
        if let Some(note) = machine_load::note(&document.runs) {
            self.add(&format!("<p class=\"busy\">{}</p>", escape(&note)));
        }
        let is_overhead = |note: &&String| overhead::is_note(note);
        let (overhead, notes): (Vec<&String>, Vec<&String>) = document.notes.iter().partition(is_overhead);
        for note in overhead {
            self.add(&format!("<p class=\"overhead\">{}</p>", escape(note)));
        }
        if !notes.is_empty() {
            let notes: String = notes.iter().map(|note| format!("<li>{}</li>\n", escape(note))).collect();
            self.add(&format!("<ul>\n{notes}</ul>"));
        }
    }

    fn tables(&mut self, document: &Document) {
        if document.tables.is_empty() {
            return;
        }
        let is_published = |table: &crate::document::ResultTable| {
            table.rows.iter().flat_map(|row| &row.1).any(|cell| cell.published.is_some())
        };
        let is_any = document.tables.iter().any(is_published);
        self.heading(if is_any { "Published and measured" } else { "Tables" });
        for table in &document.tables {
            self.subheading(&table.title);
            for figure in plots::of_table(table) {
                self.figure(&figure);
            }
            self.add(&tables::published(table));
        }
    }

    fn runs(&mut self, runs: &[&JobRun]) {
        let measured: Vec<&JobRun> = runs.iter().filter(|run| run.outcome.ios() > 0).copied().collect();
        if measured.is_empty() {
            return;
        }
        self.heading("Runs");
        let sweeps = sweep::sweeps(&measured);
        for figure in plots::throughput(&sweeps).iter().chain(&plots::latency(&sweeps)) {
            self.figure(figure);
        }
        self.add(&tables::runs(&measured));
        let figures = plots::percentiles(&measured, &sweeps);
        if !figures.is_empty() {
            self.heading("Percentiles of latency");
            figures.iter().for_each(|figure| self.figure(figure));
            self.add(&tables::percentiles(&measured));
        }
    }

    fn over_time(&mut self, runs: &[&JobRun]) {
        let (shown, there) = plots::with_series(runs, SERIES);
        if shown.is_empty() {
            return;
        }
        self.heading("Over time");
        if shown.len() < there {
            let text = format!("{} of {there} runs, evenly spaced; the document has all.", shown.len());
            self.add(&format!("<p class=\"small\">{text}</p>"));
        }
        for run in shown {
            let Some((rates, latencies, moments)) = plots::over_time(run) else { continue };
            self.add(&format!("<section>\n<h3>{}</h3>\n<div class=\"pair\">", escape(&run.label)));
            for chart in [rates, latencies] {
                self.plots += 1;
                self.add(&chart::svg(&chart, self.plots, ChartLayout::Broad));
            }
            let values = tables::steps(&moments);
            self.add(&format!("</div>\n<details><summary>Values</summary>\n{values}</details>\n</section>"));
        }
    }

    fn figure(&mut self, figure: &CaptionedChart) {
        // The style sheet shows the one that fits the screen.
        let plots = [ChartLayout::Broad, ChartLayout::Narrow].map(|layout| {
            self.plots += 1;
            chart::svg(&figure.chart, self.plots, layout)
        });
        let (plots, caption) = (plots.concat(), escape(&figure.caption));
        self.add(&format!("<figure>\n{plots}<figcaption>{caption}</figcaption>\n</figure>"));
    }

    /// The targets with their negotiated parameters, and the jobs.
    fn setup(&mut self, document: &Document, runs: &[&JobRun]) {
        let mut targets: Vec<&MeasuredTarget> = Vec::new();
        for target in document.runs.iter().flat_map(|run| &run.targets) {
            if !targets.contains(&target) {
                targets.push(target);
            }
        }
        if !targets.is_empty() {
            self.heading("Targets and their sessions");
        }
        for target in targets {
            let sessions = count(target.sessions, "session");
            let size = whole(target.capacity as f64);
            self.add(&format!("<section class=\"many\">\n<h3>{}</h3>", escape(&target.name)));
            self.add(&format!(
                "<p class=\"small\">{sessions}, {} ({size} bytes)</p>",
                figures::size(target.capacity as f64)
            ));
            let pairs = target.facts.iter().map(|(name, value)| pair(name, value));
            self.add(&format!("<dl>\n{}</dl>\n</section>", pairs.collect::<String>()));
        }
        self.jobs(runs);
    }

    /// The options of the jobs: the common ones, and the differences of each run.
    fn jobs(&mut self, runs: &[&JobRun]) {
        let Some(first) = runs.first() else { return };
        let (same, _): (Vec<_>, Vec<_>) =
            first.job.iter().partition(|word| runs.iter().all(|run| run.job.contains(word)));
        let words = |run: &JobRun, is_same: bool| {
            let words = run.job.iter().filter(|word| same.contains(word) == is_same);
            words.map(|word| format!("{} {}", word.0, word.1)).collect::<Vec<_>>().join(", ")
        };
        self.heading("Jobs");
        if !same.is_empty() {
            let who = if runs.len() == 1 { "" } else { "All runs: " };
            self.add(&format!("<p class=\"small\">{who}{}.</p>", escape(&words(first, true))));
        }
        let differ: Vec<String> = runs
            .iter()
            .map(|run| (&run.label, words(run, false)))
            .filter(|(_, words)| !words.is_empty())
            .map(|(label, words)| format!("<li><b>{}</b>: {}</li>\n", escape(label), escape(&words)))
            .collect();
        if !differ.is_empty() {
            self.add(&format!("<ul class=\"small\">\n{}</ul>", differ.concat()));
        }
    }
}

/// The list of contents, with links; empty for few sections.
fn contents(headings: &[(String, Vec<String>)]) -> String {
    let link = |id: &str, text: &str| format!("<a href=\"#{id}\">{}</a>", escape(text));
    let section = |(n, (text, tables)): (usize, &(String, Vec<String>))| {
        let id = format!("s{}", n + 1);
        let below = |(at, table): (usize, &String)| {
            format!("<li>{}</li>\n", link(&format!("{id}-{}", at + 1), table))
        };
        let below: String = tables.iter().enumerate().map(below).collect();
        let below = if below.is_empty() { below } else { format!("\n<ul>\n{below}</ul>") };
        format!("<li>{}{below}</li>\n", link(&id, text))
    };
    if headings.len() < MANY {
        return String::new();
    }
    let sections: String = headings.iter().enumerate().map(section).collect();
    format!("<nav aria-label=\"Contents\">\n<p>Contents</p>\n<ul>\n{sections}</ul>\n</nav>")
}

fn list(pairs: &[(&str, &str)]) -> String {
    let items =
        pairs.iter().map(|(name, value)| format!("<dt>{}</dt><dd>{}</dd>\n", escape(name), escape(value)));
    format!("<dl>\n{}</dl>", items.collect::<String>())
}

fn pair(name: &str, value: &str) -> String {
    format!("<div><dt>{}</dt><dd>{}</dd></div>\n", escape(name), escape(value))
}

/// A command line, quoted for a shell.
fn command(words: &[String]) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./:=,@%+".contains(c);
    let quoted = |word: &String| match !word.is_empty() && word.chars().all(plain) {
        true => word.clone(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    };
    words.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod browser;
#[cfg(test)]
mod tests;
