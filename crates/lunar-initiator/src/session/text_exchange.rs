//! Text exchanges of a session: one at a time, for a connection has no more of them (RFC 7143 section 6.4).

use crate::Error;
use lunar_proto::initiator::TextClient;

/// A text request.
pub struct TextExchange {
    /// How far it has come.
    pub asks: ExchangeState,
    /// Takes the text of the answer.
    pub reply: flume::Sender<Result<Vec<u8>, Error>>,
}

/// How far it has come.
pub enum ExchangeState {
    /// Others are before it; its text.
    Waiting(Vec<u8>),
    /// It is under way under this Initiator Task Tag.
    Active(u32, Box<TextClient>),
}

/// What waits for the answer to a question.
pub type TextAnswer = flume::Receiver<Result<Vec<u8>, Error>>;
