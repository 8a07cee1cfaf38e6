//! Connections over iSER to the test target.

use super::host::Host;
use crate::test_target::TestTarget;
use lunar_rdma::mem::{Faults, request_with};
use lunar_rdma::{ConnParam, ConnectRequest};
use lunar_wire::iser::{IserCapabilities, LOGIN_LEN};
use std::rc::Rc;

impl TestTarget {
    /// A connection on which both sides support Send with Invalidate.
    pub async fn connect(&self) -> Host {
        self.connect_with(
            &IserCapabilities { zero_based: false, invalidate: true }.encode(),
            [Rc::default(), Rc::default()],
        )
        .await
    }

    /// A connection with this private data. `faults`: those of the initiator and of the target.
    pub async fn connect_with(&self, private: &[u8], faults: [Rc<Faults>; 2]) -> Host {
        self.connect_wrapped(private, faults, |request| request).await
    }

    /// The same, with a wrapper around the request that the target gets.
    pub async fn connect_wrapped(
        &self,
        private: &[u8],
        faults: [Rc<Faults>; 2],
        through: impl FnOnce(Box<dyn ConnectRequest>) -> Box<dyn ConnectRequest>,
    ) -> Host {
        let terms = ConnParam { ord: 1, ird: 16, receives: (1, LOGIN_LEN) };
        let (asked, outcome) = request_with(private, terms, faults.clone());
        let count = self.count(asked.addresses().1);
        let (shared, portal) = (self.shared.clone(), self.portal());
        let served = compio::runtime::spawn(super::super::serve(shared, through(asked), portal, count));
        let (end, private) = outcome.await.expect("the connection is accepted");
        Host::new(end, private, faults, served)
    }

    /// A session that has received its unit attentions.
    pub async fn session(&self, isid: u8) -> Host {
        let mut host = self.connect().await;
        host.log_in(isid).await;
        host.receive_attentions().await;
        host
    }
}
