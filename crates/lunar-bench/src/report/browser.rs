//! Tests the page in a headless Chromium.

use super::html;
use crate::sample;
use interop::tool::{self, Tool};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const CHROMIUM: Tool = Tool { program: "chromium", package: "chromium" };
/// A second page that inspects the report and prints what a test needs.
const PROBE: &str = r#"<!DOCTYPE html><meta charset="utf-8"><body>
<iframe id="page" src="page.html" width="WIDTH" height="3000"></iframe>
<pre id="seen">nothing</pre><script>
const page = document.getElementById("page");
const look = () => {
  const inside = page.contentDocument, window_ = page.contentWindow;
  const style = window_.getComputedStyle(inside.body), seen = [];
  seen.push("paper " + style.backgroundColor, "ink " + style.color);
  seen.push("overflow " + (inside.documentElement.scrollWidth - inside.documentElement.clientWidth));
  const shown = [...inside.querySelectorAll("svg")].filter(svg => window_.getComputedStyle(svg).display != "none");
  seen.push("plots " + shown.length);
  const frames = [...inside.querySelectorAll(".wide")];
  const cue = frame => window_.getComputedStyle(frame.querySelector(".cue")).visibility;
  const scrolls = frames.filter(frame => frame.scrollWidth > frame.clientWidth);
  seen.push("scroll " + (scrolls.length > 0) + " "
    + frames.every(frame => cue(frame) == (scrolls.includes(frame) ? "visible" : "hidden")));
  for (const svg of shown) {
    const size = 11 * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
    if (size < 10) seen.push("small " + size);
    const box = svg.viewBox.baseVal, texts = [...svg.querySelectorAll("text")].map(text => [text.textContent, text.getBBox()]);
    for (const [text, b] of texts)
      if (b.x < -1 || b.y < -1 || b.x + b.width > box.width + 1 || b.y + b.height > box.height + 1) seen.push("outside " + text);
    for (const [n, [text, a]] of texts.entries()) for (const [other, b] of texts.slice(n + 1))
      if (a.x < b.x + b.width && b.x < a.x + a.width && a.y + 3 < b.y + b.height - 1 && b.y + 3 < a.y + a.height - 1)
        seen.push("over " + text + " and " + other);
  }
  document.getElementById("seen").textContent = seen.join("\n");
};
// Scroll timelines exist from the frame behind the first layout on. A busy machine draws it late, so the probe looks
// after each frame.
const again = () => { look(); requestAnimationFrame(() => setTimeout(again, 50)); };
page.onload = again;
</script>"#;

fn chromium(folder: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new("chromium");
    command.args([
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--enable-logging=stderr",
        "--hide-scrollbars",
    ]);
    command
        .arg("--allow-file-access-from-files")
        .arg(format!("--user-data-dir={}/profile", folder.display()));
    let ran = tool::run(command.args(arguments), Duration::from_secs(120));
    assert!(ran.ok(), "chromium {arguments:?}: {:?}\n{}", ran.status, ran.said);
    assert!(!ran.said.contains(":CONSOLE"), "the browser complains: {}", ran.said);
    ran.said
}

/// The folder of the page: `$LUNAR_REPORT_DIR` to keep it, or a temporary one.
struct ReportDir(PathBuf, bool);

