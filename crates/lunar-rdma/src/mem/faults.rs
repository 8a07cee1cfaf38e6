//! What goes wrong at one end, and what that end did.

use crate::RemoteAddress;
use event_listener::Event;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Something that an end did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointOp {
    /// It sent a message of so many bytes, and ended a steering tag of the other side with it.
    Send { len: usize, invalidate: Option<u32> },
    /// It wrote so many bytes to memory of the other side.
    Write { to: RemoteAddress, len: usize },
    /// It began to read so many bytes from memory of the other side.
    Read { id: u64, from: RemoteAddress, len: usize },
    /// That RDMA Read ended, well or not.
    ReadEnded { id: u64 },
}

/// Holds things up until it is opened.
#[derive(Debug, Default)]
pub struct FaultGate {
    closed: Cell<bool>,
    passes: Cell<usize>,
    bell: Rc<Event>,
}

impl FaultGate {
    /// Nothing passes from now on.
    pub fn hold(&self) {
        self.closed.set(true);
        self.passes.set(0);
    }

    /// Everything passes: what was held up, and what comes.
    pub fn release(&self) {
        self.closed.set(false);
        self.bell.notify(usize::MAX);
    }

    /// Lets so many more through while it is closed: the first that were held up, or the next that come.
    pub fn pass(&self, count: usize) {
        self.passes.set(self.passes.get() + count);
        self.bell.notify(usize::MAX);
    }

    /// Whether things are held up.
    pub(super) fn is_held(&self) -> bool {
        self.closed.get() && self.passes.get() == 0
    }

    /// Whether one may pass, which uses up a pass.
    pub(super) fn admits(&self) -> bool {
        let passes = self.passes.get();
        if self.closed.get() {
            self.passes.set(passes.saturating_sub(1));
        }
        !self.closed.get() || passes > 0
    }
}

/// What is to go wrong at one end of one connection. It may be changed at any time.
#[derive(Debug)]
pub struct Faults {
    /// RDMA Reads of this end: those that are held up are under way, and count as such.
    pub reads: FaultGate,
    /// Messages and RDMA Writes of this end: those that are held up wait to be flushed, and RDMA Reads pass them, as at a
    /// device whose line is busy.
    pub sends: FaultGate,
    /// Messages and RDMA Writes of this end that were flushed: those that are held up are at the device, which has not
    /// sent them.
    pub line: FaultGate,
    /// Messages to this end: those that are held up have not arrived yet. When the connection ends they are lost.
    pub messages: FaultGate,
    /// The next RDMA Read of this end fails, and the connection with it, as everywhere else.
    pub fail_next_read: Cell<bool>,
    /// The next memory that this end exposes is not taken, as by a device that has no room for it.
    pub fail_next_expose: Cell<bool>,
    /// The connection is lost when this end has done so many more operations (sends, writes, and reads begun).
    pub lose_after: Cell<Option<usize>>,
    /// This end can send with invalidate. For connections that are yet to be made.
    pub invalidates: Cell<bool>,
    /// The private data that this end gets has zeros behind it, as much as on InfiniBand. For connections that are yet
    /// to be made.
    pub pads: Cell<bool>,
    /// What this end does is written down. Who measures does without.
    pub logs: Cell<bool>,
    log: RefCell<Vec<EndpointOp>>,
    outstanding: Cell<usize>,
    /// Rings when there may be something to take.
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
    /// What this end did so far, in order.
    pub fn log(&self) -> Vec<EndpointOp> {
        self.log.borrow().clone()
    }

    /// What this end did since the last call.
    pub fn take_log(&self) -> Vec<EndpointOp> {
        self.log.take()
    }

    /// Operations of this end that are queued, and RDMA Reads that have not ended.
    pub fn outstanding(&self) -> usize {
        self.outstanding.get()
    }

    pub(super) fn set_outstanding(&self, count: usize) {
        self.outstanding.set(count);
    }

    /// Writes an operation down, and counts it.
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
