//! Which targets are there: SendTargets in a discovery session (RFC 7143 appendix C).

use crate::connect::{self, Connected, Goal, Wire};
use crate::{Error, Kind, Options, Portal};
use proto::Pdu;
use proto::initiator::targets::{self, FoundTarget};
use proto::initiator::{Text, TextStep};
use proto::parameters::{Digests, Offer};
use wire::iscsi::text::push;
use wire::iscsi::{Bhs, NONE, opcode, request};

/// Bytes of text that a target may tell.
const TEXT_LIMIT: usize = 16 << 20;
/// What is taken in one PDU, as Open-iSCSI does.
const SEGMENT: u32 = 32768;

/// Asks a portal for all targets that it shows us.
///
/// # Errors
/// When the portal cannot be reached or refuses, or its answer breaks the rules.
pub async fn discover(portal: Portal, options: &Options) -> Result<Vec<FoundTarget>, Error> {
    let none = Digests { none: true, crc32c: false };
    let offer = Offer {
        header_digest: none,
        data_digest: none,
        max_recv_data_segment_length: SEGMENT,
        ..options.offer.clone()
    };
    let options = Options { offer, ..options.clone() };
    let goal = Goal { portal: portal.clone(), target: None, isid: connect::new_isid() };
    let connected = connect::patiently(&goal, &options).await?;
    let limit = options.timeouts.login;
    let asked = compio::time::timeout(limit, ask(connected)).await;
    let late = || Error::new(Kind::TimedOut, format!("no answer within {} s", limit.as_secs_f32()));
    asked.unwrap_or_else(|_| Err(late())).map_err(|e| e.during(format!("discovery at {portal}")))
}

async fn ask(connected: Connected) -> Result<Vec<FoundTarget>, Error> {
    let Connected { stream, login, begun, .. } = connected;
    let mut exchange = Exchange {
        wire: Wire::logged_in(stream, begun),
        cmd_sn: login.cmd_sn,
        exp_stat_sn: login.exp_stat_sn,
    };
    let mut question = Vec::new();
    push(&mut question, "SendTargets", "All");
    let (mut text, mut request) =
        Text::new(1, question, login.parameters.max_xmit_data_segment_length, TEXT_LIMIT);
    let told = loop {
        exchange.send(request).await?;
        let (header, data) = exchange.receive().await?;
        match text.response(&header, &data) {
            TextStep::Send(next) => request = next,
            TextStep::Done(told) => break told,
            TextStep::Failed(why) => return Err(Error::new(Kind::Protocol, why)),
        }
    };
    let told = targets::parse(&told).map_err(|why| Error::new(Kind::Protocol, why))?;
    told.notes.iter().for_each(|note| tracing::warn!("{note}"));
    // What was asked for is there: a target that does not answer the logout changes nothing.
    if exchange.send(Pdu::new(request::logout(2), Vec::new())).await.is_ok() {
        let _ = exchange.receive().await;
    }
    Ok(told.found)
}

/// A discovery session: one request, one answer.
struct Exchange {
    wire: Wire,
    cmd_sn: u32,
    exp_stat_sn: u32,
}

impl Exchange {
    async fn send(&mut self, mut pdu: Pdu) -> Result<(), Error> {
        request::stamp(&mut pdu.header, self.cmd_sn, self.exp_stat_sn);
        self.wire.send(pdu).await
    }

    /// The next PDU that is no ping: those are answered here.
    async fn receive(&mut self) -> Result<(Bhs, Vec<u8>), Error> {
        loop {
            let (header, data) = self.wire.receive(SEGMENT as usize).await?;
            if header.opcode() != opcode::NOP_IN {
                let (got, next) = (header.word(24), self.exp_stat_sn);
                if got != next {
                    let what = format!("StatSN {got} instead of {next}: an answer was lost");
                    return Err(Error::new(Kind::Protocol, what));
                }
                self.exp_stat_sn = next.wrapping_add(1);
                return Ok((header, data));
            }
            if header.word20() != NONE {
                let pong = request::nop_out(header.lun(), NONE, header.word20());
                self.send(Pdu::new(pong, data)).await?;
            }
        }
    }
}
