//! `lunar diff` and `lunar apply`: another configuration for a router that serves.

use crate::*;

/// The file of a configuration that has another target and another limit.
fn other(router: &Server, storage: &Server) -> String {
    let file = router.dir().join("other.toml").display().to_string();
    let served = std::fs::read_to_string(router.dir().join("lunar.toml")).expect("what it serves");
    let text = served.replace(":0\"", &format!(":{}\"", router.portal().port()));
    let text = text.replace("[router.r1]\n", "[router.r1]\nmax_sessions = 3\n")
        + &upstream("b", &url(storage, &format!("/{B}")), "")
        + &map_target(U, "b");
    std::fs::write(&file, text).expect("a configuration");
    file
}

/// Whether the target U is there; before its disk was found, it lets nobody in yet.
fn has_u(router: &Server) -> bool {
    matches!(Login::new().target(U).try_on(router.portal()), Ok(_) | Err(0x0301))
}

fn pair() -> (Server, Server, String) {
    let storage = storage();
    let mut router = router_to(&url(&storage, &format!("/{A}")), "");
    let file = other(&router, &storage);
    // The file names the port that it has: the configuration that is served is this one.
    let text = std::fs::read_to_string(router.dir().join("lunar.toml")).expect("what it serves");
    router.rewrite(&text);
    (storage, router, file)
}

#[test]
fn a_difference_is_told_and_nothing_of_it_done() {
    let (_storage, router, file) = pair();
    let text = router.said(&["diff", &file]);
    assert!(text.contains("max_sessions") && text.contains(U) && !text.contains(T), "{text}");
    let list = told(&router, &["diff", &file]);
    let limit =
        list.as_array().expect("a list").iter().find(|d| d["key"] == "max_sessions").expect("the limit");
    assert_eq!(
        (&limit["change"], &limit["to"], &limit["needs_restart"]),
        (&"changed".into(), &"3".into(), &false.into())
    );
    assert!(!has_u(&router));
    std::fs::write(&file, "[router.r1]\nhold_s = \"x\"\n").expect("written");
    for words in ["diff", "apply"] {
        let wrong = router.asked(&[words, &file]);
        assert!(!wrong.ok() && wrong.said.contains("hold_s"), "{}", wrong.said);
    }
}

#[test]
fn what_is_not_confirmed_goes_by_itself_and_what_is_stays() {
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
    std::thread::sleep(Duration::from_secs(4));
    assert!(has_u(&router));
    let late = router.asked(&["apply", "--rollback"]);
    assert!(!late.ok() && late.said.contains("nothing to roll back to"), "{}", late.said);
    assert_eq!(host.read_blocks(3, 0, 1), [0; 512], "a host of the other target saw nothing of it");
}
