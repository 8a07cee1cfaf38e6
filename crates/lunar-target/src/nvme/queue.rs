//! An I/O queue: its commands without a completion, and its transfers.

use super::connection::{ConnectionOwner, NvmeConnection};
use super::controllers::{Controller, QueueGuard};
use super::error_log::ErrorPlace;
use super::fused::FusedPairs;
use super::reauthenticate::Reauthentication;
use super::transfers::Transfers;
use crate::core::data_in::DataIn;
use crate::core::{ItNexus, SendPosition};
use lunar_wire::nvme::{NvmeStatus, Sqe};
use std::cell::OnceCell;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

/// Commands of a queue without a completion, by identifier.
struct Outstanding {
    bits: Box<[u64; 1 << 10]>,
    count: u32,
}

impl Outstanding {
    fn new() -> Outstanding {
        Outstanding { bits: Box::new([0; 1 << 10]), count: 0 }
    }

    /// Adds a command. False: there is one with this identifier.
    #[inline]
    fn add(&mut self, id: u16) -> bool {
        let (word, bit) = (&mut self.bits[usize::from(id >> 6)], 1 << (id & 63));
        let is_new = *word & bit == 0;
        *word |= bit;
        self.count += u32::from(is_new);
        is_new
    }

    #[inline]
    fn remove(&mut self, id: u16) {
        let (word, bit) = (&mut self.bits[usize::from(id >> 6)], 1 << (id & 63));
        self.count -= u32::from(*word & bit != 0);
        *word &= !bit;
    }
}

/// An I/O queue. The core identifies a command by its CID.
pub struct NvmeQueue {
    connection: Rc<NvmeConnection>,
    controller: Arc<Controller>,
    /// Entries of the submission queue.
    len: u32,
    outstanding: Outstanding,
    /// Data that hosts were asked for.
    pub(super) transfers: Transfers,
    /// Compare and Write.
    pub(super) pairs: FusedPairs,
    /// Position of the next command.
    sequence: u32,
    nexus: OnceCell<Weak<ItNexus<NvmeQueue>>>,
    place: QueueGuard,
    /// How long the host may take to send requested data.
    data_timeout: Duration,
    reauthentication: Rc<Reauthentication>,
}

impl NvmeQueue {
    /// The queue of a connection. `len`: entries of the submission queue. `data_timeout`: how long the host may take to send
    /// requested data.
    pub fn new(
        connection: Rc<NvmeConnection>,
        (place, len): (QueueGuard, u32),
        data_timeout: Duration,
        reauthentication: Reauthentication,
    ) -> NvmeQueue {
        NvmeQueue {
            connection,
            controller: place.controller().clone(),
            len,
            outstanding: Outstanding::new(),
            transfers: Transfers::default(),
            pairs: FusedPairs::default(),
            sequence: 0,
            nexus: OnceCell::new(),
            place,
            data_timeout,
            reauthentication: Rc::new(reauthentication),
        }
    }

    /// Records the nexus of the queue.
    pub fn set_nexus(&self, nexus: &Rc<ItNexus<NvmeQueue>>) {
        let _ = self.nexus.set(Rc::downgrade(nexus));
    }

    /// The nexus of the queue.
    pub fn nexus(&self) -> Weak<ItNexus<NvmeQueue>> {
        self.nexus.get().cloned().unwrap_or_default()
    }

    /// How long the host may take to send requested data.
    pub fn data_timeout(&self) -> Duration {
        self.data_timeout
    }

    /// The exchanges with which the host proves its secret again.
    pub fn reauthentication(&self) -> &Rc<Reauthentication> {
        &self.reauthentication
    }

    /// Its connection.
    pub fn connection(&self) -> &Rc<NvmeConnection> {
        &self.connection
    }

    /// Its controller.
    pub fn controller(&self) -> &Arc<Controller> {
        &self.controller
    }

    /// Adds a command. False: the host has no place for it in its queue, or it has another command with this identifier.
    #[inline]
    pub fn begin(&mut self, id: u16) -> bool {
        self.connection.take_entry();
        self.outstanding.count < self.len && self.outstanding.add(id)
    }

    /// Position of the next command.
    #[inline]
    pub fn take_sequence(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1);
        self.sequence
    }

    /// Completes a command that the core does not have.
    #[inline]
    pub fn complete(&mut self, id: u16, status: NvmeStatus) {
        self.complete_at(id, status, ErrorPlace::default);
    }

    /// Completes a command that the core does not have, by its entry.
    pub fn complete_entry(&mut self, sqe: &Sqe, status: NvmeStatus) {
        self.complete_at(sqe.id(), status, || ErrorPlace::of_entry(sqe));
    }

    /// Completes a command. If it has failed, `place` gives what it concerns.
    #[inline]
    pub fn complete_at(&mut self, id: u16, status: NvmeStatus, place: impl FnOnce() -> ErrorPlace) {
        self.outstanding.remove(id);
        let status = match status.is_success() {
            true => status,
            false => self.controller.log_error(self.place.queue(), id, status, place()),
        };
        self.connection.complete(id, status, 0);
    }

    /// Sends data, which end the command with success.
    pub fn complete_with_data(&mut self, id: u16, data: Vec<u8>) {
        self.end_with_data(id, DataIn::Bytes(data), 0);
    }

    /// Sends the last data, from `offset` on, which end the command with success.
    #[inline(always)]
    pub fn end_with_data(&mut self, id: u16, data: DataIn, offset: usize) {
        self.outstanding.remove(id);
        self.send_data(id, data, offset, true);
    }

    /// Sends data of a command. If pages of a file cannot be read, the connection ends.
    #[inline(always)]
    pub fn send_data(&mut self, id: u16, data: DataIn, offset: usize, ends: bool) {
        if self.connection.send_data(id, data, offset, ends).is_err() {
            self.connection.close();
        }
    }
}

impl ConnectionOwner for ItNexus<NvmeQueue> {
    fn flushed(&self, is_empty: bool, position: SendPosition) {
        self.responses().flushed(is_empty, || position);
    }

    fn lost(&self) {
        self.responses().lost();
        ItNexus::lost(self);
    }
}
