//! Letting others work first. Who waits for many answers gains nothing by taking the CPU for the first of
//! them: when the peer runs on the same CPU it would be interrupted once per answer.

use std::cell::Cell;
use std::marker::PhantomData;

thread_local! {
    /// This thread runs an event loop of ours; how threads of others are scheduled is for them to say.
    static OURS: Cell<bool> = const { Cell::new(false) };
    static PATIENT: Cell<usize> = const { Cell::new(0) };
}

/// This thread may be told to be patient.
pub(crate) fn allow() {
    OURS.set(true);
}

/// The wish of one task that its event loop, when woken, waits until whoever has the CPU sleeps or has had
/// its share (SCHED_BATCH of sched(7)). The loop is patient while one of its tasks wants it to be.
#[derive(Default)]
pub struct Patience {
    wanted: Cell<bool>,
    of_this_thread: PhantomData<*const ()>,
}

impl Patience {
    /// Wants it, or no longer.
    #[inline]
    pub fn set(&self, wanted: bool) {
        if self.wanted.replace(wanted) == wanted {
            return;
        }
        let before = PATIENT.get();
        let now = if wanted { before + 1 } else { before - 1 };
        PATIENT.set(now);
        if (before == 0) != (now == 0) && OURS.get() {
            schedule(if now > 0 { libc::SCHED_BATCH } else { libc::SCHED_OTHER });
        }
    }
}

impl Drop for Patience {
    fn drop(&mut self) {
        self.set(false);
    }
}

#[allow(unsafe_code)]
fn schedule(policy: libc::c_int) {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: it reads the parameters, which live until it returns, and changes nothing but the policy of this
    // thread. Where that is forbidden, all stays as it is.
    let _ = unsafe { libc::sched_setscheduler(0, policy, &parameters) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cores;

    /// Field 41 of proc(5)'s stat.
    fn policy() -> libc::c_int {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").expect("proc");
        let mut fields = stat.rsplit(") ").next().expect("fields").split(' ');
        // The first two stand before the bracket.
        fields.nth(41 - 3).expect("a policy").parse().expect("a number")
    }

    #[test]
    fn a_loop_is_patient_while_somebody_wants_it() {
        let cores = Cores::one().expect("an event loop");
        let seen = cores.wait(0, || async {
            let (a, b) = (Patience::default(), Patience::default());
            a.set(true);
            b.set(true);
            a.set(false);
            let during = policy();
            drop(b);
            (during, policy())
        });
        assert_eq!(seen.expect("the loop"), (libc::SCHED_BATCH, libc::SCHED_OTHER));
    }

    #[test]
    fn threads_of_others_stay_as_they_are() {
        let before = policy();
        let patience = Patience::default();
        patience.set(true);
        assert_eq!(policy(), before);
    }
}
