//! Targets that go down, and return or not.

use super::*;
use interop::Relay;
use lunar_router::upstream::{PathPolicy, PathState};
use std::cell::Cell;
use std::rc::Rc;

/// Writes blocks until `meanwhile` ends, then verifies all acknowledged blocks.
async fn write_on(disk: Arc<UpstreamLu>, meanwhile: impl Future<Output = ()>) {
    let (written, enough) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
    let (count, stop, to) = (written.clone(), enough.clone(), disk.clone());
    let writer = compio::runtime::spawn(async move {
        while !stop.get() {
            let n = count.get();
            write(&to, n % 4000).await.unwrap_or_else(|e| panic!("block {n}: {e}"));
            count.set(n + 1);
        }
    });
    while written.get() < 50 {
        pause(1).await;
    }
    meanwhile.await;
    let before = written.get();
    while written.get() < before + 50 {
        pause(1).await;
    }
    enough.set(true);
    writer.await.expect("the writer panicked");
    for n in 0..written.get().min(4000) {
        assert!(read(&disk, n).await.expect("a successful read")[..] == block(n)[..], "block {n} was lost");
    }
}

/// The result of work that must not wait: a few turns of the event loop suffice.
async fn at_once<T>(work: impl Future<Output = T>) -> T {
    let turns = async {
        for _ in 0..100 {
            lunar_runtime::yield_now().await;
        }
        None
    };
    lunar_runtime::either(async { Some(work.await) }, turns).await.expect("the operation must not wait again")
}

#[test]
fn upstream_restart_within_timeout_is_invisible() {
    let mut server = server();
    let url = url(server.portal());
    run(move || async move {
        let disk = open(&upstream(&[url], 8000)).await;
        let health = disk.watch();
        let restart = async {
            let restarted = compio::runtime::spawn_blocking(move || {
                server.kill9();
                std::thread::sleep(Duration::from_millis(300));
                server.restart();
                server
            });
            // The server must run until the process ends.
            std::mem::forget(restarted.await.expect("a restarted server"));
        };
        write_on(disk.clone(), restart).await;
        assert_eq!(disk.paths()[0].recoveries, 1);
        let health: Vec<Health> = health.try_iter().collect();
        assert!(matches!(health[..], [Health::Holding(_), Health::Up]), "{health:?}");
        assert!(disk.hops().queue.max_ns > 100_000_000, "{:?}", disk.hops());
    });
}

#[test]
fn one_path_is_cut_and_io_goes_on_over_the_other() {
    let server = server();
    let relays = [Relay::to(server.portal()), Relay::to(server.portal())];
    let urls = [url(relays[0].address()), url(relays[1].address())];
    run(move || async move {
        for policy in [PathPolicy::Failover, PathPolicy::RoundRobin, PathPolicy::LeastQueue] {
            let disk = open(&Upstream { policy, ..upstream(&urls, 8000) }).await;
            let cut = async {
                while disk.paths().iter().any(|p| p.state != Some(PathState::Optimized)) {
                    pause(5).await;
                }
                relays[0].cut();
            };
            write_on(disk.clone(), cut).await;
            let states: Vec<_> = disk.paths().iter().map(|p| p.state).collect();
            assert_eq!(states, [Some(PathState::Down), Some(PathState::Optimized)], "{policy:?}");
            assert_eq!(disk.health(), Health::Up);
            relays[0].restore();
        }
    });
    drop(server);
}

#[test]
fn lost_upstream_delays_once_then_commands_fail_at_once() {
    let server = server();
    let relay = Relay::to(server.portal());
    let url = url(relay.address());
    run(move || async move {
        let disk = open(&upstream(&[url], 700)).await;
        let health = disk.watch();
        write(&disk, 1).await.expect("a successful write");
        relay.cut();
        let started_at = Instant::now();
        // A write could be sent before the loss is detected, and would then wait for the target.
        assert_eq!(status_and_sense(read(&disk, 1).await), TRANSITION);
        assert!(
            started_at.elapsed() >= Duration::from_millis(600),
            "the operation must wait for the path loss timeout"
        );
        assert_eq!(status_and_sense(at_once(write(&disk, 2)).await), TRANSITION);
        assert_eq!(status_and_sense(at_once(disk.flush()).await), TRANSITION);
        while !matches!(disk.health(), Health::Lost(_)) {
            health.recv_async().await.expect("a change");
        }
        relay.restore();
        while disk.health() != Health::Up {
            health.recv_async().await.expect("a change of health");
        }
        assert!(read(&disk, 1).await.expect("a successful read")[..] == block(1)[..]);
    });
    drop(server);
}

#[test]
fn upstream_that_is_not_there_at_first_is_waited_for() {
    let server = server();
    let relay = Relay::to(server.portal());
    let url = url(relay.address());
    run(move || async move {
        let disk = open(&upstream(&[url], 3000)).await;
        relay.cut();
        let back = compio::runtime::spawn(async move {
            pause(500).await;
            relay.restore();
            relay
        });
        write(&disk, 1).await.expect("the target returns in time");
        drop(back.await);
    });
    drop(server);
}

#[test]
fn each_core_has_its_own_sessions() {
    let server = server();
    let urls = [url(server.portal())];
    let cores = Cores::start(&[0, 0]).expect("event loops");
    let disk = cores.wait(0, move || async move { open(&upstream(&urls, 8000)).await }).expect("a disk");
    assert_eq!(disk.paths()[0].core, None, "no core uses the path");
    let (done, end) = flume::bounded(2);
    for core in 0..2 {
        let (disk, done) = (disk.clone(), done.clone());
        cores.run_on(core, move || {
            compio::runtime::spawn(async move {
                for n in (0..400).filter(|n| n % 2 == core as u64) {
                    write(&disk, n).await.expect("written");
                }
                done.send(()).expect("the test waits");
            })
            .detach();
        });
    }
    (0..2).for_each(|_| end.recv_timeout(LIMIT).expect("both cores complete"));
    let sessions: Vec<_> = disk.luns().iter().map(|lun| lun.session().info().isid).collect();
    assert!(sessions.len() == 2 && sessions[0] != sessions[1], "{sessions:?}");
    assert_eq!(disk.hops().upstream.count, 400);
    cores
        .wait(1, move || async move {
            for n in 0..400 {
                assert!(read(&disk, n).await.expect("a successful read")[..] == block(n)[..], "block {n}");
            }
        })
        .expect("all blocks are intact");
}
