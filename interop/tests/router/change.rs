//! `lunar diff` and `lunar apply`: another configuration for a running router.

use crate::*;
use interop::Relay;
use interop::scsi::{pattern, read10};

/// Writes a configuration with another target and another limit. Returns its path.
fn other(router: &Server, storage: &Server) -> String {
    let file = router.dir().join("other.toml").display().to_string();
    let served = std::fs::read_to_string(router.dir().join("lunar.toml")).expect("the served configuration");
    let text = served.replace(":0\"", &format!(":{}\"", router.portal().port()));
    let text = text.replace("[router.r1]\n", "[router.r1]\nmax_sessions = 3\n")
        + &upstream("b", &url(storage, &format!("/{B}")), "")
        + &map_target(U, "b");
    std::fs::write(&file, text).expect("a configuration");
    file
}

/// Whether target U exists. It is unavailable until its disk is found.
fn has_u(router: &Server) -> bool {
    matches!(Login::new().target(U).try_on(router.portal()), Ok(_) | Err(0x0301))
}

fn pair() -> (Server, Server, String) {
    let storage = storage();
    let mut router = router_to(&url(&storage, &format!("/{A}")), "");
    let file = other(&router, &storage);
    // The file has the port that the router uses, so it equals the served configuration.
    let text = std::fs::read_to_string(router.dir().join("lunar.toml")).expect("the served configuration");
    router.rewrite(&text);
    (storage, router, file)
}

#[test]
fn diff_reports_and_changes_nothing() {
    let (_storage, router, file) = pair();
    let text = router.said(&["diff", &file]);
    assert!(text.contains("max_sessions") && text.contains(U) && !text.contains(T), "{text}");
    let list = json_output(&router, &["diff", &file])["items"].take();
    let limit =
        list.as_array().expect("a list").iter().find(|d| d["key"] == "max_sessions").expect("the limit");
    assert_eq!(
        (&limit["change"], &limit["to"], &limit["needs_restart"]),
        (&"changed".into(), &"3".into(), &false.into())
    );
    assert!(!has_u(&router));
    std::fs::write(&file, "[router.r1]\npath_loss_timeout_s = \"x\"\n").expect("written");
    for words in ["diff", "apply"] {
        let wrong = router.asked(&[words, &file]);
        assert!(!wrong.ok() && wrong.said.contains("path_loss_timeout_s"), "{}", wrong.said);
    }
}

#[test]
fn unconfirmed_change_is_rolled_back() {
    let (_storage, router, file) = pair();
    let mut host = session(router.portal(), T, &[0, 3]);
    let text = router.said(&["apply", &file, "--confirm-within", "3s"]);
    assert!(text.contains("rolled back in 3 s"), "{text}");
    drop(session(router.portal(), U, &[1]));
    until("it goes by itself", || (!has_u(&router)).then_some(()));
    assert!(router.log().contains("was not confirmed"), "{}", router.log());
    router.said(&["apply", &file, "--confirm-within", "60s"]);
    assert!(has_u(&router));
    assert_eq!(router.said(&["apply", "--rollback"]), "rolled back\n");
    assert!(!has_u(&router));
    router.said(&["apply", &file, "--confirm-within", "3s"]);
    assert_eq!(router.said(&["apply", "--confirm"]), "confirmed\n");
    for words in ["applied: ", "configuration is rolled back", "configuration is confirmed"] {
        let line = router.log().lines().any(|line| line.contains("INFO") && line.contains(words));
        assert!(line, "{words} is not in {}", router.log());
    }
    std::thread::sleep(Duration::from_secs(4));
    assert!(has_u(&router));
    let late = router.asked(&["apply", "--rollback"]);
    assert!(
        !late.ok() && late.said.contains("no configuration is on trial: there is nothing to roll back"),
        "{}",
        late.said
    );
    assert_eq!(host.read_blocks(3, 0, 1), [0; 512], "the change disturbed a host of another target");
}

