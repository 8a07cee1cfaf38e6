//! iWARP: RDMA over TCP, in three layers.
//!
//! - [`mpa`]: how a connection begins, and the frames (FPDUs) that the stream is cut into (RFC 5044, RFC 6581).
//! - [`ddp`]: the headers of the segments in the frames (RFC 5041) with their operations (RFC 5040).
//! - [`terminate`]: why a connection ends (RFC 5040 section 4.8).

pub mod ddp;
pub mod mpa;
pub mod terminate;

pub use ddp::{DdpHeader, ReadRequest, TaggedHeader, UntaggedHeader};
pub use mpa::{EnhancedData, MalformedFrame, MpaFrame};
pub use terminate::Terminate;
