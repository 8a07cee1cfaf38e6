//! READs and WRITEs of one LUN at a medium that takes many at once: one task of the nexus takes the ends of all, for as
//! long as there are any.

use super::direct_io::Work;
use super::front_end::FrontEnd;
use super::nexus::ItNexus;
use crate::Unit;
use crate::exec::{self, Ended};
use crate::fence::{Fence, InFlight};
use crate::gate::Shared;
use lunar_block::{Finished, Queue};
use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// The commands of a LUN that are with its medium.
pub struct IoQueue(RefCell<Inner>);

struct Inner {
    queue: Box<dyn Queue>,
    /// What was begun, at its lane.
    begun: Vec<Option<(Begun, Kind)>>,
    free: Vec<usize>,
    /// Who takes the ends, once they wait for one: what is begun meanwhile does not move by itself.
    waits: Option<Waker>,
}

/// A command inside its gate.
pub struct Begun {
    /// Its tag.
    pub tag: u32,
    /// The connection that brought it.
    pub connection: u16,
    /// That of its task.
    pub serial: u64,
    /// What serves it.
    pub unit: Arc<Unit>,
    /// Its place inside the gate.
    pub inside: Shared,
    /// The end of the session waits for it.
    pub _under_way: InFlight<Arc<Fence>>,
    /// Bytes of Data-Out.
    pub written: u32,
}

enum Kind {
    Read { offset: u64 },
    Write { offset: u64 },
}

impl Kind {
    fn end(self, unit: &Unit, finished: Finished) -> Ended {
        match self {
            Kind::Read { offset } => exec::was_read(unit, offset, finished),
            Kind::Write { offset } => exec::was_written(unit, offset, finished),
        }
    }
}

impl Inner {
    fn is_idle(&self) -> bool {
        self.free.len() == self.begun.len()
    }

    fn free_lane(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.begun.push(None);
            self.begun.len() - 1
        })
    }
}

impl IoQueue {
    /// None is under way.
    pub fn new(queue: Box<dyn Queue>) -> IoQueue {
        IoQueue(RefCell::new(Inner { queue, begun: Vec::new(), free: Vec::new(), waits: None }))
    }

    /// Begins what a command does at the medium. The nexus answers it.
    pub fn begin<F: FrontEnd>(self: &Rc<Self>, nexus: &Rc<ItNexus<F>>, begun: Begun, work: Work) {
        let inner = &mut *self.0.borrow_mut();
        if inner.is_idle() {
            lunar_runtime::spawn(serve(self.clone(), nexus.clone()));
        }
        let lane = inner.free_lane();
        let kind = match work {
            Work::Read { offset, buf } => {
                inner.queue.read(lane, offset, buf);
                Kind::Read { offset }
            }
            Work::Write { offset, buf, stable } => {
                inner.queue.write(lane, offset, buf, stable);
                Kind::Write { offset }
            }
        };
        inner.begun[lane] = Some((begun, kind));
        inner.waits.take().into_iter().for_each(Waker::wake);
    }

    fn poll<F: FrontEnd>(&self, nexus: &Rc<ItNexus<F>>, cx: &mut Context<'_>) -> Poll<()> {
        while let Poll::Ready(((begun, kind), finished)) = self.poll_ended(cx) {
            let ended = kind.end(&begun.unit, finished);
            nexus.end_direct(begun, ended);
        }
        if self.0.borrow().is_idle() { Poll::Ready(()) } else { Poll::Pending }
    }

    fn poll_ended(&self, cx: &mut Context<'_>) -> Poll<((Begun, Kind), Finished)> {
        let inner = &mut *self.0.borrow_mut();
        let Poll::Ready((lane, finished)) = inner.queue.poll_ended(cx) else {
            inner.waits = Some(cx.waker().clone());
            return Poll::Pending;
        };
        inner.free.push(lane);
        Poll::Ready((inner.begun[lane].take().expect("what has ended was begun"), finished))
    }
}

/// Takes ends until nothing is under way.
async fn serve<F: FrontEnd>(queue: Rc<IoQueue>, nexus: Rc<ItNexus<F>>) {
    poll_fn(|cx| queue.poll(&nexus, cx)).await;
}
