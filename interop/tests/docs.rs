//! Checks the documents. The shell lines of each document run in order, in a new folder. Its configurations must be
//! valid. The commands, options, keys, functions and files that it names must exist.
//!
//! The info string of a fenced block states how the test uses its lines:
//! - `sh`: they run, `lunar bench reproduce` with `--brief`. A line that begins with `lunar serve` and has no `--run`
//!   starts the server for the lines after it, until the next such line. Free ports and addresses of this host
//!   replace those of the lines.
//! - `sh` with a word of [`ELSEWHERE`]: they do not run; the test checks their commands and options.
//! - `toml`: a whole configuration. It is checked unchanged, and is `lunar.toml` for the blocks that follow.
//! - `toml drop-in`: checked as a drop-in file of the configuration before it.
//! - `toml saved NAME`: a saved attachment of that name, for the blocks that follow.
//! - `toml part`: checked as a part of a configuration.
//! - `text file PATH`: a file, for the blocks that follow.
//! - `text output`: exactly the output of the last line before it that ran: stdout, then stderr.
//! - `text`, `bat`: not checked.
//! - `yaml`: checked by `interop/tests/peers/hosts_page.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use interop::server::{Folder, lunar_bin, wait_ready};
use interop::tool::{self, Tool};
use rustix::process::{Pid, Signal, kill_process};

/// Marks of lines that a test cannot run.
const ELSEWHERE: [&str; 4] = ["as-root", "on-another-host", "with-a-device", "with-cargo"];
/// Programs in the lines that may be missing here.
const TOOLS: [Tool; 11] = [
    Tool { program: "curl", package: "curl" },
    Tool { program: "openssl", package: "openssl" },
    Tool { program: "nbdkit", package: "nbdkit" },
    Tool { program: "nbdinfo", package: "libnbd-bin" },
    Tool { program: "qemu-img", package: "qemu-utils qemu-block-extra" },
    Tool { program: "qemu-io", package: "qemu-utils qemu-block-extra" },
    Tool { program: "iscsi-ls", package: "libiscsi-bin" },
    Tool { program: "iscsi-inq", package: "libiscsi-bin" },
    Tool { program: "iscsi-readcapacity16", package: "libiscsi-bin" },
    Tool { program: "virt-xml-validate", package: "libvirt-clients" },
    Tool { program: "xmllint", package: "libxml2-utils" },
];
/// Commands that have subcommands.
const NOUNS: [&str; 16] = [
    "access",
    "attach",
    "bench",
    "chap",
    "config",
    "disk",
    "gateway",
    "host",
    "lun",
    "namespace",
    "portal",
    "rdma",
    "router",
    "session",
    "subsystem",
    "target",
];
const LIMIT: Duration = Duration::from_secs(300);
/// The configuration that completes a `toml part`.
const WHOLE: &str = "[[target]]\nname = \"iqn.2026-11.org.example:disks\"\n[[target.lun]]\nlun = 0\n\
    backend = \"null\"\nsize = \"1G\"\n[[target.lun]]\nlun = 1\nbackend = \"null\"\nsize = \"1G\"\n";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the project").to_path_buf()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The pages of a folder.
fn pages(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(root().join(folder)).expect("a folder of pages").flatten();
    let paths = entries.map(|entry| format!("{folder}/{}", entry.file_name().to_string_lossy()));
    paths.filter(|path| path.ends_with(".md") && path != "docs/conformance.md").collect()
}

/// README and the pages of docs that are not generated.
fn documents() -> Vec<String> {
    let mut paths = pages("docs");
    paths.extend(pages("docs/migrate"));
    paths.push("README.md".into());
    paths.sort_unstable();
    paths
}

/// A fenced block.
struct FencedBlock {
    document: String,
    line: usize,
    /// The text after the three backquotes
    info: String,
    text: String,
}

impl FencedBlock {
    /// Its position, for messages.
    fn place(&self) -> String {
        format!("{}:{}", self.document, self.line)
    }

