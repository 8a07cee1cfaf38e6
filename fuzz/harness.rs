// Runs fuzz targets over their seeds without a fuzzer. A test of a crate includes this file and lists its targets.

use std::path::Path;

use proptest::prelude::*;

pub type Body = fn(&[u8]);

fn seeds(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
    let files = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let seeds: Vec<_> = files.map(|f| std::fs::read(f.unwrap().path()).unwrap()).collect();
    assert!(!seeds.is_empty(), "{target} has no seeds");
    seeds
}

#[test]
fn seeds_run_without_panic() {
    for (target, run) in crate::TARGETS {
        seeds(target).iter().for_each(|s| run(s));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Runs each target with a seed that has some bytes changed, and with a prefix of it.
    #[test]
    fn damaged_seeds_run_without_panic(
        pick: prop::sample::Index,
        cut: prop::sample::Index,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
    ) {
        for (target, run) in crate::TARGETS {
            let all = seeds(target);
            let mut seed = pick.get(&all).clone();
            changes.iter().for_each(|(at, byte)| {
                let at = at.index(seed.len());
                seed[at] = *byte;
            });
            run(&seed);
            run(&seed[..cut.index(seed.len())]);
        }
    }
}
