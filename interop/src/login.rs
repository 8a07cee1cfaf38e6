//! The Login Phase (RFC 7143 section 6.3).

use crate::config::{INITIATOR, TARGET};
use crate::pdu::{Pdu, op};
use crate::raw::Raw;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};

/// The keys that any login may have (RFC 7143 section 13, use IO, IC or ALL).
const CONNECTION_KEYS: [&str; 6] = [
    "InitiatorName",
    "TargetName",
    "InitiatorAlias",
    "HeaderDigest",
    "DataDigest",
    "MaxRecvDataSegmentLength",
];

/// The parameters of a login. By default, each login has a new ISID.
#[derive(Clone)]
pub struct Login {
    pub isid: [u8; 6],
    pub tsih: u16,
    pub cid: u16,
    pub cmd_sn: u32,
    pub keys: Vec<(String, String)>,
    /// The source address of the connection. None: any.
    pub source: Option<IpAddr>,
}

impl Login {
    /// A normal session of [`INITIATOR`] with [`TARGET`].
    pub fn new() -> Login {
        static COUNT: AtomicU32 = AtomicU32::new(1);
        let [_, a, b, c] = (COUNT.fetch_add(1, Ordering::Relaxed) + (std::process::id() << 10)).to_be_bytes();
        let isid = [0x80, a, b, c, 0, 1];
        let login = Login { isid, tsih: 0, cid: 0, cmd_sn: 1, keys: Vec::new(), source: None };
        login.key("InitiatorName", INITIATOR).key("TargetName", TARGET).key("SessionType", "Normal")
    }

    /// A discovery session without a target name.
    pub fn discovery() -> Login {
        Login::new().without("TargetName").key("SessionType", "Discovery")
    }

    /// Adds a key, or replaces its value.
    pub fn key(mut self, key: &str, value: &str) -> Login {
        match self.keys.iter_mut().find(|(k, _)| k == key) {
            Some(pair) => pair.1 = value.into(),
            None => self.keys.push((key.into(), value.into())),
        }
        self
    }

    /// Adds keys.
    pub fn with(self, keys: &[(&str, &str)]) -> Login {
        keys.iter().fold(self, |login, (k, v)| login.key(k, v))
    }

    /// Drops a key.
    pub fn without(mut self, key: &str) -> Login {
        self.keys.retain(|(k, _)| k != key);
        self
    }

    /// Sets the initiator's name.
    pub fn initiator(self, name: &str) -> Login {
        self.key("InitiatorName", name)
    }

    /// Sets the target's name.
    pub fn target(self, name: &str) -> Login {
        self.key("TargetName", name)
    }

    /// Sets the ISID.
    pub fn isid(mut self, isid: [u8; 6]) -> Login {
        self.isid = isid;
        self
    }

    /// Sets the source address of the connection.
    pub fn source(mut self, source: IpAddr) -> Login {
        self.source = Some(source);
        self
    }

    /// Sets TSIH and CID. A login that is not the leading one (TSIH not 0) has no session-wide keys.
    pub fn session(mut self, tsih: u16, cid: u16) -> Login {
        (self.tsih, self.cid) = (tsih, cid);
        if tsih != 0 {
            self.keys.retain(|(k, _)| CONNECTION_KEYS.contains(&k.as_str()));
        }
        self
    }

    /// Sets the first CmdSN.
    pub fn cmd_sn(mut self, cmd_sn: u32) -> Login {
        self.cmd_sn = cmd_sn;
        self
    }

    /// A Login Request of stage `csg` without keys; `nsg` sets T.
    pub fn empty(&self, csg: u8, nsg: Option<u8>) -> Pdu {
        let flags = csg << 2 | nsg.map_or(0, |nsg| 0x80 | nsg);
        let pdu = Pdu::new(op::LOGIN | 0x40).flags(flags).bytes(8, &self.isid).set16(14, self.tsih);
        pdu.itt(0x7001).set16(20, self.cid).cmd_sn(self.cmd_sn)
    }

    /// A Login Request of stage `csg` with all keys.
    pub fn request(&self, csg: u8, nsg: Option<u8>) -> Pdu {
        let keys: Vec<(&str, &str)> = self.keys.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        self.empty(csg, nsg).keys(&keys)
    }

    /// Connects, and sends nothing yet.
    pub fn connect(&self, address: SocketAddr) -> Raw {
        let mut raw = match self.source {
            None => Raw::connect(address),
            Some(source) => Raw::connect_from(source, address),
        };
        raw.cmd_sn = self.cmd_sn;
        raw
    }

