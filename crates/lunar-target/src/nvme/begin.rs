//! The begin of a connection: ICReq and ICResp, and the first capsule.

use super::capsule::entry;
use super::connection::NvmeConnection;
use super::limits::{IN_CAPSULE_LEN, MAX_TRANSFER};
use crate::foreign_protocol;
use lunar_runtime::nvme::receive::{NvmePduHandler, NvmeReceiveError, NvmeReceiver, ReceivedNvmePdu};
use lunar_runtime::{Buf, ReceiveStatus, Stream};
use lunar_wire::nvme::{
    Digests, IcRequest, IcResponse, NvmePdu, NvmePduError, NvmePduKind, PduHeader, Sqe, fatal_error, pdu_type,
};
use std::rc::Rc;
use std::{fmt, io};

/// The offset of the alignment in ICReq.
const ALIGNMENT_FIELD: u32 = 10;

/// A connection that is initialized, and its first command.
pub struct BegunConnection {
    /// The connection.
    pub connection: Rc<NvmeConnection>,
    /// The command.
    pub first: ReceivedCommand,
}

/// A command that was received before its queue is served.
pub struct ReceivedCommand {
    /// The entry of the command.
    pub sqe: Sqe,
    /// The data in its capsule.
    pub data: Vec<u8>,
    /// Whether the data arrived as they were sent.
    pub intact: bool,
}

/// The reason why a connection ended before its first command.
pub enum BeginFault {
    /// The socket has failed, or the host has closed it.
    Io(io::Error),
    /// A PDU is faulty.
    Pdu {
        /// The connection, on which the fault is reported.
        connection: Rc<NvmeConnection>,
        /// The fault.
        error: NvmePduError,
        /// The received part of the header.
        header: Vec<u8>,
    },
}

impl fmt::Display for BeginFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BeginFault::Io(e) => e.fmt(f),
            BeginFault::Pdu { error, header, .. } => match foreign_protocol::at_nvme_portal(header) {
                Some(reason) => f.write_str(reason),
                None => error.fmt(f),
            },
        }
    }
}

impl BeginFault {
    fn pdu(connection: Rc<NvmeConnection>, error: NvmePduError, header: &[u8]) -> BeginFault {
        BeginFault::Pdu { connection, error, header: header.to_vec() }
    }

    /// Reports the fault to the host, and closes the connection.
    pub async fn report(self) {
        if let BeginFault::Pdu { connection, error, header } = self {
            connection.terminate(error, &header);
            connection.linger().await;
        }
    }
}

/// Initializes a connection, and receives its first command.
///
/// # Errors
/// The reason why it cannot go on.
pub async fn begin(stream: Stream) -> Result<BegunConnection, BeginFault> {
    let (request, begun) = receive_request(&stream).await.map_err(BeginFault::Io)?;
    let digests = match check(&request) {
        Ok(digests) => digests,
        Err(error) => {
            let connection = connection(stream, Digests::default(), Vec::new());
            return Err(BeginFault::pdu(connection, error, &request));
        }
    };
    let response = IcResponse { alignment: 0, digests, max_data: MAX_TRANSFER };
    stream.send_all(&response.encode()).await.map_err(BeginFault::Io)?;
    let connection = connection(stream, digests, begun);
    let first = receive_command(&connection).await?;
    Ok(BegunConnection { connection, first })
}

fn connection(stream: Stream, digests: Digests, begun: Vec<u8>) -> Rc<NvmeConnection> {
    let receiver =
        NvmeReceiver::new(true, digests, MAX_TRANSFER as usize, begun).with_max_capsule(IN_CAPSULE_LEN);
    Rc::new(NvmeConnection::new(stream, digests, receiver))
}

/// Receives ICReq, and what has arrived behind it. A faulty common header ends the receive early.
async fn receive_request(stream: &Stream) -> io::Result<(Vec<u8>, Vec<u8>)> {
    let (mut all, mut buf) = (Vec::new(), [0; 4096]);
    while all.len() < IcRequest::LEN {
        if all.first_chunk().is_some_and(|head| common(&PduHeader::decode(head)).is_err()) {
            break;
        }
        stream.readable().await?;
        match stream.receive(&mut buf)? {
            Some(0) => return Err(io::Error::other("the host closed the connection")),
            Some(len) => all.extend_from_slice(&buf[..len]),
            None => {}
        }
    }
    let rest = all.split_off(all.len().min(IcRequest::LEN));
    Ok((all, rest))
}

fn common(header: &PduHeader) -> Result<(), NvmePduError> {
    if header.kind != pdu_type::IC_REQUEST {
        return Err(NvmePduError::of(fatal_error::SEQUENCE));
    }
    header.check(true, Digests::default(), 0).map(drop)
}

/// The digests that the host asks for.
fn check(request: &[u8]) -> Result<Digests, NvmePduError> {
    let sequence = NvmePduError::of(fatal_error::SEQUENCE);
    common(&PduHeader::decode(request.first_chunk().ok_or(sequence)?))?;
    let request = IcRequest::decode(request.first_chunk().ok_or(sequence)?)?;
    match request.alignment {
        0 => Ok(request.digests),
        _ => Err(NvmePduError { status: fatal_error::UNSUPPORTED_PARAMETER, field: ALIGNMENT_FIELD }),
    }
}

/// The handler of one command.
#[derive(Default)]
struct OneCommand(Option<ReceivedCommand>);

impl NvmePduHandler for OneCommand {
    fn place(&mut self, _: &NvmePdu, _: &[u8]) -> Option<(Buf, usize)> {
        None
    }

    fn buffer(&mut self, len: usize) -> Buf {
        Buf::zeroed(len)
    }

    /// The host waits for the completion of the command.
    fn is_full(&self) -> bool {
        self.0.is_some()
    }

    fn take(&mut self, received: ReceivedNvmePdu<'_>) -> Result<bool, NvmePduError> {
        let ReceivedNvmePdu { pdu, header, data, intact } = received;
        let sqe = entry(header).filter(|_| pdu.kind == NvmePduKind::Command);
        let sqe = sqe.ok_or(NvmePduError::of(fatal_error::SEQUENCE))?;
        self.0 = Some(ReceivedCommand { sqe, data: data.bytes().to_vec(), intact });
        Ok(true)
    }
}

/// Receives one command on a queue that is not served yet.
///
/// # Errors
/// The reason why the connection cannot go on.
pub async fn receive_command(connection: &Rc<NvmeConnection>) -> Result<ReceivedCommand, BeginFault> {
    let mut first = OneCommand::default();
    let mut received =
        if connection.has_begun() { connection.resume(&mut first) } else { Ok(ReceiveStatus::More) };
    loop {
        match received {
            Ok(ReceiveStatus::End) => {
                return Err(BeginFault::Io(io::Error::other("the host closed the connection")));
            }
            Ok(_) => {}
            Err(NvmeReceiveError::Io(e)) => return Err(BeginFault::Io(e)),
            Err(NvmeReceiveError::Pdu { error, header }) => {
                return Err(BeginFault::Pdu { connection: connection.clone(), error, header });
            }
        }
        if let Some(command) = first.0 {
            return Ok(command);
        }
        connection.stream().readable().await.map_err(BeginFault::Io)?;
        received = connection.receive(&mut first);
    }
}
