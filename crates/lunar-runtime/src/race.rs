//! Waiting for the first of two futures, or for all of several, and yielding.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

/// The output of the future that ends first; the other is dropped. `a` is polled first.
pub async fn either<T>(a: impl Future<Output = T>, b: impl Future<Output = T>) -> T {
    let (mut a, mut b) = (pin!(a), pin!(b));
    poll_fn(|cx| match a.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(done),
        Poll::Pending => b.as_mut().poll(cx),
    })
    .await
}

/// Runs these futures concurrently, until all have ended.
pub async fn all(work: impl IntoIterator<Item = impl Future<Output = ()>>) {
    let mut left: Vec<_> = work.into_iter().map(Box::pin).collect();
    poll_fn(|cx| {
        left.retain_mut(|future| future.as_mut().poll(cx).is_pending());
        if left.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await
}

/// Lets the other ready tasks of this core run first.
pub fn yield_now() -> impl Future<Output = ()> {
    let mut yielded = false;
    poll_fn(move |cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
}
