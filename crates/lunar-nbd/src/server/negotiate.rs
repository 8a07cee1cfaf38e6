//! The handshake over a socket.

use lunar_proto::nbd::{ExportOffer, Handshake, HandshakeStep, NegotiatedExport};
use lunar_runtime::Stream;
use std::io;

/// The maximum number of bytes per receive.
const SCRATCH: usize = 4096;

/// Negotiates until the client has selected an export. Returns the negotiated options, and the bytes received after
/// the handshake. None if the client disconnects or is rejected.
pub(super) async fn negotiate(
    stream: &Stream,
    offers: Vec<ExportOffer>,
) -> io::Result<Option<(NegotiatedExport, Vec<u8>)>> {
    let mut machine = Handshake::new(offers);
    let (mut input, mut out) = (Vec::new(), Handshake::greeting().to_vec());
    loop {
        stream.send_all(&out).await?;
        out.clear();
        let (used, step) = machine.feed(&input, &mut out);
        input.drain(..used);
        match step {
            HandshakeStep::More if used > 0 => {}
            HandshakeStep::More => {
                if !receive(stream, &mut input).await? {
                    return Ok(None);
                }
            }
            HandshakeStep::Agreed(agreed) => {
                stream.send_all(&out).await?;
                return Ok(Some((agreed, input)));
            }
            HandshakeStep::End(why) => {
                tracing::debug!(why, "NBD client rejected");
                stream.send_all(&out).await?;
                return Ok(None);
            }
        }
    }
}

/// Receives more bytes. Returns false if the client has closed.
async fn receive(stream: &Stream, input: &mut Vec<u8>) -> io::Result<bool> {
    let mut scratch = [0; SCRATCH];
    loop {
        if let Some(n) = stream.receive(&mut scratch)? {
            input.extend_from_slice(&scratch[..n]);
            return Ok(n > 0);
        }
        stream.readable().await?;
    }
}
