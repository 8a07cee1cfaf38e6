//! DH-HMAC-CHAP on a queue, before its other commands.

use super::command::NvmeCommand;
use super::host_queue::HostQueue;
use super::options::NvmeOptions;
use crate::{Direction, Error, ErrorCode};
use lunar_proto::nvme::auth::{AuthFailure, AuthNames, HostAuth, MismatchedSecret};
use lunar_runtime::Buf;
use lunar_wire::nvme::{Nqn, NvmeStatus, Sqe, admin_opcode, fabrics_type};
use std::rc::Rc;

/// SPSP0, SPSP1 and SECP of both commands: the authentication protocols of NVMe (command dword 10).
const PROTOCOL: u32 = 0xe901_0100;
/// Bytes that the host asks for: more than any message has.
const ALLOCATION: u32 = 4096;

/// Authenticates this host on a queue whose Connect demanded it.
///
/// # Errors
/// [`ErrorCode::AuthenticationFailed`] without a secret, or when one side has not proved that it knows the secret.
pub async fn authenticate(
    queue: &Rc<HostQueue>,
    subsystem: &Nqn,
    options: &NvmeOptions,
    transaction: u16,
) -> Result<(), Error> {
    let secrets = options.secrets.clone().ok_or_else(no_secret)?;
    let names = AuthNames { host: options.host.clone(), subsystem: subsystem.clone() };
    let (mut auth, mut message) = HostAuth::new(names, secrets, transaction);
    loop {
        send(queue, &message).await?;
        if auth.is_done() {
            return Ok(());
        }
        let answer = receive(queue).await?;
        match auth.receive(&answer) {
            Ok(Some(next)) => message = next,
            Ok(None) => return Ok(()),
            Err(failure) => {
                if let Some(report) = auth.report(failure) {
                    // The controller ends the connection in either case.
                    _ = send(queue, &report).await;
                }
                return Err(failed(failure, auth.mismatch(), &options.host));
            }
        }
    }
}

/// The error of a controller that must prove itself, but demands no authentication: it can be an impostor.
pub fn unproved() -> Error {
    Error::new(
        ErrorCode::AuthenticationFailed,
        "the controller has not proved that it knows the secret of the subsystem",
    )
    .with_hint("turn authentication on at the target, or remove subsystem_secret_file from the URL")
}

fn no_secret() -> Error {
    Error::new(ErrorCode::AuthenticationFailed, "the controller requires authentication")
        .with_hint("add secret_file=FILE to the URL, with a secret of the form DHHC-1:HH:BASE64:")
}

fn failed(failure: AuthFailure, mismatch: Option<MismatchedSecret>, host: &Nqn) -> Error {
    let (why, hint) = match mismatch {
        Some(MismatchedSecret::Host) => (
            format!(": the controller has another secret for the host {host}"),
            "check secret_file and host_nqn in the URL, and the secret of this host at the target",
        ),
        Some(MismatchedSecret::Subsystem) => (
            ": the controller has another secret of the subsystem than this host".into(),
            "check subsystem_secret_file in the URL, and the secret of the subsystem at the target",
        ),
        Some(MismatchedSecret::Either | MismatchedSecret::NoSubsystem) => (
            format!(": the controller has another secret for the host {host}, or none for the subsystem"),
            "check secret_file and host_nqn in the URL, and whether the subsystem has a secret; the log of the target \
             names the secret",
        ),
        None => {
            (String::new(), "check the secrets of host and subsystem on both sides, and the name of the host")
        }
    };
    Error::new(ErrorCode::AuthenticationFailed, format!("{failure}{why}")).with_hint(hint)
}

fn malformed() -> Error {
    Error::new(ErrorCode::AuthenticationFailed, AuthFailure::INVALID_PAYLOAD.to_string())
}

fn entry(kind: u8, len: u32) -> Sqe {
    Sqe::new(admin_opcode::FABRICS, 0, kind.into()).with_dword(10, PROTOCOL).with_dword(11, len)
}

async fn send(queue: &Rc<HostQueue>, message: &[u8]) -> Result<(), Error> {
    let sqe = entry(fabrics_type::AUTHENTICATION_SEND, message.len() as u32);
    let data = Direction::Out(Buf::copy_of(message));
    let (result, _) = queue.call_first(NvmeCommand::new(sqe, data)).await;
    check(result?.status)
}

async fn receive(queue: &Rc<HostQueue>) -> Result<Buf, Error> {
    let sqe = entry(fabrics_type::AUTHENTICATION_RECEIVE, ALLOCATION);
    let data = Direction::In(Buf::zeroed(ALLOCATION as usize));
    let command = NvmeCommand { may_be_short: true, ..NvmeCommand::new(sqe, data) };
    let (result, buf) = queue.call_first(command).await;
    check(result?.status)?;
    buf.ok_or_else(malformed)
}

fn check(status: NvmeStatus) -> Result<(), Error> {
    if status.is_success() {
        return Ok(());
    }
    Err(Error::new(ErrorCode::AuthenticationFailed, format!("the controller refused a message: {status}")))
}
