//! Exposed memory, and the Terminate errors of denied access.

use super::fault::IwarpError;
use crate::keys::{AccessError, SteeringTags};
use crate::{MemoryRegion, RemoteAddress};
use lunar_runtime::send_queue::Payload;
use lunar_wire::iwarp::{ReadRequest, TaggedHeader, Terminate};
use std::io;

/// Exposed memory by steering tag.
#[derive(Default)]
pub(super) struct TaggedMemory {
    keys: SteeringTags,
}

impl TaggedMemory {
    /// Assigns a steering tag to memory.
    pub(super) fn expose(&mut self, memory: MemoryRegion) -> io::Result<RemoteAddress> {
        self.keys.expose(memory)
    }

    /// Returns memory to its owner, even if the peer has invalidated its tag.
    pub(super) fn revoke(&mut self, stag: u32) -> Option<MemoryRegion> {
        self.keys.revoke(stag)
    }

    /// Invalidates a steering tag for the peer. The memory is kept until its owner revokes it.
    pub(super) fn invalidate(&mut self, stag: u32) -> Result<(), IwarpError> {
        if self.keys.end(stag) {
            return Ok(());
        }
        let what = format!("a message that invalidates the steering tag {stag:#x}, which is not valid");
        Err(IwarpError::new(Terminate::INVALIDATE, what))
    }

    /// Places the payload of an RDMA Write segment.
    pub(super) fn write(&mut self, t: &TaggedHeader, payload: &[u8]) -> Result<(), IwarpError> {
        let to = RemoteAddress { stag: t.stag, offset: t.offset };
        let sink = self.keys.sink(to, payload.len()).map_err(|denied| {
            let terminate = match denied {
                AccessError::Tag => Terminate::STAG,
                AccessError::Direction => Terminate::ACCESS,
                AccessError::Bounds => Terminate::BOUNDS,
            };
            IwarpError::new(
                terminate,
                format!("the peer sent an RDMA Write of {} bytes to {denied}", payload.len()),
            )
        })?;
        sink.copy_from_slice(payload);
        Ok(())
    }

    /// The data for an RDMA Read. An empty read needs no access right.
    pub(super) fn source(&self, request: &ReadRequest) -> Result<Payload, IwarpError> {
        let (len, from) =
            (request.len as usize, RemoteAddress { stag: request.source.0, offset: request.source.1 });
        if len == 0 {
            return Ok(Payload::Empty);
        }
        let (buf, at) = self.keys.source(from, len).map_err(|denied| {
            let terminate = match denied {
                AccessError::Tag => Terminate::READ_STAG,
                AccessError::Direction => Terminate::ACCESS,
                AccessError::Bounds => Terminate::READ_BOUNDS,
            };
            IwarpError::new(terminate, format!("the peer's RDMA Read of {len} bytes was denied: {denied}"))
        })?;
        Ok(Payload::Part(buf, at, len))
    }
}
