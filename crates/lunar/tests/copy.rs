//! `lunar copy`: arguments, results, errors, and interrupted copies.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

const LUNAR: &str = env!("CARGO_BIN_EXE_lunar");
const MIB: usize = 1 << 20;

/// A folder that is removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("copy-{name}-{}", std::process::id()));
        _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn copy(&self, args: &str) -> Command {
        let mut command = Command::new(LUNAR);
        command.arg("copy").args(args.split_whitespace()).current_dir(&self.0).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Exit status, stdout and stderr.
    fn run(&self, args: &str) -> (i32, String, String) {
        result_of(self.copy(args).output().unwrap())
    }

    fn good(&self, args: &str) -> String {
        let (status, _, said) = self.run(args);
        assert_eq!(status, 0, "{args}: {said}");
        said
    }

    /// The copy must fail with status 1 and these words.
    fn bad(&self, args: &str, words: &str) {
        self.ends(1, args, words);
    }

    /// The command line must be rejected with these words.
    fn invalid(&self, args: &str, words: &str) {
        self.ends(7, args, words);
    }

    /// The copy must end with this status, print these words and a hint on stderr, and nothing on stdout.
    fn ends(&self, status: i32, args: &str, words: &str) {
        let (ended, out, said) = self.run(args);
        assert_eq!((ended, out.as_str()), (status, ""), "{args}: {said}");
        assert!(said.starts_with("error: ") && said.contains("\n  hint: "), "{args}: {said}");
        assert!(said.contains(words), "{args}: {said}");
    }

    fn json(&self, args: &str) -> Value {
        let (status, out, said) = self.run(&format!("{args} --json"));
        assert_eq!(status, 0, "{args}: {said}");
        serde_json::from_str(&out).unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap()
    }

    fn is_there(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    /// A file of these bytes.
    fn make(&self, name: &str, bytes: &[u8]) {
        fs::write(self.path(name), bytes).unwrap();
    }

    /// A file of `size` bytes with data in some ranges.
    fn sparse(&self, name: &str, size: usize, data: &[(usize, usize)]) {
        let file = File::create(self.path(name)).unwrap();
        file.set_len(size as u64).unwrap();
        data.iter().for_each(|(at, len)| file.write_all_at(&noise(*at as u64, *len), *at as u64).unwrap());
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}

fn result_of(output: Output) -> (i32, String, String) {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
}

/// Pseudo-random bytes (SplitMix64) that depend on the seed.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let word = |n: u64| {
        let mut x = seed.wrapping_add(n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)).to_le_bytes()
    };
    (0..len.div_ceil(8) as u64).flat_map(word).take(len).collect()
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// Waits for a condition; false if the child ends first.
fn until(child: &mut Child, mut so: impl FnMut() -> bool) -> bool {
    let started_at = Instant::now();
    while !so() {
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        assert!(started_at.elapsed() < Duration::from_secs(60), "the condition was not met in time");
        sleep(Duration::from_millis(1));
    }
    true
}

#[test]
fn holes_stay_holes_and_the_bytes_are_the_same() {
    let folder = Folder::new("holes");
    folder.sparse("a", 64 * MIB + 777, &[(0, 100), (20 * MIB + 5, 3 * MIB), (64 * MIB + 770, 7)]);
    let said = folder.good("a b --verify");
    assert!(said.contains(" MB/s (") && said.contains(" MiB/s)") && said.ends_with("verified\n"), "{said}");
    assert!(folder.read("a") == folder.read("b"));
    let blocks = |name: &str| fs::metadata(folder.path(name)).unwrap().blocks();
    assert!(blocks("b") <= blocks("a") + 1024, "{} and {}", blocks("a"), blocks("b"));
    folder.good("a full --sparse never");
    assert!(blocks("full") >= 64 * 2048 && folder.read("a") == folder.read("full"));
    let summary = folder.json("a b --force --verify");
    assert_eq!(
        (summary["bytes"].as_u64(), summary["verified"].as_bool()),
        (Some(64 * MIB as u64 + 777), Some(true))
    );
    let moved: u64 = ["bytes_written", "zeroes_cleared", "zeroes_skipped"]
        .iter()
        .map(|name| summary[name].as_u64().unwrap())
        .sum();
    assert_eq!(moved, 64 * MIB as u64 + 777, "{summary}");
    assert_eq!(
        (summary["complete"].as_bool(), summary["unreadable"].as_array().unwrap().len()),
        (Some(true), 0)
    );
    assert!(!folder.is_there("b.lunar-copy"));
}

