//! iSCSI PDUs over a [`Stream`](crate::Stream), the same for both roles: framing, digests, and many PDUs in
//! one receive and one send.

pub mod digest;
pub mod pdu_queue;
pub mod receive;
