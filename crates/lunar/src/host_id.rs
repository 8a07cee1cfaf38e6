//! Identifiers of this host for NVMe (HOSTID) that stay the same from one process to the next.

use lunar_initiator::nvme::options::Nqn;
use lunar_initiator::nvme::{NvmeUrl, uuid_text};
use lunar_initiator::{Error, ErrorCode};
use sha2::{Digest, Sha256};
use std::path::Path;

/// The controllers of the kernel.
const CONTROLLERS: &str = "/sys/class/nvme";

/// The same URL with an identifier that is made of the name of the host and a purpose, unless the URL has another one.
/// Other purposes have other identifiers: a target may end the earlier of two controllers with one name and identifier.
///
/// # Errors
/// Those of [`NvmeUrl::options`]. [`ErrorCode::InUse`] when a controller of the kernel has the identifier of the URL: the
/// target would end that controller.
pub fn identified(url: NvmeUrl, purpose: &str) -> Result<NvmeUrl, Error> {
    let options = url.options()?;
    if let (Some(id), Some(subsystem)) = (options.host_id, &url.subsystem) {
        let ours = [subsystem.as_str(), options.host.as_str(), &uuid_text(&id)];
        return match kernel_controller(Path::new(CONTROLLERS), ours) {
            Some(name) => Err(in_use(&name)),
            None => Ok(url),
        };
    }
    url.with_default("host_id", &uuid_text(&derived(&options.host, purpose)))
}

/// The controller of the kernel with this subsystem, name and identifier of the host. A kernel that does not show its
/// controllers has none.
fn kernel_controller(controllers: &Path, ours: [&str; 3]) -> Option<String> {
    let has = |folder: &Path| {
        let is = |(file, value): (&str, &str)| {
            std::fs::read_to_string(folder.join(file))
                .is_ok_and(|text| text.trim().eq_ignore_ascii_case(value))
        };
        ["subsysnqn", "hostnqn", "hostid"].into_iter().zip(ours).all(is)
    };
    let found = std::fs::read_dir(controllers).ok()?.flatten().find(|entry| has(&entry.path()))?;
    Some(found.file_name().to_string_lossy().into_owned())
}

fn in_use(controller: &str) -> Error {
    let what = format!("the controller {controller} of the kernel has this host_id: the target would end it");
    Error::new(ErrorCode::InUse, what).with_hint(format!(
        "use the registration of the kernel by `nvme resv-report` and the like, or run `nvme disconnect -d {controller}` first"
    ))
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
    fn controller_of_the_kernel_with_the_same_host_is_found() {
        let root = std::env::temp_dir().join(format!("lunar-host-id-{}", std::process::id()));
        let ours = [
            "nqn.2026-11.org.example:a",
            "nqn.2026-11.org.example:h",
            "07070707-0707-0707-0707-070707070707",
        ];
        for (name, host) in [("nvme0", "nqn.2026-11.org.example:other"), ("nvme1", ours[1])] {
            let folder = root.join(name);
            std::fs::create_dir_all(&folder).unwrap();
            for (file, text) in [("subsysnqn", ours[0]), ("hostnqn", host), ("hostid", ours[2])] {
                std::fs::write(folder.join(file), format!("{text}\n")).unwrap();
            }
        }
        assert_eq!(kernel_controller(&root, ours), Some("nvme1".into()));
        assert_eq!(kernel_controller(&root, [ours[0], ours[1], "another"]), None);
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(kernel_controller(&root, ours), None);
    }

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
