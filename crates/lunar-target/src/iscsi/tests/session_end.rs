//! The end of a session.

use super::host::Host;
use crate::test_target::run_test;

#[test]
fn waiter_for_iscsi_session_end_finds_entry_free() {
    run_test(|target| async move {
        let _host = Host::session(&target, 1).await;
        assert!(target.end_sessions().await);
    });
}