#[test]
fn harmful_copy_is_rejected() {
    let folder = Folder::new("refused");
    folder.make("small", &noise(1, MIB));
    folder.make("large", &noise(2, 2 * MIB));
    let before = folder.read("small");
    folder.ends(15, "large small", "small already has data");
    folder.bad("large small --force", "the destination is too small; nothing was written");
    folder.bad("small large --force --exact", "--exact is set; nothing was written");
    folder.invalid("small ./small --force", "are the same");
    folder.invalid("small . --force", ". is a directory");
    folder.ends(21, "none new", "no such file");
    folder.ends(21, "small none/new", "no such file");
    folder.invalid("small null:1G --verify", "cannot be read back");
    folder.invalid("small null:1G --resume", "no default journal");
    let (status, out, said) = folder.run("small - --json");
    assert!(status == 7 && out.is_empty() && said.starts_with("{\"error\":{\"code\":"), "{said}");
    assert!(said.contains("conflicts with a copy to stdout"), "{said}");
    folder.invalid("- new --resume", "--resume conflicts with a source that is a stream");
    folder.invalid("- new --verify", "--verify conflicts with a source that is a stream");
    folder.invalid("- new --exact", "--exact conflicts with a source that is a stream");
    folder.invalid("small - --resume", "no default journal");
    folder.invalid("small new --block 100000", "--block");
    folder.invalid("small new --block 32M --depth 1024", "the memory limit");
    folder.invalid("small new --checkpoint much", "--checkpoint");
    folder.invalid("null:much new", "is not a size");
    assert!(folder.read("small") == before && !folder.is_there("new"), "no file was changed");
    assert_eq!(folder.run("small").0, 2);
    assert_eq!(folder.run("small new --depth 0").0, 2);
    // A larger file keeps the rest of its data. A file without data may be overwritten without --force.
    folder.good("small large --force");
    assert!(folder.read("large")[..MIB] == before && folder.read("large")[MIB..] == noise(2, 2 * MIB)[MIB..]);
    folder.sparse("hole", 3 * MIB, &[]);
    folder.good("small hole");
    assert!(folder.read("hole")[..MIB] == before && folder.read("hole").len() == 3 * MIB);
}

#[test]
fn served_file_is_not_copied() {
    let folder = Folder::new("served");
    folder.make("disk.img", &noise(3, MIB));
    let mut serve = Command::new(LUNAR);
    serve.args([
        "serve",
        "disk.img",
        "--listen",
        "127.0.0.1:0",
        "--run",
        &format!("{LUNAR} copy disk.img b"),
    ]);
    serve.current_dir(&folder.0).env("XDG_STATE_HOME", &folder.0).env_remove("XDG_RUNTIME_DIR");
    let (status, _, said) = result_of(serve.stdin(Stdio::null()).output().unwrap());
    assert_eq!(status, 28, "{said}");
    assert!(said.contains("disk.img: is being written by another server"), "{said}");
}

/// Runs a shell command with `lunar serve --run`, so that $LUNAR_URL is set.
fn beside(folder: &Folder, serve: &str, line: &str) -> (i32, String, String) {
    let mut server = Command::new(LUNAR);
    server.arg("serve").args(serve.split_whitespace()).args(["--run", line]).current_dir(&folder.0);
    server.env("XDG_STATE_HOME", &folder.0).env_remove("XDG_RUNTIME_DIR").env("LUNAR_LOG", "error");
    result_of(server.stdin(Stdio::null()).output().unwrap())
}

#[test]
fn lun_is_an_end_like_others() {
    let folder = Folder::new("lun");
    folder.sparse("a", 20 * MIB + 777, &[(0, 100), (5 * MIB + 5, 3 * MIB), (20 * MIB + 770, 7)]);
    let line = format!(
        "{LUNAR} copy a $LUNAR_URL --verify && {LUNAR} copy $LUNAR_URL b --resume --verify && \
         {LUNAR} copy $LUNAR_URL - | cmp - b && {LUNAR} copy - $LUNAR_URL < a && \
         {LUNAR} copy a $LUNAR_URL --exact"
    );
    let (status, _, said) = beside(&folder, "memory:64M --listen 127.0.0.1:0", &line);
    assert!(status == 1 && said.contains("--exact is set"), "{status}: {said}");
    let (expected, got) = (folder.read("a"), folder.read("b"));
    assert!(got.len() == 64 * MIB && got[..expected.len()] == expected[..]);
    assert!(got[expected.len()..].iter().all(|byte| *byte == 0));
    let line = format!("{LUNAR} copy ${{LUNAR_URL%/0}}/7 c");
    let (status, _, said) = beside(&folder, "memory:64M --listen 127.0.0.1:0", &line);
    assert_eq!(status, 21, "no such LUN: {said}");
}

