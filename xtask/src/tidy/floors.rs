//! The layers: which crate may use which, and where `unsafe` is allowed.

use super::TidyFinding;
use super::project::SourceFile;
use std::collections::BTreeMap;

/// A crate of the product, and the crates of the product that it may link directly or transitively.
const FLOORS: [(&str, &[&str]); 22] = [
    ("lunar-wire", &[]),
    ("lunar-proto", &["lunar-wire"]),
    ("lunar-import", &["lunar-wire", "lunar-proto"]),
    ("lunar-scsi", &["lunar-wire"]),
    ("lunar-runtime", &["lunar-wire"]),
    ("lunar-block", &["lunar-wire", "lunar-proto", "lunar-runtime"]),
    ("lunar-nbd", &["lunar-wire", "lunar-proto", "lunar-runtime", "lunar-block"]),
    ("lunar-copy", &["lunar-wire", "lunar-proto", "lunar-runtime", "lunar-block"]),
    ("lunar-rdma", &["lunar-wire", "lunar-runtime"]),
    ("lunar-config", &["lunar-wire", "lunar-proto", "lunar-runtime"]),
    ("lunar-admin", &["lunar-wire", "lunar-proto", "lunar-runtime", "lunar-config"]),
    ("lunar-api", &["lunar-wire", "lunar-proto", "lunar-runtime", "lunar-config", "lunar-admin"]),
    (
        "lunar-target",
        &["lunar-wire", "lunar-proto", "lunar-scsi", "lunar-runtime", "lunar-block", "lunar-rdma"],
    ),
    ("lunar-initiator", &["lunar-wire", "lunar-proto", "lunar-runtime", "lunar-block", "lunar-rdma"]),
    ("lunar-host", &["lunar-wire", "lunar-proto", "lunar-runtime", "lunar-block"]),
    (
        "lunar-gateway",
        &[
            "lunar-wire",
            "lunar-proto",
            "lunar-scsi",
            "lunar-runtime",
            "lunar-block",
            "lunar-rdma",
            "lunar-target",
        ],
    ),
    (
        "lunar-router",
        &[
            "lunar-wire",
            "lunar-proto",
            "lunar-scsi",
            "lunar-runtime",
            "lunar-block",
            "lunar-rdma",
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
            "lunar-rdma",
            "lunar-target",
            "lunar-initiator",
            "lunar-router",
            "lunar-gateway",
            "lunar-config",
            "lunar-admin",
            "lunar-api",
        ],
    ),
    (
        "lunar-bench",
        &[
            "lunar-wire",
            "lunar-proto",
            "lunar-runtime",
            "lunar-block",
            "lunar-nbd",
            "lunar-rdma",
            "lunar-initiator",
        ],
    ),
    (
        "lunar-bench-compat",
        &[
            "lunar-wire",
            "lunar-proto",
            "lunar-runtime",
            "lunar-block",
            "lunar-nbd",
            "lunar-rdma",
            "lunar-initiator",
            "lunar-bench",
        ],
    ),
    (
        "lunar-experiments",
        &[
            "lunar-wire",
            "lunar-proto",
            "lunar-runtime",
            "lunar-block",
            "lunar-nbd",
            "lunar-rdma",
            "lunar-initiator",
            "lunar-bench",
            "lunar-bench-compat",
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
            "lunar-nbd",
            "lunar-copy",
            "lunar-rdma",
            "lunar-target",
            "lunar-initiator",
            "lunar-router",
            "lunar-gateway",
            "lunar-host",
            "lunar-import",
            "lunar-config",
            "lunar-admin",
            "lunar-api",
            "lunar-server",
            "lunar-bench",
            "lunar-bench-compat",
            "lunar-experiments",
        ],
    ),
];

