//! DH-HMAC-CHAP on a queue, before all its other commands (NVM Express Base, in-band authentication).

use super::begin::{BeginFault, ReceivedCommand, receive_command};
use super::capsule::place_of;
use super::connection::NvmeConnection;
use super::limits::IN_CAPSULE_LEN;
use crate::config::HostSecrets;
use crate::core::data_in::DataIn;
use async_lock::Semaphore;
use lunar_proto::nvme::auth::{AuthNames, ControllerAuth, MismatchedSecret};
use lunar_runtime::SendPump;
use lunar_wire::nvme::{DataPlace, NvmeStatus, Sqe, admin_opcode, fabrics_type};
use std::io;
use std::path::Path;
use std::rc::Rc;

/// SPSP0, SPSP1 and SECP of both commands: the authentication protocols of NVMe (command dword 10, without its lowest byte).
const PROTOCOL: u32 = 0xe901_0100;
/// The most commands of an exchange: a host may begin again, but not without an end.
const MAX_COMMANDS: usize = 10;
/// The most computations of the process at a time. Each takes up to tens of milliseconds, and a host causes them before it has
/// proved anything.
const MAX_COMPUTATIONS: usize = 2;

static COMPUTATIONS: Semaphore = Semaphore::new(MAX_COMPUTATIONS);

/// The outcome of a command of the exchange, which has succeeded.
pub enum ExchangeStep {
    /// The host has sent a message.
    Sent,
    /// A message for the host.
    Message(Vec<u8>),
}

/// Authenticates the host of a queue whose Connect demanded it.
///
/// # Errors
/// The host has not proved that it knows the secret, or the connection cannot go on.
pub async fn authenticate(
    connection: &Rc<NvmeConnection>,
    names: AuthNames,
    secrets: HostSecrets,
) -> Result<(), BeginFault> {
    let HostSecrets { secrets, file, own_file } = secrets;
    let mut auth = ControllerAuth::new(names, secrets);
    for _ in 0..MAX_COMMANDS {
        let command = receive_command(connection).await?;
        connection.take_entry();
        let id = command.sqe.id();
        let executed;
        (auth, executed) = execute(auth, command).await.map_err(BeginFault::Io)?;
        match executed {
            Ok(ExchangeStep::Sent) => connection.complete(id, NvmeStatus::SUCCESS, 0),
            Ok(ExchangeStep::Message(data)) => {
                connection.send_data(id, DataIn::Bytes(data), 0, true).map_err(BeginFault::Io)?;
            }
            Err(status) => connection.complete(id, status, 0),
        }
        SendPump::flush(connection);
        if auth.is_done() {
            return Ok(());
        }
        if let Some(why) = failure_of(&auth, &file, own_file.as_deref()) {
            return Err(failed(why));
        }
    }
    Err(failed("the host does not end its authentication"))
}

/// Why an exchange has failed, for the log, with the files of the secrets. None: it has not failed.
pub fn failure_of(auth: &ControllerAuth, host: &Path, own: Option<&Path>) -> Option<String> {
    let why = |which| reason(which, host, own);
    auth.failure().map(|failure| format!("{failure}{}", auth.mismatch().map_or(String::new(), why)))
}

/// The secret that the host does not share, for the log.
fn reason(which: MismatchedSecret, host: &Path, own: Option<&Path>) -> String {
    let (host, own) = (host.display(), own.unwrap_or(Path::new("")).display());
    match which {
        MismatchedSecret::Host | MismatchedSecret::Either => {
            format!(": the secret of the host is not that in {host}; hint: copy this file to the host")
        }
        MismatchedSecret::Subsystem => format!(
            ": for the host, the secret of the subsystem is not that in {own}; hint: copy this file to the host, as the \
             secret of the subsystem"
        ),
        MismatchedSecret::NoSubsystem => {
            ": the host asks for the proof of the subsystem, which has no secret; hint: add \
             `secret_file` to [[subsystem]], or remove the secret of the subsystem from the host"
                .into()
        }
    }
}

fn failed(why: impl Into<String>) -> BeginFault {
    BeginFault::Io(io::Error::new(io::ErrorKind::PermissionDenied, why.into()))
}

/// Executes a command. The computation runs on a thread: the powers of a large group take long.
///
/// # Errors
/// There is no thread.
pub async fn execute(
    mut auth: ControllerAuth,
    command: ReceivedCommand,
) -> io::Result<(ControllerAuth, Result<ExchangeStep, NvmeStatus>)> {
    let ReceivedCommand { sqe, data, intact } = command;
    match check(&sqe, data.len(), intact) {
        Err(status) => Ok((auth, Err(status))),
        Ok(DataPlace::Host) => {
            let message = message(&mut auth, sqe.data().len as usize);
            Ok((auth, message))
        }
        Ok(_) => {
            let permit = COMPUTATIONS.acquire().await;
            let work = move || {
                auth.receive(&data);
                drop(permit);
                Ok(auth)
            };
            Ok((lunar_runtime::threads::blocking(work).await?, Ok(ExchangeStep::Sent)))
        }
    }
}

/// Checks a command: only the two of the exchange are allowed.
fn check(sqe: &Sqe, in_capsule: usize, intact: bool) -> Result<DataPlace, NvmeStatus> {
    let is_fabrics = sqe.opcode() == admin_opcode::FABRICS;
    let sends = match sqe.fabrics_type() {
        fabrics_type::AUTHENTICATION_SEND if is_fabrics => true,
        fabrics_type::AUTHENTICATION_RECEIVE if is_fabrics => false,
        _ => return Err(NvmeStatus::AUTHENTICATION_REQUIRED),
    };
    let place = place_of(sqe, in_capsule)?;
    let len = sqe.data().len;
    if sqe.dword(10) != PROTOCOL || sqe.dword(11) != len || len as usize > IN_CAPSULE_LEN {
        return Err(NvmeStatus::INVALID_FIELD);
    }
    match (place, sends) {
        _ if !intact => Err(NvmeStatus::TRANSIENT_TRANSPORT_ERROR),
        (DataPlace::Capsule, true) | (DataPlace::Host, false) => Ok(place),
        _ => Err(NvmeStatus::SGL_INVALID_TYPE),
    }
}

/// The next message, with zeros behind it up to `len` bytes.
fn message(auth: &mut ControllerAuth, len: usize) -> Result<ExchangeStep, NvmeStatus> {
    let mut message = auth.message().ok_or(NvmeStatus::SEQUENCE_ERROR)?;
    if message.len() > len {
        return Err(NvmeStatus::INVALID_FIELD);
    }
    message.resize(len, 0);
    Ok(ExchangeStep::Message(message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    /// No other test of this program computes.
    #[test]
    fn computations_wait_for_one_another() {
        let mut context = Context::from_waker(Waker::noop());
        let mut wait = || match pin!(COMPUTATIONS.acquire()).poll(&mut context) {
            Poll::Ready(permit) => Some(permit),
            Poll::Pending => None,
        };
        let first = wait().expect("it is free");
        let second = wait().expect("it is free");
        assert!(wait().is_none());
        drop(first);
        let third = wait().expect("it is free again");
        assert!(wait().is_none());
        drop((second, third));
    }
}
