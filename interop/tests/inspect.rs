//! `lunar scsi`, `lunar info` and `lunar pr` against a running server: their output and exit status.

use interop::command::{CommandOutput, lunar, lunar_as};
use interop::{Server, config, shared};

const OTHER: &str = "iqn.2026-11.org.example:other";

fn url(server: &Server, lun: u16) -> String {
    format!("iscsi://{}/{}/{lun}", server.portal(), config::TARGET)
}

#[test]
fn scsi_sends_any_command_and_prints_the_response() {
    let server = shared();
    let url = url(&server, 0);
    let (out, err, status) = lunar(&["scsi", &url, "12:00:00:00:60:00", "--in", "96", "--hex"]);
    assert_eq!((out.lines().count(), err.as_str(), status), (6, "status: GOOD (00h)\n", 0));
    assert!(out.contains("LUNAR"), "{out}");
    let (_, err, status) = lunar(&["scsi", &url, "12", "00", "00", "00", "60", "00", "--in", "36"]);
    assert_eq!((err.lines().nth(1), status), (Some("overflow: the logical unit transfers 60 more bytes"), 0));
    let (out, err, status) = lunar(&["scsi", &url, "120055006000", "--in", "96"]);
    assert_eq!((out.as_str(), status), ("", 30));
    assert!(err.contains("illegal request (5/24/00): invalid field in CDB\n  CDB, byte 2, bit 7\n"), "{err}");
    assert!(err.ends_with("residual: 96 of 96 bytes were not transferred\n"), "{err}");
    let (_, err, status) = lunar(&["scsi", &url, "000000000000", "--once"]);
    assert!(status == 30 && err.contains("unit attention"), "the first command of a nexus: {err}");
    let (out, _, status) = lunar(&["scsi", &url, "000000000000", "--json"]);
    assert!(status == 0 && out.contains("\"status_name\": \"GOOD\""), "{out}");
}

#[test]
fn scsi_reads_what_it_wrote() {
    let server = Server::start(&config::standard());
    let url = url(&server, 0);
    let data = "hex:".to_owned() + &"a5".repeat(512);
    let (_, err, status) = lunar(&["scsi", &url, "2a:00:00:00:00:03:00:00:01:00", "--out", &data]);
    assert_eq!((err.as_str(), status), ("status: GOOD (00h)\n", 0));
    let (out, _, _) = lunar(&["scsi", &url, "28:00:00:00:00:03:00:00:01:00", "--in", "512", "--json"]);
    assert!(out.contains(&format!("\"data\": \"{}\"", "a5".repeat(512))), "{out}");
    let (_, err, status) = lunar(&["scsi", &url, "28:00:00:00:00:03"]);
    assert!(status == 7 && err.contains("operation code 28h requires 10") && err.contains("--raw"), "{err}");
    assert_eq!(lunar(&["scsi", &url, "00", "--raw"]).2, 0);
    for wrong in [&["zz"][..], &["00", "--out", "hex:"], &["00", "--out", "/no/such/file"]] {
        let (_, err, status) = lunar(&[&["scsi", url.as_str()][..], wrong].concat());
        assert!(status == 7 && err.contains("hint: "), "{wrong:?}: {err}");
    }
}

#[test]
fn info_prints_text_and_json() {
    let server = shared();
    let (out, err, status) = lunar(&["info", &url(&server, 0), "--all"]);
    assert_eq!((err.as_str(), status), ("", 0));
    for part in [
        "\ninquiry\n",
        "  product                 VIRTUAL DISK\n",
        "  size                                64 MiB\n",
        "device identification (0x83)",
        "of logical unit, type NAA, value ",
        "block limits (0xb0)",
        "    provisioning type     thin (2)\n",
        "caching (0x08)\n    write cache ",
        "state active/optimized, preferred no, ports 1, ours yes",
        "reserved       no\n",
        "opcode 0x9e, action 0x10, bytes 16, command READ CAPACITY(16)",
        "  abort task                yes\n",
    ] {
        assert!(out.contains(part), "{part:?} is missing in\n{out}");
    }
    let (out, _, _) = lunar(&["info", &url(&server, 1), "--json"]);
    for part in ["\"bytes\": 1073741824", "\"0xb1\": {", "\"registrations\": ["] {
        assert!(out.contains(part), "{part:?} is missing in\n{out}");
    }
    assert!(!out.contains("\"commands\""), "only with --all");
}