impl ReportDir {
    fn new(name: &str) -> ReportDir {
        let kept = std::env::var_os("LUNAR_REPORT_DIR").map(PathBuf::from);
        let is_kept = kept.is_some();
        let folder = kept
            .unwrap_or_else(std::env::temp_dir)
            .join(format!("lunar-report-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        ReportDir(folder, is_kept)
    }
}

impl Drop for ReportDir {
    fn drop(&mut self) {
        if !self.1 {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}

/// Virtual times in milliseconds that the browser has for a page. On a busy machine they can pass before the frame that
/// shows the cues of wide tables, so a probe without them is repeated with a longer time.
const BUDGETS_MS: [u32; 4] = [3_000, 10_000, 30_000, 100_000];
/// The end of the line of the probe if each table that scrolls has its cue, and no other.
const HAS_CUES: &str = " true";

/// The output of the probe for a page width and color scheme.
fn seen(folder: &Path, width: u32, scheme: &str) -> Vec<String> {
    let has_cues = |seen: &Vec<String>| seen.get(4).is_some_and(|line| line.ends_with(HAS_CUES));
    let probe = |budget_ms: &u32| seen_within(folder, width, scheme, *budget_ms);
    let (last, earlier) = BUDGETS_MS.split_last().expect("a budget");
    earlier.iter().map(probe).find(has_cues).unwrap_or_else(|| probe(last))
}

fn seen_within(folder: &Path, width: u32, scheme: &str, budget_ms: u32) -> Vec<String> {
    let probe = folder.join("probe.html");
    fs::write(&probe, PROBE.replace("WIDTH", &width.to_string())).expect("a file");
    let url = format!("file://{}", probe.display());
    let budget = format!("--virtual-time-budget={budget_ms}");
    let dom = chromium(folder, &[scheme, "--window-size=1300,2000", &budget, "--dump-dom", &url]);
    let seen = dom.split_once("<pre id=\"seen\">").and_then(|rest| rest.1.split_once("</pre>"));
    seen.unwrap_or_else(|| panic!("no probe: {dom}")).0.lines().map(String::from).collect()
}

const LIGHT: &str = "--blink-settings=preferredColorScheme=1";
const DARK: &str = "--blink-settings=preferredColorScheme=0";

/// Checks the page of a document in light and dark, wide and narrow, and takes screenshots.
fn look(name: &str, document: &crate::Document) {
    if !tool::have(&[CHROMIUM]) {
        return;
    }
    let folder = ReportDir::new(name);
    let page = folder.0.join("page.html");
    let markup = html(document);
    // Each figure has a plot for broad and one for narrow screens.
    let plots = markup.matches("<svg class=\"broad\"").count();
    fs::write(&page, markup).expect("a file");
    let url = format!("file://{}", page.display());
    for (scheme, name, paper) in
        [(LIGHT, "light", "paper rgb(255, 255, 255)"), (DARK, "dark", "paper rgb(21, 24, 28)")]
    {
        for width in [1280, 390] {
            let seen = seen(&folder.0, width, scheme);
            assert_eq!(seen[0], paper, "{name}: {seen:?}");
            assert_ne!(seen[1].split_once(' ').expect("ink").1, paper, "ink is seen on paper");
            assert_eq!(seen[2], "overflow 0", "{name} at {width}");
            let is_narrow = width < 500;
            let expected = [format!("plots {plots}"), format!("scroll {is_narrow} true")];
            assert_eq!(seen[3..], expected, "{name} at {width}");
            let picture = folder.0.join(format!("{name}-{width}.png"));
            let (shot, window) =
                (format!("--screenshot={}", picture.display()), format!("--window-size={width},6000"));
            chromium(&folder.0, &[scheme, &window, &shot, &url]);
            let bytes = fs::read(&picture).expect("a picture");
            assert!(bytes.starts_with(b"\x89PNG") && bytes.len() > 20_000, "{} bytes", bytes.len());
        }
    }
}

#[test]
fn browser_shows_an_experiment_in_all_layouts() {
    look("seed", &sample::large());
}

#[test]
fn browser_shows_a_measured_document() {
    look("rig", &sample::measured());
}

/// The content security policy forbids scripts and loads, so that the browser would report an attempt.
#[test]
fn browser_runs_nothing_from_a_hostile_document() {
    if !tool::have(&[CHROMIUM]) {
        return;
    }
    let folder = ReportDir::new("hostile");
    let page = folder.0.join("page.html");
    fs::write(&page, html(&sample::hostile())).expect("a file");
    let dom = chromium(&folder.0, &["--dump-dom", &format!("file://{}", page.display())]);
    assert!(!dom.contains("<script") && !dom.contains("<img") && dom.contains("&lt;script&gt;"));
}

#[test]
fn browser_prints_the_page() {
    if !tool::have(&[CHROMIUM]) {
        return;
    }
    let folder = ReportDir::new("print");
    let (page, pdf) = (folder.0.join("page.html"), folder.0.join("page.pdf"));
    fs::write(&page, html(&sample::large())).expect("a file");
    let (print, url) = (format!("--print-to-pdf={}", pdf.display()), format!("file://{}", page.display()));
    chromium(&folder.0, &["--no-pdf-header-footer", &print, &url]);
    assert!(fs::read(&pdf).expect("a document").starts_with(b"%PDF"));
}
