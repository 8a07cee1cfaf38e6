//! The default behaviour of a scripted target: login, discovery, a disk, pings, task management and logout.

use super::HookAction;
use super::connection::ScriptConnection;
use crate::config::TARGET;
use crate::pdu::{NONE, Pdu, op};

/// MaxRecvDataSegmentLength of the target, in bytes.
pub const SEGMENT: usize = 4096;

/// Serves one connection to its end.
pub fn serve(mut link: ScriptConnection) {
    while let Some(pdu) = link.receive() {
        let shared = link.shared.clone();
        let turn = (shared.script.hook)(&mut link, &pdu);
        if pdu.opcode() == op::LOGIN {
            link.keys.entry("Begun".into()).or_default();
        }
        match turn {
            HookAction::Usual if link.default_response(&pdu) => {}
            HookAction::Done => {}
            HookAction::Usual | HookAction::Close => break,
        }
    }
    link.close();
}

impl ScriptConnection {
    /// Sends the response to a request. False: the connection ends.
    pub fn default_response(&mut self, pdu: &Pdu) -> bool {
        match pdu.opcode() {
            op::LOGIN => self.login(pdu),
            op::TEXT => self.text(pdu),
            op::SCSI => self.command(pdu),
            op::DATA_OUT => self.data_out(pdu),
            op::NOP_OUT if pdu.tag() == NONE => {}
            op::NOP_OUT => self.send(Pdu::new(op::NOP_IN).itt(pdu.tag()).ttt(NONE).data(&pdu.data)),
            op::TMF => self.send(Pdu::new(op::TMF_RESPONSE).itt(pdu.tag())),
            op::LOGOUT => {
                self.send(Pdu::new(op::LOGOUT_RESPONSE).itt(pdu.tag()));
                return self.receive().is_some(); // RFC 7143 section 11.14: the initiator closes
            }
            _ => return false,
        }
        true
    }

    /// A Login Response to `pdu` with these flags and keys.
    pub fn login_response(&self, pdu: &Pdu, flags: u8, keys: &[(&str, &str)]) -> Pdu {
        let answer = Pdu::new(op::LOGIN_RESPONSE).flags(flags).bytes(8, &pdu.bhs[8..14]).itt(pdu.tag());
        let tsih = if flags & 0x83 == 0x83 { 0x55 + self.number as u16 } else { 0 };
        answer.set16(14, tsih).keys(keys)
    }

    fn login(&mut self, pdu: &Pdu) {
        if pdu.bhs[1] >> 2 & 3 == 0 {
            let group = self.shared.script.group.to_string();
            let keys = [("TargetPortalGroupTag", group.as_str()), ("AuthMethod", "None")];
            let answer = self.login_response(pdu, 0x81, &keys);
            return self.send(answer);
        }
        let answers = self.agree(pdu);
        let keys: Vec<(&str, &str)> = answers.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        let answer = self.login_response(pdu, 0x87, &keys);
        self.send(answer);
        self.full_feature = true;
        let is = |link: &ScriptConnection, key: &str| link.keys.get(key).is_some_and(|v| v == "CRC32C");
        (self.header_digest, self.data_digest) = (is(self, "HeaderDigest"), is(self, "DataDigest"));
    }

    /// Accepts every offer, except where the script says otherwise.
    fn agree(&mut self, pdu: &Pdu) -> Vec<(String, String)> {
        let mut answers = Vec::new();
        for (key, offer) in pdu.pairs() {
            let scripted = self.shared.script.answers.iter().find(|a| a.0 == key).map(|a| a.1.clone());
            let value = match (scripted, key.as_str()) {
                (Some(value), _) => value,
                (None, "MaxRecvDataSegmentLength") => {
                    self.send_max = offer.parse().expect("a number");
                    Some(SEGMENT.to_string())
                }
                (None, _) => offer.split(',').next().map(String::from),
            };
            answers.extend(value.map(|value| (key, value)));
        }
        self.keys.extend(answers.iter().cloned());
        answers.extend(self.shared.script.says.iter().cloned());
        answers
    }

    fn text(&mut self, pdu: &Pdu) {
        let address = format!("{},1", self.address());
        let keys = [("TargetName", TARGET), ("TargetAddress", &address)];
        self.send(Pdu::new(op::TEXT_RESPONSE).itt(pdu.tag()).ttt(NONE).keys(&keys));
    }
}
