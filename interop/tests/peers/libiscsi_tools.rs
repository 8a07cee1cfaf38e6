//! libiscsi's small tools.

use interop::tool::{self, Tool, must};
use interop::{Server, TARGET};

use crate::{CHAP_SECRET, CHAP_USER, Lun, chap_server, server, url};

const LIBISCSI: &str = "libiscsi-bin";

fn have(program: &'static str) -> bool {
    tool::have(&[Tool { program, package: LIBISCSI }])
}

#[test]
fn iscsi_ls_finds_every_portal_and_lun() {
    if !have("iscsi-ls") {
        return;
    }
    let server = server();
    let said = must("iscsi-ls", &["-s", &format!("iscsi://{}", server.portal())]);
    for portal in server.portals() {
        assert!(said.contains(&format!("Target:{TARGET} Portal:{portal},1")), "{said}");
    }
    for lun in ["Lun:0 ", "Lun:1 ", "Lun:2 ", "Lun:3 ", "Lun:4 ", "Lun:5 "] {
        assert!(said.contains(lun), "{lun}: {said}");
    }
}

#[test]
fn iscsi_ls_sees_a_portal_that_comes_and_goes() {
    if !have("iscsi-ls") {
        return;
    }
    let server = server();
    let (old, new) = (server.portal(), format!("127.0.0.1:{}", interop::ports::free()));
    let url = format!("iscsi://{new}");
    let shown = format!("Target:{TARGET} Portal:{new},7");
    server.said(&["portal", "add", "7", &new]);
    assert!(must("iscsi-ls", &[&url]).contains(&shown));
    server.said(&["portal", "remove", "7", "--force"]);
    let ran = std::process::Command::new("iscsi-ls").arg(&url).output().expect("iscsi-ls runs");
    assert!(!ran.status.success(), "the portal is closed");
    assert!(!must("iscsi-ls", &[&format!("iscsi://{old}")]).contains(&shown));
}

#[test]
fn iscsi_inq_reads_standard_data_and_every_page() {
    if !have("iscsi-inq") {
        return;
    }
    let server = server();
    let url = url(&server, 0, Lun::Removable);
    let said = must("iscsi-inq", &[&url]);
    assert!(said.contains("DIRECT_ACCESS") && said.contains("Removable:1"), "{said}");
    for page in ["0x00", "0x80", "0x83", "0xb0", "0xb1", "0xb2"] {
        must("iscsi-inq", &["-e", "1", "-c", page, &url]);
    }
}

/// Checks the size that the tool prints, for a URL with this query.
fn reads_capacity(server: &Server, query: &str) {
    let said = must("iscsi-readcapacity16", &[&format!("{}{query}", url(server, 0, Lun::Thin))]);
    assert!(said.contains("Total size:67108864"), "{said}");
    assert!(said.contains("LBPME:1"), "{said}");
}

#[test]
fn iscsi_readcapacity16_with_and_without_header_digests() {
    if !have("iscsi-readcapacity16") {
        return;
    }
    let server = server();
    reads_capacity(&server, "");
    reads_capacity(&server, "?header_digest=crc32c");
}

#[test]
fn iscsi_swp_sets_and_clears_write_protection() {
    if !have("iscsi-swp") {
        return;
    }
    let server = server();
    let url = url(&server, 0, Lun::Thin);
    assert!(must("iscsi-swp", &[&url]).contains("SWP:0"));
    must("iscsi-swp", &["-s", "on", &url]);
    assert!(must("iscsi-swp", &[&url]).contains("SWP:1"));
    must("iscsi-swp", &["-s", "off", &url]);
    assert!(must("iscsi-swp", &[&url]).contains("SWP:0"));
}

#[test]
fn iscsi_perf_reads_for_a_second() {
    if !have("iscsi-perf") {
        return;
    }
    let server = server();
    let said = must("iscsi-perf", &["-r", "-m", "32", "-b", "8", "-t", "1", &url(&server, 0, Lun::Thin)]);
    assert!(said.contains("finished"), "{said}");
}

#[test]
fn chap_admits_only_the_right_secret() {
    if !have("iscsi-inq") {
        return;
    }
    let server = chap_server();
    let as_user =
        |secret: &str| url(&server, 0, Lun::Thin).replacen("://", &format!("://{CHAP_USER}%{secret}@"), 1);
    must("iscsi-inq", &[&as_user(CHAP_SECRET)]);
    for url in [as_user("not-the-secret-1"), url(&server, 0, Lun::Thin)] {
        let limit = std::time::Duration::from_secs(20);
        let ran = tool::run(std::process::Command::new("iscsi-inq").arg(&url), limit);
        assert!(!ran.ok() && ran.status.is_some(), "{url} logged in: {}", ran.said);
    }
}