/// A router whose failover peer is absent, which serves target A as T. Returns it with a session of a host and the
/// text of its configuration.
fn alone_in_its_pair(storage: &Server) -> (Server, Raw, String) {
    let [own, peer] = [(); 2].map(|()| interop::ports::free());
    let pair = format!("[router.r1.failover]\npeer = \"127.0.0.1:{peer}\"\ngroup = 2\nprefer = true\n");
    let rest = upstream("a", &url(storage, &format!("/{A}")), "") + &map_target(T, "a") + &pair;
    let text = router_text("path_loss_timeout_s = 5\n", &rest).replace(":0\"", &format!(":{own}\""));
    let router = Server::start(&text);
    let mut host = session(router.portal(), T, &[0, 3]);
    until("it serves", || reads(&mut host).then_some(()));
    let text = std::fs::read_to_string(router.dir().join("lunar.toml")).expect("the served configuration");
    (router, host, text)
}

fn reads(host: &mut Raw) -> bool {
    host.read(3, &read10(0, 1), 512).status == 0
}

fn file_of(router: &Server, text: &str) -> String {
    let file = router.dir().join("other.toml").display().to_string();
    std::fs::write(&file, text).expect("a configuration");
    file
}

#[test]
fn rejected_change_disturbs_no_pair_or_upstream() {
    let storage = storage();
    let (router, mut host, text) = alone_in_its_pair(&storage);
    let missing = target(U, "[[target.lun]]\nlun = 0\nbackend = \"file\"\npath = \"missing.img\"\n");
    let refused =
        file_of(&router, &(text.replace("path_loss_timeout_s = 5", "path_loss_timeout_s = 6") + &missing));
    let end = Instant::now() + Duration::from_secs(3);
    let said = router.asked(&["apply", &refused]);
    assert!(!said.ok() && said.said.contains("missing.img"), "{}", said.said);
    while Instant::now() < end {
        assert!(reads(&mut host), "{}", router.log());
    }
}

#[test]
fn added_upstream_path_is_used() {
    let storage = storage();
    let relay = Relay::to(storage.portal());
    let (router, mut host, text) = alone_in_its_pair(&storage);
    let (direct, other) = (url(&storage, ""), format!("iscsi://{}", relay.address()));
    let both = format!("urls = [\"{direct}/{A}\", \"{other}/{A}\"]");
    let text = text
        .replace("path_loss_timeout_s = 5", "path_loss_timeout_s = 6")
        .replace(&format!("urls = [\"{direct}/{A}\"]"), &both);
    router.said(&["apply", &file_of(&router, &text)]);
    let is_used = || router.said(&["router", "paths"]).contains(&relay.address().to_string());
    until("it serves over the other path, too", || (reads(&mut host) && is_used()).then_some(()));
}

/// In passthrough mode each host has its own session with the upstream.
#[test]
fn added_upstream_path_is_used_by_passthrough_lun() {
    let storage = storage_of(&target(A, &disk(0, "a0")));
    let relay = Relay::to(storage.portal());
    let (direct, relayed) = (url(&storage, &format!("/{A}")), format!("iscsi://{}/{A}", relay.address()));
    let rest = upstream("a", &relayed, "") + &map_target(T, "a");
    let router = Server::start(&router_text("mode = \"passthrough\"\n", &rest));
    let mut host = session(router.portal(), T, &[0]);
    let reads = |host: &mut Raw| host.read(0, &read10(8, 1), 512).status == 0;
    host.write_blocks(0, 8, &pattern(512, 1)).good();
    let served = std::fs::read_to_string(router.dir().join("lunar.toml")).expect("the served configuration");
    let both = served.replace(&format!("\"{relayed}\""), &format!("\"{relayed}\", \"{direct}\""));
    router.said(&["apply", &file_of(&router, &both)]);
    relay.cut();
    until("it uses the added path", || reads(&mut host).then_some(()));
    assert_eq!(host.read_blocks(0, 8, 1), pattern(512, 1));
    host.write_blocks(0, 8, &pattern(512, 2)).good();
    relay.restore();
    router.said(&["apply", &file_of(&router, &served)]);
    until("it uses the first path again", || reads(&mut host).then_some(()));
    assert_eq!(host.read_blocks(0, 8, 1), pattern(512, 2));
    let paths = router.said(&["router", "paths"]);
    assert!(!paths.contains(&storage.portal().to_string()), "{paths}");
}
