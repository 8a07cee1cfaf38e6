//! The tags of a relay: each request gets a tag of the upstream connection.

use crate::bytes::RESERVED_TAG;

/// The requests in flight.
#[derive(Debug, Default)]
pub struct RelayTags {
    /// The client's tags, by upstream tag
    client: Vec<u32>,
    free: Vec<u32>,
}

impl RelayTags {
    /// Adds a request; returns its upstream tag.
    pub fn add(&mut self, client: u32) -> u32 {
        let Some(upstream) = self.free.pop() else {
            self.client.push(client);
            return self.client.len() as u32 - 1;
        };
        self.client[upstream as usize] = client;
        upstream
    }

    /// The upstream tag of a request in flight. Searches, because only long writes and aborts need it.
    pub fn upstream(&self, client: u32) -> u32 {
        self.client.iter().position(|tag| *tag == client).map_or(RESERVED_TAG, |at| at as u32)
    }

    /// The client's tag of a request.
    pub fn client(&self, upstream: u32) -> u32 {
        self.client.get(upstream as usize).copied().unwrap_or(RESERVED_TAG)
    }

    /// Removes a request; returns the client's tag.
    pub fn end(&mut self, upstream: u32) -> u32 {
        let client = self.client(upstream);
        if client != RESERVED_TAG {
            self.client[upstream as usize] = RESERVED_TAG;
            self.free.push(upstream);
        }
        client
    }
}
