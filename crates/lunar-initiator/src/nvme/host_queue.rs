//! A queue pair on its core: the socket, the send pump, and the receive loop.

use super::command::{NvmeCommand, NvmeResult};
use super::initialize::InitializedConnection;
use super::queue_state::QueueState;
use super::queue_tasks::CompletionWaiter;
use super::status::closed;
use crate::{Error, ErrorCode, hints, time_limit};
use event_listener::Event;
use lunar_runtime::nvme::receive::{NvmeReceiveError, NvmeReceiver};
use lunar_runtime::{ReceiveStatus, SendPump, SendSide, Stream, either};
use lunar_wire::nvme::NvmePduError;
use std::cell::{RefCell, RefMut};
use std::future::{Future, poll_fn};
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The most data of one C2HData, in bytes: no command transfers more.
pub const MAX_TRANSFER: usize = 4 << 20;
/// The interval of the looks at commands without an answer.
const LOOK: Duration = Duration::from_secs(1);
/// The pause between two looks at commands in flight while a controller is closed.
const DRAIN_PAUSE: Duration = Duration::from_millis(5);
/// How long a controller may take to close a connection that a violation has ended.
const FAREWELL: Duration = Duration::from_millis(500);

/// A queue pair, with or without a connection.
pub struct HostQueue {
    /// The protocol state.
    pub state: RefCell<QueueState>,
    stream: RefCell<Option<Rc<Stream>>>,
    pump: SendPump,
    /// Why the last connection has ended.
    lost_by: RefCell<Option<Error>>,
    /// Notified when a connection ends.
    ended: Event,
}

impl HostQueue {
    /// A queue without a connection.
    pub fn new(entries: u32, capsule_data: usize) -> Rc<HostQueue> {
        Rc::new(HostQueue {
            state: RefCell::new(QueueState::new(entries, capsule_data)),
            stream: RefCell::default(),
            pump: SendPump::default(),
            lost_by: RefCell::default(),
            ended: Event::new(),
        })
    }

    /// Takes over a connection and starts to receive from it.
    pub fn attach(self: &Rc<Self>, connection: InitializedConnection) {
        let InitializedConnection { stream, link, begun } = connection;
        let stream = Rc::new(stream);
        let receiver = NvmeReceiver::new(false, link.digests, MAX_TRANSFER, begun);
        *self.stream.borrow_mut() = Some(stream.clone());
        *self.lost_by.borrow_mut() = None;
        {
            let mut state = self.state.borrow_mut();
            state.now = Instant::now();
            state.connect(link);
        }
        lunar_runtime::spawn(self.clone().run(stream, receiver));
    }

    /// Receives until the connection ends. All commands of one turn leave in one send.
    async fn run(self: Rc<Self>, stream: Rc<Stream>, mut receiver: NvmeReceiver) {
        let mut begun = receiver.has_begun();
        let why = loop {
            let received = match std::mem::take(&mut begun) {
                true => receiver.resume(&mut *self.state.borrow_mut()),
                false => match stream.readable().await {
                    Ok(()) => {
                        let mut state = self.state.borrow_mut();
                        state.now = Instant::now();
                        receiver.receive(&stream, &mut *state)
                    }
                    Err(e) => Err(e.into()),
                },
            };
            match received {
                Ok(ReceiveStatus::More | ReceiveStatus::Full) => {}
                Ok(ReceiveStatus::End) => break lost("the controller closed the connection"),
                Err(NvmeReceiveError::Io(e)) => break lost(lunar_runtime::error::text(&e)),
                Err(NvmeReceiveError::Pdu { error, header }) => {
                    break self.terminate(&stream, error, &header).await;
                }
            }
            self.pump.gather().await;
            SendPump::flush(&self);
        };
        let why = self.state.borrow_mut().take_fault().unwrap_or(why);
        // The kernel must not deliver unsent data later.
        stream.reset();
        *self.stream.borrow_mut() = None;
        *self.lost_by.borrow_mut() = Some(why.clone());
        self.state.borrow_mut().disconnect(&why);
        self.ended.notify(usize::MAX);
    }

    /// Reports a violation to the controller, and waits a bounded time until it closes the connection.
    async fn terminate(self: &Rc<Self>, stream: &Stream, error: NvmePduError, header: &[u8]) -> Error {
        self.state.borrow_mut().out.terminate(error, header);
        SendPump::flush(self);
        let closed = async {
            let mut rest = [0; 4096];
            while stream.readable().await.is_ok()
                && !matches!(stream.receive(&mut rest), Ok(Some(0)) | Err(_))
            {}
        };
        either(closed, compio::time::sleep(FAREWELL)).await;
        Error::new(ErrorCode::ProtocolError, format!("the controller violated the protocol: {error}"))
    }

    /// Whether there is a connection.
    pub fn is_connected(&self) -> bool {
        self.stream.borrow().is_some()
    }

    /// Waits until there is no connection, and returns the reason.
    pub async fn disconnected(&self) -> Error {
        loop {
            let ended = self.ended.listen();
            if !self.is_connected() {
                return self.lost_by.borrow().clone().unwrap_or_else(|| lost("the queue has no connection"));
            }
            ended.await;
        }
    }

