//! Sends text requests, and takes their answers.

use super::errors::broke;
use super::machine::Machine;
use super::talk::{Asks, Talk, Told};
use crate::{Error, text};
use lunar_proto::Pdu;
use lunar_proto::initiator::{Text, TextStep};
use lunar_runtime::iscsi::out::Payload;
use lunar_wire::iscsi::Bhs;

impl Machine {
    /// Asks in key text, after those that were before.
    pub fn talk(&mut self, question: Vec<u8>) -> Told {
        let (reply, told) = flume::bounded(1);
        self.talks.push_back(Talk { asks: Asks::Later(question), reply });
        self.talk_on();
        told
    }

    /// The tag of the exchange that is under way.
    pub(super) fn talk_tag(&self) -> Option<u32> {
        match self.talks.front()?.asks {
            Asks::Now(tag, _) => Some(tag),
            Asks::Later(_) => None,
        }
    }

    /// A question is under way, or was refused just now, and nothing else is: a connection that is lost is the answer.
    pub fn only_talks(&self) -> bool {
        (self.talk_tag().is_some() || self.talk_refused) && self.tasks.count() == 0
    }

    /// Begins the next exchange unless one is under way. Those whose owners have gone are forgotten.
    fn talk_on(&mut self) {
        let is_wanted = |t: &Talk| matches!(t.asks, Asks::Now(..)) || !t.reply.is_disconnected();
        self.talks.retain(is_wanted);
        let tag = self.control_tag();
        let max_xmit = self.connection.parameters().max_xmit_data_segment_length;
        if let Some(Talk { asks, .. }) = self.talks.front_mut()
            && let Asks::Later(question) = asks
        {
            let (exchange, first) = Text::new(tag, std::mem::take(question), max_xmit, text::LIMIT);
            *asks = Asks::Now(tag, Box::new(exchange));
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
        let Some(Talk { asks: Asks::Now(_, exchange), .. }) = self.talks.front_mut() else {
            return Err(broke("a Text Response to no request"));
        };
        match exchange.response(header, data) {
            TextStep::Send(next) => self.say_text(next),
            TextStep::Done(told) => self.end_talk(Ok(told)),
            TextStep::Rejected(reason) => self.end_talk(Err(text::rejected(reason))),
            TextStep::Failed(why) => return Err(broke(why)),
        }
        self.pump();
        Ok(())
    }

    /// The exchange that is under way was rejected.
    pub(super) fn rejected_text(&mut self, reason: u8) {
        self.end_talk(Err(text::rejected(reason)));
    }

    fn end_talk(&mut self, told: Result<Vec<u8>, Error>) {
        self.talk_refused = told.is_err();
        if let Some(talk) = self.talks.pop_front() {
            // Who has stopped to wait does not want it.
            let _ = talk.reply.send(told);
        }
        self.talk_on();
    }

    /// No answer will come any more.
    pub(super) fn drop_talks(&mut self, why: &Error) {
        for talk in self.talks.drain(..) {
            // Who has stopped to wait does not want it.
            let _ = talk.reply.send(Err(why.clone()));
        }
    }
}
