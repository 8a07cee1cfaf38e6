//! Sends text requests, and handles their responses.

use super::errors::broke;
use super::session_state::SessionState;
use super::text_exchange::{ExchangeState, TextExchange, TextResponse};
use crate::{Error, text};
use lunar_proto::Pdu;
use lunar_proto::initiator::{TextClient, TextStep};
use lunar_runtime::iscsi::pdu_queue::Payload;
use lunar_wire::iscsi::Bhs;

impl SessionState {
    /// Queues a text request.
    pub fn start_text(&mut self, question: Vec<u8>) -> TextResponse {
        let (reply, answer) = flume::bounded(1);
        self.text_exchanges.push_back(TextExchange { asks: ExchangeState::Waiting(question), reply });
        self.next_text();
        answer
    }

    /// The tag of the exchange in flight.
    pub(super) fn text_tag(&self) -> Option<u32> {
        match self.text_exchanges.front()?.asks {
            ExchangeState::Active(tag, _) => Some(tag),
            ExchangeState::Waiting(_) => None,
        }
    }

    /// Whether only a text request is in flight, or the last one was just rejected. Its caller then gets the loss of
    /// the connection as the error.
    pub fn is_text_only(&self) -> bool {
        (self.text_tag().is_some() || self.text_rejected) && self.tasks.count() == 0
    }

    /// Starts the next exchange, unless one is in flight. Drops requests whose callers no longer wait.
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

    /// Handles a Text Response.
    pub(super) fn text_response(&mut self, header: &Bhs, data: &[u8]) -> Result<(), Error> {
        self.status(header)?;
        let Some(TextExchange { asks: ExchangeState::Active(_, exchange), .. }) =
            self.text_exchanges.front_mut()
        else {
            return Err(broke("the target sent a Text Response without a Text Request"));
        };
        match exchange.response(header, data) {
            TextStep::Send(next) => self.say_text(next),
            TextStep::Done(answer) => self.end_text(Ok(answer)),
            TextStep::Rejected(reason) => self.end_text(Err(text::rejected(reason))),
            TextStep::Failed(why) => return Err(broke(why)),
        }
        self.pump();
        Ok(())
    }

    /// Ends the exchange in flight, which the target rejected.
    pub(super) fn rejected_text(&mut self, reason: u8) {
        self.end_text(Err(text::rejected(reason)));
    }

    fn end_text(&mut self, answer: Result<Vec<u8>, Error>) {
        self.text_rejected = answer.is_err();
        if let Some(talk) = self.text_exchanges.pop_front() {
            // The caller may have stopped waiting.
            let _ = talk.reply.send(answer);
        }
        self.next_text();
    }

    /// Ends all exchanges: their responses cannot arrive any more.
    pub(super) fn fail_texts(&mut self, why: &Error) {
        for talk in self.text_exchanges.drain(..) {
            // The caller may have stopped waiting.
            let _ = talk.reply.send(Err(why.clone()));
        }
    }
}
