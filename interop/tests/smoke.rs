//! Tests the helpers on which every other test builds.

use interop::scsi::pattern;
use interop::{Chap, Login, Raw, Server, config, op, shared};

#[test]
fn session_reads_what_it_wrote() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), &[]);
    let data = pattern(100 * 512, 1);
    raw.write_blocks(0, 7, &data).good();
    assert!(raw.read_blocks(0, 7, 100) == data);
    raw.ping();
    let bye = raw.logout(0, 0);
    assert_eq!((bye.opcode(), bye.bhs[2]), (op::LOGOUT_RESPONSE, 0));
    raw.expect_close();
}

#[test]
fn restarted_server_has_its_ports() {
    let mut server = Server::start(&config::standard());
    let portal = server.portal();
    server.kill9();
    server.restart();
    assert_eq!(server.portal(), portal);
    Raw::session(portal, &[]).ping();
    assert!(server.stop().success());
}

#[test]
fn session_without_chap_has_no_challenge() {
    let server = shared();
    let login = Login::new().key("AuthMethod", "None");
    let mut raw = login.connect(server.portal());
    let answer = raw.login(&login.request(0, Some(1)));
    assert_eq!(answer.value("AuthMethod").as_deref(), Some("None"));
    let chap = Chap { algorithm: 5, identifier: 1, challenge: vec![1; 16] };
    assert_eq!(chap.response(b"x").len(), 16);
}
