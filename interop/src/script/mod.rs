//! A scripted target: a correct target, except for the behaviour that a test scripts.
//!
//! The hook of the test gets each request first. The hook may send a response, also a wrong one, or leave the request to
//! [`default_response`], which serves login, discovery, and a small disk. The target records all requests, and checks
//! their layout and numbers ([`initiator_check`]).

mod connection;
mod default_response;
mod disk;
mod initiator_check;

pub use connection::ScriptConnection;
pub use disk::{BLOCK, BLOCKS};

use crate::config::TARGET;
use crate::pdu::Pdu;
use crate::server::lunar_bin;
use crate::tool::{self, ToolOutput};
use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// Longer than any time limit that a test sets. A command that runs longer hangs.
const LIMIT: Duration = Duration::from_secs(40);

/// The result of the hook.
pub enum HookAction {
    /// The default behaviour serves the request.
    Usual,
    /// The hook has sent a response, or no response is sent.
    Done,
    /// The target closes the connection.
    Close,
}

type Hook = dyn Fn(&mut ScriptConnection, &Pdu) -> HookAction + Send + Sync;

/// The behaviour of a target.
pub struct Script {
    /// Responses to keys of the operational stage that differ from the offer; None: no response.
    answers: Vec<(String, Option<String>)>,
    /// Keys that the target declares without an offer.
    says: Vec<(String, String)>,
    /// StatSN of the first response.
    stat_sn: u32,
    /// The size of the command window.
    window: u32,
    /// The tag of the portal group.
    group: u16,
    hook: Box<Hook>,
}

impl Script {
    /// A target without a fault.
    pub fn new() -> Script {
        let hook = Box::new(|_: &mut ScriptConnection, _: &Pdu| HookAction::Usual);
        Script { answers: Vec::new(), says: Vec::new(), stat_sn: 0x0102_0304, window: 16, group: 1, hook }
    }

    /// Sets the response to a key.
    pub fn answer(mut self, key: &str, value: &str) -> Script {
        self.answers.push((key.into(), Some(value.into())));
        self
    }

    /// Declares a key without an offer, with the responses of the operational stage.
    pub fn say(mut self, key: &str, value: &str) -> Script {
        self.says.push((key.into(), value.into()));
        self
    }

    /// Starts with this StatSN.
    pub fn stat_sn(self, stat_sn: u32) -> Script {
        Script { stat_sn, ..self }
    }

    /// Sets the tag of the portal group. The default is 1.
    pub fn group(self, group: u16) -> Script {
        Script { group, ..self }
    }

    /// Sets the size of the command window.
    pub fn window(self, window: u32) -> Script {
        Script { window, ..self }
    }

    /// Calls a hook for each request, before the default behaviour.
    pub fn hook(
        self,
        hook: impl Fn(&mut ScriptConnection, &Pdu) -> HookAction + Send + Sync + 'static,
    ) -> Script {
        Script { hook: Box::new(hook), ..self }
    }

    /// Calls a hook for requests with this opcode.
    pub fn at(
        self,
        opcode: u8,
        hook: impl Fn(&mut ScriptConnection, &Pdu) -> HookAction + Send + Sync + 'static,
    ) -> Script {
        self.hook(move |link, pdu| if pdu.opcode() == opcode { hook(link, pdu) } else { HookAction::Usual })
    }

    /// Calls a hook for commands with this SCSI operation code.
    pub fn scsi(
        self,
        code: u8,
        hook: impl Fn(&mut ScriptConnection, &Pdu) -> HookAction + Send + Sync + 'static,
    ) -> Script {
        let is = move |pdu: &Pdu| pdu.opcode() == crate::op::SCSI && pdu.bhs[32] == code;
        self.hook(move |link, pdu| if is(pdu) { hook(link, pdu) } else { HookAction::Usual })
    }