    fn is_run(&self) -> bool {
        self.info == "sh"
    }

    fn is_shell(&self) -> bool {
        self.is_run() || ELSEWHERE.iter().any(|mark| self.info == format!("sh {mark}"))
    }

    /// Its commands: lines without comments, continued ones joined.
    fn commands(&self) -> Vec<String> {
        let joined = self.text.replace("\\\n", " ");
        let lines = joined.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        lines.map(|line| line.split("  #").next().unwrap_or(line).trim_end().to_string()).collect()
    }
}

/// The fenced blocks of a document.
fn blocks(document: &str) -> Vec<FencedBlock> {
    let (mut blocks, mut open): (Vec<FencedBlock>, Option<FencedBlock>) = (Vec::new(), None);
    for (n, line) in read(document).lines().enumerate() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(info), None) => {
                let info = info.trim().to_string();
                open =
                    Some(FencedBlock { document: document.into(), line: n + 1, info, text: String::new() });
            }
            (None, Some(block)) => block.text += &format!("{line}\n"),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "{document}: a fence is not closed");
    blocks
}

/// The `code` within the running text of a document.
fn spans(document: &str) -> Vec<String> {
    let (mut fenced, mut prose) = (false, String::new());
    for line in read(document).lines() {
        if line.starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            prose += &format!("{line}\n");
        }
    }
    prose.split('`').skip(1).step_by(2).map(|span| span.replace('\n', " ")).collect()
}

/// A server that a document has started.
struct DocumentServer {
    child: Child,
    portals: Vec<SocketAddr>,
}

impl DocumentServer {
    /// Sends SIGTERM. The server must exit with status 0.
    fn stop(self, place: &str) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).expect("the server lives");
        self.ends(place);
    }

    /// Waits for the end of a server after SIGTERM. It must exit with status 0.
    fn ends(mut self, place: &str) {
        let status = self.child.wait().expect("a child");
        assert!(status.success(), "{place}: the server ended with {status}");
    }
}

impl Drop for DocumentServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The state of a document between two of its blocks.
struct DocumentRunner {
    dir: Folder,
    running: Option<DocumentServer>,
    /// Programs that are not installed
    missing: Vec<&'static str>,
    /// The output of the last line that ran
    said: String,
}

impl DocumentRunner {
    fn new(missing: &[&'static str]) -> DocumentRunner {
        let dir = Folder::fresh();
        fs::create_dir(dir.join("bin")).expect("a folder");
        std::os::unix::fs::symlink(lunar_bin(), dir.join("bin/lunar")).expect("a link to lunar");
        DocumentRunner { dir, running: None, missing: missing.to_vec(), said: String::new() }
    }

    fn shell(&self, line: &str) -> Command {
        let path =
            format!("{}:{}", self.dir.join("bin").display(), std::env::var("PATH").unwrap_or_default());
        let mut command = Command::new("sh");
        command.args(["-euc", line]).current_dir(&*self.dir).env("PATH", path);
        command.env("XDG_STATE_HOME", self.dir.join("state"));
        command.env("LUNAR_RUN_DIR", self.dir.join("run")).env("XDG_CONFIG_HOME", self.dir.join("config"));
        command
    }

    fn block(&mut self, block: &FencedBlock) {
        match block.info.as_str() {
            "sh" => block.commands().iter().for_each(|line| self.line(line, &block.place())),
            "toml" => {
                self.check(&block.text, &block.place());
                fs::write(self.dir.join("lunar.toml"), local(&block.text)).expect("write lunar.toml");
            }
            info if let Some(name) = info.strip_prefix("toml saved ") => self.save(name, &block.text),
            info if let Some(path) = info.strip_prefix("text file ") => self.write(path, &block.text),
            "text output" => assert_eq!(self.said, block.text, "{}", block.place()),
            "toml drop-in" => self.check_drop_in(&block.text, &block.place()),
            "toml part" => self.check(&format!("{WHOLE}{}", block.text), &block.place()),
            _ => {}
        }
    }

    /// Saves an attachment, which the lines that follow use.
    fn save(&self, name: &str, toml: &str) {
        let folder = self.dir.join("config/lunar/attach");
        fs::create_dir_all(&folder).expect("a folder");
        fs::write(folder.join(format!("{name}.toml")), self.here(toml)).expect("write the attachment");
    }

    /// Writes a file, which the lines that follow read.
    fn write(&self, path: &str, text: &str) {
        let path = self.dir.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, text).expect("write the file");
    }

