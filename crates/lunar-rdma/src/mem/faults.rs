//! Fault injection and the operation log of an endpoint.

use crate::RemoteAddress;
use event_listener::Event;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// An operation of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointOp {
    /// A sent message.
    Send {
        /// Length in bytes.
        len: usize,
        /// The steering tag of the peer that it invalidates.
        invalidate: Option<u32>,
    },
    /// An RDMA Write.
    Write {
        /// The destination.
        to: RemoteAddress,
        /// Length in bytes.
        len: usize,
    },
    /// The start of an RDMA Read.
    Read {
        /// The id of the read.
        id: u64,
        /// The source.
        from: RemoteAddress,
        /// Length in bytes.
        len: usize,
    },
    /// The completion of an RDMA Read, successful or not.
    ReadEnded {
        /// The id of the read.
        id: u64,
    },
}

/// A gate that holds operations back until it is opened.
#[derive(Debug, Default)]
pub struct FaultGate {
    closed: Cell<bool>,
    passes: Cell<usize>,
    bell: Rc<Event>,
}

impl FaultGate {
    /// Closes the gate.
    pub fn hold(&self) {
        self.closed.set(true);
        self.passes.set(0);
    }

    /// Opens the gate for held and later operations.
    pub fn release(&self) {
        self.closed.set(false);
        self.bell.notify(usize::MAX);
    }

    /// Lets this many operations pass the closed gate: held ones first, then later ones.
    pub fn pass(&self, count: usize) {
        self.passes.set(self.passes.get() + count);
        self.bell.notify(usize::MAX);
    }

    /// Whether the gate is closed.
    pub(super) fn is_held(&self) -> bool {
        self.closed.get() && self.passes.get() == 0
    }

    /// Whether an operation may pass. Consumes a pass.
    pub(super) fn admits(&self) -> bool {
        let passes = self.passes.get();
        if self.closed.get() {
            self.passes.set(passes.saturating_sub(1));
        }
        !self.closed.get() || passes > 0
    }
}

/// The faults of one endpoint. They may change at any time.
#[derive(Debug)]
pub struct Faults {
    /// RDMA Reads of this endpoint. Held ones are in flight and count as such.
    pub reads: FaultGate,
    /// Messages and RDMA Writes of this endpoint. Held ones wait for a flush. RDMA Reads pass them, as with a device
    /// whose link is busy.
    pub sends: FaultGate,
    /// Flushed messages and RDMA Writes of this endpoint. Held ones are at the device, which has not sent them.
    pub line: FaultGate,
    /// Messages to this endpoint. Held ones have not arrived. They are lost when the connection ends.
    pub messages: FaultGate,
    /// Whether the next RDMA Read of this endpoint fails, which ends the connection, as in every provider.
    pub fail_next_read: Cell<bool>,
    /// Whether the next memory registration fails, as on a device without free resources.
    pub fail_next_expose: Cell<bool>,
    /// The connection is lost after this many more operations of this endpoint (sends, writes, and started reads).
    pub lose_after: Cell<Option<usize>>,
    /// Whether this endpoint can send with invalidate. Applies to later connections.
    pub invalidates: Cell<bool>,
    /// Whether private data for this endpoint are padded with zeros, as on InfiniBand. Applies to later connections.
    pub pads: Cell<bool>,
    /// Whether operations are logged. Benchmarks disable it.
    pub logs: Cell<bool>,
    log: RefCell<Vec<EndpointOp>>,
    outstanding: Cell<usize>,
    /// Notified when events may be available.
    pub(super) bell: Rc<Event>,
}

impl Default for Faults {
    fn default() -> Self {
        let bell = Rc::new(Event::new());
        let gate = || FaultGate { bell: bell.clone(), ..FaultGate::default() };
        Faults {
            reads: gate(),
            sends: gate(),
            line: gate(),
            messages: gate(),
            fail_next_read: Cell::new(false),
            fail_next_expose: Cell::new(false),
            lose_after: Cell::new(None),
            invalidates: Cell::new(true),
            pads: Cell::new(false),
            logs: Cell::new(true),
            log: RefCell::default(),
            outstanding: Cell::new(0),
            bell,
        }
    }
}

impl Faults {
    /// All operations so far, in order.
    pub fn log(&self) -> Vec<EndpointOp> {
        self.log.borrow().clone()
    }

    /// The operations since the last call.
    pub fn take_log(&self) -> Vec<EndpointOp> {
        self.log.take()
    }

    /// The number of queued operations and unfinished RDMA Reads.
    pub fn outstanding(&self) -> usize {
        self.outstanding.get()
    }

    pub(super) fn set_outstanding(&self, count: usize) {
        self.outstanding.set(count);
    }

    /// Logs and counts an operation.
    pub(super) fn did(&self, operation: EndpointOp) {
        self.write_down(operation);
        self.lose_after.set(self.lose_after.get().map(|left| left.saturating_sub(1)));
    }

    pub(super) fn ended(&self, id: u64) {
        self.write_down(EndpointOp::ReadEnded { id });
    }

    fn write_down(&self, operation: EndpointOp) {
        if self.logs.get() {
            self.log.borrow_mut().push(operation);
        }
    }
}
