//! PDUs of NVMe over TCP over a [`Stream`](crate::Stream), the same for both roles: framing, digests, and many PDUs in one
//! receive.

pub mod receive;
