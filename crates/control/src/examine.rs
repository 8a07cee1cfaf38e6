//! A look at what a configuration would open, which changes nothing: `lunar check --media`.

use crate::build::{
    Name, Past, cannot_open, holders, load, notes_of_size, of_lun, settings, spec, state_path,
};
use crate::config::router::UpstreamSource;
use crate::config::{Config, Lun, Router};
use crate::routes::{Found, expand};
use crate::{Cause, Problem, io_text};
use block::{Facts, Spec};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// What is wrong with the media and the state files of a configuration, and what is only to be known. State
/// is below `state_dir`. Of upstreams those of this host are looked at.
pub fn examine(config: &Config, state_dir: &Path) -> (Vec<Problem>, Vec<String>) {
    let whole = match expand(config, &Found::default()) {
        Ok(whole) => whole,
        Err(problems) => return (problems, Vec::new()),
    };
    let (mut problems, mut notes): (Vec<Problem>, _) =
        (config.routers.iter().flat_map(devices).collect(), Vec::new());
    for target in &whole.targets {
        for (number, lun) in &target.luns {
            let name = (target.name.clone(), *number);
            let mut note = |text: String| notes.push(format!("LUN {} of {}: {text}", name.1, name.0));
            if let Err(problem) = one(&name, lun, config.max_registrants, state_dir, &mut note) {
                problems.push(of_lun(&name, problem));
            }
        }
    }
    (problems, notes)
}

/// What is wrong with the SCSI devices of a router.
fn devices(router: &Router) -> Vec<Problem> {
    let look = |(name, path): (&String, &Path)| {
        let of_upstream = |what: String, hint: &str| {
            let place = format!("upstream {name} of router {}: {}", router.name, path.display());
            Problem::new(format!("{place}: {what}"), hint)
        };
        match path.metadata() {
            Ok(found) if found.file_type().is_char_device() => None,
            Ok(_) => {
                Some(of_upstream("no SCSI generic device".into(), "lsscsi -g lists them: /dev/sg0 and so on"))
            }
            Err(e) => {
                let hint = "lsscsi -g lists what there is; modprobe sg brings them up";
                Some(of_upstream(io_text(&e), hint).because(Cause::of(e.kind())))
            }
        }
    };
    let upstreams = router.upstreams.iter().filter_map(|(name, upstream)| match &upstream.source {
        UpstreamSource::Sg { path } => Some((name, path.as_path())),
        _ => None,
    });
    upstreams.filter_map(look).collect()
}

