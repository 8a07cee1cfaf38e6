//! An initiator over TCP.

use crate::iscsi;
use crate::iscsi::connection::OpenedSession;
use crate::iscsi::login;
use crate::iscsi::pdu_queue::Digests;
use crate::iscsi::receive::encode;
use crate::session_info::Addresses;
use crate::test_target::TestTarget;
use lunar_runtime::Stream;
use lunar_wire::iscsi::request;
use lunar_wire::iscsi::{BHS_LEN, Bhs, NONE, opcode, padded};
use lunar_wire::scsi::cdb::{self, Cdb};
use lunar_wire::scsi::{TaskAttribute, TaskManagementFunction};
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn, ready};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, Waker};

const NO_DIGESTS: Digests = Digests { header: false, data: false };
const BOTH_DIGESTS: Digests = Digests { header: true, data: true };
const DIGEST_KEYS: &str = "HeaderDigest=CRC32C\nDataDigest=CRC32C\n";
const DIGEST_LEN: usize = 4;
/// Login keys, after InitiatorName.
const KEYS: &str =
    "TargetName=iqn.2026-11.org.example:disk\nSessionType=Normal\nInitialR2T=No\nMaxOutstandingR2T=8\n";
/// Bytes of a Data-Out: MaxRecvDataSegmentLength of the test target.
const SEGMENT: u32 = 65536;
/// The reason of a Logout (RFC 7143 section 11.14.1).
const CLOSE_CONNECTION: u8 = 1;
/// CSG, NSG and T of the only Login Request.
const OPERATIONAL: u8 = 0x87;

/// Stalls the core of a connection.
#[derive(Default)]
pub struct CoreHold {
    is_held: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl CoreHold {
    /// Stalls the core.
    pub fn begin(&self) {
        self.is_held.set(true);
    }

    /// Resumes the core.
    pub fn end(&self) {
        self.is_held.set(false);
        self.waker.take().into_iter().for_each(Waker::wake);
    }

    async fn run_unless_held(&self, work: impl Future<Output = ()>) {
        let mut work = pin!(work);
        poll_fn(|cx| {
            if !self.is_held.get() {
                return work.as_mut().poll(cx);
            }
            self.waker.replace(Some(cx.waker().clone()));
            Poll::Pending
        })
        .await;
    }
}

/// The initiator's end of a connection.
pub struct Host {
    socket: TcpStream,
    digests: Digests,
    input: Vec<u8>,
    /// Bytes that [`Host::send`] sends together.
    queued: Vec<u8>,
    cmd_sn: u32,
    stat_sn: u32,
    itt: u32,
}

impl Host {
    /// A connection that the target serves.
    pub fn connect(target: &TestTarget) -> Host {
        Host::connect_held(target, ready(()))
    }

    /// A connection whose core is stalled from the end of its login until `until` resolves.
    pub fn connect_held(target: &TestTarget, until: impl Future<Output = ()> + 'static) -> Host {
        Host::connect_with(target, async |session| {
            until.await;
            iscsi::run(session).await;
        })
    }

    fn connect_with(target: &TestTarget, serve: impl AsyncFnOnce(OpenedSession) + 'static) -> Host {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let socket = TcpStream::connect(listener.local_addr().expect("a port")).expect("a connection");
        let (accepted, peer) = listener.accept().expect("a connection");
        socket.set_nonblocking(true).expect("a socket");
        let addresses = Addresses { local: accepted.local_addr().expect("an address"), peer };
        let fresh = login::TcpLogin::new(Stream::new(accepted).expect("a stream"), Vec::new());
        let (shared, portal, count) = (target.shared.clone(), target.portal(), target.count(peer));
        lunar_runtime::spawn(async move {
            if let Some(session) = login::login(&shared, fresh, addresses, portal, count).await {
                serve(session).await;
            }
        });
        let digests = NO_DIGESTS;
        Host { socket, digests, input: Vec::new(), queued: Vec::new(), cmd_sn: 1, stat_sn: 0, itt: 0 }
    }

    /// A connection that has logged in as a session of its own and that is not served yet.
    pub async fn logged_in(target: &TestTarget, isid: u8) -> (Host, OpenedSession) {
        Host::logged_in_with(target, isid, NO_DIGESTS).await
    }

    /// The same, with digests.
    pub async fn logged_in_with_digests(target: &TestTarget, isid: u8) -> (Host, OpenedSession) {
        Host::logged_in_with(target, isid, BOTH_DIGESTS).await
    }

    async fn logged_in_with(target: &TestTarget, isid: u8, digests: Digests) -> (Host, OpenedSession) {
        let (begun, login) = flume::bounded(1);
        let mut host = Host::connect_with(target, async move |session| {
            let _ = begun.send(session);
        });
        host.send_login_with("one", isid, if digests == BOTH_DIGESTS { DIGEST_KEYS } else { "" });
        assert_eq!(host.receive(opcode::LOGIN_RESPONSE).await.login_status().0, 0);
        host.digests = digests;
        (host, login.recv_async().await.expect("a session"))
    }