#[test]
fn unreadable_lun_range_is_skipped() {
    let folder = Folder::new("damage");
    let config = "[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\"]\n[[target]]\n\
        name = \"iqn.2026-11.org.example:a\"\n[[target.lun]]\nlun = 0\nbackend = \"memory\"\nserial = \"damaged\"\n\
        size = \"1M\"\nthin = false\nfilters = [{ kind = \"error\", rate = 1.0, op = \"read\" }]\n";
    folder.make("lunar.toml", config.as_bytes());
    let (status, _, said) = beside(&folder, "--config lunar.toml", &format!("{LUNAR} copy $LUNAR_URL b"));
    assert!(status == 30 && said.contains("cannot read the source"), "{status}: {said}");
    assert!(!said.contains("login_tries"), "no setting that the URL does not have: {said}");
    let line = format!("{LUNAR} copy $LUNAR_URL b --skip-errors --resume");
    let (status, _, said) = beside(&folder, "--config lunar.toml", &line);
    assert_eq!(status, 40, "{said}");
    assert!(said.contains("1 range of iscsi://") && said.contains("offset 0, 1048576 bytes"), "{said}");
}

#[test]
fn target_copies_between_its_luns_by_itself() {
    let folder = Folder::new("offload");
    // The last 512 bytes are no whole block of the destination LUN, so they are read and written.
    let (size, whole) = (20 * MIB + 512, 20 * MIB as u64);
    let lun = |number, size, block_size| {
        format!(
            "[[target.lun]]\nlun = {number}\nbackend = \"memory\"\nthin = false\nsize = \"{size}\"\n\
             block_size = {block_size}\n"
        )
    };
    let config = format!(
        "[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\"]\n[[target]]\n\
         name = \"iqn.2026-11.org.example:a\"\n{}{}",
        lun(0, size, 512),
        lun(1, 24 * MIB, 4096)
    );
    folder.make("lunar.toml", config.as_bytes());
    folder.make("a", &noise(20, size));
    let line = format!(
        "there=${{LUNAR_URL%/0}}/1; {LUNAR} copy a $LUNAR_URL && \
         {LUNAR} copy $LUNAR_URL $there --verify --resume --journal j --checkpoint 4M --json > 1 && \
         {LUNAR} copy $there b && {LUNAR} copy $LUNAR_URL $there && \
         {LUNAR} copy $LUNAR_URL $there --no-offload --json > 2"
    );
    let (status, _, said) = beside(&folder, "--config lunar.toml", &line);
    assert_eq!(status, 0, "{said}");
    assert!(said.contains("; 20.00 MiB were copied by the target (offload)\n"), "{said}");
    let summary = |name| serde_json::from_slice::<Value>(&folder.read(name)).unwrap();
    let (offloaded, by_hand) = (summary("1"), summary("2"));
    assert_eq!((&offloaded["bytes_offloaded"], &offloaded["verified"]), (&whole.into(), &true.into()));
    assert_eq!((&offloaded["bytes_read"], &offloaded["bytes_written"]), (&512.into(), &512.into()));
    assert_eq!((&by_hand["bytes_offloaded"], &by_hand["bytes_read"]), (&0.into(), &size.into()));
    assert!(folder.read("b")[..size] == noise(20, size));
}

/// A tgtd, which does not support EXTENDED COPY, with these files as LUNs from 1.
struct Stgt {
    child: Child,
    control: String,
    socket: PathBuf,
    url: String,
}

