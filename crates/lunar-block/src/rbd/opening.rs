//! The limit of the time in which an image is opened: the libraries wait for an OSD without one.

use super::image::Image;
use super::location::RbdLocation;
use crate::{OpenError, locked};
use std::io;
use std::sync::{Mutex, mpsc};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// The time in which the cluster must answer. The one who opens an image may be the main thread of a server.
const LIMIT: Duration = Duration::from_secs(30);

/// The threads that did not open an image in time, and still wait for the cluster.
static LATE: Mutex<Vec<(RbdLocation, JoinHandle<()>)>> = Mutex::new(Vec::new());

impl Image {
    /// As [`Image::open`], but within a limit.
    ///
    /// # Errors
    /// As [`Image::open`]; `TimedOut` if the cluster does not answer. The image may be created later then.
    pub fn open_in_time(
        location: &RbdLocation,
        read_only: bool,
        create: Option<(u64, u64)>,
    ) -> Result<Image, OpenError> {
        in_time(location, LIMIT, move |location| Image::open(location, read_only, create))
    }
}

/// Opens an image on a thread. One that is opened too late is closed there. Until then, further attempts fail at once:
/// each would keep a client and its threads waiting.
fn in_time<T: Send + 'static>(
    location: &RbdLocation,
    limit: Duration,
    open: impl FnOnce(&RbdLocation) -> Result<T, OpenError> + Send + 'static,
) -> Result<T, OpenError> {
    let fault =
        |what: &str| OpenError::new(location.to_string(), what, "check the cluster: ceph -s, ceph osd tree");
    let no_answer = |what: &str| fault(what).of(io::ErrorKind::TimedOut);
    if is_late(location) {
        return Err(no_answer(
            "the cluster does not answer: an earlier attempt to open the image still waits",
        ));
    }
    let ((sender, receiver), of_thread) = (mpsc::channel(), location.clone());
    let work = move || drop(sender.send(open(&of_thread)));
    let thread = Builder::new().name("rbd-open".into()).spawn(work);
    let thread = thread.map_err(|e| fault(&format!("cannot start a thread: {e}")))?;
    match receiver.recv_timeout(limit) {
        Ok(opened) => opened,
        Err(mpsc::RecvTimeoutError::Timeout) => {
            locked(&LATE).push((location.clone(), thread));
            Err(no_answer(&format!("the cluster does not answer within {} s", limit.as_secs())))
        }
        Err(mpsc::RecvTimeoutError::Disconnected) => Err(fault("opening the image has panicked")),
    }
}

/// Whether an attempt to open this image is late, and has not ended yet.
fn is_late(location: &RbdLocation) -> bool {
    let mut late = locked(&LATE);
    late.retain(|(_, thread)| !thread.is_finished());
    late.iter().any(|(of, _)| of == location)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn late_open_fails_and_closes_its_image_when_it_ends() {
        let image = |text| RbdLocation::parse(text).expect("an image");
        let (slow, other, opened) = (image("rbd:p/slow"), image("rbd:p/other"), Arc::new(()));
        let ((end, ended), of_thread) = (mpsc::channel::<()>(), opened.clone());
        let late = in_time(&slow, Duration::ZERO, move |_| {
            _ = ended.recv();
            Ok(of_thread)
        });
        let error = late.expect_err("the cluster does not answer");
        assert_eq!(error.kind, io::ErrorKind::TimedOut);
        assert!(
            error.what.contains("does not answer within 0 s") && error.hint.contains("ceph -s"),
            "{error}"
        );
        let again = in_time(&slow, LIMIT, |_| Ok(())).expect_err("the first attempt still waits");
        assert!(again.kind == io::ErrorKind::TimedOut && again.what.contains("earlier attempt"), "{again}");
        assert_eq!(in_time(&other, LIMIT, |_| Ok(7)), Ok(7));
        end.send(()).expect("the first attempt waits");
        while is_late(&slow) {
            std::thread::yield_now();
        }
        assert_eq!(Arc::strong_count(&opened), 1, "the late image is closed");
        assert_eq!(in_time(&slow, LIMIT, |_| Ok(8)), Ok(8));
    }

    #[test]
    fn open_that_panics_is_an_error() {
        let location = RbdLocation::parse("rbd:p/panics").expect("an image");
        let opened = in_time::<()>(&location, LIMIT, |_| panic!("a test"));
        assert!(opened.expect_err("no result").what.contains("has panicked"));
    }
}