    /// Runs `lunar check` on the unchanged configuration.
    fn check(&self, toml: &str, place: &str) {
        fs::write(self.dir.join("check.toml"), toml).expect("write check.toml");
        let ran = tool::run(&mut self.shell("lunar check check.toml"), LIMIT);
        assert!(ran.ok(), "{place}: {}", ran.said);
    }

    /// Runs `lunar check` on the configuration with a drop-in file.
    fn check_drop_in(&self, toml: &str, place: &str) {
        let folder = self.dir.join("lunar.d");
        fs::create_dir_all(&folder).expect("a folder");
        fs::write(folder.join("example.toml"), toml).expect("write a drop-in file");
        let ran = tool::run(&mut self.shell("lunar check lunar.toml"), LIMIT);
        assert!(ran.ok(), "{place}: {}", ran.said);
        // The folder of the API beside it stays.
        fs::remove_file(folder.join("example.toml")).expect("remove the drop-in file");
    }

    fn line(&mut self, line: &str, place: &str) {
        if self.missing.iter().any(|program| line.contains(program)) {
            return;
        }
        if line.starts_with("lunar serve") && !line.contains("--run") {
            return self.serve(line, place);
        }
        let line = briefly(&self.here(line));
        let ran = tool::run(&mut self.shell(&line), LIMIT);
        assert!(ran.ok(), "{place}: {line}: {:?}\n{}", ran.status, ran.said);
        self.said = ran.said;
        if line.starts_with("kill -TERM") {
            self.running.take().expect("a server to stop").ends(place);
        }
    }

    /// Starts the server for the lines that follow.
    fn serve(&mut self, line: &str, place: &str) {
        if let Some(before) = self.running.take() {
            before.stop(place);
        }
        let line = format!("exec {}", served(line));
        let log = fs::File::create(self.dir.join("log")).expect("a log");
        let mut command = self.shell(&line);
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).spawn().expect("sh");
        let mut running = DocumentServer { child, portals: Vec::new() };
        running.portals = wait_ready(&mut running.child).unwrap_or_else(|why| {
            panic!("{place}: {line}: {why}\n{}", fs::read_to_string(self.dir.join("log")).unwrap_or_default())
        });
        self.running = Some(running);
    }

    /// The line with the addresses of the running server, if there is one.
    fn here(&self, line: &str) -> String {
        if line.starts_with("lunar serve") {
            return served(line);
        }
        let Some(running) = &self.running else { return line.into() };
        let line = line.replace("127.0.0.1:3260", &running.portals[0].to_string());
        // The last portal is that of SRP, if there is one.
        let line = line.replace("127.0.0.1:5555", &running.portals[running.portals.len() - 1].to_string());
        // `pkill` would also end the servers of other tests.
        match line.strip_prefix("pkill ").and_then(|rest| rest.split_once(" -f ")) {
            Some((signal, _)) => format!("kill {signal} {}", running.child.id()),
            None => line,
        }
    }
}

/// Shortens an experiment from minutes to seconds.
fn briefly(line: &str) -> String {
    line.replace("lunar bench reproduce ", "lunar bench reproduce --brief 20 ")
}

/// A line of `lunar serve` with free ports of this host.
fn served(line: &str) -> String {
    let line = match line.contains("--listen") || line.contains("--config") {
        true => line.into(),
        false => line.replacen("lunar serve", "lunar serve --listen 127.0.0.1:0", 1),
    };
    local(&line)
}