#[test]
fn info_prints_one_page_or_its_bytes() {
    let server = shared();
    let url = url(&server, 0);
    let (out, _, status) = lunar(&["info", &url, "--page", "0xb2"]);
    assert!(status == 0 && out.starts_with("logical block provisioning (0xb2)\n"), "{out}");
    let (out, _, _) = lunar(&["info", &url, "--page", "b0", "--hex"]);
    assert!(out.starts_with("VPD page b0h\n00000000  00 b0 00 3c 01 ff "), "{out}");
    let (out, err, status) = lunar(&["info", &url, "--page", "c0"]);
    assert!(out.is_empty() && err.contains("does not have the requested page") && status == 21, "{err}");
    assert_eq!(lunar(&["info", &url.replace("/0", "/9")]).2, 21, "no such LUN");
}

/// Two hosts: the message of a conflict names the holder.
#[test]
fn pr_reserves_holds_and_preempts() {
    let server = Server::start(&config::standard());
    let url = url(&server, 0);
    let pr =
        |initiator, arguments: &[&str]| lunar_as(initiator, &[&["pr", url.as_str()][..], arguments].concat());
    let done = |ran: CommandOutput| assert_eq!((ran.1.as_str(), ran.2), ("", 0));
    done(pr(config::INITIATOR, &["register", "--new-key", "0xabc"]));
    done(pr(config::INITIATOR, &["reserve", "--key", "abc", "--type", "we-ro"]));
    let (out, ..) = pr(OTHER, &["read-full-status"]);
    assert!(out.contains(&format!("initiator {},i,0x80", config::INITIATOR)), "{out}");
    assert!(out.contains("holds reservation yes, type write exclusive, registrants only"), "{out}");

    let (_, err, status) = pr(OTHER, &["reserve", "--key", "1", "--type", "we"]);
    assert_eq!(status, 13);
    assert!(err.contains(&format!("held by {},i,0x80", config::INITIATOR)), "{err}");
    assert!(err.contains("with key 0xabc") && err.contains("this initiator is not registered"), "{err}");
    let write = "hex:".to_owned() + &"00".repeat(512);
    let ran = lunar_as(OTHER, &["scsi", &url, "2a000000000000000100", "--out", &write]);
    assert!(ran.2 == 13 && ran.1.starts_with("status: RESERVATION CONFLICT"), "{}", ran.1);

    let (_, err, status) =
        lunar_as(config::INITIATOR, &["pr", &format!("{url}?isid=800000000009"), "clear", "--key", "abc"]);
    assert!(
        status == 13
            && err.contains("the holder has this initiator name")
            && err.contains("isid=804c756e6172"),
        "{err}"
    );

    done(pr(OTHER, &["register", "--new-key", "def"]));
    let (_, err, status) = pr(OTHER, &["release", "--key", "1", "--type", "we-ro"]);
    assert!(status == 13 && err.contains("this initiator is registered with key 0xdef, not 0x1"), "{err}");
    done(pr(OTHER, &["preempt", "--key", "def", "--new-key", "abc", "--type", "5"]));
    let (out, ..) = pr(OTHER, &["read-reservation", "--json"]);
    assert!(out.contains("\"key\": \"0x0000000000000def\""), "{out}");
    done(pr(OTHER, &["release", "--param-rk", "def", "--prout-type", "5"]));
    done(pr(OTHER, &["register", "--key", "def", "--new-key", "0"]));
    assert!(pr(OTHER, &["read-keys"]).0.contains("keys        none"));
    let (_, err, status) = pr(OTHER, &["preempt", "--key", "1"]);
    assert!(status == 7 && err.contains("--new-key is missing"), "{err}");
}

/// A registration belongs to the ISID in the URL, and survives a restart.
#[test]
fn registrations_belong_to_name_and_isid() {
    let mut server = Server::start(&config::standard());
    let url = url(&server, 0);
    let named = format!("{url}?isid=800000000001");
    assert_eq!(lunar(&["pr", &named, "register", "--new-key", "7", "--aptpl"]).2, 0);
    assert_eq!(lunar(&["pr", &url, "reserve", "--key", "7", "--type", "ea"]).2, 13, "another ISID");
    assert_eq!(lunar(&["pr", &named, "reserve", "--key", "7", "--type", "ea"]).2, 0);
    server.restart();
    let (out, ..) = lunar(&["pr", &url, "read-full-status"]);
    assert!(
        out.contains(",i,0x800000000001, key 0x0000000000000007") && out.contains("exclusive access"),
        "{out}"
    );
    assert_eq!(lunar(&["pr", &format!("{url}?isid=8"), "read-keys"]).2, 7);
}