    /// Redirects every login temporarily (RFC 7143 section 11.13.5, status 0101h). `place` derives the new address from the
    /// address of the target.
    pub fn redirects_to(self, place: impl Fn(SocketAddr) -> String + Send + Sync + 'static) -> Script {
        self.at(crate::op::LOGIN, move |link, pdu| {
            let place = place(link.address());
            let answer = link.login_response(pdu, 0, &[("TargetAddress", &place)]).set16(36, 0x0101);
            link.send(answer);
            HookAction::Done
        })
    }

    /// Listens on a free port of 127.0.0.1 until the returned target is dropped.
    pub fn listen(self) -> Target {
        self.listen_with(TcpListener::bind("127.0.0.1:0").expect("a free port"))
    }

    /// Serves this listener until the returned target is dropped.
    pub fn listen_with(self, listener: TcpListener) -> Target {
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared { script: self, address, ..Shared::default() });
        let mine = shared.clone();
        thread::spawn(move || accept(&listener, &mine));
        Target { shared }
    }
}

impl Default for Script {
    fn default() -> Script {
        Script::new()
    }
}

/// A request as received.
#[derive(Clone, Debug)]
pub struct ReceivedPdu {
    /// The connection, counted from 0.
    pub link: usize,
    /// In full feature phase.
    pub full_feature: bool,
    pub pdu: Pdu,
}

/// State that all connections of a target share.
struct Shared {
    script: Script,
    address: SocketAddr,
    disk: Mutex<Vec<u8>>,
    seen: Mutex<Vec<ReceivedPdu>>,
    faults: Mutex<Vec<String>>,
    over: AtomicBool,
}

impl Default for Shared {
    fn default() -> Shared {
        Shared {
            script: Script::new(),
            address: ([127, 0, 0, 1], 0).into(),
            disk: Mutex::new(disk::fresh()),
            seen: Mutex::default(),
            faults: Mutex::default(),
            over: AtomicBool::new(false),
        }
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for (number, stream) in listener.incoming().flatten().enumerate() {
        if shared.over.load(Ordering::Relaxed) {
            return;
        }
        let shared = shared.clone();
        thread::spawn(move || default_response::serve(ScriptConnection::new(stream, number, shared)));
    }
}

/// A scripted target that listens.
pub struct Target {
    shared: Arc<Shared>,
}

impl Target {
    /// Its address.
    pub fn address(&self) -> SocketAddr {
        self.shared.address
    }

    /// The URL of its disk, with these settings.
    pub fn url(&self, settings: &str) -> String {
        format!("iscsi://{}/{TARGET}/0?login_tries=1&{settings}", self.address())
    }

    /// The bytes of its disk.
    pub fn disk(&self) -> Vec<u8> {
        self.shared.disk.lock().expect("no thread panics while it holds the lock").clone()
    }

    /// All requests so far. A request that breaks a rule fails the test.
    pub fn seen(&self) -> Vec<ReceivedPdu> {
        let faults = self.shared.faults.lock().expect("no thread panics while it holds the lock");
        assert!(faults.is_empty(), "the initiator breaks rules: {faults:#?}");
        self.shared.seen.lock().expect("no thread panics while it holds the lock").clone()
    }

    /// The requests with this opcode, in login and in full feature phase.
    pub fn requests(&self, opcode: u8) -> Vec<Pdu> {
        self.seen().into_iter().map(|seen| seen.pdu).filter(|pdu| pdu.opcode() == opcode).collect()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        let _ = std::net::TcpStream::connect(self.shared.address); // wakes the accepting thread
    }
}

/// Runs `lunar`, which must end within 40 s. Commands that may take longer need a time limit of their own.
pub fn lunar(arguments: &[&str]) -> ToolOutput {
    let ran = tool::run(Command::new(lunar_bin()).args(arguments), LIMIT);
    assert!(ran.status.is_some(), "lunar {} hangs: {}", arguments.join(" "), ran.said);
    ran
}