    /// Sets the next CmdSN, and the latest Initiator Task Tag.
    pub fn set_next(&mut self, cmd_sn: u32, itt: u32) {
        (self.cmd_sn, self.itt) = (cmd_sn, itt);
    }

    /// A session with this ISID that has received its unit attentions.
    pub async fn session(target: &TestTarget, isid: u8) -> Host {
        Host::session_of(target, "one", isid).await
    }

    /// The same, with a handle that stalls its core.
    pub async fn session_with_hold(target: &TestTarget, isid: u8) -> (Host, Rc<CoreHold>) {
        let hold = Rc::<CoreHold>::default();
        let to_hold = hold.clone();
        let run = async move |session| to_hold.run_unless_held(iscsi::run(session)).await;
        let mut host = Host::connect_with(target, run);
        host.enter("one", isid).await;
        (host, hold)
    }

    /// A session of the initiator with this name.
    pub async fn session_of(target: &TestTarget, name: &str, isid: u8) -> Host {
        let mut host = Host::connect(target);
        host.enter(name, isid).await;
        host
    }

    async fn enter(&mut self, name: &str, isid: u8) {
        self.send_login(name, isid);
        assert_eq!(self.receive(opcode::LOGIN_RESPONSE).await.login_status().0, 0);
        self.run(&cdb::test_unit_ready()).await;
    }

    /// Executes a command without data. Returns its status.
    pub async fn run(&mut self, cdb: &Cdb) -> u8 {
        let command = self.command(cdb);
        self.queue(command, &[]);
        self.send();
        self.receive(opcode::SCSI_RESPONSE).await.scsi_status()
    }

    /// Sends a Login Request.
    pub fn send_login(&mut self, name: &str, isid: u8) {
        self.send_login_with(name, isid, "");
    }

    fn send_login_with(&mut self, name: &str, isid: u8, keys: &str) {
        let mut login = Bhs::new(opcode::LOGIN | 0x40);
        login.set_flags(OPERATIONAL);
        login.set_isid([0x80, 0, 0, 0, 0, isid]);
        request::stamp(&mut login, self.cmd_sn, 0);
        let keys = format!("InitiatorName=iqn.2026-11.org.example:{name}\n{KEYS}{keys}");
        self.queue(login, keys.replace('\n', "\0").as_bytes());
        self.send();
    }

    /// Queues a PDU.
    pub fn queue(&mut self, header: Bhs, data: &[u8]) {
        self.queued.extend(encode(self.digests, header, &[], data));
    }

    /// Sends what is queued.
    pub fn send(&mut self) {
        self.socket.write_all(&self.queued).expect("a connection");
        self.queued.clear();
    }

    /// The header of the next command.
    pub fn command(&mut self, cdb: &Cdb) -> Bhs {
        self.command_as(cdb, TaskAttribute::Simple)
    }

    /// The same, with this task attribute.
    pub fn command_as(&mut self, cdb: &Cdb, attribute: TaskAttribute) -> Bhs {
        self.itt += 1;
        let mut header = request::scsi_command(0, self.itt, attribute, cdb);
        request::stamp(&mut header, self.cmd_sn, self.stat_sn);
        self.cmd_sn += 1;
        header
    }

    /// The header of an immediate command.
    pub fn immediate_command(&mut self, cdb: &Cdb) -> Bhs {
        let mut bytes = *self.command(cdb).as_bytes();
        bytes[0] |= 0x40;
        self.cmd_sn -= 1;
        Bhs::from_bytes(bytes)
    }

    /// Queues a WRITE of one block filled with this byte.
    pub fn write(&mut self, lba: u32, byte: u8) {
        self.write_as(lba, byte, TaskAttribute::Simple);
    }

    /// The same, with this task attribute.
    pub fn write_as(&mut self, lba: u32, byte: u8, attribute: TaskAttribute) {
        let mut header = self.command_as(&cdb::write_10(lba, 1, false), attribute);
        request::set_write(&mut header, 512, false);
        self.queue(header, &[byte; 512]);
    }

    /// Sends the header of a WRITE of one block, and waits for its R2T.
    pub async fn announce_write(&mut self) -> Bhs {
        let mut write = self.command(&cdb::write_10(0, 1, false));
        request::set_write(&mut write, 512, false);
        self.queue(write, &[]);
        self.send();
        self.receive(opcode::R2T).await
    }

    /// Sends the data that an R2T requests, filled with this byte.
    pub async fn answer(&mut self, r2t: &Bhs, byte: u8) {
        let burst = request::DataOutTags { lun: r2t.lun(), itt: r2t.itt(), ttt: r2t.ttt() };
        let (from, len) = (r2t.buffer_offset(), r2t.desired_len());
        for (at, data_sn) in (0..len).step_by(SEGMENT as usize).zip(0..) {
            let n = SEGMENT.min(len - at);
            let header = request::data_out(burst, data_sn, from + at, at + n == len, self.stat_sn);
            self.queue(header, &vec![byte; n as usize]);
        }
        self.send_all().await;
    }

