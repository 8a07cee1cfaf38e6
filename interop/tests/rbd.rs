//! LUNs on images of Ceph RBD, on a cluster that the test starts.

use interop::ceph::CephCluster;
use interop::server::{Folder, lunar_bin};
use interop::tool::{self, ToolOutput};
use interop::{Server, TARGET};
use std::process::Command;
use std::time::Duration;

fn lunar(arguments: &[&str]) -> String {
    tool::must(lunar_bin().to_str().expect("text"), arguments)
}

fn fails(arguments: &[&str]) -> String {
    let ran = tool::run(Command::new(lunar_bin()).args(arguments), Duration::from_secs(60));
    assert!(!ran.ok(), "{arguments:?} succeeds: {}", ran.said);
    ran.said
}

/// A file of pseudo-random bytes, with a hole at its end.
fn source(folder: &Folder) -> String {
    let file = folder.join("source.img");
    let bytes: Vec<u8> = (0..12u32 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::write(&file, bytes).expect("a file");
    std::fs::OpenOptions::new().write(true).open(&file).expect("a file").set_len(64 << 20).expect("a hole");
    file.display().to_string()
}

#[test]
fn image_is_copied_served_resized_and_fenced() {
    let Some(mut cluster) = CephCluster::start() else { return };
    let folder = Folder::fresh();
    let (source, image) = (source(&folder), cluster.image("disk"));
    copies_keep_bytes_and_holes(&cluster, &folder, &source, &image);
    errors_name_the_object_and_the_fix(&cluster, &image);
    image_with_a_cache_is_refused(&cluster, &source, &image);
    info_shows_an_image(&image);
    attached_image_keeps_data(&folder, &source, &image);
    forced_detach_ends_writes_that_wait_for_the_osd(&mut cluster, &folder, &image);
    served_image_keeps_data_and_follows_its_size(&cluster, &folder, &source);
    fenced_client_is_replaced(&cluster);
    librados_has_one_thread_unless_configured(&cluster);
    io_waits_for_a_dead_osd(&mut cluster);
}

fn info_shows_an_image(image: &str) {
    let said = lunar(&["info", image]);
    assert!(said.contains("rbd:rbd/disk") && said.contains("64 MiB"), "{said}");
    let shown: serde_json::Value = serde_json::from_str(&lunar(&["info", image, "--json"])).expect("JSON");
    assert_eq!((&shown["bytes"], &shown["object_bytes"]), (&(64 << 20).into(), &(4 << 20).into()), "{shown}");
    assert!(fails(&["info", image, "--page", "0x83"]).contains("it has no pages"));
}

/// `lunar attach` and its like, with folders of the test.
fn host(folder: &Folder, arguments: &[&str]) -> ToolOutput {
    let mut command = Command::new(lunar_bin());
    let state = [("LUNAR_RUN_DIR", "run"), ("XDG_CONFIG_HOME", "config"), ("XDG_STATE_HOME", "state")];
    command.args(arguments).envs(state.map(|(name, path)| (name, folder.join(path))));
    tool::run(&mut command, Duration::from_secs(60))
}

/// Attaches an image as an NBD server. Returns its URI.
fn attach(folder: &Folder, image: &str) -> String {
    let attached = host(folder, &["attach", image]);
    assert!(attached.ok(), "{}", attached.said);
    attached.said.lines().next().expect("a URI").to_owned()
}

fn attached_image_keeps_data(folder: &Folder, source: &str, image: &str) {
    let uri = attach(folder, image);
    let back = folder.join("attached.img").display().to_string();
    lunar(&["copy", &uri, &back]);
    assert!(std::fs::read(source).expect("a file") == std::fs::read(&back).expect("a file"));
    lunar(&["bench", "randrw", &uri, "--verify", "--runtime", "0.5", "--span", "16M", "--destroy"]);
    lunar(&["copy", "--force", source, &uri]);
    let listed = host(folder, &["attach", "list"]).said;
    assert!(listed.contains("rbd-disk") && listed.contains(" attached "), "{listed}");
    let twice = host(folder, &["attach", image, "--name", "other"]);
    assert!(!twice.ok() && twice.said.contains("already attached"), "{}", twice.said);
    let paths = host(folder, &["attach", "rbd:rbd/none", "--path", image]);
    assert!(!paths.ok() && paths.said.contains("takes no other path"), "{}", paths.said);
    let detached = host(folder, &["detach", image]);
    assert!(detached.ok(), "{}", detached.said);
    lunar(&["copy", "--force", image, &back]);
    assert!(std::fs::read(source).expect("a file") == std::fs::read(back).expect("a file"), "written");
}

fn forced_detach_ends_writes_that_wait_for_the_osd(cluster: &mut CephCluster, folder: &Folder, image: &str) {
    let uri = attach(folder, image);
    std::thread::scope(|scope| {
        let write = || fails(&["bench", "randwrite", &uri, "--runtime", "20", "--span", "16M", "--destroy"]);
        let running = scope.spawn(write);
        std::thread::sleep(Duration::from_secs(1));
        cluster.kill_osd();
        std::thread::sleep(Duration::from_secs(1));
        let detached = host(folder, &["detach", "rbd-disk", "--force", "--timeout", "30"]);
        assert!(!detached.ok() && detached.said.contains("not stored"), "{}", detached.said);
        running.join().expect("its writes fail");
    });
    cluster.start_osd();
    let listed = host(folder, &["attach", "list"]).said;
    assert!(!listed.contains(" attached "), "{listed}");
    host(folder, &["detach", "rbd-disk", "--forget"]);
}

fn librados_has_one_thread_unless_configured(cluster: &CephCluster) {
    let threads = || {
        let server = Server::start(&cluster.configuration("disk", ""));
        let tasks = std::fs::read_dir(format!("/proc/{}/task", server.pid())).expect("a process");
        let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm"));
        let names = tasks.map(|task| name(task.expect("a thread")).unwrap_or_default());
        names.filter(|name| name.trim() == "io_context_pool").count()
    };
    assert_eq!(threads(), 1);
    cluster.set_of_clients("librados_thread_count", "3");
    assert_eq!(threads(), 3);
}

fn copies_keep_bytes_and_holes(cluster: &CephCluster, folder: &Folder, source: &str, image: &str) {
    lunar(&["copy", source, image]);
    assert!(cluster.rbd(&["info", "rbd/disk"]).contains("size 64 MiB"));
    let back = folder.join("back.img").display().to_string();
    lunar(&["copy", image, &back]);
    assert!(std::fs::read(source).expect("a file") == std::fs::read(&back).expect("a file"));
    let exported = folder.join("exported.img").display().to_string();
    cluster.rbd(&["export", "rbd/disk", &exported]);
    assert!(std::fs::read(source).expect("a file") == std::fs::read(exported).expect("a file"));
    let used = cluster.rbd(&["diff", "--whole-object", "rbd/disk"]);
    assert_eq!(
        used.lines().filter(|line| line.contains("data")).count(),
        3,
        "12 MiB in objects of 4 MiB: {used}"
    );
    cluster.rbd(&["snap", "create", "rbd/disk@before"]);
    let snapshot = image.replace("disk:", "disk@before:");
    let of_snapshot = folder.join("snapshot.img").display().to_string();
    lunar(&["copy", &snapshot, &of_snapshot]);
    assert!(std::fs::read(source).expect("a file") == std::fs::read(of_snapshot).expect("a file"));
}

fn errors_name_the_object_and_the_fix(cluster: &CephCluster, image: &str) {
    let out = "/dev/null";
    let said = fails(&["copy", &cluster.image("none"), out]);
    assert!(said.contains("rbd:rbd/none") && said.contains("hint:"), "{said}");
    let said = fails(&["copy", &image.replace("rbd:rbd/", "rbd:nopool/"), out]);
    assert!(said.contains("cannot open the pool"), "{said}");
    let said = fails(&["copy", &image.replace("id=lunar", "id=other"), out]);
    assert!(said.contains("client.other") && said.contains("hint:"), "{said}");
    let said = fails(&["copy", "rbd:rbd", out]);
    assert!(said.contains("pool or image is missing"), "{said}");
}

/// In the metadata of the image, and in those of the pool, which an image in a namespace has too.
fn image_with_a_cache_is_refused(cluster: &CephCluster, source: &str, image: &str) {
    let refused = |arguments: &[&str], option: &str, hint: &str| {
        let said = fails(arguments);
        assert!(
            said.contains(&format!("turns on a cache of librbd: {option}")) && said.contains(hint),
            "{said}"
        );
    };
    let (snapshot, out) = (image.replace("disk:", "disk@before:"), "/dev/null");
    cluster.rbd(&["namespace", "create", "rbd/space"]);
    let in_namespace = image.replace("rbd/disk:", "rbd/space/disk:");
    lunar(&["copy", source, &in_namespace]);
    for (option, value) in [("rbd_cache", "true"), ("rbd_persistent_cache_mode", "ssd")] {
        let (found, hint) =
            (format!("{option} = {value}"), format!("rbd config image remove rbd/disk {option}"));
        cluster.rbd(&["config", "image", "set", "rbd/disk", option, value]);
        refused(&["copy", source, image], &found, &hint);
        refused(&["copy", image, out], &found, &hint);
        lunar(&["copy", &snapshot, out]);
        cluster.rbd(&["config", "image", "remove", "rbd/disk", option]);
    }
    cluster.rbd(&["config", "pool", "set", "rbd", "rbd_cache", "true"]);
    let hint = "rbd config pool remove rbd rbd_cache";
    refused(&["copy", image, out], "rbd_cache = true", hint);
    refused(&["copy", &in_namespace, out], "rbd_cache = true", hint);
    cluster.rbd(&["config", "image", "set", "rbd/disk", "rbd_cache", "false"]);
    lunar(&["copy", image, out]);
    cluster.rbd(&["config", "image", "remove", "rbd/disk", "rbd_cache"]);
    cluster.rbd(&["config", "pool", "remove", "rbd", "rbd_cache"]);
}

fn served_image_keeps_data_and_follows_its_size(cluster: &CephCluster, folder: &Folder, source: &str) {
    let server = Server::start(&cluster.configuration("disk", ""));
    let url = format!("iscsi://{}/{TARGET}/0", server.portal());
    let back = folder.join("served.img").display().to_string();
    lunar(&["copy", &url, &back]);
    assert!(std::fs::read(source).expect("a file") == std::fs::read(back).expect("a file"));
    io(&server, "1");
    cluster.rbd(&["resize", "--no-progress", "--size", "80M", "rbd/disk"]);
    let end = std::time::Instant::now() + Duration::from_secs(30);
    while !lunar(&["ls", &server.portal().to_string()]).contains("80 MiB") {
        assert!(std::time::Instant::now() < end, "{}", lunar(&["ls", &server.portal().to_string()]));
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Verified I/O on the LUN of a server.
fn io(server: &Server, runtime_s: &str) {
    let url = format!("iscsi://{}/{TARGET}/0", server.portal());
    let line = ["bench", "randrw", &url, "--verify", "--runtime", runtime_s, "--span", "16M", "--destroy"];
    lunar(&line);
}

fn fenced_client_is_replaced(cluster: &CephCluster) {
    let server = Server::start(&cluster.configuration("disk", ""));
    io(&server, "0.2");
    let fenced = cluster.watchers("disk");
    assert_eq!(fenced.len(), 1, "{fenced:?}");
    cluster.ceph(&["osd", "blocklist", "add", &fenced[0]]);
    io(&server, "0.2");
    let now = cluster.watchers("disk");
    assert!(!now.contains(&fenced[0]), "{now:?}");
    let log = server.log();
    assert!(
        log.contains("has fenced this client") && log.contains("opened again with a new client"),
        "{log}"
    );
}

fn io_waits_for_a_dead_osd(cluster: &mut CephCluster) {
    let server = Server::start(&cluster.configuration("disk", ""));
    std::thread::scope(|scope| {
        let running = scope.spawn(|| io(&server, "6"));
        std::thread::sleep(Duration::from_secs(1));
        cluster.kill_osd();
        std::thread::sleep(Duration::from_secs(1));
        cluster.start_osd();
        running.join().expect("no command fails");
    });
}
