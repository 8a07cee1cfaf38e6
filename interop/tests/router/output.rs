//! The output of `lunar router`, as text and as JSON.

use crate::*;

#[test]
fn missing_mappings_and_local_disks_are_shown() {
    let mut storage = storage();
    storage.kill9();
    let upstreams =
        upstream("a", &url(&storage, &format!("/{A}")), "") + "[router.r1.upstream.f]\nmemory = \"1MiB\"\n";
    let luns = "lun = [{ lun = 0, upstream = \"f\" }, { lun = 1, upstream = \"a\", from = 3 }, \
                { lun = 2, upstream = \"a\", from = 9 }]";
    let maps = map(&format!("map = \"lun\"\nname = \"{T}\"\n{luns}"));
    let router = Server::start(&router_text("path_loss_timeout_s = 1\n", &(upstreams + &maps)));
    let health = || {
        let instance = r1(&router);
        let luns = instance["targets"][0]["luns"].as_array().cloned().expect("LUNs");
        luns.iter().map(|lun| lun["health"].as_str().expect("health").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(health(), ["up", "awaited", "awaited"]);
    let paths = router.said(&["router", "paths"]);
    for row in [format!("a         {A}/3  "), format!("a         {A}/9  ")] {
        assert!(paths.lines().any(|line| line.contains(&row) && line.contains("awaited")), "{row}: {paths}");
    }
    assert!(paths.contains("memory, 1 MiB") && paths.contains("  up  "), "{paths}");
    assert!(router.said(&["router", "show", "r1"]).contains("  LUN 2: router r1, upstream a, LUN 9 of"));
    assert!(router.said(&["router", "list"]).contains("1 of 3"));
    storage.restart();
    until("what is there is found", || (health() == ["up", "up", "not found"]).then_some(()));
}

#[test]
fn each_host_has_its_own_passthrough_path() {
    let storage = storage();
    let router = router_to(&url(&storage, &format!("/{A}")), "mode = \"passthrough\"\n");
    let paths = || {
        let instance = r1(&router);
        instance["upstreams"][0]["paths"].as_array().cloned().expect("paths")
    };
    let hosts = [1, 2].map(|n| {
        let login = Login::new().target(T).initiator(&format!("iqn.2026-11.org.example:host{n}"));
        session_of(&login, router.portal(), &[0, 3])
    });
    let mut of_3 = until("each has one", || {
        let of_3: Vec<Value> = paths().into_iter().filter(|path| path["lun"] == format!("{A}/3")).collect();
        (of_3.len() == 2).then_some(of_3)
    });
    of_3.sort_by_key(|path| path["host"].to_string());
    for (n, path) in of_3.iter().enumerate() {
        assert_eq!(path["host"], format!("iqn.2026-11.org.example:host{}", n + 1));
        assert_eq!((&path["state"], &path["recoveries"]), (&"optimized".into(), &0.into()), "{path}");
        assert!(path["url"].as_str().is_some_and(|url| url.ends_with(&format!("{A}/3"))), "{path}");
    }
    drop(hosts);
    until("no session uses them", || {
        paths().iter().all(|path| path["state"] == "unused" && path["host"].is_null()).then_some(())
    });
}

#[test]
fn instance_shows_targets_upstreams_paths_and_sessions() {
    let storage = storage();
    let router = router_to(&url(&storage, &format!("/{A}")), "");
    let mut raw = session(router.portal(), T, &[0, 3]);
    raw.write_blocks(3, 0, &[7; 4096]).good();
    raw.read_blocks(3, 0, 8);
    let r1 = r1(&router);
    assert_eq!((&r1["name"], &r1["state"]), (&"r1".into(), &"serving".into()), "{r1}");
    assert_eq!(
        (&r1["targets"][0]["name"], &r1["targets"][0]["luns"][1]["lun"]),
        (&T.into(), &3.into()),
        "{r1}"
    );
    assert_eq!(r1["targets"][0]["luns"][1]["health"], "up");
    let a = &r1["upstreams"][0];
    assert_eq!((&a["name"], &a["luns"], &a["obstacle"]), (&"a".into(), &2.into(), &Value::Null), "{a}");
    let paths = a["paths"].as_array().expect("paths");
    let used = paths.iter().find(|path| path["core"].is_string()).expect("one is used");
    assert!(used["lun"] == format!("{A}/3") && used["in_flight"] == 0, "{used}");
    for hop in ["front", "upstream"] {
        assert!(
            r1[hop]["commands"].as_u64() >= Some(2) && r1[hop]["mean_us"].as_f64() > Some(0.0),
            "{hop}: {r1}"
        );
    }
    let sessions = json_output(&router, &["router", "sessions"])["items"].take();
    assert_eq!(
        (sessions.as_array().map(Vec::len), &sessions[0]["target"]),
        (Some(1), &T.into()),
        "{sessions}"
    );
    for (words, part) in [
        ("list", "r1      serving        1     2          1         1  -"),
        ("stats", "Target Access Failures"),
        ("show", "  LUN 3: "),
        ("paths", &format!("{A}/3")),
        ("sessions", T),
    ] {
        let text = router.said(&["router", words]);
        assert!(text.contains(part), "{words}: {text}");
        let json: Value = json_output(&router, &["router", words])["items"].take();
        assert!(json.is_array(), "{words}: {json}");
    }
    let none = router.asked(&["router", "show", "r9"]);
    assert!(!none.ok() && none.said.contains("router r9 does not exist"), "{}", none.said);
    let nothing = storage.said(&["router", "list"]);
    assert_eq!(nothing, "no routers\n");
    // The router's probe of its upstream ended with a logout, which is no reason for a warning.
    assert!(!router.log().contains("WARN"), "{}", router.log());
}
