//! The order of the requests of a session: the CmdSN window, and the requests that wait for their turn.

use crate::registry::AbortScope;
use lunar_proto::window::{CmdSnVerdict, CmdWindow, precedes};
use lunar_runtime::Buf;
use lunar_wire::iscsi::Bhs;
use std::collections::{BTreeMap, BTreeSet};

/// A request that arrived before its CmdSN was next.
pub struct OutOfOrderPdu {
    /// CID of the connection that received it.
    pub cid: u16,
    /// Its header.
    pub header: Bhs,
    /// Its additional header segments.
    pub ahs: Vec<u8>,
    /// Its data.
    pub data: Buf,
    /// The scope of another session's task management function, if this request arrived before it.
    pub busy_scope: Option<AbortScope>,
}

/// The order of requests (RFC 7143 section 4.2.2.1).
pub struct RequestOrder {
    window: CmdWindow,
    /// Requests that arrived before their CmdSN was next, by CmdSN.
    held: BTreeMap<u32, OutOfOrderPdu>,
}

impl RequestOrder {
    /// The order of a new session. See [`CmdWindow::new`].
    pub fn new(cmd_sn: u32, depth: u32) -> RequestOrder {
        RequestOrder { window: CmdWindow::new(cmd_sn, depth), held: BTreeMap::new() }
    }

    /// The treatment of a request that has arrived.
    #[inline]
    pub fn receive(&mut self, header: &Bhs) -> CmdSnVerdict {
        self.window.receive(header.cmd_sn(), header.immediate())
    }

    /// Holds a request until its CmdSN is next.
    pub fn hold(&mut self, pdu: OutOfOrderPdu) {
        self.held.insert(pdu.header.cmd_sn(), pdu);
    }

    /// Whether requests are held.
    #[inline]
    pub fn has_held(&self) -> bool {
        !self.held.is_empty()
    }

    /// Whether a held request has this tag.
    pub fn is_held(&self, itt: u32) -> bool {
        self.held.values().any(|pdu| pdu.header.itt() == itt)
    }

    /// Takes the held request whose CmdSN is next.
    pub fn take_next(&mut self) -> Option<OutOfOrderPdu> {
        loop {
            let cmd_sn = self.window.next_held()?;
            match self.held.remove(&cmd_sn) {
                Some(pdu) => return Some(pdu),
                // An ABORT TASK consumed this CmdSN.
                None => self.finished(),
            }
        }
    }

    /// A request that is not immediate no longer occupies the window.
    #[inline]
    pub fn finished(&mut self) {
        self.window.finished();
    }

    /// Consumes the CmdSN of a command that has not arrived, for an ABORT TASK of it. False: another request uses the
    /// CmdSN, or it does not precede that of the function.
    pub fn plug(&mut self, function: &Bhs) -> bool {
        let (itt, ref_cmd_sn) = (function.referenced_task_tag(), function.ref_cmd_sn());
        let is_free = self.held.get(&ref_cmd_sn).is_none_or(|pdu| pdu.header.itt() == itt);
        if !is_free || !precedes(ref_cmd_sn, function.cmd_sn()) || !self.window.plug(ref_cmd_sn) {
            return false;
        }
        self.held.remove(&ref_cmd_sn);
        true
    }

    /// Discards the held requests of a connection.
    pub fn discard_of(&mut self, cid: u16) {
        self.held.retain(|_, pdu| pdu.cid != cid);
    }

    /// Discards all held requests.
    pub fn discard_all(&mut self) {
        self.held.clear();
    }

    /// The LUN fields of the held requests.
    pub fn held_luns(&self) -> BTreeSet<u64> {
        self.held.values().map(|pdu| pdu.header.lun()).collect()
    }

    /// Records that a function of another session, whose scope includes these LUNs, comes after the held requests.
    pub fn mark_busy(&mut self, luns: &BTreeSet<u64>, scope: &AbortScope) {
        for pdu in self.held.values_mut().filter(|pdu| luns.contains(&pdu.header.lun())) {
            pdu.busy_scope = Some(scope.clone());
        }
    }

    /// ExpCmdSN: all requests before it have arrived.
    #[inline]
    pub fn exp_cmd_sn(&self) -> u32 {
        self.window.exp_cmd_sn()
    }

    /// MaxCmdSN.
    #[inline]
    pub fn max_cmd_sn(&self) -> u32 {
        self.window.max_cmd_sn()
    }

    /// Maximum number of concurrent tasks.
    pub fn depth(&self) -> u32 {
        self.window.depth()
    }
}