    /// Logs in from the operational stage. After a rejected login, the target must close the connection, and the error is
    /// the status.
    pub fn try_on(&self, address: SocketAddr) -> Result<Raw, u16> {
        let mut raw = self.connect(address);
        self.finish(&mut raw, self.request(1, Some(3))).map(|_| raw)
    }

    /// Logs in from the operational stage.
    pub fn on(&self, address: SocketAddr) -> Raw {
        self.try_on(address).unwrap_or_else(|status| panic!("login refused: {status:#06x}; {:?}", self.keys))
    }

    /// Sends `pdu`, and further requests up to full feature phase. Returns all pairs that the target sent.
    pub fn finish(&self, raw: &mut Raw, mut pdu: Pdu) -> Result<Vec<(String, String)>, u16> {
        let mut all = Pdu::new(op::LOGIN_RESPONSE);
        for _ in 0..20 {
            let answer = raw.login(&pdu);
            if answer.status() != 0 {
                raw.expect_close();
                return Err(answer.status());
            }
            all.data.extend_from_slice(&answer.data);
            if answer.bhs[1] & 0x40 != 0 {
                pdu = self.empty((answer.bhs[1] >> 2) & 3, None);
                continue;
            }
            let pairs = all.pairs();
            if answer.is_final() && answer.bhs[1] & 3 == 3 {
                self.apply(raw, &answer, &pairs);
                return Ok(pairs);
            }
            pdu = self.empty(1, Some(3));
        }
        panic!("the login does not end: {all:?}");
    }

    /// Logs in from the operational stage, with these keys too. Returns all pairs that the target sent.
    pub fn answers(&self, address: SocketAddr, keys: &[(&str, &str)]) -> Result<Vec<(String, String)>, u16> {
        let login = self.clone().with(keys);
        login.finish(&mut login.connect(address), login.request(1, Some(3)))
    }

    /// Applies the negotiated and declared keys to the connection.
    fn apply(&self, raw: &mut Raw, answer: &Pdu, pairs: &[(String, String)]) {
        let find = |list: &[(String, String)], key: &str| {
            list.iter().find(|(k, _)| k == key).map(|(_, v)| v.clone())
        };
        let declared = |key: &str| find(pairs, key);
        let number =
            |text: Option<String>, default: usize| text.and_then(|v| v.parse().ok()).unwrap_or(default);
        raw.header_digest = declared("HeaderDigest").is_some_and(|v| v == "CRC32C");
        raw.data_digest = declared("DataDigest").is_some_and(|v| v == "CRC32C");
        raw.receive_max = number(find(&self.keys, "MaxRecvDataSegmentLength"), 8192);
        raw.send_max = number(declared("MaxRecvDataSegmentLength"), 8192);
        raw.max_burst = number(declared("MaxBurstLength"), 262144);
        raw.first_burst = number(declared("FirstBurstLength"), 65536).min(raw.max_burst);
        raw.immediate_data = declared("ImmediateData").is_none_or(|v| v == "Yes");
        raw.initial_r2t = declared("InitialR2T").is_none_or(|v| v == "Yes");
        raw.tsih = answer.get16(14);
    }
}

impl Default for Login {
    fn default() -> Login {
        Login::new()
    }
}

impl Raw {
    /// Sends a Login Request with the current ExpStatSN. Returns the Login Response, which must match the request.
    pub fn login(&mut self, request: &Pdu) -> Pdu {
        let request = request.clone().exp_stat_sn(self.exp_stat_sn);
        self.send(&request);
        let answer = self.recv();
        assert_eq!(answer.opcode(), op::LOGIN_RESPONSE, "{answer:?}");
        assert_eq!(
            (answer.tag(), &answer.bhs[8..14]),
            (request.tag(), &request.bhs[8..14]),
            "ITT and ISID: {answer:?}"
        );
        if answer.status() == 0 {
            assert_eq!(answer.bhs[1] & 0x0c, request.bhs[1] & 0x0c, "CSG: {answer:?}");
        }
        answer
    }

    /// A normal session with these keys too. Pending unit attentions of LUN 0 to 2 are cleared.
    pub fn session(address: SocketAddr, keys: &[(&str, &str)]) -> Raw {
        let mut raw = Login::new().with(keys).on(address);
        (0..3).for_each(|lun| raw.clear_attentions(lun));
        raw
    }

    /// A discovery session.
    pub fn discovery(address: SocketAddr, keys: &[(&str, &str)]) -> Raw {
        Login::discovery().with(keys).on(address)
    }
}
