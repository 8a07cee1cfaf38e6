//! Text exchanges of a session. A connection allows only one at a time (RFC 7143 section 6.4).

use crate::Error;
use lunar_proto::initiator::TextClient;

/// A text request.
pub struct TextExchange {
    /// The progress of a text exchange.
    pub asks: ExchangeState,
    /// Receives the text of the response.
    pub reply: flume::Sender<Result<Vec<u8>, Error>>,
}

/// The progress of a text exchange.
pub enum ExchangeState {
    /// Queued, with the text of the request.
    Waiting(Vec<u8>),
    /// In flight, with this Initiator Task Tag.
    Active(u32, Box<TextClient>),
}

/// The receiver of the response to a text request.
pub type TextResponse = flume::Receiver<Result<Vec<u8>, Error>>;
