//! A scripted NVMe/TCP host: PDUs with every field in the hands of the test, and queues that check what they receive.

mod controller;
mod entry;
mod frame;
mod wire;

pub use controller::{NvmeHostName, RawController, connect_data};
pub use entry::NvmeEntry;
pub use frame::{NvmeFrame, pdu};
pub use wire::{NvmeReply, NvmeWire, WireEvent};

/// Status: Do Not Retry.
pub const DNR: u16 = 1 << 14;
/// NQN of the discovery service.
pub const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";