impl Stgt {
    /// None if tgtd is not installed.
    fn start(folder: &Folder, files: &[&str]) -> Option<Stgt> {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let (control, socket) = ((port % 30_000 + 1000).to_string(), folder.path("control"));
        let mut command = Command::new("tgtd");
        command.args(["-f", "-C", &control, "--iscsi", &format!("portal=127.0.0.1:{port}")]);
        command.env("TGT_IPC_SOCKET", &socket).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().ok()?;
        let url = format!("iscsi://127.0.0.1:{port}/iqn.2026-11.org.example:t");
        let stgt = Stgt { child, control, socket, url };
        let started_at = Instant::now();
        while !stgt.did("target --op show") {
            assert!(started_at.elapsed() < Duration::from_secs(20), "tgtd does not answer");
            sleep(Duration::from_millis(20));
        }
        assert!(stgt.did("target --op new --tid 1 -T iqn.2026-11.org.example:t"));
        for (lun, file) in (1..).zip(files) {
            let path = folder.path(file);
            assert!(stgt.did(&format!("logicalunit --op new --tid 1 --lun {lun} -b {}", path.display())));
        }
        assert!(stgt.did("target --op bind --tid 1 -I ALL"));
        Some(stgt)
    }

    fn did(&self, words: &str) -> bool {
        let mut command = Command::new("tgtadm");
        command.args(["-C", &self.control, "--lld", "iscsi", "--mode"]).args(words.split_whitespace());
        command.env("TGT_IPC_SOCKET", &self.socket).output().is_ok_and(|output| output.status.success())
    }
}

