//! Initiators of other projects (libiscsi's conformance tests and tools, and QEMU's) with `lunar serve`, and targets of
//! other projects with the commands that use targets.
#![forbid(unsafe_code)]

mod fio;
mod hosts_page;
mod ipxe;
mod iscsi_test_cu;
mod libiscsi_tools;
mod qemu;
mod reproduce;
mod router;
mod schemathesis;
mod targets;

use interop::{Server, TARGET};

/// The LUNs of [`server`] except LUN 0, by their special property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lun {
    Thin = 1,
    Removable = 2,
    ReadOnly = 3,
    Slow = 4,
    Small = 5,
}

const CHAP_USER: &str = "alice";
const CHAP_SECRET: &str = "alice-secret-12";

/// A server with two portals and a LUN of each kind; `tables` are added to its configuration.
fn server_with(tables: &str) -> Server {
    let lun =
        |lun: Lun, keys: &str| format!("[[target.lun]]\nlun = {}\nbackend = \"memory\"\n{keys}\n", lun as u8);
    let luns = [
        lun(Lun::Thin, "size = \"64MiB\"\nthin = true"),
        lun(Lun::Removable, "size = \"64MiB\"\nremovable = true"),
        lun(Lun::ReadOnly, "size = \"64MiB\"\nread_only = true"),
        lun(Lun::Slow, "size = \"64MiB\"\nfilters = [{ kind = \"delay\", write_us = 200000 }]"),
        lun(Lun::Small, "size = \"16MiB\"\nphysical_block_size = 512"),
    ];
    Server::start(&format!(
        "[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\", \"127.0.0.1:0\"]\n\
         [[target]]\nname = \"{TARGET}\"\n\
         [[target.lun]]\nlun = 0\nbackend = \"null\"\nsize = \"1GiB\"\n{}{tables}",
        luns.concat()
    ))
}

fn server() -> Server {
    server_with("")
}

/// As [`server`], for CHAP user [`CHAP_USER`] alone.
fn chap_server() -> Server {
    let dir = interop::Folder::fresh();
    let file = dir.join("alice.secret");
    std::fs::write(&file, CHAP_SECRET).expect("write a secret");
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("mode");
    server_with(&format!(
        "[[target.access]]\nchap = [\"{CHAP_USER}\"]\n\
         [[chap_user]]\nname = \"{CHAP_USER}\"\nsecret_file = \"{}\"\n",
        file.display()
    ))
}

/// The URL of a LUN at a portal of the server.
fn url(server: &Server, portal: usize, lun: Lun) -> String {
    format!("iscsi://{}/{TARGET}/{}", server.portals()[portal], lun as u8)
}
