use super::*;
use crate::config::load_without_secrets;
use crate::config::tests::Folder;

const A: &str = "iqn.2026-11.org.example:a";

/// A configuration with these files.
fn config(files: &[(&str, &str)]) -> (Folder, Config) {
    let folder = Folder::new("adopt");
    std::fs::create_dir_all(folder.0.join("lunar.d/api")).unwrap();
    for (name, text) in files {
        folder.file(name, text, 0o600);
    }
    let config = load_without_secrets(&folder.0.join("lunar.toml"));
    (folder, config.map_err(|list| list[0].to_string()).unwrap())
}

fn steps(config: &Config, objects: &BTreeSet<ObjectId>) -> Vec<AdoptStep> {
    adopt(config, objects).map_err(|list| list[0].to_string()).unwrap()
}

/// The new files of a step by their names.
fn new_files(step: &AdoptStep) -> Vec<(String, &str)> {
    let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    step.new_files.iter().map(|new| (name(&new.path), new.text.as_deref().unwrap())).collect()
}

#[test]
fn comments_of_an_object_move_and_all_others_stay() {
    let main = "# The configuration of this host\n\n# Do not touch\n[server]\ncores = 1 # one\n\n\
        # About the users\n\n# Ann of the lab\n[[chap_user]] # lab\nname = \"ann\"\n# her secret\n\
        secret_file = \"ann.secret\" # private\n\n# Bob\n[[chap_user]]\nname = \"bob\"\nsecret_file = 'bob.secret'\n\n\
        [[target]]\nname = \"iqn.2026-11.org.example:a\"\n# the end\n";
    let (folder, config) = config(&[("lunar.toml", main)]);
    let steps = steps(&config, &[ObjectId::ChapUser("ann".into())].into());
    let [step] = &steps[..] else { panic!("{steps:?}") };
    let rest = main.replace(
        "# Ann of the lab\n[[chap_user]] # lab\nname = \"ann\"\n# her secret\nsecret_file = \"ann.secret\" # private\n\n",
        "",
    );
    assert_eq!(step.after, rest);
    let moved = "# CHAP user ann, written by the API of Lunar. Edit it freely, and run `lunar reload`.\n\
        # Ann of the lab\n[[chap_user]] # lab\nname = \"ann\"\n# her secret\nsecret_file = \"ann.secret\" # private\n";
    assert_eq!(new_files(step), [("chap_user-ann-49915e0d.toml".to_owned(), moved)]);
    assert_eq!(step.file, folder.0.canonicalize().unwrap().join("lunar.toml"));
    assert_eq!(step.objects, [(ObjectId::ChapUser("ann".into()), 10)]);
}

#[test]
fn target_becomes_one_file_for_each_object() {
    let main = "[[target]]\nname = \"iqn.2026-11.org.example:a\"\nalias = \"A\"\n\n# The first disk\n\
        [[target.lun]]\nlun = 0\nbackend = \"null\"\nsize = \"1M\"\n# serial = \"old\"\n\n[[target.lun.filters]]\n\
        kind = \"stats\"\n\n[[target.lun]]\nlun = 1\nsize = 4096\nbackend = \"null\"\n\n\
        [[target.access]]\ninitiators = [\"iqn.a\"]\n[[target.access]]\ninitiators = [\"iqn.b\"] # the guest\n\n\
        # The other\n[[target]]\nname = \"iqn.2026-11.org.example:b\"\n";
    let (_folder, config) = config(&[("lunar.toml", main)]);
    let named = adoptable(&config, &[ObjectId::Target(A.into())]).unwrap();
    assert_eq!(named.len(), 5);
    let steps = steps(&config, &named);
    let [step] = &steps[..] else { panic!("{steps:?}") };
    assert_eq!(step.after, "# The other\n[[target]]\nname = \"iqn.2026-11.org.example:b\"\n");
    let files = new_files(step);
    let texts: Vec<&str> = files.iter().map(|(_, text)| text.split_once('\n').unwrap().1).collect();
    assert_eq!(
        texts,
        [
            "[[target]]\nalias = \"A\"\nname = \"iqn.2026-11.org.example:a\"\n",
            "# The first disk\n[[lun]]\ntarget = \"iqn.2026-11.org.example:a\"\nlun = 0\nbackend = \"null\"\n\
             size = \"1M\"\n# serial = \"old\"\n\n[[lun.filters]]\nkind = \"stats\"\n",
            "[[lun]]\nbackend = \"null\"\nlun = 1\nsize = 4096\ntarget = \"iqn.2026-11.org.example:a\"\n",
            "[[access]]\ninitiators = [\"iqn.a\"]\ntarget = \"iqn.2026-11.org.example:a\"\n",
            "[[access]]\ntarget = \"iqn.2026-11.org.example:a\"\ninitiators = [\"iqn.b\"] # the guest\n",
        ]
    );
    assert!(files[1].0.starts_with("lun-iqn.2026-11.org.example-a-0-"), "{}", files[1].0);
    assert!(files[3].0.ends_with("-000000-999999-000001.toml") && files[4].0.ends_with("-000002.toml"));
}

