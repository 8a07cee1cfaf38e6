//! From a PDU that has arrived to what takes it: digests, life, CmdSN order, opcode.

use super::carrier::Out;
use super::connection::{Life, Session};
use super::late;
use super::receive::{Arrived, Data, Sink};
use super::task::Command;
use crate::registry::Which;
use lunar_proto::window::Admit;
use lunar_runtime::Buf;
use lunar_wire::iscsi::status::RejectReason;
use lunar_wire::iscsi::{Bhs, NONE, opcode};

/// Immediate commands that may be unfinished at a time.
pub const IMMEDIATE: u32 = 64;

/// A request that came before its turn.
pub struct Held {
    header: Bhs,
    ahs: Vec<u8>,
    data: Buf,
    /// It had arrived before a function of another session about these.
    recalled: Option<Which>,
}

impl Held {
    /// Its Initiator Task Tag.
    pub fn itt(&self) -> u32 {
        self.header.itt()
    }

    /// Its LUN field.
    pub fn lun(&self) -> u64 {
        self.header.lun()
    }

    /// A function of another session about these, which include its logical unit, comes before it.
    pub fn recall(&mut self, which: &Which) {
        self.recalled = Some(which.clone());
    }
}

impl Sink for Session {
    fn place(&mut self, header: &Bhs) -> Option<(Buf, usize)> {
        if header.opcode() == opcode::DATA_OUT { self.landing_place(header) } else { None }
    }

    /// One beyond the pool's limit per connection, so that receiving never waits for memory that only further
    /// receiving can free. A command does not keep it: see `buffer_for`.
    fn buffer(&mut self, len: usize) -> Buf {
        self.pool.try_get(len).unwrap_or_else(|| Buf::zeroed(len))
    }

    fn is_full(&self) -> bool {
        Session::is_full(self)
    }

    #[inline]
    fn take(&mut self, pdu: Arrived<'_>) -> bool {
        if self.life == Life::Over {
            return false;
        }
        self.pings.heard();
        let Arrived { header, ahs, data, intact, behind } = pdu;
        if late::changes(&header) && self.is_late(Some(behind)) {
            return false;
        }
        match header.opcode() {
            opcode::DATA_OUT => self.data_out(&header, ahs, data, intact),
            _ if !intact => self.reject(RejectReason::DataDigest, &header, ahs),
            opcode::SNACK => self.snack(&header, ahs),
            op if !is_request(op) => self.reject(RejectReason::Unsupported, &header, ahs),
            opcode::LOGIN => self.reject(RejectReason::Protocol, &header, ahs),
            _ if self.info.discovery && !matches!(header.opcode(), opcode::TEXT | opcode::LOGOUT) => {
                self.reject(RejectReason::Protocol, &header, ahs)
            }
            _ => self.in_turn(header, ahs, data, behind),
        }
        self.life != Life::Over
    }
}

/// Requests with a CmdSN, and the login that has no place here.
fn is_request(op: u8) -> bool {
    matches!(
        op,
        opcode::NOP_OUT
            | opcode::SCSI_COMMAND
            | opcode::TASK_MANAGEMENT
            | opcode::LOGIN
            | opcode::TEXT
            | opcode::LOGOUT
    )
}

impl Session {
    /// Takes a request when its CmdSN is due, and then those that have waited for it.
    #[inline]
    fn in_turn(&mut self, header: Bhs, ahs: &[u8], data: Data<'_>, behind: &[u8]) {
        match self.window.receive(header.cmd_sn(), header.immediate()) {
            Admit::Deliver => self.request(&header, ahs, data),
            Admit::Ignore => return,
            Admit::Hold => {
                return self.hold(header, ahs, data.bytes());
            }
        }
        if !self.held.is_empty() {
            self.release_held(Some(behind));
        }
        if !self.managing.is_empty() {
            self.task_ended();
        }
    }

    /// Keeps a request until its turn comes, its data in a buffer of the pool. Whoever sends in order over a stream needs
    /// none, so one who gets none is not waited for. Over SRP commands wait for the table of one before them, which is not
    /// for the initiator to help; there is little data in a message.
    fn hold(&mut self, header: Bhs, ahs: &[u8], bytes: &[u8]) {
        let room = match &self.out {
            _ if bytes.is_empty() => Some(Buf::zeroed(0)),
            Out::Tcp(_) => self.pool.try_get(bytes.len()),
            Out::Moved(_) => Some(self.buffer(bytes.len())),
        };
        let Some(mut data) = room else {
            return self.is_over("too much waits for a command that does not come");
        };
        data.copy_from_slice(bytes);
        let recalled = self.recalling.clone();
        self.held.insert(header.cmd_sn(), Held { header, ahs: ahs.to_vec(), data, recalled });
    }

    /// Takes the requests whose turn has come. `behind` was received and is not taken yet; None: that is with the receiver.
    /// A request may have been held for long, and the one that releases it may change nothing: so each is checked here too.
    pub fn release_held(&mut self, behind: Option<&[u8]>) {
        while self.life != Life::Over
            && let Some(cmd_sn) = self.window.next_held()
        {
            match self.held.remove(&cmd_sn) {
                Some(h) if late::changes(&h.header) && self.is_late(behind) => return,
                Some(h) => {
                    let outer = std::mem::replace(&mut self.recalling, h.recalled);
                    self.request(&h.header, &h.ahs, Data::Bytes(&h.data));
                    self.recalling = outer;
                }
                None => drop(self.window.finished()),
            }
        }
    }

    #[inline]
    fn request(&mut self, header: &Bhs, ahs: &[u8], data: Data<'_>) {
        if header.opcode() == opcode::SCSI_COMMAND {
            return self.scsi_command(header, ahs, data);
        }
        // None of the others is ever pending for the window: they are answered here, or outside the task set.
        if !header.immediate() {
            self.window.finished();
        }
        match header.opcode() {
            opcode::NOP_OUT => self.nop_out(header, data.bytes()),
            opcode::TASK_MANAGEMENT => self.task_management(header, ahs),
            opcode::TEXT => self.text_request(header, ahs, data.bytes()),
            _ => self.logout(header, ahs),
        }
    }

    #[inline]
    fn scsi_command(&mut self, header: &Bhs, ahs: &[u8], data: Data<'_>) {
        let Some(c) = Command::read(header, ahs) else {
            tracing::debug!(?header, "a SCSI Command that contradicts itself");
            self.is_over("format error: a SCSI Command contradicts itself");
            return;
        };
        let refusal = if c.itt == NONE {
            Some(RejectReason::InvalidField)
        } else if self.is_live(&c) {
            Some(RejectReason::TaskInProgress)
        } else if self.life == Life::Leaving {
            Some(RejectReason::WaitingForLogout)
        } else if c.immediate && self.immediate_live >= IMMEDIATE {
            Some(RejectReason::TooManyImmediate)
        } else {
            None
        };
        if let Some(reason) = refusal {
            if !c.immediate {
                self.window.finished();
            }
            return self.reject(reason, header, ahs);
        }
        if c.immediate {
            self.immediate_live += 1;
        }
        self.command(c, data);
    }
}