/// Replaces the addresses on which a server listens by free ports of this host. Addresses that it advertises stay.
fn local(text: &str) -> String {
    let here = [
        (":3260", ":0"),
        (":5555", ":0"),
        ("example.org:0", "example.org:3260"),
        ("192.0.2.10", "127.0.0.1"),
        ("192.0.2.11", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1"),
    ];
    here.iter().fold(text.to_string(), |text, (from, to)| text.replace(from, to))
}

#[test]
fn commands_of_every_document_run() {
    let mut missing: Vec<&'static str> =
        TOOLS.iter().filter(|tool| !tool::have(&[**tool])).map(|tool| tool.program).collect();
    if missing.contains(&"xmllint") {
        missing.push("virt-xml-validate"); // a script that runs it
    }
    for document in documents() {
        let (mut reader, blocks) = (DocumentRunner::new(&missing), blocks(&document));
        blocks.iter().for_each(|block| reader.block(block));
        if let Some(running) = reader.running.take() {
            running.stop(&document);
        }
        let elsewhere = blocks.iter().filter(|block| block.is_shell() && !block.is_run());
        elsewhere.for_each(|block| println!("not run: {} ({})", block.place(), block.info));
    }
}

#[test]
fn every_document_has_examples_and_known_markers() {
    let mut run = 0;
    for block in documents().iter().flat_map(|document| blocks(document)) {
        let known = block.is_shell()
            || ["toml", "toml drop-in", "toml part", "text", "text output", "bat", "yaml"]
                .contains(&block.info.as_str());
        let known = known || ["toml saved ", "text file "].iter().any(|form| block.info.starts_with(form));
        assert!(known, "{}: a fence is marked {:?}", block.place(), block.info);
        run += usize::from(block.is_run());
    }
    assert!(run >= 10, "only {run} blocks run");
}

#[test]
fn example_configurations_are_valid() {
    let reader = DocumentRunner::new(&[]);
    for example in ["docs/lunar.example.toml", "docs/router.example.toml"] {
        reader.check(&read(example), example);
    }
}

/// The output of `lunar COMMAND --help`; None if there is no such command.
fn help(words: &[&str]) -> Option<String> {
    let ran = tool::run(Command::new(lunar_bin()).args(words).arg("--help"), LIMIT);
    ran.ok().then_some(ran.said)
}

/// The lunar commands in a shell line. A command within quotes is one of its own.
fn invocations(line: &str) -> Vec<Vec<String>> {
    let parts = line.split(['\'', '|', ';', '&']);
    let words = parts.map(|part| part.split_whitespace().map(String::from).collect::<Vec<_>>());
    words.filter(|words| words.first().is_some_and(|word| word == "lunar")).collect()
}

/// Whether a help text has an option, with or without a value, in columns or in paragraphs, also as an alias.
fn lists(help: &str, option: &str) -> bool {
    [" ", "\n", "]", "["].iter().any(|end| help.contains(&format!("{option}{end}")))
}

#[test]
fn documented_commands_and_options_exist() {
    let mut known: BTreeMap<Vec<String>, String> = BTreeMap::new();
    let mut seen = 0;
    for document in documents() {
        let lines = blocks(&document).into_iter().filter(FencedBlock::is_shell).flat_map(|b| b.commands());
        for words in lines.chain(spans(&document)).flat_map(|line| invocations(&line)) {
            let is_name = |word: &&String| {
                let is_of_names = |c: char| c.is_ascii_lowercase() || "-_".contains(c);
                word.starts_with(|c: char| c.is_ascii_lowercase()) && word.chars().all(is_of_names)
            };
            let has_more = |word: &String| NOUNS.contains(&word.as_str());
            let depth = if words.get(1).is_some_and(has_more) { 2 } else { 1 };
            let command: Vec<String> = words[1..].iter().take_while(is_name).take(depth).cloned().collect();
            let text = known.entry(command.clone()).or_insert_with(|| {
                let names: Vec<&str> = command.iter().map(String::as_str).collect();
                help(&names).unwrap_or_else(|| panic!("{document}: there is no {words:?}"))
            });
            for option in words.iter().filter(|word| word.starts_with("--")) {
                let option = option.split('=').next().unwrap_or(option);
                assert!(lists(text, option), "{document}: {words:?} has no {option}");
                seen += 1;
            }
        }
    }
    assert!(seen >= 10, "only {seen} options were found");
}

/// Options that the text names without a command must belong to some command.
#[test]
fn documented_options_exist() {
    let commands: &[&[&str]] = &[
        &["attach"],
        &["attach", "list"],
        &["detach"],
        &["serve"],
        &["check"],
        &["session", "list"],
        &["session", "show"],
        &["lun", "add"],
        &["lun", "remove"],
        &["access", "add"],
        &["chap", "add"],
        &["namespace", "add"],
        &["host", "add"],
        &["portal", "add"],
        &["events"],
        &["top"],
        &["stop"],
        &["discover"],
        &["ls"],
        &["doctor"],
        &["scsi"],
        &["info"],
        &["import"],
        &["config", "dump"],
        &["config", "restore"],
        &["adopt"],
        &["diff"],
        &["rollback"],
        &["pr"],
        &["copy"],
        &["bench"],
        &["bench", "reproduce"],
        &["bench", "compare"],
        &["bench", "db-mix"],
    ];
    let known: String = commands.iter().filter_map(|words| help(words)).collect();
    let mut seen = 0;
    for document in documents().into_iter().filter(|document| document != "docs/testing.md") {
        for span in spans(&document).into_iter().filter(|span| span.starts_with("--")) {
            let option = span.split([' ', '=']).next().unwrap_or(&span);
            assert!(lists(&known, option), "{document}: no command has {option}");
            seen += 1;
        }
    }
    assert!(seen >= 3, "only {seen} options were found");
}

/// `cargo test -p PACKAGE [--lib | --test PROGRAM] FILTER`: the sources that the filter must match.
fn filtered_tests(command: &str) -> Option<(PathBuf, String)> {
    let words: Vec<&str> = command.split(" #").next()?.split_whitespace().collect();
    let after = |option: &str| words.iter().position(|word| *word == option).and_then(|at| words.get(at + 1));
    let (package, program) = (after("-p")?, after("--test"));
    let filter =
        words.last().filter(|word| **word != "--lib" && Some(*word) != program && *word != package)?;
    let folder = match (*package, program) {
        ("interop", Some(program)) => root().join("interop/tests").join(program),
        (_, Some(program)) => root().join("crates").join(package).join("tests").join(program),
        (_, None) => root().join("crates").join(package).join("src"),
    };
    Some((folder, filter.to_string()))
}

fn has_test(at: &Path, part: &str) -> bool {
    if at.is_dir() {
        return fs::read_dir(at).expect("a folder").flatten().any(|entry| has_test(&entry.path(), part));
    }
    let file = if at.exists() { at.to_path_buf() } else { at.with_extension("rs") };
    let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    text.lines().any(|line| line.trim_start().starts_with("fn ") && line.contains(part))
}

#[test]
fn documented_test_filters_match_a_test() {
    let mut seen = 0;
    for document in ["CONTRIBUTING.md", "docs/testing.md"] {
        for line in read(document).lines().filter(|line| line.contains("cargo test -p ")) {
            if let Some((folder, filter)) = filtered_tests(line) {
                assert!(has_test(&folder, &filter), "{document}: no test has \"{filter}\" in its name");
                seen += 1;
            }
        }
    }
    assert!(seen >= 2, "{seen} filters: they are not found");
}

#[test]
fn documented_xtasks_exist() {
    let tasks = read("xtask/src/main.rs").to_lowercase();
    let mut seen = BTreeSet::new();
    for document in documents().into_iter().chain(["ARCHITECTURE.md".into(), "BENCHMARKS.md".into()]) {
        for part in read(&document).split("cargo xtask ").skip(1) {
            let name = part.chars().take_while(|c| c.is_ascii_lowercase() || *c == '-');
            let task: String = name.filter(char::is_ascii_lowercase).collect();
            let is_there = ["(", ",", " {"].iter().any(|end| tasks.contains(&format!("    {task}{end}")));
            assert!(is_there, "{document}: there is no cargo xtask {task}");
            seen.insert(task);
        }
    }
    assert!(seen.len() >= 3, "{seen:?}");
}

/// Settings of `ib_srp`, Linux's SRP initiator.
const OF_IB_SRP: [&str; 5] = ["id_ext", "ioc_guid", "reconnect_delay", "fast_io_fail_tmo", "dev_loss_tmo"];

/// Settings of Linux that the pages about operation name.
const OF_LINUX: [&str; 4] = ["tcp_congestion_control", "tcp_rmem", "tcp_wmem", "fast_io_fail_tmo"];

#[test]
fn documented_keys_are_in_the_example() {
    let example = read("docs/lunar.example.toml") + &read("docs/router.example.toml");
    let settings = read("crates/lunar-initiator/src/url/settings.rs");
    let nvme = read("crates/lunar-initiator/src/url/nvme.rs");
    let saved = read("crates/lunar-server/src/config/attachment.rs");
    let report = read("crates/lunar/src/copy/report.rs");
    let api = read("docs/openapi.json");
    let schema = read("docs/schema.json");
    let is_key = |word: &str| {
        word.contains('_') && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    let is_in_urls = |key: &str| settings.contains(&format!("row(\"{key}\""));
    let is_in_files =
        |key: &str| example.contains(&format!("{key} =")) || example.contains(&format!("[{key}]"));
    // These pages name keys of other programs.
    let foreign = [
        "docs/testing.md",
        "docs/migrate",
        "docs/hosts.md",
        "docs/ha.md",
        "docs/netboot.md",
        "docs/monitoring.md",
    ];
    let is_foreign = |document: &String| foreign.iter().any(|page| document.starts_with(page));
    let mut seen = 0;
    for document in documents().into_iter().filter(|document| !is_foreign(document)) {
        for span in spans(&document)
            .into_iter()
            .filter(|span| !["iscsiadm", "node.", "sg_"].iter().any(|other| span.starts_with(other)))
        {
            for key in span.split([' ', '=', '[', ']', '.']).filter(|word| is_key(word)) {
                let known = match document.as_str() {
                    "docs/attach.md" => {
                        [&settings, &saved].iter().any(|text| text.contains(&format!("\"{key}\"")))
                    }
                    "docs/api.md" => is_in_files(key) || api.contains(&format!("\"{key}\"")),
                    "docs/json.md" => schema.contains(&format!("\"{key}\"")),
                    "docs/copy.md" => report.contains(&format!("pub {key}:")),
                    "docs/rdma.md" => {
                        is_in_urls(key) || example.contains(&format!("{key} =")) || OF_IB_SRP.contains(&key)
                    }
                    "docs/router.md" | "docs/late-writes.md" => {
                        is_in_urls(key) || is_in_files(key) || nvme.contains(&format!("\"{key}\""))
                    }
                    "docs/measure.md" | "docs/use.md" => is_in_urls(key),
                    "docs/nvme.md" => nvme.contains(&format!("\"{key}\"")) || is_in_files(key),
                    "docs/tuning.md" | "docs/upgrade.md" => {
                        is_in_urls(key) || is_in_files(key) || OF_LINUX.contains(&key)
                    }
                    _ => is_in_files(key),
                };
                assert!(known, "{document}: `{key}` is no key of the configuration");
                seen += 1;
            }
        }
    }
    assert!(seen >= 10, "only {seen} keys were found");
}

#[test]
fn every_url_setting_is_documented() {
    let (settings, page) = (read("crates/lunar-initiator/src/url/settings.rs"), read("docs/use.md"));
    let names: Vec<&str> =
        settings.split("row(\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert!(names.len() >= 20, "{names:?}");
    names.iter().for_each(|name| assert!(page.contains(&format!("`{name}`")), "docs/use.md lacks {name}"));
    let (nvme, page) = (read("crates/lunar-initiator/src/url/nvme.rs"), read("docs/nvme.md"));
    let table = nvme.split("const KEYS").nth(1).and_then(|rest| rest.split("];").next()).expect("a table");
    let names: Vec<&str> = table.split("    (\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert!(names.len() >= 10, "{names:?}");
    names.iter().for_each(|name| assert!(page.contains(&format!("`{name}`")), "docs/nvme.md lacks {name}"));
}

#[test]
fn documented_exit_statuses_match_the_help() {
    let text = help(&[]).expect("lunar --help");
    let rows = text.split("Exit status:").nth(1).expect("a table").lines().filter_map(|line| {
        let (status, meaning) = line.trim().split_once("   ")?;
        status.parse::<u8>().ok().map(|status| format!("| {status} | {meaning} |"))
    });
    let rows: Vec<String> = rows.collect();
    assert!(rows.len() >= 10, "{rows:?}");
    rows.iter().for_each(|row| assert!(read("docs/use.md").contains(row), "docs/use.md lacks {row}"));
}

/// Adds the text of every source file below a folder, by its path from the project's root.
fn sources(folder: &str, into: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(root().join(folder)).expect("a folder").flatten() {
        let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            sources(&path, into);
        } else if path.ends_with(".rs") {
            into.insert(path.clone(), read(&path));
        }
    }
}

/// Whether the sources define a name such as `run`, `Session::command` or `ConnectionHold`.
fn defines(sources: &BTreeMap<String, String>, name: &str) -> bool {
    let (owner, item) = name.rsplit_once("::").unwrap_or(("", name));
    let kinds = ["fn", "struct", "enum", "trait", "const", "static", "type"];
    let is_item = |text: &String| {
        let declared = kinds.iter().any(|kind| {
            text.match_indices(&format!("{kind} {item}")).any(|(at, found)| {
                !text[at + found.len()..].starts_with(|c: char| c.is_alphanumeric() || c == '_')
            })
        });
        let variant = text.lines().any(|line| {
            line.trim_start().strip_prefix(item).is_some_and(|rest| rest.starts_with([',', '(', ' ']))
        });
        declared || (!owner.is_empty() && variant)
    };
    let is_owner = |(path, text): (&String, &String)| {
        let names_it = [" ", "<"].iter().any(|end| text.contains(&format!("{owner}{end}")));
        let (module, package) = (owner.replace("::", "/"), owner.replace("::", "/").replace('_', "-"));
        owner.is_empty() || names_it || path.contains(&module) || path.contains(&package)
    };
    sources.iter().any(|(path, text)| is_item(text) && is_owner((path, text)))
}

#[test]
fn architecture_names_existing_files_and_items() {
    let mut all = BTreeMap::new();
    ["crates", "xtask", "interop", "fuzz"].iter().for_each(|folder| sources(folder, &mut all));
    let (mut files, mut names) = (0, 0);
    // A path without a top-level folder is below the first of these. A bare file name may repeat a path.
    let folders = ["crates/lunar-target/src", ""].map(|folder| root().join(folder));
    let spans = spans("ARCHITECTURE.md");
    for span in &spans {
        if span.contains('/') && span.contains('.') && !span.contains(' ') || span.ends_with(".rs") {
            let is_repeated = spans.iter().any(|path| path.ends_with(&format!("/{span}")));
            let is_there = is_repeated || folders.iter().any(|folder| folder.join(span).exists());
            assert!(is_there, "ARCHITECTURE.md: there is no {span}");
            files += 1;
        } else if span.contains("::") || span.ends_with("()") {
            let name = span.trim_end_matches("()");
            assert!(defines(&all, name), "ARCHITECTURE.md: nothing is called {name}");
            names += 1;
        }
    }
    assert!(files >= 60 && names >= 8, "only {files} files and {names} names were found");
}
