//! Images that are changed or deleted while they are served.

use super::image::Image;
use super::{RbdBackend, RbdLocation};
use crate::locked;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The interval in which the header of an image is looked for. `rbd rm` refuses an image that is open, unless the
/// cluster has fenced its client.
const LOOK: Duration = Duration::from_secs(5);

/// Whether an image exists.
#[derive(Default)]
pub struct Presence {
    is_gone: AtomicBool,
    is_looking: AtomicBool,
    looked: Mutex<Option<Instant>>,
}

/// The right to look, which only one thread has at a time.
struct Look(Arc<Presence>);

impl Drop for Look {
    fn drop(&mut self) {
        self.0.is_looking.store(false, Ordering::SeqCst);
    }
}

impl Presence {
    /// Whether the image was deleted. It stays so: an image that has the same name later is another one.
    pub fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::SeqCst)
    }

    /// Records that the image was deleted.
    pub fn end(&self, location: &RbdLocation) {
        if !self.is_gone.swap(true, Ordering::SeqCst) {
            tracing::error!(
                "{location}: the image was deleted while it is served; hint: remove its LUN, or restore the image and \
                 restart the server"
            );
        }
    }

    /// None: a thread looks, and may wait for the cluster.
    fn begin(self: &Arc<Presence>) -> Option<Look> {
        (!self.is_looking.swap(true, Ordering::SeqCst)).then(|| Look(self.clone()))
    }

    fn is_due(&self, now: Instant) -> bool {
        let mut looked = locked(&self.looked);
        let is_due = now.duration_since(*looked.get_or_insert(now)) >= LOOK;
        if is_due {
            *looked = Some(now);
        }
        is_due
    }
}

/// The error of an image that was deleted.
pub fn deleted() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the image was deleted")
}

impl RbdBackend {
    /// Reads the size of a changed image, and looks for its header now and then. This happens on a thread, so that a
    /// cluster without monitors blocks nothing.
    pub(super) fn look(&self, image: Arc<Image>) {
        let Some(turn) = self.presence.begin() else { return };
        let has_changed = !image.size.is_current(image.size.known());
        let is_due = self.presence.is_due(Instant::now());
        if self.presence.is_gone() || !(has_changed || is_due) {
            return;
        }
        let location = self.location.clone();
        let work = move || {
            if has_changed {
                drop(image.read_size());
            }
            if image.is_missing() {
                turn.0.end(&location);
            }
        };
        drop(std::thread::Builder::new().name("rbd-look".into()).spawn(work));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_is_looked_for_by_one_thread_at_intervals() {
        let (presence, start) = (Arc::<Presence>::default(), Instant::now());
        assert!(!presence.is_due(start), "it was just opened");
        assert!(presence.is_due(start + LOOK) && !presence.is_due(start + LOOK));
        assert!(!presence.is_due(start + 2 * LOOK - Duration::from_millis(1)));
        assert!(presence.is_due(start + 2 * LOOK));
        let turn = presence.begin();
        assert!(turn.is_some() && presence.begin().is_none());
        drop(turn);
        assert!(presence.begin().is_some());
    }
}
