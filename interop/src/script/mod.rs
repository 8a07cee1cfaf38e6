//! A target that plays a script: it behaves well, but for what a test says.
//!
//! Each request goes through the test's hook first, which may answer it, answer it wrongly, or leave it to
//! the usual behaviour ([`default_response`]): login, discovery, and a small disk. All that the initiator sends is kept,
//! and checked against layout and numbering rules ([`initiator_check`]).

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

/// Longer than any time-out that a test sets: a command that needs it hangs.
const LIMIT: Duration = Duration::from_secs(40);

/// What becomes of a request.
pub enum HookAction {
    /// The usual behaviour answers it.
    Usual,
    /// The hook has dealt with it.
    Done,
    /// The connection is closed.
    Close,
}

type Hook = dyn Fn(&mut ScriptConnection, &Pdu) -> HookAction + Send + Sync;

/// How a target behaves.
pub struct Script {
    /// Answers to keys of the operational stage: other values than those offered, or none.
    answers: Vec<(String, Option<String>)>,
    /// Keys that it says besides.
    says: Vec<(String, String)>,
    /// StatSN of its first response.
    stat_sn: u32,
    /// Commands that it takes at a time.
    window: u32,
    /// The tag of its portal group.
    group: u16,
    hook: Box<Hook>,
}

impl Script {
    /// A target without a fault.
    pub fn new() -> Script {
        let hook = Box::new(|_: &mut ScriptConnection, _: &Pdu| HookAction::Usual);
        Script { answers: Vec::new(), says: Vec::new(), stat_sn: 0x0102_0304, window: 16, group: 1, hook }
    }

    /// Answers a key with this value.
    pub fn answer(mut self, key: &str, value: &str) -> Script {
        self.answers.push((key.into(), Some(value.into())));
        self
    }

    /// Says a key by itself, with the answers of the operational stage.
    pub fn say(mut self, key: &str, value: &str) -> Script {
        self.says.push((key.into(), value.into()));
        self
    }

    /// Begins with this StatSN.
    pub fn stat_sn(self, stat_sn: u32) -> Script {
        Script { stat_sn, ..self }
    }

    /// The tag of its portal group, where it is not 1.
    pub fn group(self, group: u16) -> Script {
        Script { group, ..self }
    }

    /// Takes so many commands at a time.
    pub fn window(self, window: u32) -> Script {
        Script { window, ..self }
    }

    /// What is asked about each request before the usual behaviour.
    pub fn hook(
        self,
        hook: impl Fn(&mut ScriptConnection, &Pdu) -> HookAction + Send + Sync + 'static,
    ) -> Script {
        Script { hook: Box::new(hook), ..self }
    }

    /// The same for requests of one opcode.
    pub fn at(
        self,
        opcode: u8,
        hook: impl Fn(&mut ScriptConnection, &Pdu) -> HookAction + Send + Sync + 'static,
    ) -> Script {
        self.hook(move |link, pdu| if pdu.opcode() == opcode { hook(link, pdu) } else { HookAction::Usual })
    }

    /// The same for commands with one SCSI operation code.
    pub fn scsi(
        self,
        code: u8,
        hook: impl Fn(&mut ScriptConnection, &Pdu) -> HookAction + Send + Sync + 'static,
    ) -> Script {
        let is = move |pdu: &Pdu| pdu.opcode() == crate::op::SCSI && pdu.bhs[32] == code;
        self.hook(move |link, pdu| if is(pdu) { hook(link, pdu) } else { HookAction::Usual })
    }

    /// Sends every login elsewhere, for this time (RFC 7143 section 11.13.5, status 0101h): to what is said of the
    /// target's own address.
    pub fn redirects_to(self, place: impl Fn(SocketAddr) -> String + Send + Sync + 'static) -> Script {
        self.at(crate::op::LOGIN, move |link, pdu| {
            let place = place(link.address());
            let answer = link.login_response(pdu, 0, &[("TargetAddress", &place)]).set16(36, 0x0101);
            link.send(answer);
            HookAction::Done
        })
    }

    /// Listens on a free port of 127.0.0.1 until it is dropped.
    pub fn listen(self) -> Target {
        self.listen_with(TcpListener::bind("127.0.0.1:0").expect("a free port"))
    }

    /// Listens there until it is dropped.
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

/// A request as it came.
#[derive(Clone, Debug)]
pub struct ReceivedPdu {
    /// The connection, counted from 0.
    pub link: usize,
    /// In full feature phase.
    pub full_feature: bool,
    pub pdu: Pdu,
}

/// What all connections of a target share.
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
    /// Where.
    pub fn address(&self) -> SocketAddr {
        self.shared.address
    }

    /// The URL of its disk, with these settings.
    pub fn url(&self, settings: &str) -> String {
        format!("iscsi://{}/{TARGET}/0?login_tries=1&{settings}", self.address())
    }

    /// The bytes of its disk.
    pub fn disk(&self) -> Vec<u8> {
        self.shared.disk.lock().expect("no panic").clone()
    }

    /// All requests so far; whatever broke a rule in them is a failure.
    pub fn seen(&self) -> Vec<ReceivedPdu> {
        let faults = self.shared.faults.lock().expect("no panic");
        assert!(faults.is_empty(), "the initiator breaks rules: {faults:#?}");
        self.shared.seen.lock().expect("no panic").clone()
    }

    /// The requests of one opcode in full feature phase, or in login.
    pub fn requests(&self, opcode: u8) -> Vec<Pdu> {
        self.seen().into_iter().map(|seen| seen.pdu).filter(|pdu| pdu.opcode() == opcode).collect()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        let _ = std::net::TcpStream::connect(self.shared.address); // wakes the one who accepts
    }
}

/// Runs `lunar`, which must come to an end within 40 s: it is to be told a shorter time-out.
pub fn lunar(arguments: &[&str]) -> ToolOutput {
    let ran = tool::run(Command::new(lunar_bin()).args(arguments), LIMIT);
    assert!(ran.status.is_some(), "lunar {} hangs: {}", arguments.join(" "), ran.said);
    ran
}
