//! The service and its package under systemd itself.

mod clients;

use interop::machine::Machine;
use interop::tool::{self, Tool};
use interop::{TARGET, lunar_bin};
use std::fs;
use std::path::{Path, PathBuf};

/// The package to install: `cargo xtask test dist` sets it.
const PACKAGE: &str = "LUNAR_DEB";

fn toml(luns: u16) -> String {
    let luns: String = (0..luns)
        .map(|lun| format!("[[target.lun]]\nlun = {lun}\nbackend = \"memory\"\nsize = \"64M\"\n"))
        .collect();
    format!(
        "[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:3260\"]\n[[target]]\nname = \"{TARGET}\"\n{luns}"
    )
}

/// Two disks in files.
fn disks() -> String {
    let lun = |lun: &str| {
        format!(
            "[[target.lun]]\nlun = {lun}\nbackend = \"file\"\npath = \"/var/lib/lunar/{lun}.img\"\nsize = \"64M\"\n"
        )
    };
    toml(0) + &lun("0") + &lun("1")
}

fn dist(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dist").join(name);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// A machine that runs the service with this configuration.
fn service(toml: &str) -> Option<Machine> {
    let files = [
        ("usr/lib/systemd/system/lunar.service", &*dist("lunar.service")),
        ("usr/lib/sysusers.d/lunar.conf", &*dist("sysusers.d/lunar.conf")),
        ("etc/lunar/lunar.toml", toml),
    ];
    let machine = Machine::start(&files, Some(&lunar_bin()))?;
    machine.shell("systemd-sysusers lunar.conf; chgrp lunar /etc/lunar; systemctl start lunar.service");
    Some(machine)
}

#[test]
fn restarts_fail_no_command_of_libiscsi_and_lunar() {
    if !tool::have(&clients::TOOLS) {
        return;
    }
    let Some(machine) = service(&disks()) else { return };
    let first = machine.property("MainPID");
    clients::run_during(&machine, "systemctl restart lunar; systemctl restart lunar");
    assert_ne!(machine.property("MainPID"), first);
}

#[test]
fn service_starts_reloads_and_restarts_under_systemd() {
    let Some(machine) = service(&toml(1)) else { return };
    assert_eq!(machine.property("StatusText"), "1 target, 1 LUN, 0 sessions");
    assert_eq!(machine.property("NFileDescriptorStore"), "1");
    // Root finds the server although XDG_RUNTIME_DIR names another folder.
    assert_eq!(machine.must(&["lunar", "session", "list"]), "no sessions\n");
    let owner = machine.must(&["stat", "--format", "%U %a", "/run/lunar", "/var/lib/lunar"]);
    assert_eq!(owner, "lunar 755\nlunar 750\n");

    machine.configure(&toml(2));
    machine.must(&["systemctl", "reload", "lunar.service"]);
    assert_eq!(machine.property("StatusText"), "1 target, 2 LUNs, 0 sessions");
    // The sandbox lets the API write its own folder.
    machine.shell(
        "mkdir -p /etc/lunar/lunar.d; install -d -m 0700 -o lunar -g lunar /etc/lunar/lunar.d/api
         systemctl restart lunar.service",
    );
    machine.must(&["lunar", "lun", "add", TARGET, "memory:1M"]);
    assert_eq!(machine.property("StatusText"), "1 target, 3 LUNs, 0 sessions");
    machine.must(&["lunar", "lun", "remove", TARGET, "2"]);
    machine.configure("[sever]");
    assert!(!machine.run(&["systemctl", "reload", "lunar.service"]).ok(), "a mistake fails the reload");
    assert_eq!(machine.property("ActiveState"), "active");
    machine.configure(&toml(2));

    // While the service restarts, the port is always open. A stop may cut a login that has begun.
    let said = machine.shell(
        "(for i in 1 2 3 4 5 6 7 8 9; do lunar discover 127.0.0.1 || true; done) 2>&1 & found=$!
         for i in 1 2 3; do systemctl restart lunar.service; done; wait $found",
    );
    assert!(!said.contains("refused"), "{said}");
    assert!(said.matches(TARGET).count() >= 6, "{said}");
    assert_eq!(machine.property("NFileDescriptorStore"), "1");
    machine.must(&["systemctl", "stop", "lunar.service"]);
    assert_eq!(machine.property("NFileDescriptorStore"), "0", "a stop closes the sockets");
    assert_eq!(machine.property("Result"), "success");
}

#[test]
fn package_is_installed_used_upgraded_and_removed() {
    let Some(package) = std::env::var_os(PACKAGE).map(PathBuf::from) else {
        return println!("skipped: needs {PACKAGE} (cargo xtask test dist)");
    };
    if !tool::have(&clients::TOOLS) || !tool::have(&[Tool { program: "dpkg", package: "dpkg" }]) {
        return;
    }
    let Some(machine) = Machine::start(&[], None) else { return };
    machine.copy(&package, "lunar.deb");
    // Without the file, man-db does not index all manual pages of this host.
    machine.shell("rm -f /var/lib/man-db/auto-update; dpkg --install /run/lunar.deb");
    assert_eq!(machine.property("ActiveState"), "inactive", "an installation starts nothing");
    assert_eq!(machine.must(&["stat", "--format", "%U %G %a", "/etc/lunar"]), "root lunar 750\n");
    assert_eq!(
        machine.must(&["stat", "--format", "%U %G %a", "/etc/lunar/lunar.d/api"]),
        "lunar lunar 700\n"
    );

    machine.configure(&disks());
    // Secrets of the service must not stop the upgrade, which root runs.
    machine.shell(
        "umask 077; cd /etc/lunar; openssl rand -hex 16 >host.secret; chown lunar: host.secret
         printf '[[chap_user]]\\nname = \"host\"\\nsecret_file = \"host.secret\"\\n' >lunar.d/host.toml
         chgrp lunar lunar.d/host.toml; chmod 640 lunar.d/host.toml; lunar check lunar.toml",
    );
    machine.shell("lunar check --media /etc/lunar/lunar.toml; systemctl enable --now lunar");
    assert_eq!(machine.property("StatusText"), "1 target, 2 LUNs, 0 sessions");
    let first = machine.property("MainPID");

    // An upgrade under I/O: no command fails, and the new process serves.
    clients::run_during(&machine, "dpkg --install /run/lunar.deb");
    let second = machine.property("MainPID");
    assert_ne!(first, second);
    assert_eq!(machine.property("ActiveState"), "active");

    // A file that the new program rejects leaves the old process.
    machine.configure("[sever]");
    let said = machine.shell("dpkg --install /run/lunar.deb 2>&1");
    assert!(said.contains("hint: ") && said.contains("lunar.service keeps the old program"), "{said}");
    assert_eq!(machine.property("MainPID"), second);

    machine.shell("dpkg --remove lunar");
    assert!(!machine.run(&["pgrep", "-x", "lunar"]).ok(), "removal stops the service");
    machine
        .shell("dpkg --purge lunar; test -s /etc/lunar/lunar.toml; test -s /var/lib/lunar/0.img; id lunar");
    assert!(!machine.run(&["test", "-e", "/usr/bin/lunar"]).ok());
}
