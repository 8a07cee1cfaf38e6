//! Text exchanges of a session. A connection allows only one at a time (RFC 7143 section 6.4).

use crate::Error;
use lunar_proto::initiator::TextClient;

/// A text request.
pub struct TextExchange {
    /// The progress of a text exchange.
    pub asks: ExchangeState,
    /// Takes the text of the answer.
    pub reply: flume::Sender<Result<Vec<u8>, Error>>,
}

/// The progress of a text exchange.
pub enum ExchangeState {
    /// Queued, with its text.
    Waiting(Vec<u8>),
    /// In progress, with this Initiator Task Tag.
    Active(u32, Box<TextClient>),
}

/// The receiver of the answer to a text request.
pub type TextAnswer = flume::Receiver<Result<Vec<u8>, Error>>;