impl Drop for Stgt {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

#[test]
fn target_that_does_not_copy_is_read_and_written() {
    let folder = Folder::new("stgt");
    folder.make("a", &noise(21, 5 * MIB));
    folder.sparse("b", 5 * MIB, &[]);
    let Some(stgt) = Stgt::start(&folder, &["a", "b"]) else {
        return println!("skipped: needs tgtd (apt-get install tgt), and to be root");
    };
    let done = folder.json(&format!("{0}/1 {0}/2 --verify", stgt.url));
    assert_eq!((&done["bytes_offloaded"], &done["bytes_read"]), (&0.into(), &(5 * MIB).into()));
    assert_eq!(done["verified"], true);
}

/// Runs a command with these bytes on stdin.
fn fed(mut command: Command, bytes: &[u8]) -> (i32, String, String) {
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    let bytes = bytes.to_vec();
    let feed = std::thread::spawn(move || _ = pipe.write_all(&bytes));
    let output = child.wait_with_output().unwrap();
    feed.join().unwrap();
    result_of(output)
}

#[test]
fn streams_have_any_length() {
    let folder = Folder::new("streams");
    for len in [0, 1, 4096, 65536, MIB, 5 * MIB + 12345] {
        let bytes = noise(len as u64, len);
        let (status, _, said) = fed(folder.copy("- in --force"), &bytes);
        assert_eq!(status, 0, "{said}");
        assert!(folder.read("in") == bytes, "{len}");
        let output = folder.copy("in -").output().unwrap();
        assert!(output.status.success() && output.stdout == bytes, "{len}");
        fs::remove_file(folder.path("in")).unwrap();
    }
    let mut zeros = vec![0; 40 * MIB];
    zeros[30 * MIB] = 1;
    assert_eq!(fed(folder.copy("- sparse"), &zeros).0, 0);
    assert!(fs::metadata(folder.path("sparse")).unwrap().blocks() < 8 * 2048);
    assert!(folder.read("sparse") == zeros);
    let (status, out, _) = fed(folder.copy("- -"), b"straight through");
    assert_eq!((status, out.as_str()), (0, "straight through"));
    folder.sparse("a", MIB, &[(5, 10)]);
    folder.good("a /dev/null");
    folder.good("a null:1G");
    folder.good("a null:64K");
    assert_eq!(folder.json("null:3G null:3G")["zeroes_skipped"].as_u64(), Some(3 << 30));
    assert_eq!(
        fed(folder.copy("- null:64K"), &noise(1, MIB)).0,
        0,
        "a null destination accepts any amount of data"
    );
}

#[test]
fn closed_pipe_and_full_disk_are_errors() {
    let folder = Folder::new("closed-pipe");
    folder.make("a", &noise(4, 9 * MIB));
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let (status, _, said) = result_of(folder.copy("a -").stdout(full).output().unwrap());
    assert!(status == 1 && said.contains("no space left on device"), "{said}");
    let mut child = folder.copy("a -").spawn().unwrap();
    let mut some = [0; 4096];
    child.stdout.take().unwrap().read_exact(&mut some).unwrap();
    let (status, _, said) = result_of(child.wait_with_output().unwrap());
    assert!(status == 1 && said.contains("broken pipe"), "{said}");
}

#[test]
fn full_disk_ends_it_and_room_lets_it_go_on() {
    let folder = Folder::new("full");
    folder.make("a", &noise(5, 8 * MIB));
    fs::create_dir(folder.path("small")).unwrap();
    let script = format!(
        "mount -t tmpfs -o size=4m none small || exit 99
         {LUNAR} copy a small/b --journal j && exit 98
         test -s j || exit 97
         mount -o remount,size=20m small
         {LUNAR} copy a small/b --journal j --verify --json && cmp a small/b && ! test -e j"
    );
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", &script]).current_dir(&folder.0).stdin(Stdio::null());
    let output = match command.output() {
        Ok(output) => result_of(output),
        Err(e) => return println!("skipped: unshare: {e}"),
    };
    let (status, out, said) = output;
    if status == 99 || said.contains("unshare: ") {
        return println!("skipped: needs root: {said}");
    }
    assert_eq!(status, 0, "{out}{said}");
    assert!(
        said.contains("no space left on device")
            && said.contains("hint: free space at the destination; repeat"),
        "{said}"
    );
    let summary: Value = serde_json::from_str(&out).unwrap();
    assert!(summary["resumed_at"].as_u64().unwrap() >= MIB as u64, "{summary}");
}

/// Flushes and updates the journal after each 64 KiB, which is slow enough to be interrupted.
const STEPS: &str = "--block 64K --depth 2 --checkpoint 64K";

fn stable(folder: &Folder, journal: &str) -> u64 {
    let text = fs::read(folder.path(journal)).unwrap_or_default();
    serde_json::from_slice(&text).map_or(0, |kept: Value| kept["stable"].as_u64().unwrap())
}

#[test]
fn interrupted_copy_ends_and_resumes_later() {
    let folder = Folder::new("interrupt");
    folder.make("a", &noise(6, 64 * MIB));
    for (end, status) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let before = stable(&folder, "b.lunar-copy");
        let mut child = folder.copy(&format!("a b --resume --verify {STEPS}")).spawn().unwrap();
        assert!(
            until(&mut child, || stable(&folder, "b.lunar-copy") > before),
            "the copy ended before it was interrupted"
        );
        signal(&child, end);
        let (code, _, said) = result_of(child.wait_with_output().unwrap());
        assert_eq!(code, status, "{said}");
        assert!(
            said.contains("error: interrupted: ") && said.contains("hint: repeat the command to continue"),
            "{said}"
        );
    }
    let kept = stable(&folder, "b.lunar-copy");
    assert!(kept > 0);
    folder.ends(15, "a b", "--resume continues the interrupted copy");
    assert_eq!(stable(&folder, "b.lunar-copy"), kept, "a rejected copy changes nothing");
    let summary = folder.json("a b --resume --verify");
    assert_eq!(summary["resumed_at"].as_u64(), Some(kept));
    assert!(folder.read("a") == folder.read("b") && !folder.is_there("b.lunar-copy"));
}

#[test]
fn nohup_keeps_it_from_the_end_of_its_terminal() {
    let folder = Folder::new("nohup");
    folder.make("a", &noise(7, 64 * MIB));
    let words = [
        "-c",
        "trap '' HUP; exec \"$0\" copy a b --resume --block 64K --depth 2 --checkpoint 64K",
        env!("CARGO_BIN_EXE_lunar"),
    ];
    let mut child =
        Command::new("sh").args(words).current_dir(folder.path(".")).stderr(Stdio::piped()).spawn().unwrap();
    assert!(
        until(&mut child, || stable(&folder, "b.lunar-copy") > 0),
        "the copy ended before it was interrupted"
    );
    signal(&child, Signal::HUP);
    assert!(child.wait().unwrap().success());
    assert!(folder.read("a") == folder.read("b"));
}