#[test]
fn entries_of_several_files_keep_their_order_in_each_step() {
    let entry =
        |initiator: &str| format!("[[access]]\ntarget = \"{A}\"\ninitiators = [\"iqn.{initiator}\"]\n");
    let own =
        format!("[[target]]\nname = \"{A}\"\naccess = [{{ initiators = [\"iqn.own\"] }}]\n{}", entry("b2"));
    let files = [
        ("lunar.toml", entry("main")),
        ("lunar.d/a.toml", entry("a")),
        ("lunar.d/b.toml", own),
        ("lunar.d/c.toml", entry("c1") + &entry("c2")),
        ("lunar.d/api/access-x-000001.toml", entry("api")),
    ];
    let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (*name, text.as_str())).collect();
    let (folder, config) = config(&files);
    let initiators = |config: &Config| -> Vec<String> {
        let access = config.sources.document.iter().filter(|(id, _)| matches!(id, ObjectId::Access(..)));
        access.map(|(_, one)| one.keys["initiators"][0].as_str().unwrap().to_owned()).collect()
    };
    let wanted = ["iqn.own", "iqn.main", "iqn.a", "iqn.b2", "iqn.c1", "iqn.c2", "iqn.api"];
    assert_eq!(initiators(&config), wanted);
    let changed: Vec<String> = steps(&config, &all_adoptable(&config))
        .iter()
        .map(|step| {
            std::fs::write(&step.file, &step.after).unwrap();
            for new in &step.new_files {
                std::fs::write(&new.path, new.text.as_deref().unwrap()).unwrap();
            }
            let now = load_without_secrets(&folder.0.join("lunar.toml")).map_err(|list| list[0].to_string());
            assert_eq!(initiators(&now.unwrap()), wanted);
            step.file.file_name().unwrap().to_string_lossy().into_owned()
        })
        .collect();
    assert_eq!(changed, ["c.toml", "b.toml", "a.toml", "lunar.toml", "b.toml"]);
    // A later adoption takes names that precede those of this one.
    std::fs::write(folder.0.join("lunar.d/z.toml"), entry("z")).unwrap();
    let now = load_without_secrets(&folder.0.join("lunar.toml")).unwrap();
    let named = adoptable(&now, &[ObjectId::Target(A.into())]).unwrap();
    assert_eq!(named, [ObjectId::Access(A.into(), 0)].into());
    let steps = steps(&now, &named);
    assert!(new_files(&steps[0])[0].0.ends_with("-000000-999998-000001.toml"), "{steps:?}");
}

#[test]
fn secrets_of_nvme_hosts_hinder_no_adoption() {
    let main = "[[target]]\nname = \"iqn.2026-11.org.example:a\"\n\n[[subsystem]]\nnqn = \"nqn.2026-11.org.example:s\"\n\
        secret_file = \"own.key\"\n[[subsystem.host]]\nnqn = \"nqn.2026-11.org.example:h\"\nsecret_file = \"host.key\"\n";
    let (_folder, config) = config(&[("lunar.toml", main)]);
    assert_eq!(steps(&config, &[ObjectId::Target(A.into())].into()).len(), 1);
}

#[test]
fn lun_in_brackets_moves_alone() {
    let main = format!(
        "target = [{{ name = \"{A}\", lun = [{{ lun = 0, backend = \"null\", size = 4096 }}] }}]\n[[lun]]\n\
         target = \"{A}\"\nlun = 1\nbackend = \"null\"\nsize = 4096\n"
    );
    let (_folder, config) = config(&[("lunar.toml", &main)]);
    let steps = steps(&config, &[ObjectId::Lun(A.into(), 1)].into());
    assert_eq!(steps[0].after, main.split("[[lun]]").next().unwrap());
    let all = super::tests::steps(&config, &all_adoptable(&config));
    assert_eq!((all[0].after.as_str(), all[0].new_files.len()), ("", 3));
}

#[test]
fn unknown_object_has_a_hint_and_that_of_the_api_stays() {
    let lun = format!("[[lun]]\ntarget = \"{A}\"\nlun = 1\nbackend = \"null\"\nsize = 4096\n");
    let target = format!("[[target]]\nname = \"{A}\"\n");
    let (_folder, config) = config(&[("lunar.toml", &target), ("lunar.d/api/lun.toml", &lun)]);
    assert_eq!(adoptable(&config, &[ObjectId::Lun(A.into(), 1)]), Ok(BTreeSet::new()));
    let problems = adoptable(&config, &[ObjectId::Target("iqn.2026-11.org.example:aa".into())]).unwrap_err();
    assert_eq!(
        problems[0].to_string(),
        "target iqn.2026-11.org.example:aa does not exist\n  hint: did you mean target iqn.2026-11.org.example:a?"
    );
}

#[test]
fn file_that_is_in_the_way_is_refused() {
    let target = format!("[[target]]\nname = \"{A}\"\n");
    let (folder, config) = config(&[("lunar.toml", &target)]);
    let objects = all_adoptable(&config);
    let new = steps(&config, &objects)[0].new_files[0].path.clone();
    std::fs::write(&new, "").unwrap();
    let problem = adopt(&config, &objects).unwrap_err().remove(0);
    assert!(
        problem.what.ends_with(".toml exists already") && new.starts_with(folder.0.canonicalize().unwrap())
    );
}
