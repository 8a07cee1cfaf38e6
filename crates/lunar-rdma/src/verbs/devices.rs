//! The RDMA devices of this host according to /sys, and whether the libraries can use them.
#![allow(unsafe_code)]

use super::library::{MissingLibrary, library};
use std::ffi::{CStr, c_int};
use std::fmt;
use std::fs;
use std::net::IpAddr;
use std::path::Path;

/// The directory of RDMA devices in sysfs.
const SYS: &str = "/sys/class/infiniband";

/// The transport of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkTransport {
    /// TCP.
    Iwarp,
    /// InfiniBand.
    InfiniBand,
    /// RDMA over Converged Ethernet.
    Roce,
    /// Another transport.
    Other,
}

impl fmt::Display for LinkTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LinkTransport::Iwarp => "iWARP",
            LinkTransport::InfiniBand => "InfiniBand",
            LinkTransport::Roce => "RoCE",
            LinkTransport::Other => "other",
        })
    }
}

/// A device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaDevice {
    /// The name, such as `mlx5_0`.
    pub name: String,
    /// The transport.
    pub transport: LinkTransport,
    /// The ports.
    pub ports: Vec<RdmaPort>,
    /// Whether the libraries have a driver for it.
    pub is_usable: bool,
}

/// A port of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaPort {
    /// The port number, from 1.
    pub number: u32,
    /// The state, such as `ACTIVE` or `DOWN`.
    pub state: String,
    /// The first GID: the address on InfiniBand, otherwise derived from an IP address.
    pub gid: String,
    /// The network device with its IP addresses, if known.
    pub netdev: Option<String>,
    /// The IP addresses of the network device.
    pub addresses: Vec<IpAddr>,
}

/// Lists the devices of this host, by name.
///
/// # Errors
/// When the libraries are missing.
pub fn devices() -> Result<Vec<RdmaDevice>, MissingLibrary> {
    let usable = usable()?;
    let mut devices = devices_in(Path::new(SYS), &addresses());
    for device in &mut devices {
        device.is_usable = usable.contains(&device.name);
    }
    Ok(devices)
}

/// The names of the devices for which the libraries have drivers.
fn usable() -> Result<Vec<String>, MissingLibrary> {
    let library = library()?;
    let mut count: c_int = 0;
    // SAFETY: the result has room.
    let list = unsafe { (library.ibv_get_device_list)(&raw mut count) };
    if list.is_null() {
        return Ok(Vec::new());
    }
    let name = |n| {
        // SAFETY: the list has this many devices, whose names are null-terminated.
        unsafe { CStr::from_ptr((**list.add(n)).name.as_ptr()) }.to_string_lossy().into_owned()
    };
    let names = (0..usize::try_from(count).unwrap_or(0)).map(name).collect();
    // SAFETY: the list is from the library, and none of its devices is used after this.
    unsafe { (library.ibv_free_device_list)(list) };
    Ok(names)
}

/// The IP addresses of this host with the names of their network devices.
type Addresses = Vec<(String, IpAddr)>;

fn devices_in(sys: &Path, addresses: &Addresses) -> Vec<RdmaDevice> {
    let mut devices: Vec<RdmaDevice> =
        names(sys).into_iter().map(|name| device(&sys.join(&name), name, addresses)).collect();
    devices.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    devices
}

fn device(dir: &Path, name: String, addresses: &Addresses) -> RdmaDevice {
    let ports = dir.join("ports");
    let mut numbers: Vec<u32> = names(&ports).iter().filter_map(|name| name.parse().ok()).collect();
    numbers.sort_unstable();
    let layer = numbers.first().map(|n| line(&ports.join(n.to_string()).join("link_layer")));
    // The format is "4: RNIC". The numbers are those of enum `ibv_node_type`.
    let transport = match (line(&dir.join("node_type")).split(':').next(), layer.as_deref()) {
        (Some("4"), _) => LinkTransport::Iwarp,
        (Some("1"), Some("Ethernet")) => LinkTransport::Roce,
        (Some("1"), _) => LinkTransport::InfiniBand,
        _ => LinkTransport::Other,
    };
    let ports = numbers.into_iter().map(|n| port(&ports.join(n.to_string()), n, addresses)).collect();
    RdmaDevice { name, transport, ports, is_usable: false }
}