/// Packages that need not forbid `unsafe`, with the reason.
const MAY_BE_UNSAFE: [(&str, &str); 7] = [
    ("crates/lunar-block", "loop devices: an ioctl that names the file below one"),
    ("crates/lunar-host", "ublk: a ring of the kernel's commands and memory shared with it"),
    ("crates/lunar-runtime", "the runtime's edge: system calls that the standard library lacks"),
    ("crates/lunar-rdma", "verbs: functions and memory of rdma-core, loaded at run time"),
    ("crates/lunar-router", "sg: the kernel's SG_IO, and memory that is passed to it"),
    ("crates/lunar-server", "descriptors that the service manager passed: only their numbers are known"),
    ("fuzz", "the fuzzer's macro exports a C symbol"),
];
const FORBID: &str = "#![forbid(unsafe_code)]";

/// Checks the manifests of all crates, and their roots.
pub fn check(files: &[SourceFile]) -> Vec<TidyFinding> {
    let manifests: Vec<&SourceFile> = files.iter().filter(|file| file.path.ends_with("Cargo.toml")).collect();
    let links = manifests.iter().filter_map(|manifest| links(manifest)).collect();
    manifests.iter().flat_map(|manifest| package(manifest, &links, files)).collect()
}

/// For each crate of the product, the product crates in its manifest.
type DependencyMap = BTreeMap<String, Vec<String>>;

/// The name of a crate, from the path of its manifest.
fn crate_name(manifest: &SourceFile) -> Option<&str> {
    manifest.path.strip_prefix("crates/")?.strip_suffix("/Cargo.toml")
}

fn links(manifest: &SourceFile) -> Option<(String, Vec<String>)> {
    let table = manifest.text.parse::<toml::Table>().ok()?;
    let sections =
        ["dependencies", "build-dependencies"].into_iter().filter_map(|key| table.get(key)?.as_table());
    let is_floor = |dependency: &&String| FLOORS.iter().any(|(floor, _)| floor == dependency);
    let linked = sections.flat_map(|section| section.keys()).filter(is_floor).cloned().collect();
    Some((crate_name(manifest)?.to_owned(), linked))
}

fn package(manifest: &SourceFile, links: &DependencyMap, files: &[SourceFile]) -> Vec<TidyFinding> {
    let Ok(table) = manifest.text.parse::<toml::Table>() else {
        return vec![TidyFinding::new(&manifest.path, 1, "not TOML", "fix it")];
    };
    if !table.contains_key("package") {
        return Vec::new();
    }
    let folder = manifest.path.trim_end_matches("Cargo.toml").trim_end_matches('/');
    let mut findings = roots(&table, folder, files);
    if let Some(name) = crate_name(manifest) {
        findings.extend(dependencies(manifest, links, name));
    }
    findings
}

/// Crates that a crate links and its row does not allow.
fn dependencies(manifest: &SourceFile, links: &DependencyMap, name: &str) -> Vec<TidyFinding> {
    let Some((_, allowed)) = FLOORS.iter().find(|(floor, _)| *floor == name) else {
        let what = format!("crate {name} has no floor");
        return vec![TidyFinding::new(&manifest.path, 1, what, "give it a row in xtask/src/tidy/floors.rs")];
    };
    let wrong = closure(links, name).into_iter().filter(|(linked, _)| !allowed.contains(&linked.as_str()));
    wrong
        .map(|(linked, direct)| {
            let line = manifest.text.lines().position(|line| line.starts_with(direct.as_str()));
            let through = if linked == direct { String::new() } else { format!(" through {direct}") };
            let what = format!("{name} may not link {linked}{through}");
            let line = line.map_or(1, |n| n + 1);
            TidyFinding::new(
                &manifest.path,
                line,
                what,
                "arrows point down only: move the code, not the arrow",
            )
        })
        .collect()
}

