//! Sends text requests, and takes their answers.

use super::errors::broke;
use super::session_state::SessionState;
use super::text_exchange::{ExchangeState, TextAnswer, TextExchange};
use crate::{Error, text};
use lunar_proto::Pdu;
use lunar_proto::initiator::{TextClient, TextStep};
use lunar_runtime::iscsi::pdu_queue::Payload;
use lunar_wire::iscsi::Bhs;

impl SessionState {
    /// Asks in key text, after those that were before.
    pub fn start_text(&mut self, question: Vec<u8>) -> TextAnswer {
        let (reply, told) = flume::bounded(1);
        self.text_exchanges.push_back(TextExchange { asks: ExchangeState::Waiting(question), reply });
        self.next_text();
        told
    }

    /// The tag of the exchange that is under way.
    pub(super) fn text_tag(&self) -> Option<u32> {
        match self.text_exchanges.front()?.asks {
            ExchangeState::Active(tag, _) => Some(tag),
            ExchangeState::Waiting(_) => None,
        }
    }

    /// A question is under way, or was refused just now, and nothing else is: a connection that is lost is the answer.
    pub fn is_text_only(&self) -> bool {
        (self.text_tag().is_some() || self.text_rejected) && self.tasks.count() == 0
    }

    /// Begins the next exchange unless one is under way. Those whose owners have gone are forgotten.
    fn next_text(&mut self) {
        let is_wanted =
            |t: &TextExchange| matches!(t.asks, ExchangeState::Active(..)) || !t.reply.is_disconnected();
        self.text_exchanges.retain(is_wanted);
        let tag = self.control_tag();
        let max_xmit = self.connection.parameters().max_xmit_data_segment_length;
        if let Some(TextExchange { asks, .. }) = self.text_exchanges.front_mut()
            && let ExchangeState::Waiting(question) = asks
        {
            let (exchange, first) = TextClient::new(tag, std::mem::take(question), max_xmit, text::LIMIT);
            *asks = ExchangeState::Active(tag, Box::new(exchange));
            self.say_text(first);
        }
    }

    fn say_text(&mut self, pdu: Pdu) {
        let payload = if pdu.data.is_empty() { Payload::Empty } else { Payload::Bytes(pdu.data) };
        self.say(pdu.header, payload);
    }

    /// A Text Response.
    pub(super) fn text_response(&mut self, header: &Bhs, data: &[u8]) -> Result<(), Error> {
        self.status(header)?;
        let Some(TextExchange { asks: ExchangeState::Active(_, exchange), .. }) =
            self.text_exchanges.front_mut()
        else {
            return Err(broke("a Text Response to no request"));
        };
        match exchange.response(header, data) {
            TextStep::Send(next) => self.say_text(next),
            TextStep::Done(told) => self.end_text(Ok(told)),
            TextStep::Rejected(reason) => self.end_text(Err(text::rejected(reason))),
            TextStep::Failed(why) => return Err(broke(why)),
        }
        self.pump();
        Ok(())
    }

    /// The exchange that is under way was rejected.
    pub(super) fn rejected_text(&mut self, reason: u8) {
        self.end_text(Err(text::rejected(reason)));
    }

    fn end_text(&mut self, told: Result<Vec<u8>, Error>) {
        self.text_rejected = told.is_err();
        if let Some(talk) = self.text_exchanges.pop_front() {
            // The caller may wait no longer.
            let _ = talk.reply.send(told);
        }
        self.next_text();
    }

    /// No answer will come any more.
    pub(super) fn fail_texts(&mut self, why: &Error) {
        for talk in self.text_exchanges.drain(..) {
            // The caller may wait no longer.
            let _ = talk.reply.send(Err(why.clone()));
        }
    }
}
