//! An OCI image layout in one archive, which `docker load`, `podman load` and `skopeo` read. No daemon and no base image
//! are needed: the layer has the files of the tarball, the libraries of the program, and the user lunar.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::archive::archive;
use super::layout::{PROGRAM, PackagedFile, gzip};
use super::sizes::sha256;
use super::{Release, read};
use crate::root;

/// The user in the image, as in distroless images: no user of a host has this number.
const USER: u32 = 65532;

/// Writes the image with the files of a tarball.
pub fn write(tarball: &Path, to: &Path, release: &Release) -> Result<()> {
    let mut files = unpacked(tarball)?;
    let program = files.iter().find(|file| file.path == PROGRAM).context("the tarball has no program")?;
    files.extend(libraries(&program.bytes)?);
    files.extend(accounts());
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(fs::write(to, layout(&files, release)?)?)
}

/// The files of a tarball without its folder.
fn unpacked(tarball: &Path) -> Result<Vec<PackagedFile>> {
    let bytes = read(tarball)?;
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(bytes.as_slice()));
    let mut files = Vec::new();
    for entry in archive.entries()? {
        let mut entry = entry?;
        if !entry.header().entry_type().is_file() {
            continue;
        }
        let path = entry.path()?.display().to_string();
        let (_, path) = path.split_once('/').context("the tarball has a folder")?;
        let (path, mode) = (path.to_owned(), entry.header().mode()?);
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes)?;
        files.push(PackagedFile { path, mode, owner: 0, bytes });
    }
    Ok(files)
}

/// The shared libraries of a program, and its interpreter, from this host.
fn libraries(program: &[u8]) -> Result<Vec<PackagedFile>> {
    let copy = root::target_dir().join("dist-stage/lunar.libraries");
    fs::write(&copy, program)?;
    let output = Command::new("ldd").arg(&copy).output().context("cannot run ldd; install libc-bin")?;
    fs::remove_file(&copy)?;
    ensure!(output.status.success(), "ldd: {}", String::from_utf8_lossy(&output.stderr));
    let mut files = Vec::new();
    for path in paths(&String::from_utf8_lossy(&output.stdout)) {
        let bytes = read(Path::new(&path))?;
        files.push(PackagedFile { path: path.trim_start_matches('/').into(), mode: 0o755, owner: 0, bytes });
    }
    ensure!(!files.is_empty(), "ldd names no library");
    Ok(files)
}

/// The paths in the output of ldd.
fn paths(output: &str) -> Vec<String> {
    let path = |line: &str| line.split_whitespace().find(|word| word.starts_with('/')).map(str::to_owned);
    output.lines().filter_map(path).collect()
}

/// The user lunar, and the folders that it owns.
fn accounts() -> [PackagedFile; 5] {
    let file = |path: &str, text: String| PackagedFile {
        path: path.into(),
        mode: 0o644,
        owner: 0,
        bytes: text.into(),
    };
    let folder = |path: &str, mode, owner| PackagedFile { path: path.into(), mode, owner, bytes: Vec::new() };
    [
        folder("run/lunar/", 0o755, USER),
        folder("tmp/", 0o1777, 0),
        folder("var/lib/lunar/", 0o750, USER),
        file(
            "etc/passwd",
            format!(
                "root:x:0:0:root:/root:/sbin/nologin\nlunar:x:{USER}:{USER}:Lunar:/var/lib/lunar:/sbin/nologin\n"
            ),
        ),
        file("etc/group", format!("root:x:0:\nlunar:x:{USER}:\n")),
    ]
}

/// The layout (image-layout.md of the OCI image specification), with manifest.json for older versions of Docker.
fn layout(files: &[PackagedFile], release: &Release) -> Result<Vec<u8>> {
    let layer = archive(files, "", release.time)?;
    let compressed = gzip(&layer, release.compression())?;
    let config = serde_json::to_vec(&configuration(&sha256(&layer), release))?;
    let (config_digest, layer_digest) = (sha256(&config), sha256(&compressed));
    let blob = |kind: &str, digest: &str, size: usize| {
        json!({
            "mediaType": format!("application/vnd.oci.image.{kind}"),
            "digest": format!("sha256:{digest}"),
            "size": size,
        })
    };
    let manifest = serde_json::to_vec(&json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob("config.v1+json", &config_digest, config.len()),
        "layers": [blob("layer.v1.tar+gzip", &layer_digest, compressed.len())],
    }))?;
    let manifest_digest = sha256(&manifest);
    let tag = format!("lunar:{}", release.version);
    let mut described = blob("manifest.v1+json", &manifest_digest, manifest.len());
    described["annotations"] = json!({
        "io.containerd.image.name": format!("docker.io/library/{tag}"),
        "org.opencontainers.image.ref.name": release.version,
    });
    let index = json!({ "schemaVersion": 2, "manifests": [described] });
    let path = |digest: &str| format!("blobs/sha256/{digest}");
    let docker = json!([{
        "Config": path(&config_digest),
        "RepoTags": [tag],
        "Layers": [path(&layer_digest)],
    }]);
    let file = |path: String, bytes: Vec<u8>| PackagedFile { path, mode: 0o644, owner: 0, bytes };
    let mut all = vec![
        file(path(&config_digest), config),
        file(path(&layer_digest), compressed),
        file(path(&manifest_digest), manifest),
        file("index.json".into(), serde_json::to_vec(&index)?),
        file("manifest.json".into(), serde_json::to_vec(&docker)?),
        file("oci-layout".into(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec()),
    ];
    all.sort_by(|a, b| a.path.cmp(&b.path));
    archive(&all, "", release.time)
}