#[test]
fn interrupt_without_a_journal_leaves_one() {
    let folder = Folder::new("unasked");
    // Without checkpoints, the copy is fast, so the file must be large.
    folder.sparse("a", 4096 * MIB, &[(0, 300 * MIB)]);
    // The parent process may ignore SIGHUP, and its children would inherit that.
    let mut child = Command::new("env");
    child.args(["--default-signal=HUP", LUNAR, "copy", "a", "b", "--block", "64K", "--depth", "1"]);
    child.args(["--sparse", "never"]).current_dir(&folder.0).stdin(Stdio::null());
    let mut child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let written = || fs::metadata(folder.path("b")).is_ok_and(|found| found.blocks() > 2048);
    assert!(until(&mut child, written), "the copy ended before it was interrupted");
    signal(&child, Signal::HUP);
    let (code, _, said) = result_of(child.wait_with_output().unwrap());
    assert_eq!(code, 129, "{said}");
    assert!(said.contains("repeat the command with --resume to continue"), "{said}");
    assert!(stable(&folder, "b.lunar-copy") > 0);
    let report = folder.json("a b --resume --verify");
    assert!(report["resumed_at"].as_u64().unwrap() > 0, "{report}");
}

#[test]
fn killed_copy_resumes() {
    let folder = Folder::new("killed");
    let mut resumed = 0;
    for round in 0..3u64 {
        let holes = [(0, 9 * MIB), (12 * MIB + 7, 5 * MIB), (19 * MIB, 3)];
        folder.sparse("a", 20 * MIB, &holes);
        let (mut attempts, mut moments) = (0, noise(round, 1000).into_iter());
        loop {
            let mut child = folder.copy(&format!("a b --resume --verify --json {STEPS}")).spawn().unwrap();
            let patience = Duration::from_millis(u64::from(moments.next().unwrap_or(255)) * (1 + attempts));
            let started_at = Instant::now();
            let ended = loop {
                match child.try_wait().unwrap() {
                    None if started_at.elapsed() < patience => sleep(Duration::from_millis(1)),
                    status => break status.is_some(),
                }
            };
            if !ended {
                signal(&child, Signal::KILL);
            }
            let (status, out, said) = result_of(child.wait_with_output().unwrap());
            if status == 0 {
                let report: Value = serde_json::from_str(&out).unwrap();
                resumed += u64::from(report["resumed_at"].as_u64().unwrap() > 0);
                break;
            }
            if status != -1 {
                // The copy was killed after it had removed the journal, but before it reported its end.
                assert!(said.contains("b already has data"), "attempt {attempts}: {status}: {said}");
                break;
            }
            attempts += 1;
        }
        assert!(folder.read("a") == folder.read("b"), "round {round}");
        fs::remove_file(folder.path("b")).unwrap();
    }
    println!("{resumed} of 3 rounds were resumed");
}

#[test]
fn only_the_same_copy_is_resumed() {
    let folder = Folder::new("same");
    folder.make("a", &noise(7, 64 * MIB));
    let mut child = folder.copy(&format!("a b --resume {STEPS}")).spawn().unwrap();
    assert!(
        until(&mut child, || stable(&folder, "b.lunar-copy") > MIB as u64),
        "the copy ended before it was interrupted"
    );
    signal(&child, Signal::KILL);
    child.wait().unwrap();
    let kept = stable(&folder, "b.lunar-copy");
    folder.make("other", &noise(8, 64 * MIB));
    folder.bad("other b --resume", "the source differs");
    let (_, _, said) = folder.run("other b --resume");
    assert!(said.contains(" was file /") && said.contains(", and is now file /"), "{said}");
    assert!(said.contains("remove the journal b.lunar-copy and add --force"), "{said}");
    folder.make("c", &noise(9, 64 * MIB));
    folder.bad("a c --journal b.lunar-copy", "the destination differs");
    folder.bad("a gone --journal b.lunar-copy", "gone does not exist any more");
    let last = File::options().read(true).write(true).open(folder.path("b")).unwrap();
    let mut byte = [0];
    last.read_exact_at(&mut byte, kept - 100).unwrap();
    last.write_all_at(&[!byte[0]], kept - 100).unwrap();
    folder.bad("a b --resume", &format!("differs from the source at offset {}", kept - 100));
    last.write_all_at(&byte, kept - 100).unwrap();
    folder.good("a b --resume --verify");
    folder.make("b.lunar-copy", b"{}");
    folder.bad("a b --resume", "is not a copy journal");
    folder.good("a b --force");
    assert!(!folder.is_there("b.lunar-copy"), "the journal belongs to a replaced copy");
}

