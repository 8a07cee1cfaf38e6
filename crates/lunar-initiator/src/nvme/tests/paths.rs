//! Two controllers of one namespace. Each has a medium of its own, which shows where commands have gone.

use super::scripted::{Script, ScriptedController, on_a_core};
use super::within_time;
use crate::multipath::{Multipath, MultipathOptions, PathPolicy, PathState};
use crate::nvme::{NvmePaths, NvmeUrl};
use crate::{Backend, Buf, Error, ErrorCode};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);

fn url(controller: &ScriptedController, more: &str) -> NvmeUrl {
    let address = controller.address();
    let text = format!("nvme://{}/{}/1?login_tries=1&{more}", address.portal, address.subsystem);
    text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
}

/// The first path that works takes all commands. Paths are checked only after events and failures.
fn unhurried() -> MultipathOptions {
    MultipathOptions::default().with_policy(PathPolicy::Failover).with_check(HOUR)
}

async fn open(controllers: &[ScriptedController]) -> Result<NvmePaths, Error> {
    let urls: Vec<NvmeUrl> = controllers.iter().map(|controller| url(controller, "")).collect();
    NvmePaths::open(&urls, unhurried()).await
}

fn two() -> [ScriptedController; 2] {
    [(); 2].map(|()| ScriptedController::start())
}

fn states(paths: &NvmePaths) -> Vec<PathState> {
    paths.joined().paths().into_iter().map(|(_, state, _)| state).collect()
}

async fn write(on: &Multipath, byte: u8) {
    on.write(0, Buf::copy_of(&[byte; 512]), false).await.0.expect("written");
}

/// A write in a queue.
async fn write_queued(on: &Arc<Multipath>, byte: u8) {
    let mut queue = on.clone().queue().expect("a queue");
    queue.write(0, 0, Buf::copy_of(&[byte; 512]), false);
    poll_fn(|cx| queue.poll_ended(cx)).await.1.0.expect("written");
}

/// The first bytes of the writes that each controller has executed.
fn writes(controllers: &[ScriptedController]) -> Vec<Vec<u8>> {
    controllers.iter().map(|controller| controller.script().writes.clone()).collect()
}

fn edit(controller: &ScriptedController, edit: impl FnOnce(&mut Script)) {
    edit(&mut controller.script());
}

#[test]
fn lost_controller_fails_over_and_returns() {
    let controllers = two();
    let there = controllers.clone();
    on_a_core(move || async move {
        let paths = open(&there).await?;
        write(paths.joined(), 1).await;
        edit(&there[0], |script| {
            script.refuses = true;
            script.cut();
        });
        write(paths.joined(), 2).await;
        within_time("the path is down", || states(&paths) == [PathState::Down, PathState::Optimized]).await;
        edit(&there[0], |script| script.refuses = false);
        within_time("the path is back", || states(&paths) == [PathState::Optimized; 2]).await;
        write(paths.joined(), 3).await;
        paths.close().await;
        Ok(())
    });
    assert_eq!(writes(&controllers), [vec![1, 3], vec![2]]);
    let hosts: Vec<_> = controllers.iter().flat_map(|controller| controller.script().hosts.clone()).collect();
    assert!(hosts.iter().all(|host| *host == hosts[0]), "one host identifier on all paths: {hosts:?}");
}

#[test]
fn unanswered_write_is_repeated_on_the_other_path() {
    let controllers = two();
    let there = controllers.clone();
    on_a_core(move || async move {
        let paths = open(&there).await?;
        edit(&there[0], |script| (script.silent_from, script.cuts, script.refuses) = (0, true, true));
        write(paths.joined(), 1).await;
        write_queued(paths.joined(), 2).await;
        Ok(())
    });
    assert_eq!(writes(&controllers), [vec![], vec![1, 2]]);
}

/// A command that waits is dropped with its data, as by the end of the event loop of its queue.
#[test]
fn write_whose_data_are_gone_is_not_repeated_on_another_path() {
    for is_queued in [false, true] {
        let controllers = two();
        let there = controllers.clone();
        let code = on_a_core(move || async move {
            edit(&there[0], |script| script.queues = (2, 2));
            // Each queue has room for one command: of four, one waits on the second queue.
            let urls = [url(&there[0], "io_queues=2&queue_len=2"), url(&there[1], "")];
            let paths = NvmePaths::open(&urls, unhurried()).await?;
            let controller = paths.namespaces().next().expect("an open path").controller().clone();
            within_time("both queues", || controller.info().io_queues == 2).await;
            edit(&there[0], |script| script.silent_from = 0);
            let data = || Buf::copy_of(&[7; 512]);
            let mut queue = paths.joined().clone().queue().expect("a queue");
            let mut writes: Vec<_> = (0..4).map(|at| paths.joined().write(at * 512, data(), false)).collect();
            if is_queued {
                (0..4).for_each(|at| queue.write(at, at as u64 * 512, data(), false));
                assert!(poll_fn(|cx| Poll::Ready(queue.poll_ended(cx).is_pending())).await);
            } else {
                for write in &mut writes {
                    assert!(poll_fn(|cx| Poll::Ready(write.as_mut().poll(cx).is_pending())).await);
                }
            }
            within_time("the writes arrive", || there[0].script().count(1) == 2).await;
            controller.io_queues().queue(1).run(|queue| drop(queue.state.borrow_mut().take_waiting()));
            let result = match is_queued {
                true => poll_fn(|cx| queue.poll_ended(cx)).await.1.0,
                false => writes.remove(3).await.0,
            };
            Ok(result.err().as_ref().and_then(Error::of).map(|e| e.code))
        });
        assert_eq!(code, Some(ErrorCode::InvalidArgument), "queued: {is_queued}");
        assert_eq!(writes(&controllers), [Vec::<u8>::new(), Vec::new()], "queued: {is_queued}");
    }
}

