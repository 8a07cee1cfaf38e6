//! Operations in progress. librbd ends each on a thread of its own and wakes the core that waits.

use super::client::checked;
use super::image::Image;
use super::library::{Library, rbd_completion_t, rbd_image_t};
use crate::locked;
use lunar_runtime::Buf;
use std::ffi::{c_int, c_void};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

/// The end of an operation: the result of librbd, and the buffer.
type EndedOperation = (isize, Option<Buf>);

/// The place of the result of an operation.
#[derive(Default)]
struct ResultSlot {
    ended: Option<EndedOperation>,
    waker: Option<Waker>,
}

/// The part of an operation that librbd holds: the memory that it uses, and the image.
struct Started {
    library: &'static Library,
    slot: Arc<Mutex<ResultSlot>>,
    buf: Option<Buf>,
    _image: Arc<Image>,
}

/// An operation that has begun. Dropping it abandons the result: the operation ends in librbd, which keeps its memory.
pub struct Operation(Arc<Mutex<ResultSlot>>);

/// Called by librbd when an operation has ended.
///
/// # Safety
/// The argument is a [`Started`] that `begin` leaked, and `completion` is that of its operation.
// SAFETY: the contract is above.
unsafe extern "C" fn ended(completion: rbd_completion_t, argument: *mut c_void) {
    // SAFETY: by the contract, once for each operation.
    let started = unsafe { Box::from_raw(argument.cast::<Started>()) };
    // SAFETY: the operation has ended, and nothing uses the completion after it.
    let result = unsafe {
        let result = (started.library.rbd_aio_get_return_value)(completion);
        (started.library.rbd_aio_release)(completion);
        result
    };
    let waker = {
        let mut slot = locked(&started.slot);
        slot.ended = Some((result, started.buf));
        slot.waker.take()
    };
    waker.into_iter().for_each(Waker::wake);
}

impl Operation {
    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        locked(&self.0).ended.is_some()
    }

    /// Begins an operation: `call` passes it to librbd, with the memory of `buf`, which stays in its place until the
    /// operation has ended.
    pub fn begin(
        image: &Arc<Image>,
        mut buf: Option<Buf>,
        call: impl FnOnce(&Library, rbd_image_t, *mut u8, rbd_completion_t) -> c_int,
    ) -> Operation {
        let slot = Arc::<Mutex<ResultSlot>>::default();
        let (library, handle) = image.parts();
        let memory = buf.as_mut().map_or(null_mut(), |buf| buf.as_mut_ptr());
        let started = Started { library, slot: slot.clone(), buf, _image: image.clone() };
        let (argument, mut completion) = (Box::into_raw(Box::new(started)), null_mut());
        // SAFETY: the argument lives until `ended` takes it, and `completion` is a place for the result.
        let created = unsafe { (library.rbd_aio_create_completion)(argument.cast(), ended, &mut completion) };
        let begun = match checked(created) {
            Ok(_) => call(library, handle, memory, completion),
            Err(_) => created,
        };
        if begun < 0 {
            // SAFETY: librbd took neither the argument nor the completion: no callback follows.
            let started = unsafe {
                if created >= 0 {
                    (library.rbd_aio_release)(completion);
                }
                Box::from_raw(argument)
            };
            locked(&slot).ended = Some((begun as isize, started.buf));
        }
        Operation(slot)
    }
}

impl Future for Operation {
    type Output = EndedOperation;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<EndedOperation> {
        let mut slot = locked(&self.0);
        if let Some(ended) = slot.ended.take() {
            return Poll::Ready(ended);
        }
        match &mut slot.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

/// The result of librbd as that of an operation of `len` bytes that must be whole.
pub fn whole(result: isize, len: usize) -> io::Result<()> {
    match usize::try_from(result) {
        Ok(done) if done == len => Ok(()),
        Ok(done) => {
            let what = format!("the image ended after {done} of {len} bytes");
            Err(io::Error::new(io::ErrorKind::UnexpectedEof, what))
        }
        Err(_) => Err(error_of(result)),
    }
}

/// The result of librbd as that of an operation without a length.
pub fn done(result: isize) -> io::Result<()> {
    if result < 0 { Err(error_of(result)) } else { Ok(()) }
}

fn error_of(result: isize) -> io::Error {
    io::Error::from_raw_os_error(i32::try_from(-result).unwrap_or(rustix::io::Errno::IO.raw_os_error()))
}