#[test]
fn source_written_with_its_old_mtime_is_not_resumed() {
    let folder = Folder::new("mtime");
    folder.make("a", &noise(21, 64 * MIB));
    let mut child = folder.copy(&format!("a b --resume {STEPS}")).spawn().unwrap();
    assert!(
        until(&mut child, || stable(&folder, "b.lunar-copy") > MIB as u64),
        "the copy ended before it was interrupted"
    );
    signal(&child, Signal::KILL);
    child.wait().unwrap();
    let source = File::options().write(true).open(folder.path("a")).unwrap();
    let written = source.metadata().unwrap().modified().unwrap();
    source.write_all_at(b"new", 0).unwrap();
    source.set_modified(written).unwrap();
    assert_eq!(folder.path("a").metadata().unwrap().modified().unwrap(), written);
    folder.bad("a b --resume", "the source differs");
}

#[test]
fn image_format_is_copied_only_as_raw() {
    let folder = Folder::new("format");
    folder.make("image", &[&b"QFI\xfb\0\0\0\x03"[..], &noise(22, MIB)].concat());
    folder.make("disk", &noise(23, MIB));
    folder.bad("image copy", "image: is a disk image in the format qcow2, not raw");
    folder.bad("image copy", "qemu-img convert");
    folder.bad("disk image --force", "image: is a disk image in the format qcow2, not raw");
    assert!(!folder.is_there("copy"));
    folder.good("image copy --raw");
    assert!(folder.read("copy") == folder.read("image"));
    folder.good("disk image --force --raw");
    assert!(folder.read("image")[..MIB] == folder.read("disk")[..]);
}

#[test]
fn empty_file_is_compared_like_others() {
    let folder = Folder::new("empty");
    folder.make("a", b"");
    assert!(folder.good("a b --verify").contains("verified"));
    assert!(folder.is_there("b") && folder.read("b").is_empty());
    folder.good("a c --verify --resume");
    assert!(folder.read("c").is_empty() && !folder.is_there("c.lunar-copy"));
    folder.invalid("/dev/null d --verify", "--verify conflicts with a source that is a stream");
}

#[test]
fn difference_has_its_own_exit_status() {
    let folder = Folder::new("differs");
    // The file changes during the copy, so that verification finds a difference in the part copied first.
    folder.make("a", &noise(10, 200 * MIB));
    let mut child = folder.copy("a b --verify --block 64K --depth 1").spawn().unwrap();
    let mut byte = [0];
    let begun =
        || File::open(folder.path("b")).is_ok_and(|b| b.read_at(&mut byte, 5).is_ok() && byte[0] != 0);
    assert!(until(&mut child, begun), "the copy ended before the file changed");
    OpenOptions::new().write(true).open(folder.path("a")).unwrap().write_all_at(b"!", 5).unwrap();
    let (status, _, said) = result_of(child.wait_with_output().unwrap());
    assert_eq!(status, 41, "{said}");
    assert!(said.contains("source and destination differ at offset 5\n"), "{said}");
}

#[test]
fn time_has_an_end() {
    let folder = Folder::new("time");
    let mut child = folder.copy("- b --timeout 1 --progress").stdin(Stdio::piped()).spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    pipe.write_all(&noise(11, MIB)).unwrap();
    let (status, _, said) = result_of(child.wait_with_output().unwrap());
    assert_eq!(status, 8, "{said}");
    assert!(said.contains("interrupted: 1.00 MiB copied and flushed"), "{said}");
    assert!(folder.read("b") == noise(11, MIB));
}

#[test]
fn progress_option_prints_lines() {
    let folder = Folder::new("progress");
    let mut child = folder.copy("- b --progress").stdin(Stdio::piped()).spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    pipe.write_all(&noise(12, 2 * MIB)).unwrap();
    let mut said = child.stderr.take().unwrap();
    let mut first = [0; 16];
    said.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"copied 2.00 MiB,", "progress while the copy waits for data");
    drop(pipe);
    assert!(child.wait().unwrap().success());
}

/// A loop device that is detached on drop.
struct Loop(String);

