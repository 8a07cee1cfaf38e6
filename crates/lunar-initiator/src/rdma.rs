//! An RDMA connection that the caller makes, for [`Session::open_on`](crate::Session::open_on).

pub use crate::rdma_connector::RdmaConnector;
#[doc(inline)]
pub use lunar_rdma::{ConnParam, ConnectError, ConnectedEndpoint, Endpoint};
