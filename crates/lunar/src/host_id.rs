//! Identifiers of this host for NVMe (HOSTID) that stay the same from one process to the next.

use lunar_initiator::Error;
use lunar_initiator::nvme::options::Nqn;
use lunar_initiator::nvme::{NvmeUrl, uuid_text};
use sha2::{Digest, Sha256};

/// The same URL with an identifier that is made of the name of the host and a purpose, unless the URL has another one.
/// Other purposes have other identifiers: a target may end the earlier of two controllers with one name and identifier.
///
/// # Errors
/// Those of [`NvmeUrl::options`].
pub fn identified(url: NvmeUrl, purpose: &str) -> Result<NvmeUrl, Error> {
    let host = url.options()?.host;
    url.with_default("host_id", &uuid_text(&derived(&host, purpose)))
}

/// A UUID (RFC 9562, version 8).
fn derived(host: &Nqn, purpose: &str) -> [u8; 16] {
    let hash: [u8; 32] = Sha256::digest(format!("{purpose}\0{host}")).into();
    let mut uuid = *hash.first_chunk().expect("a hash has 32 bytes");
    uuid[6] = uuid[6] & 0x0f | 0x80;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    uuid
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifier_depends_on_name_and_purpose_only() {
        let id = |host: &str, purpose, more: &str| {
            let url =
                format!("nvme://h/nqn.2026-11.org.example:a?host_nqn=nqn.2026-11.org.example:{host}{more}");
            identified(url.parse().expect("a URL"), purpose)
                .and_then(|url| url.options())
                .expect("options")
                .host_id
        };
        let one = id("one", "pr", "");
        assert!(one.is_some_and(|id| id[6] >> 4 == 8 && id[8] >> 6 == 2), "{one:?}");
        assert_eq!(id("one", "pr", "&queue_len=7"), one);
        assert!(id("two", "pr", "") != one && id("one", "attach", "") != one);
        assert_eq!(id("one", "pr", &format!("&host_id={}", "07".repeat(16))), Some([7; 16]));
    }
}
