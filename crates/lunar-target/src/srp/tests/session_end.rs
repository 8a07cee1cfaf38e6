//! The end of a session.

use super::{TestTarget, on_core};

#[test]
fn waiter_for_srp_session_end_finds_entry_free() {
    on_core(async move || {
        let target = TestTarget::new();
        let _host = target.host(1, false).await.receive_attentions().await;
        assert!(target.end_sessions().await);
    });
}
