//! Proof that the event loops run, for a watchdog.

use lunar_runtime::Cores;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Sends a task through each event loop, waits for all, and calls `report`. A loop that has ended ends this one too.
pub async fn beat(cores: Arc<Cores>, entrance: Arc<Cores>, interval: Duration, report: impl Fn()) {
    loop {
        let next = Instant::now() + interval;
        let trips: Vec<_> = (0..cores.count())
            .map(|core| cores.start_on(core, async || ()))
            .chain([entrance.start_on(0, async || ())])
            .collect();
        for trip in trips {
            if trip.recv_async().await.is_err() {
                return;
            }
        }
        report();
        lunar_runtime::sleep_until(next).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocked_loop_stops_the_heartbeat() {
        let (cores, entrance) = (Arc::new(Cores::start(&[0, 0]).unwrap()), Arc::new(Cores::one().unwrap()));
        let (beats, heard) = flume::unbounded();
        let (of_beat, entrance_of_beat) = (cores.clone(), entrance.clone());
        cores.run_on(0, move || {
            let report = move || _ = beats.send(());
            lunar_runtime::spawn(beat(of_beat, entrance_of_beat, Duration::from_millis(1), report));
        });
        for blocked in [Some(1), None] {
            heard.recv().expect("all loops run");
            let (go_on, wait) = flume::bounded::<()>(0);
            let (begun, begins) = flume::bounded(1);
            let loops = if blocked.is_some() { &cores } else { &entrance };
            loops.run_on(blocked.unwrap_or(0), move || {
                begun.send(()).unwrap();
                _ = wait.recv();
            });
            begins.recv().expect("the loop is blocked");
            // A round trip that began before may end.
            let in_time = || heard.recv_timeout(Duration::from_millis(100)).is_ok();
            assert!((0..3).any(|_| !in_time()), "core {blocked:?} is blocked");
            drop(go_on);
            heard.recv().expect("all loops run again");
            heard.drain();
        }
        cores.stop();
        entrance.stop();
        while heard.recv().is_ok() {}
    }
}
