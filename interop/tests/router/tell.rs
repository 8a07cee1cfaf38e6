//! `lunar router`: what is told of a router, to people and to programs.

use crate::*;

#[test]
fn an_instance_tells_targets_upstreams_paths_sessions_and_times() {
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
    let sessions = told(&router, &["router", "sessions"]);
    assert_eq!(
        (sessions.as_array().map(Vec::len), &sessions[0]["target"]),
        (Some(1), &T.into()),
        "{sessions}"
    );
    for (words, part) in [
        ("list", "r1      serving  1        2     1          1         -"),
        ("stats", "Target Access Failures"),
        ("show", "  LUN 3: "),
        ("paths", &format!("{A}/3")),
        ("sessions", T),
    ] {
        let text = router.said(&["router", words]);
        assert!(text.contains(part), "{words}: {text}");
        let json: Value = told(&router, &["router", words]);
        assert!(json.is_array(), "{words}: {json}");
    }
    let none = router.asked(&["router", "show", "r9"]);
    assert!(!none.ok() && none.said.contains("there is no router r9"), "{}", none.said);
    let nothing = storage.said(&["router", "list"]);
    assert_eq!(nothing, "no routers\n");
    // It has looked at its upstream, and gone in good order.
    assert!(!router.log().contains("WARN"), "{}", router.log());
}
