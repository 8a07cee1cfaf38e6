//! The interface of block storage, which [`Lun`](crate::Lun) and [`Multipath`](crate::multipath::Multipath) implement.
//! A program can implement it as well: a cache or a filter before a logical unit, for example.

#[doc(inline)]
pub use lunar_block::offload::Offload;
#[doc(inline)]
pub use lunar_block::{
    Backend, BackendInfo, BackendQueue, BufResult, Extent, FileId, LocalBoxFuture, MissingMedium,
    PipedResult, TryIo,
};