/// The configuration of the image. Its layer is uncompressed in `diff_ids`.
fn configuration(layer: &str, release: &Release) -> Value {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    json!({
        "architecture": architecture,
        "os": "linux",
        "created": humantime::format_rfc3339_seconds(std::time::UNIX_EPOCH + std::time::Duration::from_secs(release.time)).to_string(),
        "config": {
            "User": format!("{USER}:{USER}"),
            "Env": ["PATH=/usr/bin"],
            "Entrypoint": ["/usr/bin/lunar"],
            "Cmd": ["serve", "--config", "/etc/lunar/lunar.toml"],
            "ExposedPorts": { "3260/tcp": {} },
            "Volumes": { "/var/lib/lunar": {} },
            "StopSignal": "SIGTERM",
        },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{layer}")] },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    fn release() -> Release {
        Release { version: "0.1.0".into(), time: 7, out: PathBuf::new(), fast: true }
    }

    fn files() -> Vec<PackagedFile> {
        let program =
            PackagedFile { path: PROGRAM.into(), mode: 0o755, owner: 0, bytes: b"program".to_vec() };
        [program].into_iter().chain(accounts()).collect()
    }

    fn entries(bytes: &[u8]) -> BTreeMap<String, (Vec<u8>, u64)> {
        let mut archive = tar::Archive::new(bytes);
        let entries = archive.entries().expect("entries").map(|entry| {
            let mut entry = entry.expect("an entry");
            let (path, owner) = (entry.path().unwrap().display().to_string(), entry.header().uid().unwrap());
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).expect("content");
            (path, (bytes, owner))
        });
        entries.collect()
    }

    #[test]
    fn digests_of_an_image_name_its_blobs() {
        let all = entries(&layout(&files(), &release()).expect("an image"));
        let json = |path: &str| serde_json::from_slice::<Value>(&all[path].0).expect("JSON");
        let blob = |value: &Value| {
            let digest = value["digest"].as_str().expect("a digest").replace(':', "/");
            let bytes = &all[&format!("blobs/{digest}")].0;
            assert_eq!(format!("sha256/{}", sha256(bytes)), digest);
            assert_eq!(value["size"], bytes.len());
            bytes.clone()
        };
        let manifest: Value = serde_json::from_slice(&blob(&json("index.json")["manifests"][0])).unwrap();
        let config: Value = serde_json::from_slice(&blob(&manifest["config"])).unwrap();
        let mut layer = Vec::new();
        let compressed = blob(&manifest["layers"][0]);
        flate2::read::GzDecoder::new(compressed.as_slice()).read_to_end(&mut layer).expect("gzip");
        assert_eq!(config["rootfs"]["diff_ids"][0], format!("sha256:{}", sha256(&layer)));
        assert_eq!(config["created"], "1970-01-01T00:00:07Z");
        let inside = entries(&layer);
        assert_eq!(inside["usr/bin/lunar"], (b"program".to_vec(), 0));
        assert_eq!(inside["var/lib/lunar/"].1, u64::from(USER));
        let docker = json("manifest.json");
        assert!(all.contains_key(docker[0]["Config"].as_str().unwrap()));
    }

    #[test]
    fn image_of_the_same_files_has_the_same_bytes() {
        assert_eq!(layout(&files(), &release()).unwrap(), layout(&files(), &release()).unwrap());
    }

    #[test]
    fn libraries_are_read_from_the_output_of_ldd() {
        let output = "\tlinux-vdso.so.1 (0x1)\n\tlibc.so.6 => /lib/x/libc.so.6 (0x2)\n\t/lib64/ld.so (0x3)\n";
        assert_eq!(paths(output), ["/lib/x/libc.so.6", "/lib64/ld.so"]);
    }
}
