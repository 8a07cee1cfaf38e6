use super::*;
use std::cell::RefCell;
use std::task::Poll;

/// A connection that accepts `room` of its `waiting` bytes.
#[derive(Default)]
struct Fake {
    pump: SendPump,
    waiting: Cell<usize>,
    room: Cell<usize>,
    has_room: Event,
    is_broken: Cell<bool>,
    reads: bool,
    attempts: Cell<usize>,
    progress: Cell<usize>,
    lost: RefCell<Vec<io::ErrorKind>>,
}

impl Fake {
    fn give_room(&self, bytes: usize) {
        self.room.set(bytes);
        self.has_room.notify(usize::MAX);
    }
}

impl SendSide for Fake {
    fn pump(&self) -> &SendPump {
        &self.pump
    }

    fn try_flush(&self) -> io::Result<bool> {
        self.attempts.update(|n| n + 1);
        if self.is_broken.get() {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let sent = self.waiting.get().min(self.room.get());
        self.waiting.update(|n| n - sent);
        self.room.update(|n| n - sent);
        Ok(self.waiting.get() == 0)
    }

    async fn writable(&self) -> io::Result<()> {
        while self.room.get() == 0 && !self.is_broken.get() {
            let has_room = self.has_room.listen();
            has_room.await;
        }
        Ok(())
    }

    fn lost(&self, why: io::Error) {
        self.waiting.set(0);
        self.lost.borrow_mut().push(why.kind());
    }

    fn progressed(&self) {
        self.progress.update(|n| n + 1);
    }

    fn flushes_while_blocked(&self) -> bool {
        self.reads
    }
}

fn on_a_core(body: impl Future<Output = ()>) {
    compio::runtime::Runtime::new().expect("an event loop").block_on(body);
}

/// Lets the tasks of the pump run.
async fn run_tasks() {
    for _ in 0..8 {
        yield_now().await;
    }
}

#[test]
fn flush_with_room_sends_everything_at_once() {
    on_a_core(async {
        let conn = Rc::new(Fake { waiting: 5.into(), room: 9.into(), ..Fake::default() });
        SendPump::flush(&conn);
        assert_eq!((conn.waiting.get(), conn.attempts.get()), (0, 1));
        assert!(!conn.pump.is_blocked());
        SendPump::flushed(&conn).await;
        assert_eq!(conn.progress.get(), 0, "nothing was blocked");
    });
}

#[test]
fn blocked_queue_leaves_as_the_connection_takes_it() {
    on_a_core(async {
        let conn = Rc::new(Fake { waiting: 10.into(), room: 3.into(), ..Fake::default() });
        SendPump::flush(&conn);
        assert!(conn.pump.is_blocked());
        run_tasks().await;
        SendPump::flush(&conn);
        assert_eq!(conn.attempts.get(), 1, "no attempt before there is room");
        conn.give_room(4);
        run_tasks().await;
        assert_eq!((conn.waiting.get(), conn.progress.get()), (3, 1));
        assert!(conn.pump.is_blocked());
        let drained = conn.pump.drained().listen();
        conn.give_room(4);
        drained.await;
        assert_eq!((conn.waiting.get(), conn.attempts.get()), (0, 3));
        assert!(!conn.pump.is_blocked());
    });
}

#[test]
fn flushed_on_a_blocked_queue_waits_for_its_end() {
    on_a_core(async {
        let conn = Rc::new(Fake { waiting: 10.into(), ..Fake::default() });
        let writer = conn.clone();
        crate::spawn(async move {
            run_tasks().await;
            writer.give_room(10);
        });
        SendPump::flushed(&conn).await;
        assert_eq!(conn.waiting.get(), 0);
    });
}

#[test]
fn requests_of_several_tasks_leave_with_one_flush() {
    on_a_core(async {
        let conn = Rc::new(Fake { room: 9.into(), ..Fake::default() });
        for _ in 0..3 {
            let conn = conn.clone();
            crate::spawn(async move {
                conn.waiting.update(|n| n + 2);
                SendPump::flush_soon(&conn);
            });
        }
        run_tasks().await;
        assert_eq!((conn.waiting.get(), conn.attempts.get()), (0, 1));
        conn.waiting.set(1);
        SendPump::flush_soon(&conn);
        run_tasks().await;
        assert_eq!(conn.attempts.get(), 2, "later work has its own flush");
    });
}

#[test]
fn gathered_requests_wait_for_the_flush_of_the_owner() {
    on_a_core(async {
        let conn = Rc::new(Fake { room: 9.into(), ..Fake::default() });
        let other = conn.clone();
        crate::spawn(async move {
            other.waiting.set(2);
            SendPump::flush_soon(&other);
        });
        conn.pump.gather().await;
        run_tasks().await;
        assert_eq!((conn.waiting.get(), conn.attempts.get()), (2, 0));
        SendPump::flush(&conn);
        assert_eq!(conn.waiting.get(), 0);
        conn.waiting.set(1);
        SendPump::flush_soon(&conn);
        run_tasks().await;
        assert_eq!(conn.attempts.get(), 2, "gathering is over");
    });
}

#[test]
fn dropped_gathering_lets_later_requests_flush() {
    on_a_core(async {
        let conn = Rc::new(Fake { waiting: 1.into(), room: 9.into(), ..Fake::default() });
        let mut gather = Box::pin(conn.pump.gather());
        let polled = std::future::poll_fn(|cx| Poll::Ready(gather.as_mut().poll(cx))).await;
        assert!(polled.is_pending());
        drop(gather);
        SendPump::flush_soon(&conn);
        run_tasks().await;
        assert_eq!(conn.waiting.get(), 0);
    });
}

#[test]
fn failed_flush_reports_the_loss_once() {
    on_a_core(async {
        let conn = Rc::new(Fake { waiting: 1.into(), ..Fake::default() });
        conn.is_broken.set(true);
        SendPump::flush(&conn);
        assert_eq!(*conn.lost.borrow(), [io::ErrorKind::ConnectionReset]);
        assert!(!conn.pump.is_blocked());
    });
}

#[test]
fn loss_while_blocked_ends_the_wait_for_the_flush() {
    on_a_core(async {
        let conn = Rc::new(Fake { waiting: 1.into(), ..Fake::default() });
        let peer = conn.clone();
        crate::spawn(async move {
            run_tasks().await;
            peer.is_broken.set(true);
            peer.has_room.notify(usize::MAX);
        });
        SendPump::flushed(&conn).await;
        assert_eq!(*conn.lost.borrow(), [io::ErrorKind::ConnectionReset]);
    });
}

#[test]
fn datamover_that_is_blocked_still_flushes() {
    on_a_core(async {
        let conn = Rc::new(Fake { waiting: 2.into(), reads: true, ..Fake::default() });
        SendPump::flush(&conn);
        SendPump::flush(&conn);
        assert_eq!(conn.attempts.get(), 2);
        run_tasks().await;
        conn.give_room(9);
        run_tasks().await;
        assert_eq!((conn.waiting.get(), conn.attempts.get()), (0, 3), "one task waits for room");
    });
}
