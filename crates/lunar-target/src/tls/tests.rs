//! Hosts with s2n-tls against the relay.

use super::*;
use crate::config::{NvmeTlsKey, SubsystemSettings, TargetConfig};
use crate::session_info::Addresses;
use crate::test_target::config;
use lunar_proto::nvme::auth::AuthNames;
use lunar_proto::nvme::tls::{TlsKey, TlsKeyHash, TlsKeyLabels, TlsPsk, TlsPskVersion};
use lunar_wire::nvme::Nqn;
use s2n_tls::connection::{Connection, ModifiedBuilder};
use s2n_tls::security::DEFAULT_TLS13;
use s2n_tls_tokio::{TlsConnector, TlsStream};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const HOST: &str = "nqn.2026-11.org.example:h";
const SUBSYSTEM: &str = "nqn.2026-11.org.example:s";

/// A configuration whose only subsystem has this key for the host.
fn with_key(key: &TlsKey) -> Arc<TargetConfig> {
    let mut config = config();
    let (_, mut target) = config.targets.pop_first().expect("a target");
    let key = NvmeTlsKey::new(key.clone(), "t.key".into(), HOST, SUBSYSTEM).expect("a key");
    let settings = SubsystemSettings::new(SUBSYSTEM, None, None);
    target.subsystem = Some(SubsystemSettings { tls_keys: [(HOST.into(), key)].into(), ..settings });
    target.name = SUBSYSTEM.into();
    config.targets = [(SUBSYSTEM.into(), target)].into();
    Arc::new(config)
}

fn psk(key: &TlsKey, version: TlsPskVersion) -> TlsPsk {
    psk_with(TlsKeyLabels::Standard, key, version)
}

fn psk_with(labels: TlsKeyLabels, key: &TlsKey, version: TlsPskVersion) -> TlsPsk {
    let name = |text| Nqn::new(text).expect("valid");
    key.psk_with(labels, &AuthNames { host: name(HOST), subsystem: name(SUBSYSTEM) }, version).expect("a PSK")
}

/// The thread of a host, which ends with what the host has received.
type HostThread = std::thread::JoinHandle<io::Result<Vec<u8>>>;

/// Connects a host with this PSK, which sends a request. Returns the end of the front end, and the host.
fn connect(relay: &TlsRelay, key: &TlsKey, psk: &TlsPsk) -> (io::Result<TlsConnection>, HostThread) {
    connect_with(relay, key, psk, async |mut stream| {
        stream.write_all(b"request").await?;
        let mut received = Vec::new();
        stream.read_to_end(&mut received).await?;
        Ok(received)
    })
}

/// As [`connect`], with a host that does this after its handshake.
fn connect_with(
    relay: &TlsRelay,
    key: &TlsKey,
    psk: &TlsPsk,
    work: impl AsyncFnOnce(TlsStream<tokio::net::TcpStream>) -> io::Result<Vec<u8>> + Send + 'static,
) -> (io::Result<TlsConnection>, HostThread) {
    relay.start().expect("threads");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = listener.local_addr().expect("an address");
    let (mut host_config, psk) = (Config::builder(), handshake::shared_secret(psk).expect("memory"));
    host_config
        .with_system_certs(false)
        .and_then(|c| c.set_security_policy(&DEFAULT_TLS13))
        .expect("a policy");
    let host_config = host_config.build().expect("memory");
    let psk = Arc::new(psk);
    let host = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let socket = tokio::net::TcpStream::connect(at).await?;
            let builder = ModifiedBuilder::new(host_config, |connection: &mut Connection| {
                connection.append_psk(&psk)?;
                Ok(connection)
            });
            work(TlsConnector::new(builder).connect("host", socket).await?).await
        })
    });
    let (socket, peer) = listener.accept().expect("the host");
    let context = LoginContext::new(&with_key(key), 1, Addresses { local: at, peer });
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    (runtime.block_on(relay.accept(socket, context)), host)
}

