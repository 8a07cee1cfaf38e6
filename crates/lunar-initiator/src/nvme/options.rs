//! Options of a controller: names, secrets, digests, queues and timeouts.

use crate::options::Timeouts;
use crate::{Error, ErrorCode};
#[doc(inline)]
pub use lunar_proto::nvme::auth::{AuthSecrets, DhChapSecret};
#[doc(inline)]
pub use lunar_wire::nvme::Nqn;
use lunar_wire::srp::PortId;
use std::time::Duration;

/// The file in which Linux distributions keep the name of the host.
const NAME_FILE: &str = "/etc/nvme/hostnqn";
/// The file with the identifier of the host.
const ID_FILE: &str = "/etc/nvme/hostid";
/// Names that contain a UUID begin with this.
const UUID_PREFIX: &str = "nqn.2014-08.org.nvmexpress:uuid:";

/// Options of a controller.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NvmeOptions {
    /// The name of this host.
    pub host: Nqn,
    /// The identifier of this host. Reservations belong to it.
    pub host_id: [u8; 16],
    /// Secrets for DH-HMAC-CHAP, for controllers that ask for it.
    pub secrets: Option<AuthSecrets>,
    /// Whether headers have a digest.
    pub header_digest: bool,
    /// Whether data have a digest.
    pub data_digest: bool,
    /// The entries of an I/O queue, 2 to 65536. The limit on commands in flight is one less. The controller may lower it.
    pub queue_len: u32,
    /// The time after which a controller ends the association with a silent host. Zero turns Keep Alive off.
    pub keep_alive: Duration,
    /// Timeouts: `login` limits each attempt to connect, `command` the answer to a command. `recovery` is the
    /// controller-loss time-out: the time to reconnect before commands fail.
    pub timeouts: Timeouts,
    /// The size of the socket buffers in bytes. None leaves it to the kernel.
    pub window: Option<u32>,
}

impl NvmeOptions {
    /// The default options of a host with this name. Its identifier is the UUID in the name, or is derived from the name.
    pub fn new(host: Nqn) -> NvmeOptions {
        NvmeOptions {
            host_id: id_of(&host),
            host,
            secrets: None,
            header_digest: false,
            data_digest: false,
            queue_len: 128,
            keep_alive: Duration::from_secs(5),
            timeouts: Timeouts::default(),
            window: None,
        }
    }

    /// The default options of this host: name and identifier are those in `/etc/nvme`, or derived from the host name.
    ///
    /// # Errors
    /// [`ErrorCode::InvalidArgument`] when a file is malformed.
    pub fn of_this_host() -> Result<NvmeOptions, Error> {
        let read = |path| std::fs::read_to_string(path).ok();
        from_texts(read(NAME_FILE).as_deref(), read(ID_FILE).as_deref(), &lunar_runtime::host::name())
    }
}

/// Options from the content of the files, if they exist, and the host name.
fn from_texts(name: Option<&str>, id: Option<&str>, host: &str) -> Result<NvmeOptions, Error> {
    let wrong = |file, why: &str| {
        Error::new(ErrorCode::InvalidArgument, format!("{file}: {why}"))
            .with_hint("mend the file, or name the host in the URL with host_nqn= and host_id=")
    };
    let name = match name.map(str::trim).filter(|name| !name.is_empty()) {
        Some(name) => Nqn::new(name).map_err(|e| wrong(NAME_FILE, e.0))?,
        None => name_of(host),
    };
    let mut options = NvmeOptions::new(name);
    if let Some(id) = id.map(str::trim).filter(|id| !id.is_empty()) {
        options.host_id = parse_uuid(id).ok_or_else(|| wrong(ID_FILE, "the identifier is not a UUID"))?;
    }
    Ok(options)
}

/// The name of a host, derived from its host name, so that it is stable.
fn name_of(host: &str) -> Nqn {
    let name = lunar_proto::name::of_host(host).replacen("iqn.", "nqn.", 1);
    Nqn::new(&name).expect("a derived name is well formed")
}

/// The identifier of a host: the UUID in its name, or one that is derived from the name.
fn id_of(host: &Nqn) -> [u8; 16] {
    let uuid = host.as_str().strip_prefix(UUID_PREFIX).and_then(parse_uuid);
    uuid.unwrap_or_else(|| {
        let mut id = PortId::of_name(host.as_str()).0;
        // The form of a UUID that is made by a rule of its own (RFC 9562, version 8).
        id[6] = id[6] & 0x0f | 0x80;
        id[8] = id[8] & 0x3f | 0x80;
        id
    })
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

    const UUID: &str = "12345678-9abc-def0-1122-334455667788";

    #[test]
    fn host_id_is_the_uuid_of_the_name_or_of_the_file() {
        let name = format!("{UUID_PREFIX}{UUID}\n");
        let options = from_texts(Some(&name), None, "h").expect("a name");
        assert_eq!(options.host.as_str(), name.trim());
        assert_eq!(options.host_id[..4], [0x12, 0x34, 0x56, 0x78]);
        let options = from_texts(Some(&name), Some("00000000000000000000000000000007"), "h").expect("both");
        assert_eq!(options.host_id[15], 7);
    }

    #[test]
    fn host_without_files_has_a_stable_name_and_id() {
        let [one, again, other] =
            ["a", "a", "b"].map(|host| from_texts(None, Some(""), host).expect("a name"));
        assert_eq!(one.host.as_str(), "nqn.2026-11.io.lunar:a");
        assert!(one.host_id == again.host_id && one.host_id != other.host_id && one.host_id != [0; 16]);
    }

    #[test]
    fn malformed_file_is_an_error_that_names_it() {
        for (name, id, file) in [(Some("iqn.x"), None, NAME_FILE), (None, Some("7"), ID_FILE)] {
            let error = from_texts(name, id, "h").expect_err(file);
            assert!(error.what.starts_with(file) && error.hint.is_some(), "{error}");
        }
        assert_eq!(parse_uuid("00000000-0000-0000-0000-000000000000"), None);
    }
}