    /// Waits until a command has had no answer for this time, and returns an error.
    pub async fn watch(&self, limit: Duration) -> Error {
        loop {
            time_limit::sleep(LOOK.min(limit / 4)).await;
            let oldest = self.state.borrow_mut().oldest();
            if let Some((_, opcode)) = oldest.filter(|(at, _)| at.elapsed() >= limit) {
                let what = format!("a command ({opcode:02x}h) had no answer for {} s", limit.as_secs_f32());
                return Error::new(ErrorCode::TimedOut, what).with_hint(hints::COMMAND_TIMEOUT);
            }
        }
    }

    /// Sends commands from now on, if there is a connection.
    pub fn admit(self: &Rc<Self>) {
        self.state.borrow_mut().admit();
        SendPump::flush(self);
    }

    /// Refuses new commands, and waits until none is in flight.
    pub async fn drained(self: Rc<Self>) {
        self.state.borrow_mut().refuse_new(closed());
        while self.state.borrow().is_busy() && self.is_connected() {
            compio::time::sleep(DRAIN_PAUSE).await;
        }
    }

    /// Resets the connection: the receive loop finds it closed.
    pub fn reset(&self, why: Error) {
        if let Some(stream) = &*self.stream.borrow() {
            self.state.borrow_mut().fail(why);
            stream.reset();
        }
    }

    /// The state at this time: the time limit of a command begins when it is sent. Commands of one send have one time.
    #[inline]
    fn state_now(&self) -> RefMut<'_, QueueState> {
        let mut state = self.state.borrow_mut();
        if state.out.is_empty() {
            state.now = Instant::now();
        }
        state
    }

    /// Submits a command.
    ///
    /// # Errors
    /// Its result, when no command is accepted.
    #[inline]
    pub fn accept(
        self: &Rc<Self>,
        command: NvmeCommand,
        waiter: CompletionWaiter,
    ) -> Result<u64, Box<NvmeResult>> {
        let key = self.state_now().submit(command, waiter)?;
        SendPump::flush_soon(self);
        Ok(key)
    }

    /// As [`HostQueue::accept`], for a fused pair.
    ///
    /// # Errors
    /// The results of both, when no command is accepted.
    pub fn accept_pair(
        self: &Rc<Self>,
        commands: [NvmeCommand; 2],
        waiters: [CompletionWaiter; 2],
    ) -> Result<[u64; 2], Box<[NvmeResult; 2]>> {
        let keys = self.state_now().submit_pair(commands, waiters)?;
        SendPump::flush_soon(self);
        Ok(keys)
    }

    /// Sends a command and waits for its end.
    pub async fn call(self: &Rc<Self>, command: NvmeCommand) -> NvmeResult {
        match self.accept(command, CompletionWaiter::Unknown) {
            Ok(key) => self.ended(key).await,
            Err(refused) => *refused,
        }
    }

    /// As [`HostQueue::call`], for the commands at the start of a connection.
    pub async fn call_first(self: &Rc<Self>, command: NvmeCommand) -> NvmeResult {
        let key = self.state_now().submit_first(command);
        match key {
            Some(key) => {
                SendPump::flush_soon(self);
                self.ended(key).await
            }
            None => (Err(lost("the queue has no connection")), None),
        }
    }

    /// The end of a submitted command. Dropping the future abandons the command.
    pub fn ended(self: &Rc<Self>, key: u64) -> impl Future<Output = NvmeResult> + use<> {
        let guard = SubmittedCommand { queue: self.clone(), key };
        async move { poll_fn(|cx| guard.queue.state.borrow_mut().poll(guard.key, cx)).await }
    }
}

/// A command on this core, which is abandoned when this is dropped.
struct SubmittedCommand {
    queue: Rc<HostQueue>,
    key: u64,
}

impl Drop for SubmittedCommand {
    fn drop(&mut self) {
        self.queue.state.borrow_mut().abandon(self.key);
    }
}

fn lost(why: impl Into<String>) -> Error {
    Error::new(ErrorCode::ConnectionLost, why)
}

impl SendSide for HostQueue {
    fn pump(&self) -> &SendPump {
        &self.pump
    }

    fn try_flush(&self) -> io::Result<bool> {
        let Some(stream) = self.stream.borrow().clone() else { return Ok(true) };
        let mut state = self.state.borrow_mut();
        let sent = state.out.flush(&stream);
        if matches!(sent, Ok(false)) {
            state.record_blocked();
        }
        state.settle();
        sent
    }

    async fn writable(&self) -> io::Result<()> {
        let Some(stream) = self.stream.borrow().clone() else { return Ok(()) };
        let ready = stream.writable().await;
        let is_current = self.stream.borrow().as_ref().is_some_and(|s| Rc::ptr_eq(s, &stream));
        // An earlier connection has ended, not the current one.
        if is_current { ready } else { Ok(()) }
    }

    fn lost(&self, why: io::Error) {
        self.reset(lost(lunar_runtime::error::text(&why)));
    }
}