fn port(dir: &Path, number: u32, addresses: &Addresses) -> RdmaPort {
    let netdev = Some(line(&dir.join("gid_attrs/ndevs/0"))).filter(|name| !name.is_empty());
    let ours = addresses.iter().filter(|(name, _)| netdev.as_ref() == Some(name));
    let addresses = ours.map(|(_, address)| *address).collect();
    // The format is "4: ACTIVE".
    let state = line(&dir.join("state")).split(": ").last().unwrap_or_default().to_string();
    RdmaPort { number, state, gid: line(&dir.join("gids/0")), netdev, addresses }
}

/// The names in a directory. Empty if it cannot be read.
fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// The line in a sysfs file. Empty if it cannot be read.
fn line(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_string()
}

fn addresses() -> Addresses {
    let mut first = std::ptr::null_mut();
    // SAFETY: the result has room.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Vec::new();
    }
    let (mut found, mut next) = (Vec::new(), first);
    while !next.is_null() {
        // SAFETY: an entry of the list, which is not freed yet. Its name is null-terminated.
        let (entry, name) = unsafe { (&*next, CStr::from_ptr((*next).ifa_name)) };
        let address = ip(entry.ifa_addr);
        found.extend(address.map(|address| (name.to_string_lossy().into_owned(), address)));
        next = entry.ifa_next;
    }
    // SAFETY: the list is from getifaddrs, and not used after this.
    unsafe { libc::freeifaddrs(first) };
    found
}

/// Converts a socket address of C.
fn ip(at: *const libc::sockaddr) -> Option<IpAddr> {
    if at.is_null() {
        return None;
    }
    // SAFETY: an address from the system, whose family determines its type and length.
    unsafe {
        match c_int::from((*at).sa_family) {
            libc::AF_INET => {
                Some(IpAddr::from((*at.cast::<libc::sockaddr_in>()).sin_addr.s_addr.to_ne_bytes()))
            }
            libc::AF_INET6 => Some(IpAddr::from((*at.cast::<libc::sockaddr_in6>()).sin6_addr.s6_addr)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &Path, files: &[(&str, &str)]) {
        for (name, text) in files {
            let path = dir.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    #[test]
    fn devices_are_classified_by_their_sysfs_files() {
        let dir = std::env::temp_dir().join(format!("lunar-rdma-devices-{}", std::process::id()));
        _ = fs::remove_dir_all(&dir);
        write(
            &dir,
            &[
                ("siw0/node_type", "4: RNIC\n"),
                ("siw0/ports/1/state", "4: ACTIVE\n"),
                ("siw0/ports/1/gids/0", "5254:0012:3456:0000:0000:0000:0000:0000\n"),
                ("siw0/ports/1/gid_attrs/ndevs/0", "eth0\n"),
                ("siw0/ports/1/link_layer", "Ethernet\n"),
                ("mlx5_0/node_type", "1: CA\n"),
                ("mlx5_0/ports/1/link_layer", "InfiniBand\n"),
                ("mlx5_0/ports/1/state", "1: DOWN\n"),
                ("mlx5_0/ports/2/link_layer", "InfiniBand\n"),
                ("rxe0/node_type", "1: CA\n"),
                ("rxe0/ports/1/link_layer", "Ethernet\n"),
                ("odd0/node_type", "\n"),
            ],
        );
        let address: IpAddr = "10.0.2.15".parse().unwrap();
        let devices =
            devices_in(&dir, &vec![("eth0".into(), address), ("lo".into(), "::1".parse().unwrap())]);
        let kinds: Vec<_> = devices.iter().map(|d| (d.name.as_str(), d.transport, d.ports.len())).collect();
        let want = [
            ("mlx5_0", LinkTransport::InfiniBand, 2),
            ("odd0", LinkTransport::Other, 0),
            ("rxe0", LinkTransport::Roce, 1),
            ("siw0", LinkTransport::Iwarp, 1),
        ];
        assert_eq!(kinds, want);
        let port = &devices[3].ports[0];
        assert_eq!((port.state.as_str(), port.netdev.as_deref()), ("ACTIVE", Some("eth0")));
        assert_eq!((port.number, &port.addresses[..]), (1, &[address][..]));
        assert_eq!((devices[0].ports[0].state.as_str(), &devices[0].ports[0].netdev), ("DOWN", &None));
        fs::remove_dir_all(dir).unwrap();
        assert!(devices_in(Path::new("/nowhere"), &Vec::new()).is_empty());
    }

    #[test]
    fn addresses_of_this_host_have_the_loopback_among_them() {
        let loopback = addresses().into_iter().find(|(_, address)| address.is_loopback());
        assert!(loopback.is_some_and(|(name, _)| !name.is_empty()));
    }
}
