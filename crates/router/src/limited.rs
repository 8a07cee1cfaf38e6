//! A way that lets through no more than its share.

use block::Future;
use block::filter::Rate;
use device::Port;
use event_listener::Event;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;
use target::{Data, Passage, Passed, Reply, Way};
use wire::iscsi::request::Function;
use wire::scsi::Status;

/// A passage with a share of operations and bytes a second, which others may have a part in.
pub fn limited(passage: Arc<dyn Passage>, rate: Arc<Rate>) -> Arc<dyn Passage> {
    Arc::new(Limited { passage, rate })
}

struct Limited {
    passage: Arc<dyn Passage>,
    rate: Arc<Rate>,
}

impl Passage for Limited {
    fn enter(&self, port: &Arc<Port>) -> Rc<dyn Way> {
        Rc::new(LimitedWay {
            way: self.passage.enter(port),
            rate: self.rate.clone(),
            aborted: RefCell::default(),
            bell: Event::new(),
        })
    }

    fn describe(&self) -> Vec<(String, String)> {
        self.passage.describe()
    }
}

struct LimitedWay {
    way: Rc<dyn Way>,
    rate: Arc<Rate>,
    /// Tags of commands that were aborted, some of which may wait here.
    aborted: RefCell<BTreeSet<u64>>,
    /// Rings when one is aborted.
    bell: Event,
}

impl LimitedWay {
    /// Waits until a command may go; false when it is aborted before.
    async fn waits(&self, tag: u64, bytes: u64) -> bool {
        let end = Instant::now() + self.rate.pay(bytes);
        loop {
            let rings = self.bell.listen();
            if self.aborted.borrow().contains(&tag) {
                return false;
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            // Either is a reason to look again.
            _ = compio::time::timeout(left, rings).await;
        }
    }
}

impl Way for LimitedWay {
    fn submit(&self, command: Passed) -> Future<'_, Reply> {
        let bytes = match &command.data {
            Data::None => 0,
            Data::In(buf) | Data::Out(buf) => buf.len() as u64,
        };
        Box::pin(async move {
            let tag = command.tag;
            let reply = match self.waits(tag, bytes).await {
                true => self.way.submit(command).await,
                // Nobody is told of it.
                false => {
                    Reply { status: Status::TaskAborted as u8, sense: Box::default(), data: None, moved: 0 }
                }
            };
            self.aborted.borrow_mut().remove(&tag);
            reply
        })
    }

    fn abort(&self, tag: u64) -> Future<'_, ()> {
        self.aborted.borrow_mut().insert(tag);
        self.bell.notify(usize::MAX);
        self.way.abort(tag)
    }

    fn manage(&self, function: Function) -> Future<'_, bool> {
        self.way.manage(function)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use wire::iscsi::request::Attribute;

    /// Counts what reaches it.
    #[derive(Default)]
    struct Counting(Cell<u32>);

    impl Way for Counting {
        fn submit(&self, _: Passed) -> Future<'_, Reply> {
            self.0.set(self.0.get() + 1);
            Box::pin(async { Reply { status: 0, sense: Box::default(), data: None, moved: 0 } })
        }

        fn abort(&self, _: u64) -> Future<'_, ()> {
            Box::pin(async {})
        }

        fn manage(&self, _: Function) -> Future<'_, bool> {
            Box::pin(async { true })
        }
    }

    fn command(tag: u64) -> Passed {
        Passed { tag, cdb: [0; 16].into(), attribute: Attribute::Simple, data: Data::None }
    }

    #[test]
    fn commands_wait_for_their_share_and_an_aborted_one_goes_nowhere() {
        let runtime = compio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(async {
            let counting = Rc::new(Counting::default());
            let (rate, aborted) = (Rate::new(100, 0), RefCell::default());
            let way = LimitedWay { way: counting.clone(), rate, aborted, bell: Event::new() };
            let begun = Instant::now();
            for tag in 0..20 {
                assert_eq!(way.submit(command(tag)).await.status, 0);
            }
            // A tenth of a second is saved up.
            assert!(begun.elapsed().as_millis() >= 50, "{:?}", begun.elapsed());
            let waits = way.submit(command(20));
            way.abort(20).await;
            assert_eq!(waits.await.status, Status::TaskAborted as u8);
            assert_eq!(counting.0.get(), 20);
        });
    }
}
