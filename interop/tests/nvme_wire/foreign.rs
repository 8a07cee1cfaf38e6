//! Hosts that connect to a portal of the other family.

use super::{NQN, portal, server};
use interop::TARGET;
use interop::command::lunar;
use interop::nvme::{NvmeFrame, NvmeWire};
use interop::routed::until;
use std::time::Duration;

/// Far below the time limit of a login, which is 15 s.
const AT_ONCE: Duration = Duration::from_secs(5);

#[test]
fn nvme_host_at_an_iscsi_portal_is_closed_at_once() {
    let server = server();
    let mut wire = NvmeWire::open(server.portals()[1]);
    wire.send_bytes(&NvmeFrame::ic_request(0).encode(false, false));
    wire.expect_close(AT_ONCE);
    until("the log names the protocol", || {
        let log = server.log();
        log.contains("the host speaks NVMe/TCP, and this portal iSCSI; hint: connect to a portal")
            .then_some(())
    });
    let (_, errors, code) = lunar(&["ls", &format!("nvme://{}/{NQN}", server.portals()[1])]);
    assert!(
        code != 0 && errors.contains("hint: if the port serves iSCSI, use iscsi://HOST[:PORT]/IQN"),
        "{errors}"
    );
}

#[test]
fn iscsi_initiator_at_an_nvme_portal_is_closed_at_once() {
    let server = server();
    let (_, errors, code) = lunar(&["info", &format!("iscsi://{}/{TARGET}/0", portal(&server))]);
    assert_ne!(code, 0);
    assert!(errors.contains("the portal seems to serve NVMe/TCP"), "{errors}");
    assert!(errors.contains("hint: use nvme://HOST[:PORT]/NQN"), "{errors}");
    until("the log names the protocol", || {
        server.log().contains("the initiator speaks iSCSI, and this portal NVMe/TCP; hint: ").then_some(())
    });
}