impl Loop {
    fn new(file: &Path) -> Option<Loop> {
        let output = Command::new("losetup").args(["-f", "--show"]).arg(file).output().ok()?;
        output.status.success().then(|| Loop(String::from_utf8(output.stdout).unwrap().trim().into()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

#[test]
fn device_in_use_is_never_overwritten() {
    let folder = Folder::new("device");
    folder.make("a", &noise(13, 4 * MIB));
    folder.sparse("disk", 8 * MIB, &[]);
    let Some(device) = Loop::new(&folder.path("disk")) else {
        return println!("skipped: needs a loop device");
    };
    let dev = &device.0;
    let user = OpenOptions::new().write(true).custom_flags(rustix::fs::OFlags::EXCL.bits() as i32).open(dev);
    let Ok(user) = user else { return println!("skipped: needs root") };
    folder.ends(28, &format!("a {dev} --force"), "it is not mounted or in use");
    drop(user);
    folder.good(&format!("a {dev} --verify"));
    folder.bad(&format!("a {dev} --exact"), "--exact");
    folder.good(&format!("{dev} back --journal j"));
    assert!(folder.read("back")[..4 * MIB] == folder.read("a")[..]);
    assert_eq!(folder.read("back").len(), 8 * MIB);
    let (status, _, said) = fed(folder.copy(&format!("- {dev}")), &noise(14, 9 * MIB));
    assert!(status == 1 && said.contains("data beyond the end"), "{said}");
}

/// An NBD server that exports a memory disk as `disk`, and read-only as `fixed`. Returns its URL.
fn nbd_server(size: usize) -> (lunar_nbd::server::NbdServer, String) {
    let backend =
        lunar_block::open(&lunar_block::BackendSpec::sized(lunar_block::BackendKind::Memory, size as u64))
            .unwrap();
    let export = |name: &str, read_only| lunar_nbd::server::NbdExport {
        name: name.into(),
        backend: backend.clone(),
        block_size: 512,
        read_only,
        description: String::new(),
    };
    let listen = [lunar_nbd::server::ListenAddress::Tcp("127.0.0.1:0".parse().unwrap())];
    let cores = std::sync::Arc::new(lunar_runtime::Cores::one().unwrap());
    let exports = vec![export("disk", false), export("fixed", true)];
    let server =
        lunar_nbd::server::serve(&listen, exports, cores, lunar_nbd::server::ServerLimits::default())
            .unwrap();
    let url = server.addresses()[0].url("");
    (server, url)
}

#[test]
fn nbd_servers_are_ends_of_a_copy() {
    let folder = Folder::new("nbd");
    let (_server, url) = nbd_server(32 * MIB);
    folder.sparse("a", 32 * MIB, &[(0, 100), (5 * MIB + 512, 3 * MIB), (31 * MIB, MIB)]);
    let report = folder.json(&format!("a {url}disk --verify"));
    assert!(
        report["verified"].as_bool() == Some(true)
            && report["zeroes_cleared"].as_u64() > Some(20 * MIB as u64)
    );
    let report = folder.json(&format!("{url}fixed b"));
    assert!(folder.read("a") == folder.read("b"));
    assert!(report["bytes_read"].as_u64() < Some(10 * MIB as u64), "holes are not read: {report}");
    folder.good(&format!("a {url}disk --resume --journal j --checkpoint 4M"));
    assert!(!folder.is_there("j"));
    let out = folder.copy(&format!("{url}disk -")).output().unwrap();
    assert!(out.status.success() && out.stdout == folder.read("a"));
    assert!(fs::read_dir(&folder.0).unwrap().count() == 2, "no file is named like the URL");
}

#[test]
fn unsuitable_export_is_reported() {
    let folder = Folder::new("nbd-refused");
    let (server, url) = nbd_server(MIB);
    folder.make("a", &noise(1, 2 * MIB));
    folder.make("odd", &noise(1, 1000));
    folder.ends(21, &format!("a {url}none"), "hint: the server has the exports \"disk\", \"fixed\"");
    folder.bad(&format!("a {url}fixed"), "read-only");
    folder.bad(&format!("a {url}disk"), "the destination is too small; nothing was written");
    folder.bad(&format!("odd {url}disk"), "must be multiples of 512 bytes");
    folder.invalid(&format!("{url}disk {url}disk"), "are the same");
    folder.invalid(&format!("a {url}disk --resume"), "no default journal");
    folder.invalid("a nbds://127.0.0.1/disk", "TLS is not supported");
    folder.invalid("a nbd+unix:///disk", "the path of the socket is missing");
    folder.ends(21, "nbd+unix:///?socket=nowhere b", "no such file");
    drop(server);
    assert!(!folder.is_there("b"));
}