#[test]
fn both_hashes_versions_and_forms_of_labels_are_accepted() {
    let relay = TlsRelay::default();
    for (hash, cipher) in
        [(TlsKeyHash::Sha256, "TLS_AES_128_GCM_SHA256"), (TlsKeyHash::Sha384, "TLS_AES_256_GCM_SHA384")]
    {
        for (version, labels) in [
            (TlsPskVersion::Zero, TlsKeyLabels::Standard),
            (TlsPskVersion::One, TlsKeyLabels::Standard),
            (TlsPskVersion::Zero, TlsKeyLabels::Libnvme115),
            (TlsPskVersion::One, TlsKeyLabels::Libnvme115),
        ] {
            let key = TlsKey::generate(hash).expect("random numbers");
            let psk = psk_with(labels, &key, version);
            let (accepted, host) = connect(&relay, &key, &psk);
            let TlsConnection { mut stream, tls, open, carrier: _carrier } = accepted.expect("a handshake");
            assert_eq!((tls.identity.as_str(), tls.cipher.as_str()), (psk.identity.as_str(), cipher));
            assert!(tls.is_of(HOST, SUBSYSTEM) && !tls.is_of(SUBSYSTEM, HOST));
            let mut request = [0; 7];
            stream.read_exact(&mut request).expect("the request");
            stream.write_all(b"response").expect("it is open");
            drop((stream, open));
            assert_eq!(
                (&request, host.join().expect("a host").expect("an orderly end")),
                (b"request", b"response".to_vec())
            );
        }
    }
}

#[test]
fn host_with_another_key_or_name_is_rejected() {
    let relay = TlsRelay::default();
    let [key, other] = [(); 2].map(|()| TlsKey::generate(TlsKeyHash::Sha256).expect("random numbers"));
    let right = psk(&key, TlsPskVersion::Zero);
    let wrong_key = TlsPsk { secret: psk(&other, TlsPskVersion::Zero).secret, ..right.clone() };
    let wrong_name = TlsPsk { identity: right.identity.replace(":h", ":x"), ..right.clone() };
    for (psk, expected) in [
        (wrong_key, "the key of the host is not that of its identity"),
        (wrong_name, "nqn.2026-11.org.example:x nqn.2026-11.org.example:s\" is unknown here"),
        (psk(&other, TlsPskVersion::One), "is unknown here"),
    ] {
        let (accepted, host) = connect(&relay, &key, &psk);
        let fault = accepted.err().expect("no handshake").to_string();
        assert!(fault.contains(expected), "{fault}");
        assert!(host.join().expect("a host").is_err());
    }
}

/// The front end stops to receive, as at the end of the server, while the host goes on to send.
#[test]
fn last_data_reach_a_host_that_still_sends() {
    const LEN: usize = 3 << 20;
    let relay = TlsRelay::default();
    let key = TlsKey::generate(TlsKeyHash::Sha256).expect("random numbers");
    let (accepted, host) = connect_with(&relay, &key, &psk(&key, TlsPskVersion::Zero), async |stream| {
        let (mut from, mut to) = tokio::io::split(stream);
        let mut received = Vec::new();
        let send = async {
            while to.write_all(&[7; 4096]).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            all = from.read_to_end(&mut received) => { all?; }
            () = send => {}
        }
        Ok(received)
    });
    let TlsConnection { mut stream, open, .. } = accepted.expect("a handshake");
    stream.read_exact(&mut [0; 4096]).expect("a first command");
    stream.shutdown(std::net::Shutdown::Read).expect("it is open");
    // The relay finds the end of the front end first.
    std::thread::sleep(Duration::from_millis(50));
    stream.write_all(&vec![9; LEN]).expect("the relay takes all");
    drop(stream);
    let received = host.join().expect("a host").expect("an orderly end");
    assert_eq!((received.len(), received.iter().all(|byte| *byte == 9)), (LEN, true));
    drop(open);
}

/// A relay that is late must not hide that the host has left.
#[test]
fn end_of_the_host_shows_on_the_carrier_at_once() {
    let relay = TlsRelay::default();
    let key = TlsKey::generate(TlsKeyHash::Sha256).expect("random numbers");
    let (accepted, host) =
        connect_with(&relay, &key, &psk(&key, TlsPskVersion::Zero), async |_| Ok(Vec::new()));
    let TlsConnection { carrier, .. } = accepted.expect("a handshake");
    host.join().expect("a host").expect("it has left");
    let (own, _other) = UnixStream::pair().expect("sockets");
    compio::runtime::Runtime::new().expect("a runtime").block_on(async {
        let stream = lunar_runtime::Stream::new(own).expect("a stream").carried_by(carrier);
        assert_ne!(stream.peer_state(), lunar_runtime::PeerState::Open);
    });
}

#[test]
fn relay_that_is_drained_accepts_no_host() {
    let relay = TlsRelay::default();
    let key = TlsKey::generate(TlsKeyHash::Sha256).expect("random numbers");
    let psk = psk(&key, TlsPskVersion::Zero);
    let (accepted, _host) = connect(&relay, &key, &psk);
    let open = accepted.expect("a handshake");
    drop(open);
    compio::runtime::Runtime::new().expect("a runtime").block_on(relay.drained());
    let (refused, _host) = connect(&relay, &key, &psk);
    assert!(refused.err().expect("no handshake").to_string().contains("stopping"));
}
