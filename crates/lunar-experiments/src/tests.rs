//! Tests without servers. Tests of the command run whole experiments, and tests of interop add other targets.

use super::*;
use lunar_bench::ErrorKind;

fn args(seed: Experiment) -> Args {
    Args {
        seed,
        against: Vec::new(),
        quick: true,
        out: std::env::temp_dir().join(format!("lunar-results-{}", std::process::id())),
        transport: TargetTransport::Tcp,
        provider: None,
        dir: None,
        destroy: false,
        brief: Some(20),
        lunar: Some("/nonexistent/lunar".into()),
    }
}

fn refused(args: Args) -> Error {
    run(&args, &RunHandle::default()).expect_err("the arguments are rejected")
}

#[test]
fn invalid_arguments_are_rejected_before_any_run() {
    let stgt = vec!["stgt".into()];
    let e = refused(Args { transport: TargetTransport::Iser, against: stgt, ..args(Experiment::Iser) });
    assert!(e.kind == ErrorKind::Invalid && e.what.contains("only --transport tcp"), "{e}");
    let provider = Some(RdmaProvider::Verbs);
    let e = refused(Args { provider, ..args(Experiment::Iser) });
    assert!(e.kind == ErrorKind::Invalid && e.what.contains("does not apply to --transport tcp"), "{e}");
    let e = refused(Args { against: vec!["lio".into()], ..args(Experiment::Iser) });
    assert!(e.kind == ErrorKind::Invalid && e.what.contains("--against lio"), "{e}");
    let e = refused(Args { out: "/proc/lunar".into(), ..args(Experiment::Iser) });
    assert!(e.kind == ErrorKind::System && e.what.contains("cannot write /proc/lunar"), "{e}");
    let e = refused(Args { dir: Some("/nonexistent".into()), ..args(Experiment::Sn5420) });
    assert!(e.kind == ErrorKind::System && e.hint.contains("--dir"), "{e}");
}

#[test]
fn failed_server_is_a_note_and_the_rest_runs() {
    let args = Args {
        against: vec!["iscsi://127.0.0.1:9/iqn.2026-11.org.example:x/0".into()],
        ..args(Experiment::Sn5420)
    };
    let ExperimentResult { document, text, problem } =
        run(&args, &RunHandle::default()).expect("the experiment continues");
    assert_eq!(problem, None);
    std::fs::remove_dir_all(&args.out).expect("the results");
    assert!(
        document.notes.iter().any(|note| note.starts_with("Lunar failed to start: ")),
        "{:?}",
        document.notes
    );
    assert!(
        document.notes.iter().any(|note| note.starts_with("iscsi://127.0.0.1:9/")),
        "{:?}",
        document.notes
    );
    let local = published::figure(&document.tables[0], "Linux/with Fibre", "64k");
    assert_eq!(local, Some(24.15));
    let (_, cells) = document.tables[0].rows.iter().find(|row| row.0 == "Linux/with Fibre").expect("the row");
    assert!(cells.iter().all(|cell| cell.ratio.is_some_and(|ratio| ratio > 0.0)), "{cells:?}");
    for run in &document.runs {
        let (read, write) = (&run.outcome.read, &run.outcome.write);
        assert!(
            read.total.count() + write.total.count() >= run.outcome.ios(),
            "{}: commands are missing",
            run.label
        );
    }
    let two = document.runs.iter().find(|run| run.label.ends_with("two reads")).expect("two reads");
    let names: Vec<&str> = two.targets.iter().map(|target| target.name.as_str()).collect();
    assert!(names.len() == 2 && names[0] != names[1], "{names:?}");
    assert!(text.contains("measured") && text.contains("saved in "), "{text}");
}

#[test]
fn ended_experiment_keeps_its_results() {
    let handle = RunHandle::default();
    handle.end();
    let args = Args {
        out: std::env::temp_dir().join(format!("lunar-ended-{}", std::process::id())),
        ..args(Experiment::Scst)
    };
    let document = run(&args, &handle).expect("a document").document;
    std::fs::remove_dir_all(&args.out).expect("the results");
    assert!(document.runs.is_empty() && document.tables.len() == 7);
    assert!(document.notes.iter().any(|note| note.contains("ended by the user")));
}