#[test]
fn status_of_the_path_moves_the_command_at_once() {
    // 3/00h to 3/03h: internal error, persistent loss, inaccessible, transition.
    for (status, access, expected) in [
        (0x300, 4, PathState::Down),
        (0x301, 4, PathState::Down),
        (0x302, 3, PathState::Standby),
        (0x303, 0xf, PathState::Transitioning),
    ] {
        let controllers = two();
        let there = controllers.clone();
        on_a_core(move || async move {
            there.iter().for_each(|controller| edit(controller, |script| script.set_access(1)));
            let paths = open(&there).await?;
            edit(&there[0], |script| {
                script.failures = (u32::MAX, status << 1);
                script.set_access(access);
            });
            write(paths.joined(), 1).await;
            write_queued(paths.joined(), 2).await;
            within_time("the state of the log", || states(&paths)[0] == expected).await;
            Ok(())
        });
        assert_eq!(writes(&controllers), [vec![], vec![1, 2]], "{status:x}h");
        assert_eq!(controllers[0].script().count(1), 1, "the command is not tried again on its path");
    }
}

#[test]
fn event_moves_commands_to_the_path_in_the_best_state() {
    let controllers = two();
    let there = controllers.clone();
    on_a_core(move || async move {
        edit(&there[0], |script| script.set_access(1));
        edit(&there[1], |script| script.set_access(2));
        let paths = open(&there).await?;
        assert_eq!(states(&paths), [PathState::Optimized, PathState::NonOptimized]);
        write(paths.joined(), 1).await;
        for (byte, access, expected) in [
            (2, 3, PathState::Standby),
            (3, 1, PathState::Optimized),
            (4, 0xf, PathState::Transitioning),
            (5, 2, PathState::NonOptimized),
            (6, 4, PathState::Down),
        ] {
            within_time("an event request", || there[0].script().event.is_some()).await;
            edit(&there[0], |script| script.change_access(access));
            within_time("the new state", || states(&paths)[0] == expected).await;
            write(paths.joined(), byte).await;
        }
        Ok(())
    });
    assert_eq!(writes(&controllers), [vec![1, 3, 5], vec![2, 4, 6]]);
    assert_eq!(controllers[0].script().events, 0x900, "changes of namespaces and of access states");
}

#[test]
fn path_that_opens_late_is_used_if_it_leads_to_the_namespace() {
    for (uuid, state) in [([0xab; 16], PathState::Optimized), ([0xcd; 16], PathState::Changed)] {
        let controllers = two();
        let there = controllers.clone();
        on_a_core(move || async move {
            edit(&there[0], |script| (script.refuses, script.uuid) = (true, uuid));
            let urls = [url(&there[0], ""), url(&there[1], "")];
            let paths = NvmePaths::open(&urls, unhurried().with_check(Duration::from_millis(20))).await?;
            assert_eq!(states(&paths), [PathState::Down, PathState::Optimized]);
            write(paths.joined(), 1).await;
            edit(&there[0], |script| script.refuses = false);
            within_time("the path is open", || states(&paths)[0] == state).await;
            write(paths.joined(), 2).await;
            Ok(())
        });
        let expected = if state.is_usable() { [vec![2], vec![1]] } else { [vec![], vec![1, 2]] };
        assert_eq!(writes(&controllers), expected);
    }
}

#[test]
fn namespace_replaced_before_a_reconnection_is_shown_as_changed() {
    let controllers = two();
    let there = controllers.clone();
    on_a_core(move || async move {
        let paths = open(&there).await?;
        let before = there[0].script().uuid;
        edit(&there[0], |script| {
            script.uuid = [0xcd; 16];
            script.cut();
        });
        within_time("the path has changed", || states(&paths)[0] == PathState::Changed).await;
        write(paths.joined(), 1).await;
        edit(&there[0], |script| script.uuid = before);
        within_time("the path is back", || states(&paths)[0] == PathState::Optimized).await;
        Ok(())
    });
    assert_eq!(writes(&controllers), [vec![], vec![1]]);
}

