//! The files in `dist`: units of systemd, and files of packages.

use interop::tool::{self, Tool};
use interop::{Folder, lunar_bin};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

fn dist(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dist").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn unit_has_a_reason_for_each_exemption() {
    let unit = dist("lunar.service");
    let lines: Vec<&str> = unit.lines().collect();
    let exemptions = [
        "SupplementaryGroups=",
        "LimitMEMLOCK=",
        "ProtectSystem=",
        "DevicePolicy=",
        "DeviceAllow=",
        "ProtectProc=",
        "ProcSubset=",
        "RestrictAddressFamilies=",
    ];
    let found =
        lines.iter().enumerate().filter(|(_, line)| exemptions.iter().any(|key| line.starts_with(key)));
    let mut count = 0;
    for (at, line) in found {
        count += 1;
        // Lines of one reason follow each other.
        let reason = lines[..at].iter().rev().find(|line| !line.starts_with("DeviceAllow="));
        assert!(reason.is_some_and(|line| line.starts_with('#')), "no reason: {line}");
    }
    assert!(count >= exemptions.len(), "{count}");
    for line in ["Type=notify", "User=lunar", "RuntimeDirectory=lunar", "StateDirectory=lunar"] {
        assert!(lines.contains(&line), "no line {line}");
    }
}

#[test]
fn systemd_accepts_and_rates_the_unit() {
    if !tool::have(&[Tool { program: "systemd-analyze", package: "systemd" }]) {
        return;
    }
    // The path of the tested program replaces that in the unit.
    let folder = Folder::fresh();
    let unit = folder.join("lunar.service");
    let text = dist("lunar.service").replace("/usr/bin/lunar", &lunar_bin().display().to_string());
    let drop_in = folder.join("lunar.service.d");
    std::fs::create_dir_all(&drop_in).expect("a folder");
    std::fs::write(&unit, text).expect("write the unit");
    for with_devices in [false, true] {
        if with_devices {
            std::fs::write(drop_in.join("devices.conf"), dist("lunar-devices.conf"))
                .expect("write the drop-in");
        }
        let analyze = |words: &[&str]| {
            let mut command = Command::new("systemd-analyze");
            tool::run(command.args(words).arg(&unit), Duration::from_secs(60))
        };
        let verified = analyze(&["verify", "--man=no"]);
        assert!(verified.ok() && !verified.said.contains("lunar"), "{}", verified.said);
        let rated = analyze(&["security", "--offline=true", "--no-pager"]).said;
        let level = rated.lines().find_map(|line| line.split("lunar.service: ").nth(1));
        let level = level.and_then(|rest| rest.split(' ').next()).and_then(|level| level.parse::<f32>().ok());
        let limit = if with_devices { 5.0 } else { 3.5 };
        assert!(level.is_some_and(|level| level <= limit), "{level:?} of {limit}\n{rated}");
    }
}

/// The seconds after a word of a text.
fn seconds_after(text: &str, word: &str) -> u32 {
    let digits = text.split(word).nth(1).unwrap_or_else(|| panic!("no {word} in {text}"));
    let digits: String = digits.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().expect("a number")
}

/// A command that outlives its time-out would leave the result to chance.
#[test]
fn commands_for_a_target_end_before_their_unit_times_out() {
    let unit = dist("lunar-target@.service");
    let line =
        |key: &str| unit.lines().find(|line| line.starts_with(key)).unwrap_or_else(|| panic!("no {key}"));
    let limits = [
        ("ExecStart=", "TimeoutStartSec="),
        ("ExecStop=", "TimeoutStopSec="),
        ("ExecStopPost=-", "TimeoutStopSec="),
    ];
    for (command, limit) in limits {
        let (waits_s, limit_s) =
            (seconds_after(line(command), "--timeout "), seconds_after(line(limit), limit));
        assert!(waits_s < limit_s, "{command}: {waits_s} of {limit_s}");
    }
    assert!(
        line("ExecStopPost=").contains("target demote"),
        "a start that timed out leaves nothing promoted"
    );
}

#[test]
fn firewall_opens_the_default_port() {
    let service = dist("firewalld/lunar.xml");
    assert!(service.contains("<port protocol=\"tcp\" port=\"3260\"/>"), "{service}");
    let users = dist("sysusers.d/lunar.conf");
    assert!(users.lines().any(|line| line.starts_with("u lunar - ")), "{users}");
}