fn one(
    name: &Name,
    lun: &Lun,
    max_registrants: usize,
    state_dir: &Path,
    note: &mut impl FnMut(String),
) -> Result<(), Problem> {
    let Some(spec) = spec(lun) else { return Ok(()) };
    let state_file = state_path(state_dir, name, lun);
    let past = Past::read(&state_file)?;
    let found = block::examine(&Spec { raw: spec.raw || past.is_raw(lun), ..spec.clone() });
    let found = found.map_err(|e| cannot_open(lun, e))?;
    let path = spec.path.display();
    if let Some(in_use) = &found.in_use {
        note(format!("{path} {in_use}"));
    }
    // What is to be made gets the size that was asked for.
    let capacity = found.size.or(spec.size).unwrap_or_default();
    let facts = Facts { capacity, read_only: spec.read_only, unmap: true, null: false, stable: false };
    let blocks = past.blocks(lun, found.block_size);
    let lun = &Lun { block_size: blocks.bytes(), ..lun.clone() };
    let settings = settings(name, lun, facts, max_registrants)?;
    let notes = blocks.note().into_iter().chain(notes_of_size(lun, capacity));
    notes.chain(holders(state_dir, name, lun)).for_each(note);
    load(settings, &state_file).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;
    use crate::config::tests::Folder;

    /// Problems and notes, without the folder.
    fn told(folder: &Folder, keys: &str) -> (String, String) {
        let head =
            "[[target]]\nname = \"iqn.2026-11.org.example:d\"\n[[target.lun]]\nlun = 0\nbackend = \"file\"\n";
        let config = parse(&format!("{head}{keys}"), &folder.0.join("t.toml"));
        let config = config.map_err(|list| list[0].to_string()).unwrap();
        let (problems, notes) = examine(&config, &folder.0.join("state"));
        let problems: Vec<String> = problems.into_iter().map(|problem| problem.what).collect();
        let plain = |list: Vec<String>| {
            let text = list.join("\n").replace("LUN 0 of iqn.2026-11.org.example:d: ", "");
            text.replace(&format!("{}/", folder.0.display()), "")
        };
        (plain(problems), plain(notes))
    }

    #[test]
    fn each_medium_is_told_as_it_is() {
        let folder = Folder::new("examine");
        folder.file("odd.img", vec![0; 5000], 0o600);
        folder.file("small.img", vec![0; 1000], 0o600);
        folder.file("image.vhdx", [&b"vhdxfile"[..], &[0; 4088]].concat(), 0o600);
        let cases = [
            ("path = \"image.vhdx\"", "image.vhdx: is a disk image in the format VHDX, not raw", ""),
            ("path = \"image.vhdx\"\nformat = \"raw\"", "", ""),
            ("path = \"new.img\"\nsize = \"1M\"", "", ""),
            ("path = \"none.img\"", "none.img: no such file or directory", ""),
            ("path = \"none/none.img\"\nsize = \"1M\"", "none/none.img: no such file or directory", ""),
            (
                "path = \"odd.img\"",
                "",
                "the last 392 bytes are less than a block of 512 and cannot be reached",
            ),
            (
                "path = \"small.img\"\nblock_size = 4096",
                "the medium has 1000 bytes, less than a block of 4096",
                "",
            ),
            (
                "path = \"small.img\"\nsize = \"1M\"",
                "",
                "the last 488 bytes are less than a block of 512 and cannot be reached\n\
                 small.img is there and keeps its 1000 bytes; the size asked for is 1 MiB",
            ),
        ];
        for (keys, problems, notes) in cases {
            assert_eq!(told(&folder, keys), (problems.into(), notes.into()), "{keys}");
        }
        assert!(!folder.0.join("new.img").exists() && !folder.0.join("state").exists(), "nothing is made");
    }

    #[test]
    fn upstreams_of_this_host_are_looked_at() {
        let folder = Folder::new("examine-upstreams");
        folder.file("odd.img", vec![0; 5000], 0o600);
        let source = "[router.r.upstream]\na.file = \"none.img\"\nb.file = \"odd.img\"\n\
            c = { sg = \"odd.img\", path = \"pass\" }\nd = { sg = \"none\", path = \"pass\" }\n\
            e = { sg = \"/dev/null\", path = \"pass\" }\nf.urls = [\"iscsi://192.0.2.1/iqn.x:t/0\"]\n\
            [[router.r.target]]\nmap = \"lun\"\nname = \"iqn.2026-11.org.example:d\"\naccess = \"all\"\n\
            lun = [{ lun = 0, upstream = \"a\" }, { lun = 1, upstream = \"b\" }, { lun = 2, upstream = \"f\" }]\n";
        let config = parse(source, &folder.0.join("t.toml")).map_err(|list| list[0].to_string()).unwrap();
        let (problems, notes) = examine(&config, &folder.0.join("state"));
        let plain = |text: &str| text.replace(&format!("{}/", folder.0.display()), "");
        let problems: Vec<String> = problems.iter().map(|problem| plain(&problem.what)).collect();
        let none = "LUN 0 of iqn.2026-11.org.example:d: none.img: no such file or directory";
        let [file, gone] = [
            "c of router r: odd.img: no SCSI generic device",
            "d of router r: none: no such file or directory",
        ];
        assert_eq!(problems, [format!("upstream {file}"), format!("upstream {gone}"), none.to_owned()]);
        assert_eq!(notes.len(), 1, "{notes:?}");
        assert!(notes[0].starts_with("LUN 1 of iqn.2026-11.org.example:d: the last 392 bytes"), "{notes:?}");
    }

    #[test]
    fn the_remedy_is_one_that_an_upstream_can_have_and_a_server_says_the_same() {
        let folder = Folder::new("examine-remedies");
        folder.file("file.img", vec![0; 4096], 0o600);
        folder.file("empty.img", "", 0o600);
        let state = folder.0.join("state");
        for (key, path, hint) in [
            ("file", "none.img", "check the path, or make the file: truncate -s 1G none.img"),
            ("file", "empty.img", "give it a size: truncate -s 1G empty.img"),
            ("device", "none.img", "check the path; lsblk lists the disks"),
            ("device", "file.img", "write `file` instead of `device`"),
        ] {
            let source = format!(
                "[router.r.upstream]\na.{key} = \"{path}\"\n[[router.r.target]]\nmap = \"lun\"\n\
                 name = \"iqn.2026-11.org.example:d\"\naccess = \"all\"\nlun = [{{ lun = 0, upstream = \"a\" }}]\n"
            );
            let config =
                parse(&source, &folder.0.join("t.toml")).map_err(|list| list[0].to_string()).unwrap();
            let (problems, _) = examine(&config, &state);
            let told = problems[0].hint.as_deref().unwrap_or_default();
            assert_eq!(told.replace(&format!("{}/", folder.0.display()), ""), hint);
            let whole = expand(&config, &Found::default()).unwrap();
            let served = crate::Units::new(&state).setup(&whole, &|_| Ok(Vec::new()));
            assert_eq!(served.err().as_ref().map(|list| &list[0].what), Some(&problems[0].what));
        }
    }

    #[test]
    fn a_medium_in_use_is_no_mistake_and_damaged_state_is() {
        let folder = Folder::new("examine-use");
        let disk = folder.file("disk.img", vec![0; 8192], 0o600);
        let held = block::open(&block::Spec::path(&disk)).unwrap();
        let in_use = "disk.img is in use by another server";
        assert_eq!(told(&folder, "path = \"disk.img\""), (String::new(), in_use.into()));
        drop(held);
        let lu = folder.0.join("state/lu/iqn.2026-11.org.example:d");
        crate::create_folder(&lu).unwrap();
        std::fs::write(lu.join("0.state"), "no state of ours").unwrap();
        let damaged = "the saved state state/lu/iqn.2026-11.org.example:d/0.state is damaged: \
            not the saved state of a logical unit";
        assert_eq!(told(&folder, "path = \"disk.img\""), (damaged.into(), String::new()));
    }
}