/// Every crate that a crate links, with the direct dependency that leads to it.
fn closure(links: &DependencyMap, name: &str) -> BTreeMap<String, String> {
    let direct = links.get(name).map(Vec::as_slice).unwrap_or_default();
    let mut found: BTreeMap<String, String> = direct.iter().map(|one| (one.clone(), one.clone())).collect();
    let mut open: Vec<(String, String)> = found.clone().into_iter().collect();
    while let Some((linked, direct)) = open.pop() {
        for next in links.get(&linked).into_iter().flatten() {
            if !found.contains_key(next) {
                found.insert(next.clone(), direct.clone());
                open.push((next.clone(), direct.clone()));
            }
        }
    }
    found
}

/// Roots of a package that do not forbid `unsafe`.
fn roots(table: &toml::Table, folder: &str, files: &[SourceFile]) -> Vec<TidyFinding> {
    if MAY_BE_UNSAFE.iter().any(|(package, _)| *package == folder) {
        return Vec::new();
    }
    let bins = table.get("bin").and_then(|bins| bins.as_array()).into_iter().flatten();
    let paths = bins.filter_map(|bin| bin.get("path")?.as_str());
    let mut roots: Vec<String> =
        paths.chain(["src/lib.rs", "src/main.rs"]).map(|path| format!("{folder}/{path}")).collect();
    roots.sort_unstable();
    roots.dedup();
    let bare = files.iter().filter(|file| roots.contains(&file.path) && !file.code().contains(FORBID));
    bare.map(|file| {
        let remedy = "add it, or give the package a row with its reason in xtask/src/tidy/floors.rs";
        TidyFinding::new(&file.path, 1, format!("no {FORBID}"), remedy)
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::project::file;

    fn manifest(folder: &str, dependency: &str) -> SourceFile {
        let text = format!("[package]\nname = \"x\"\n[dependencies]\n{dependency}.workspace = true\n");
        file(&format!("{folder}/Cargo.toml"), &text)
    }

    fn whats(files: &[SourceFile]) -> Vec<(usize, String)> {
        check(files).into_iter().map(|f| (f.line, f.what)).collect()
    }

    #[test]
    fn direct_dependency_upwards_is_reported() {
        assert_eq!(whats(&[manifest("crates/lunar-proto", "lunar-wire")]), []);
        assert_eq!(whats(&[manifest("crates/lunar-proto", "anyhow")]), []);
        let up = [manifest("crates/lunar-proto", "lunar-runtime")];
        assert_eq!(whats(&up), [(4, "lunar-proto may not link lunar-runtime".to_string())]);
        assert_eq!(
            whats(&[manifest("crates/stray", "lunar-wire")]),
            [(1, "crate stray has no floor".to_string())]
        );
    }

    #[test]
    fn dependency_upwards_through_another_crate_is_reported() {
        let files = [
            manifest("crates/lunar-bench", "lunar-initiator"),
            manifest("crates/lunar-initiator", "lunar-block"),
            manifest("crates/lunar-block", "lunar-scsi"),
        ];
        let through = |name: &str, direct: &str| (4, format!("{name} may not link lunar-scsi{direct}"));
        assert_eq!(
            whats(&files),
            [
                through("lunar-bench", " through lunar-initiator"),
                through("lunar-initiator", " through lunar-block"),
                through("lunar-block", ""),
            ]
        );
    }

    #[test]
    fn dependency_cycle_ends_the_walk() {
        let files =
            [manifest("crates/lunar-proto", "lunar-wire"), manifest("crates/lunar-wire", "lunar-proto")];
        assert_eq!(whats(&files).len(), 3, "{:?}", whats(&files));
    }

    #[test]
    fn root_without_forbid_is_reported_unless_allowed() {
        let root = |folder: &str, text: &str| {
            [manifest(folder, "anyhow"), file(&format!("{folder}/src/lib.rs"), text)]
        };
        assert_eq!(whats(&root("crates/lunar-wire", FORBID)), []);
        assert_eq!(whats(&root("crates/lunar-wire", "// none")), [(1, format!("no {FORBID}"))]);
        assert_eq!(whats(&root("crates/lunar-runtime", "// none")), []);
    }
}
