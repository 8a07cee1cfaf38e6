//! Commands that have arrived, and were not taken, when their connection ends or another session ends them.

use super::house::{play, quiet};
use crate::registry::{Letter, Which};
use lunar_wire::scsi::cdb;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

const OLD: [u8; 512] = [1; 512];

#[test]
fn commands_before_the_end_do_not_begin_after_it() {
    play(|house| async move {
        let mut host = house.session(1).await;
        host.write(&cdb::write_10(0, 1, false), &OLD, OLD.len());
        host.end.close();
        while house.sessions() > 0 {
            lunar_runtime::yield_now().await;
        }
        assert_eq!(house.on_medium(0), 0);
    });
}

#[test]
fn a_reset_by_another_session_lets_begin_no_older_command() {
    play(|house| async move {
        let mut host = house.session(1).await;
        let from = house.shared.registry.list().pop().expect("a session").1;
        let which = Which::units([house.disk()]);
        let letter = |done| {
            let (which, from, indeterminate) = (which.clone(), from.clone(), Default::default());
            Letter::Abort { which, from, indeterminate, done }
        };
        let mut told = pin!(house.shared.registry.tell_all(None, letter));
        // The letter is there first: the mover is woken by what comes.
        assert!(poll_fn(|cx| Poll::Ready(told.as_mut().poll(cx).is_pending())).await);
        lunar_runtime::yield_now().await;
        host.write(&cdb::write_10(0, 1, false), &OLD, OLD.len());
        told.await;
        let then = house.on_medium(0);
        quiet().await;
        assert_eq!((then, house.on_medium(0)), (0, 0));
    });
}
