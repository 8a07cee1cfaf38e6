//! iWARP: RDMA over TCP, in three layers.
//!
//! - [`mpa`]: connection setup, and framing of the stream into FPDUs (RFC 5044, RFC 6581).
//! - [`ddp`]: headers of the segments in the frames (RFC 5041) with their RDMAP operations (RFC 5040).
//! - [`terminate`]: the error that ends a connection (RFC 5040 section 4.8).

pub mod ddp;
pub mod mpa;
pub mod terminate;

pub use ddp::{DdpHeader, ReadRequest, TaggedHeader, UntaggedHeader};
pub use mpa::{EnhancedData, MalformedFrame, MpaFrame};
pub use terminate::Terminate;
