//! The start of a connection: TCP, ICReq and ICResp.

use super::options::NvmeOptions;
use super::status::terminated;
use crate::connect::tcp_stream;
use crate::io_error::lost;
use crate::protocol_mismatch::{self, mismatch};
use crate::{Error, ErrorCode};
use lunar_runtime::Stream;
use lunar_wire::iscsi::opcode;
use lunar_wire::nvme::{Digests, IcRequest, IcResponse, NvmePduError, NvmePduKind, PduHeader};
use std::net::SocketAddr;

/// The longest answer to ICReq: C2HTermReq with a copy of the header.
const MAX_ANSWER: usize = 24 + 128;
/// One R2T of a command is outstanding at a time. The field is 0-based.
const MAX_R2T: u32 = 0;

/// The parameters of a connection.
#[derive(Clone, Copy, Debug)]
pub struct NvmeLink {
    /// The digests of both directions.
    pub digests: Digests,
    /// The most data of one H2CData, in bytes.
    pub max_data: u32,
}

/// An initialized connection, and the bytes received after ICResp.
pub struct InitializedConnection {
    /// The socket.
    pub stream: Stream,
    /// The parameters.
    pub link: NvmeLink,
    /// Bytes that were received behind ICResp.
    pub begun: Vec<u8>,
}

/// Connects to one of these addresses, and initializes the connection.
///
/// # Errors
/// When no address is reachable, or the portal does not speak NVMe/TCP, or does not use the digests that were asked for.
pub async fn initialize(
    addresses: &[SocketAddr],
    options: &NvmeOptions,
) -> Result<InitializedConnection, Error> {
    let stream = tcp_stream(addresses, options.timeouts.login, options.window, &mut ()).await?;
    // Unsent data of a connection that ends must not arrive after newer ones. A failure is harmless: the end of the
    // connection resets it, too.
    _ = stream.reset_on_close(true);
    let digests = Digests { header: options.header_digest, data: options.data_digest };
    let request = IcRequest { alignment: 0, digests, max_r2t: MAX_R2T };
    stream.send_all(&request.encode()).await.map_err(lost)?;
    let mut begun = Vec::new();
    let response = receive_response(&stream, &mut begun).await?;
    let max_data = check(&response, digests)?;
    Ok(InitializedConnection { stream, link: NvmeLink { digests, max_data }, begun })
}

/// Checks ICResp. Returns the limit of H2CData.
fn check(response: &[u8; IcResponse::LEN], digests: Digests) -> Result<u32, Error> {
    let response = IcResponse::decode(response).map_err(|e| broke(&e))?;
    if response.alignment != 0 {
        let bytes = 4 * (u32::from(response.alignment) + 1);
        let what = format!("the controller wants data aligned to {bytes} bytes, which is not supported");
        return Err(Error::new(ErrorCode::NegotiationFailed, what));
    }
    if response.digests != digests {
        let what = "the controller does not use the digests of this host";
        let hint = "change header_digest and data_digest in the URL";
        return Err(Error::new(ErrorCode::NegotiationFailed, what).with_hint(hint));
    }
    Ok(response.max_data)
}

fn broke(e: &NvmePduError) -> Error {
    Error::new(ErrorCode::ProtocolError, format!("the answer to ICReq is invalid: {e}"))
        .with_hint("check that host and port are those of an NVMe/TCP controller: NVMe/TCP uses port 4420")
}

async fn receive_response(stream: &Stream, begun: &mut Vec<u8>) -> Result<[u8; IcResponse::LEN], Error> {
    fill(stream, begun, PduHeader::LEN).await.map_err(|e| explained(e, begun))?;
    if matches!(begun[0], opcode::LOGIN_RESPONSE | opcode::REJECT) {
        return Err(mismatch("the portal answers ICReq with a PDU of iSCSI", protocol_mismatch::ISCSI));
    }
    let header = PduHeader::decode(begun.first_chunk().expect("a header was received"));
    let pdu = header.check(false, Digests::default(), 0).map_err(|e| broke(&e))?;
    if pdu.len > MAX_ANSWER {
        return Err(broke(&NvmePduError::field(4)));
    }
    fill(stream, begun, pdu.len).await?;
    let rest = begun.split_off(pdu.len);
    let answer = std::mem::replace(begun, rest);
    match (pdu.kind, answer.first_chunk()) {
        (NvmePduKind::IcResponse, Some(response)) => Ok(*response),
        (NvmePduKind::ControllerTermRequest, _) => Err(terminated(&answer, &[])),
        _ => Err(broke(&NvmePduError::field(0))),
    }
}

/// Adds the possible causes of a close without an answer.
fn explained(e: Error, begun: &[u8]) -> Error {
    match begun.is_empty() {
        true => e.with_hint(
            "if the port serves iSCSI, use iscsi://HOST[:PORT]/IQN; if it demands TLS, use another portal, because Lunar \
             connects without TLS; if its connection limit is reached, end some connections (see the log of the target)",
        ),
        false => e,
    }
}

/// Receives until there are `len` bytes.
async fn fill(stream: &Stream, begun: &mut Vec<u8>, len: usize) -> Result<(), Error> {
    let mut chunk = [0; 512];
    while begun.len() < len {
        stream.readable().await.map_err(lost)?;
        match stream.receive(&mut chunk).map_err(lost)? {
            Some(0) => {
                let what = "the controller closed the connection before it was initialized";
                return Err(Error::new(ErrorCode::ConnectionLost, what));
            }
            Some(n) => begun.extend_from_slice(&chunk[..n]),
            None => {}
        }
    }
    Ok(())
}