    /// Sends the queued data while the target receives. If the connection closes, the rest is dropped.
    async fn send_all(&mut self) {
        let queued = std::mem::take(&mut self.queued);
        let mut left = &queued[..];
        while !left.is_empty() {
            match self.socket.write(left) {
                Ok(n) => left = &left[n..],
                Err(e) if e.kind() == ErrorKind::WouldBlock => lunar_runtime::yield_now().await,
                Err(_) => return,
            }
        }
    }

    /// Sends an immediate task management function. `task`: the task to which it refers.
    pub fn manage(&mut self, function: TaskManagementFunction, task: Option<u32>) {
        self.manage_at(0, function, task);
    }

    /// The same, with this LUN field.
    pub fn manage_at(&mut self, lun: u64, function: TaskManagementFunction, task: Option<u32>) {
        self.itt += 1;
        let task = task.map(|itt| (itt, self.cmd_sn));
        let mut header = request::task_management(lun, self.itt, function, task);
        request::stamp(&mut header, self.cmd_sn, self.stat_sn);
        self.queue(header, &[]);
        self.send();
    }

    /// Sends a ping, and waits for its response, which must be the next PDU: the target has received everything
    /// before the ping, and has sent nothing since.
    pub async fn ping(&mut self) {
        self.itt += 1;
        let mut header = request::nop_out(0, self.itt, NONE);
        request::stamp(&mut header, self.cmd_sn, self.stat_sn);
        self.queue(header, &[]);
        self.send();
        let response = self.next().await.map(|header| (header.opcode(), header.itt()));
        assert_eq!(response, Some((opcode::NOP_IN, self.itt)));
    }

    /// Queues a Logout that closes the connection with this CID.
    pub fn log_out_connection(&mut self, cid: u16) {
        self.itt += 1;
        let mut header = request::logout(self.itt);
        header.set_flags(0x80 | CLOSE_CONNECTION);
        header.set_cid(cid);
        request::stamp(&mut header, self.cmd_sn, self.stat_sn);
        self.queue(header, &[]);
    }

    /// Queues a Logout that closes the session.
    pub fn log_out(&mut self) {
        self.itt += 1;
        let mut header = request::logout(self.itt);
        request::stamp(&mut header, self.cmd_sn, self.stat_sn);
        self.queue(header, &[]);
    }

    /// Resets the connection.
    pub fn reset(self) {
        Stream::new(self.socket).expect("a stream").reset();
        wait_for_expiry();
    }

    /// Closes the sending side.
    pub fn finish(&self) {
        self.socket.shutdown(Shutdown::Write).expect("a connection");
        wait_for_expiry();
    }

    /// Receives PDUs until one with this opcode.
    pub async fn receive(&mut self, kind: u8) -> Bhs {
        loop {
            match self.next().await {
                Some(header) if header.opcode() == kind => return header,
                Some(_) => {}
                None => panic!("the connection has ended"),
            }
        }
    }

    /// Receives the next PDU. None: the connection has ended.
    pub async fn next(&mut self) -> Option<Bhs> {
        loop {
            if let Some(header) = self.parse() {
                self.stat_sn = header.stat_sn().wrapping_add(1);
                return Some(header);
            }
            let mut bytes = [0; 4096];
            match self.socket.read(&mut bytes) {
                Ok(0) => return None,
                Ok(n) => self.input.extend_from_slice(&bytes[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => lunar_runtime::yield_now().await,
                Err(_) => return None,
            }
        }
    }

    /// The next PDU, if it has arrived.
    pub fn next_now(&mut self) -> Option<Bhs> {
        let mut bytes = [0; 4096];
        if let Ok(n) = self.socket.read(&mut bytes) {
            self.input.extend_from_slice(&bytes[..n]);
        }
        self.parse()
    }

    fn parse(&mut self) -> Option<Bhs> {
        let header = Bhs::from_bytes(*self.input.first_chunk::<BHS_LEN>()?);
        let has_data_digest = self.digests.data && header.data_len() > 0;
        let digests = [self.digests.header, has_data_digest].into_iter().filter(|has| *has).count();
        let whole = BHS_LEN + header.ahs_len() + padded(header.data_len()) + digests * DIGEST_LEN;
        (self.input.len() >= whole).then(|| drop(self.input.drain(..whole)))?;
        Some(header)
    }
}

/// Waits until the target's cached state of the connection has expired (`lunar_runtime::Recheck`). The coarse clock
/// of the kernel has hardly advanced by then.
pub fn wait_for_expiry() {
    let started_at = std::time::Instant::now();
    while started_at.elapsed() < std::time::Duration::from_micros(150) {
        std::hint::spin_loop();
    }
}