#[test]
fn fused_pair_moves_only_if_it_was_not_executed() {
    let controllers = two();
    let there = controllers.clone();
    on_a_core(move || async move {
        let paths = open(&there).await?;
        let swap = |old: u8, new: u8| {
            paths.joined().compare_and_write(0, Buf::copy_of(&[[old; 512], [new; 512]].concat()))
        };
        // 3/02h: inaccessible.
        edit(&there[0], |script| script.failures = (1, 0x302 << 1));
        assert_eq!(swap(0, 1).await, Ok(true));
        assert_eq!((there[0].script().medium[0], there[1].script().medium[0]), (0, 1), "the other path");
        within_time("the first path is back", || states(&paths)[0] == PathState::Optimized).await;
        edit(&there[0], |script| (script.silent_from, script.cuts, script.refuses) = (0, true, true));
        let lost = swap(0, 1).await;
        assert_eq!(lost.map_err(|e| e.code), Err(ErrorCode::ConnectionLost), "it may have been executed");
        assert_eq!(swap(1, 2).await, Ok(true), "the other path");
        Ok(())
    });
    assert_eq!(controllers[1].script().medium[0], 2);
}

#[test]
fn newer_write_waits_for_an_abandoned_one_on_another_path() {
    let controllers = two();
    let there = controllers.clone();
    on_a_core(move || async move {
        let paths = open(&there).await?;
        edit(&there[0], |script| script.silent_from = 0);
        let mut old = Box::pin(write(paths.joined(), 1));
        assert!(poll_fn(|cx| Poll::Ready(old.as_mut().poll(cx))).await.is_pending());
        within_time("the write arrives", || there[0].script().count(1) == 1).await;
        drop(old);
        let second = paths.namespaces().nth(1).expect("an open path").clone();
        let mut newer = Box::pin(second.write(0, Buf::copy_of(&[2; 512]), false));
        let early = compio::time::timeout(Duration::from_millis(30), newer.as_mut()).await;
        assert!(early.is_err(), "the first controller may still execute the old write");
        edit(&there[0], |script| {
            script.refuses = true;
            script.cut();
        });
        newer.await.0.expect("written");
        Ok(())
    });
    assert_eq!(writes(&controllers), [vec![], vec![2]]);
}

#[test]
fn access_log_that_lies_costs_no_path() {
    let whole = |groups: u8, namespaces: u8, state: u8| {
        let mut page = vec![0; 52];
        (page[8], page[16], page[20], page[32], page[48]) = (groups, 1, namespaces, state, 1);
        page
    };
    for (log, expected) in [
        (vec![], PathState::NonOptimized),
        (vec![0xff; 64], PathState::NonOptimized),
        (whole(1, 1, 7), PathState::NonOptimized),
        (whole(1, 255, 3), PathState::Standby),
        (whole(255, 1, 2), PathState::NonOptimized),
        (whole(1, 0, 3), PathState::Standby),
        (whole(1, 1, 0xf1), PathState::Optimized),
    ] {
        let controllers = two();
        let there = controllers.clone();
        let shown = format!("{log:x?}");
        let found = on_a_core(move || async move {
            edit(&there[0], |script| script.access_log = Some(log));
            let paths = open(&there).await?;
            write(paths.joined(), 1).await;
            let best = paths.best().expect("the second path is optimized").controller().info().portal;
            Ok((states(&paths), best == there[0].address().portal))
        });
        let is_first = expected == PathState::Optimized;
        assert_eq!(found, (vec![expected, PathState::Optimized], is_first), "{shown}");
    }
}

#[test]
fn urls_of_one_namespace_fit_together() {
    let controllers = two();
    let there = controllers.clone();
    let codes = on_a_core(move || async move {
        let [a, b] = &there;
        let [one, other] = [1, 2].map(|n| format!("host_nqn=nqn.2026-11.org.example:{n}"));
        let [first, second] = [1, 2].map(|n| format!("host_id={}", format!("0{n}").repeat(16)));
        let mut codes = Vec::new();
        for urls in [
            vec![],
            vec![url(a, ""), url(a, "")],
            vec![url(a, &one), url(b, &other)],
            vec![url(a, &first), url(b, &second)],
        ] {
            codes.push(NvmePaths::open(&urls, unhurried()).await.map(drop).map_err(|e| e.code));
        }
        codes.push(
            NvmePaths::open(&[url(a, &first), url(b, "")], unhurried()).await.map(drop).map_err(|e| e.code),
        );
        edit(b, |script| script.uuid = [0xcd; 16]);
        codes.push(
            NvmePaths::open(&[url(a, ""), url(b, "")], unhurried()).await.map(drop).map_err(|e| e.code),
        );
        [a, b].into_iter().for_each(|controller| edit(controller, |script| script.refuses = true));
        codes.push(
            NvmePaths::open(&[url(a, ""), url(b, "")], unhurried()).await.map(drop).map_err(|e| e.code),
        );
        Ok(codes)
    });
    let [mismatch, lost] = [ErrorCode::IdentityMismatch, ErrorCode::ConnectionLost].map(Err);
    assert_eq!(codes[..4], [Err(ErrorCode::InvalidArgument); 4]);
    assert_eq!(codes[4..], [Ok(()), mismatch, lost]);
    let hosts = controllers.map(|controller| controller.script().hosts[0]);
    assert_eq!(hosts, [[1; 16]; 2], "the identifier of one URL is that of all");
}
