//! The floors: which crate may use which, and where `unsafe` may be.

use super::Finding;
use super::project::File;
use super::source::code_only;

/// A crate of the product and the crates of the product that it may use.
const FLOORS: [(&str, &[&str]); 13] = [
    ("lunar-wire", &[]),
    ("lunar-proto", &["lunar-wire"]),
    ("lunar-scsi", &["lunar-wire"]),
    ("lunar-runtime", &["lunar-wire"]),
    ("lunar-block", &["lunar-runtime", "lunar-proto"]),
    ("lunar-rdma", &["lunar-wire", "lunar-runtime"]),
    (
        "lunar-target",
        &["lunar-wire", "lunar-proto", "lunar-scsi", "lunar-runtime", "lunar-block", "lunar-rdma"],
    ),
    ("lunar-initiator", &["lunar-wire", "lunar-proto", "lunar-runtime", "lunar-block", "lunar-rdma"]),
    ("lunar-host", &["lunar-wire", "lunar-proto", "lunar-runtime", "lunar-block"]),
    (
        "lunar-router",
        &[
            "lunar-wire",
            "lunar-proto",
            "lunar-scsi",
            "lunar-runtime",
            "lunar-block",
            "lunar-target",
            "lunar-initiator",
        ],
    ),
    (
        "lunar-server",
        &[
            "lunar-wire",
            "lunar-proto",
            "lunar-scsi",
            "lunar-runtime",
            "lunar-block",
            "lunar-target",
            "lunar-initiator",
            "lunar-router",
        ],
    ),
    (
        "lunar-bench",
        &[
            "lunar-wire",
            "lunar-proto",
            "lunar-runtime",
            "lunar-block",
            "lunar-rdma",
            "lunar-initiator",
            "lunar-server",
        ],
    ),
    (
        "lunar",
        &[
            "lunar-wire",
            "lunar-proto",
            "lunar-scsi",
            "lunar-runtime",
            "lunar-block",
            "lunar-rdma",
            "lunar-target",
            "lunar-initiator",
            "lunar-router",
            "lunar-host",
            "lunar-server",
            "lunar-bench",
        ],
    ),
];

/// Packages whose roots need not forbid `unsafe`, and why.
const MAY_BE_UNSAFE: [(&str, &str); 6] = [
    ("crates/lunar-block", "loop devices: an ioctl that names the file below one"),
    ("crates/lunar-host", "ublk: a ring of the kernel's commands and memory shared with it"),
    ("crates/lunar-runtime", "the runtime's edge: system calls that the standard library lacks"),
    ("crates/lunar-rdma", "verbs: functions and memory of rdma-core, loaded at run time"),
    ("crates/lunar-router", "sg: the kernel's SG_IO and memory that it is told of"),
    ("fuzz", "the fuzzer's macro exports a C symbol"),
];
const FORBID: &str = "#![forbid(unsafe_code)]";

/// Checks the manifests of all crates and their roots.
pub fn check(files: &[File]) -> Vec<Finding> {
    let manifests = files.iter().filter(|file| file.path.ends_with("Cargo.toml"));
    manifests.flat_map(|manifest| package(manifest, files)).collect()
}

fn package(manifest: &File, files: &[File]) -> Vec<Finding> {
    let Ok(table) = manifest.text.parse::<toml::Table>() else {
        return vec![Finding::new(&manifest.path, 1, "not TOML", "mend it")];
    };
    if !table.contains_key("package") {
        return Vec::new();
    }
    let folder = manifest.path.trim_end_matches("Cargo.toml").trim_end_matches('/');
    let mut findings = roots(&table, folder, files);
    if let Some(name) = folder.strip_prefix("crates/") {
        findings.extend(dependencies(manifest, &table, name));
    }
    findings
}

/// What stands in the manifest and not in the table.
fn dependencies(manifest: &File, table: &toml::Table, name: &str) -> Vec<Finding> {
    let Some((_, allowed)) = FLOORS.iter().find(|(floor, _)| *floor == name) else {
        let what = format!("crate {name} stands on no floor");
        return vec![Finding::new(&manifest.path, 1, what, "give it a row in xtask/src/tidy/floors.rs")];
    };
    let is_floor = |dependency: &&String| FLOORS.iter().any(|(floor, _)| floor == dependency);
    let used =
        ["dependencies", "build-dependencies"].into_iter().filter_map(|key| table.get(key)?.as_table());
    let wrong =
        used.flat_map(|used| used.keys()).filter(is_floor).filter(|dep| !allowed.contains(&dep.as_str()));
    wrong
        .map(|dependency| {
            let line = manifest.text.lines().position(|line| line.starts_with(dependency.as_str()));
            let what = format!("{name} may not use {dependency}");
            let line = line.map_or(1, |n| n + 1);
            Finding::new(&manifest.path, line, what, "arrows point down only: move the code, not the arrow")
        })
        .collect()
}

/// The roots of a package that do not forbid `unsafe`.
fn roots(table: &toml::Table, folder: &str, files: &[File]) -> Vec<Finding> {
    if MAY_BE_UNSAFE.iter().any(|(package, _)| *package == folder) {
        return Vec::new();
    }
    let bins = table.get("bin").and_then(|bins| bins.as_array()).into_iter().flatten();
    let paths = bins.filter_map(|bin| bin.get("path")?.as_str());
    let mut roots: Vec<String> =
        paths.chain(["src/lib.rs", "src/main.rs"]).map(|path| format!("{folder}/{path}")).collect();
    roots.sort_unstable();
    roots.dedup();
    let bare =
        files.iter().filter(|file| roots.contains(&file.path) && !code_only(&file.text).contains(FORBID));
    bare.map(|file| {
        let remedy = "add it, or give the package a row with its reason in xtask/src/tidy/floors.rs";
        Finding::new(&file.path, 1, format!("no {FORBID}"), remedy)
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::project::file;

    fn manifest(folder: &str, dependency: &str) -> File {
        let text = format!("[package]\nname = \"x\"\n[dependencies]\n{dependency}.workspace = true\n");
        file(&format!("{folder}/Cargo.toml"), &text)
    }

    fn whats(files: &[File]) -> Vec<(usize, String)> {
        check(files).into_iter().map(|f| (f.line, f.what)).collect()
    }

    #[test]
    fn an_arrow_upwards_is_found() {
        assert_eq!(whats(&[manifest("crates/lunar-proto", "lunar-wire")]), []);
        assert_eq!(whats(&[manifest("crates/lunar-proto", "anyhow")]), []);
        let up = [manifest("crates/lunar-proto", "lunar-runtime")];
        assert_eq!(whats(&up), [(4, "proto may not use net".to_string())]);
        assert_eq!(
            whats(&[manifest("crates/stray", "lunar-wire")]),
            [(1, "crate stray stands on no floor".to_string())]
        );
    }

    #[test]
    fn a_root_without_forbid_is_found_and_net_may_be_one() {
        let root = |folder: &str, text: &str| {
            [manifest(folder, "anyhow"), file(&format!("{folder}/src/lib.rs"), text)]
        };
        assert_eq!(whats(&root("crates/lunar-wire", FORBID)), []);
        assert_eq!(whats(&root("crates/lunar-wire", "// none")), [(1, format!("no {FORBID}"))]);
        assert_eq!(whats(&root("crates/lunar-runtime", "// none")), []);
    }
}
