//! Options of a controller: names, secrets, digests, queues and timeouts.

use crate::options::Timeouts;
use crate::{Error, ErrorCode};
#[doc(inline)]
pub use lunar_proto::nvme::auth::{AuthSecrets, DhChapSecret};
#[doc(inline)]
pub use lunar_wire::nvme::Nqn;
use std::time::Duration;

/// The file in which Linux distributions keep the name of the host.
const NAME_FILE: &str = "/etc/nvme/hostnqn";

/// Options of a controller.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NvmeOptions {
    /// The name of this host.
    pub host: Nqn,
    /// The identifier of this host. Reservations belong to it. None: each controller has a random one, which it keeps when
    /// it connects again. Targets may end the earlier of two controllers with one name and identifier.
    pub host_id: Option<[u8; 16]>,
    /// Secrets for DH-HMAC-CHAP, for controllers that ask for it.
    pub secrets: Option<AuthSecrets>,
    /// Whether headers have a digest.
    pub header_digest: bool,
    /// Whether data have a digest.
    pub data_digest: bool,
    /// The I/O queues, each with a connection; at least one. None: one for each CPU of the process, up to 4. The controller may
    /// grant fewer.
    pub io_queues: Option<u16>,
    /// The entries of an I/O queue, 2 to 65536. The limit on commands in flight is one less. The controller may lower it.
    pub queue_len: u32,
    /// The time after which a controller ends the association with a silent host. Zero turns Keep Alive off.
    pub keep_alive: Duration,
    /// Timeouts: `login` limits each attempt to connect, `command` the answer to a command. `recovery` is the
    /// controller-loss time-out: the time to reconnect before commands fail. `operation` ends only the retries of a
    /// command: it cuts off neither a command in flight nor the wait for a connection.
    pub timeouts: Timeouts,
    /// The size of the socket buffers in bytes. None leaves it to the kernel.
    pub window: Option<u32>,
}

impl NvmeOptions {
    /// The default options of a host with this name.
    pub fn new(host: Nqn) -> NvmeOptions {
        NvmeOptions {
            host,
            host_id: None,
            secrets: None,
            header_digest: false,
            data_digest: false,
            io_queues: None,
            queue_len: 128,
            keep_alive: Duration::from_secs(5),
            timeouts: Timeouts::default(),
            window: None,
        }
    }

    /// The default options of this host: its name is the one in `/etc/nvme/hostnqn`, or derived from the host name. The
    /// identifier in `/etc/nvme/hostid` is not used: it belongs to the controllers of the kernel.
    ///
    /// # Errors
    /// [`ErrorCode::InvalidArgument`] when the file is malformed.
    pub fn of_this_host() -> Result<NvmeOptions, Error> {
        from_text(std::fs::read_to_string(NAME_FILE).ok().as_deref(), &lunar_runtime::host::name())
    }

    /// The same options with an identifier: a random one if they have none.
    pub(super) fn identified(self) -> NvmeOptions {
        NvmeOptions { host_id: self.host_id.or_else(|| Some(random_host_id())), ..self }
    }
}

/// Options from the content of the file, if it exists, and the host name.
fn from_text(name: Option<&str>, host: &str) -> Result<NvmeOptions, Error> {
    let name = match name.map(str::trim).filter(|name| !name.is_empty()) {
        Some(name) => Nqn::new(name).map_err(|e| {
            Error::new(ErrorCode::InvalidArgument, format!("{NAME_FILE}: {}", e.0))
                .with_hint("mend the file, or name the host in the URL with host_nqn=")
        })?,
        None => name_of(host),
    };
    Ok(NvmeOptions::new(name))
}

/// The name of a host, derived from its host name, so that it is stable.
fn name_of(host: &str) -> Nqn {
    let name = lunar_proto::name::of_host(host).replacen("iqn.", "nqn.", 1);
    Nqn::new(&name).expect("a derived name is well formed")
}

/// A host identifier that no other host has: a random UUID (RFC 9562, version 4).
pub fn random_host_id() -> [u8; 16] {
    let mut id = [0; 16];
    getrandom::fill(&mut id).expect("the kernel has random numbers");
    id[6] = id[6] & 0x0f | 0x40;
    id[8] = id[8] & 0x3f | 0x80;
    id
}

/// Parses a UUID, 32 hexadecimal digits with or without dashes. None also for the nil UUID, which identifies no host.
pub(crate) fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b'-').collect();
    if digits.len() != 32 {
        return None;
    }
    let mut uuid = [0; 16];
    for (byte, pair) in uuid.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |at: usize| char::from(pair[at]).to_digit(16);
        *byte = (digit(0)? << 4 | digit(1)?) as u8;
    }
    (uuid != [0; 16]).then_some(uuid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_that_of_the_file_or_of_the_host() {
        let name = |text, host| from_text(text, host).expect("a name").host;
        assert_eq!(name(Some("nqn.2026-11.org.example:h\n"), "a").as_str(), "nqn.2026-11.org.example:h");
        for text in [None, Some("")] {
            assert_eq!(name(text, "a").as_str(), "nqn.2026-11.io.lunar:a");
        }
    }

    #[test]
    fn host_id_is_the_one_of_the_options_or_a_random_uuid() {
        let options = from_text(None, "a").expect("a name");
        let [one, other] = [options.clone(), options.clone()].map(|own| own.identified().host_id);
        assert!(
            one != other && one.is_some_and(|id| id[6] >> 4 == 4 && id[8] >> 6 == 2),
            "{one:?} {other:?}"
        );
        let options = NvmeOptions { host_id: Some([7; 16]), ..options };
        assert_eq!(options.identified().host_id, Some([7; 16]));
    }

    #[test]
    fn malformed_file_is_an_error_that_names_it() {
        let error = from_text(Some("iqn.x"), "h").expect_err("malformed");
        assert!(error.what.starts_with(NAME_FILE) && error.hint.is_some(), "{error}");
        assert_eq!(parse_uuid("00000000-0000-0000-0000-000000000000"), None);
    }
}
