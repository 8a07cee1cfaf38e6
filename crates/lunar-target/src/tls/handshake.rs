//! The handshake of TLS 1.3 with the PSK of a host.

use super::client_hello::{OfferedPsks, offered_psks};
use super::socket::RelaySocket;
use crate::access::LoginContext;
use crate::foreign_protocol;
use crate::session_info::TlsSessionInfo;
use lunar_proto::nvme::tls::{TlsKeyHash, TlsPsk};
use s2n_tls::callbacks::{ClientHelloCallback, ConnectionFuture};
use s2n_tls::config::Config;
use s2n_tls::connection::{Connection, ModifiedBuilder};
use s2n_tls::enums::PskHmac;
use s2n_tls::error::Error;
use s2n_tls::psk::Psk;
use s2n_tls::security::Policy;
use s2n_tls_tokio::{TlsAcceptor, TlsStream};
use std::io;
use std::ops::Range;
use std::pin::Pin;

/// A policy of s2n-tls: TLS 1.3 alone, with its three usual cipher suites.
const POLICY: &str = "AWS-CRT-SDK-TLSv1.3-2023";
/// The longest delay in seconds before the end of a failed handshake. No key can be guessed by its time.
const MAX_BLINDING_S: u32 = 1;
/// Bytes that one call sends, in several records.
const SEND_BUFFER: u32 = 128 << 10;
/// The type of the record with which a handshake begins (RFC 8446, section 5.1).
const HANDSHAKE_RECORD: u8 = 22;
/// Bytes that identify the protocol of a host without TLS.
const FIRST_BYTES: usize = 8;
/// The place of the random number in ClientHello.
const RANDOM: Range<usize> = 2..34;
/// The error of s2n-tls for a host with another key.
const WRONG_KEY: &str = "S2N_ERR_BAD_PSK_BINDER";
/// The longest part of a foreign identity in a log line, in characters.
const MAX_SHOWN: usize = 256;

/// The settings of all connections.
///
/// # Errors
/// The library has no memory.
pub fn config() -> Result<Config, Error> {
    let mut config = Config::builder();
    config.with_system_certs(false)?;
    config.set_security_policy(&Policy::from_version(POLICY)?)?;
    config.set_client_hello_callback(PskChoice)?;
    config.set_max_blinding_delay(MAX_BLINDING_S)?;
    config.set_send_buffer_size(SEND_BUFFER)?;
    config.build()
}

/// Makes the handshake with a host that may connect at this place.
///
/// # Errors
/// The reason for the log.
pub async fn handshake(
    socket: RelaySocket,
    context: LoginContext,
    config: Config,
) -> io::Result<(TlsStream<RelaySocket>, TlsSessionInfo)> {
    check_first_bytes(&socket).await?;
    let builder = ModifiedBuilder::new(config, |connection: &mut Connection| {
        connection.set_application_context(context.clone());
        connection.prefer_throughput()?.set_receive_buffering(true)
    });
    let mut stream = TlsAcceptor::new(builder).accept(socket).await.map_err(failed)?;
    let connection = stream.as_mut();
    // The configuration must not live as long as the connection.
    connection.remove_application_context::<LoginContext>();
    let tls = negotiated(connection)?;
    Ok((stream, tls))
}

/// Rejects a host that begins without TLS.
async fn check_first_bytes(socket: &RelaySocket) -> io::Result<()> {
    let mut first = [0; FIRST_BYTES];
    let len = socket.peek(&mut first).await?;
    match first[..len].first() {
        None => Err(io::Error::other("the host closed the connection")),
        Some(&HANDSHAKE_RECORD) => Ok(()),
        Some(_) => Err(io::Error::other(foreign_protocol::at_tls_portal(&first[..len]))),
    }
}

/// The outcome of a handshake.
fn negotiated(connection: &Connection) -> io::Result<TlsSessionInfo> {
    let mut identity = vec![0; connection.negotiated_psk_identity_length()?];
    connection.negotiated_psk_identity(&mut identity)?;
    let identity = String::from_utf8(identity).map_err(io::Error::other)?;
    Ok(TlsSessionInfo { identity, cipher: connection.cipher_suite()?.to_owned() })
}

/// The reason of a failed handshake.
fn failed(error: Error) -> io::Error {
    io::Error::other(match (error.application_error(), error.name()) {
        (Some(reason), _) => format!("no handshake of TLS: {reason}"),
        (None, WRONG_KEY) => {
            "no handshake of TLS: the key of the host is not that of its identity; hint: copy the `tls_key_file` to the host".into()
        }
        (None, name) => format!("no handshake of TLS: {} ({name})", error.message()),
    })
}

/// Gives a connection the PSK of the first identity that its host offers and the configuration knows. So a host with an unknown
/// identity is rejected at once.
struct PskChoice;

impl ClientHelloCallback for PskChoice {
    fn on_client_hello(
        &self,
        connection: &mut Connection,
    ) -> Result<Option<Pin<Box<dyn ConnectionFuture>>>, Error> {
        let hello = connection.client_hello()?;
        let mut message = hello.raw_message()?;
        // The library erases the random number, and binders cover it.
        if let Some(random) = message.get_mut(RANDOM) {
            random.copy_from_slice(&hello.random()?);
        }
        let offered = offered_psks(&message);
        let psk = connection.application_context().and_then(|context| known(context, &offered));
        let psk = psk.ok_or_else(|| Error::application(unknown(&offered).into()))?;
        let psk = shared_secret(psk)?;
        connection.append_psk(&psk)?;
        Ok(None)
    }
}

/// The PSK of the first known identity. If several have it, the binder shows which one the host has derived. A wrong binder is
/// left to the library.
fn known<'a>(context: &'a LoginContext, offered: &'a OfferedPsks<'_>) -> Option<&'a TlsPsk> {
    offered.psks.iter().find_map(|(identity, binder)| {
        let mut psks = context.tls_psks(identity).peekable();
        let first = *psks.peek()?;
        Some(psks.find(|psk| psk.has_binder(&offered.bound, binder)).unwrap_or(first))
    })
}

fn unknown(offered: &OfferedPsks<'_>) -> String {
    match offered.psks.first() {
        None => {
            "the host offers no PSK; hint: give it the key of a `tls_key_file`, and connect with --tls".into()
        }
        Some((identity, _)) => {
            let shown: String = String::from_utf8_lossy(identity).chars().take(MAX_SHOWN).collect();
            format!(
                "the identity \"{}\" is unknown here; hint: compare the names, the hash and the key with [[subsystem.host]]",
                shown.escape_debug()
            )
        }
    }
}

/// The PSK in the form of the library.
///
/// # Errors
/// The library has no memory.
pub fn shared_secret(psk: &TlsPsk) -> Result<Psk, Error> {
    let mut builder = Psk::builder()?;
    builder.set_identity(psk.identity.as_bytes())?;
    builder.set_secret(&psk.secret)?;
    builder.set_hmac(match psk.hash {
        TlsKeyHash::Sha256 => PskHmac::SHA256,
        TlsKeyHash::Sha384 => PskHmac::SHA384,
    })?;
    builder.build()
}
