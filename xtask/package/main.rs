//! A program outside the workspace that uses the packaged library. No target is there: it checks what it gets without one.

use lunar_initiator::{Error, ErrorCode, Url, any_executor, blocking};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

const TCP: &str = "iscsi://127.0.0.1:1/iqn.2026-11.org.example:a/0?login_tries=1";
const RDMA: &str = "iser://127.0.0.1:1/iqn.2026-11.org.example:a/0?login_tries=1";

/// The code of the error with which a logical unit does not open.
fn code(opened: Result<(), Error>) -> ErrorCode {
    opened.expect_err("there is no target").code
}

fn open(url: &str) -> Result<(), Error> {
    blocking::BlockingLun::open(&url.parse::<Url>()?).map(drop)
}

/// Polls until the future has ended.
fn poll<T>(future: impl Future<Output = T> + Send) -> T {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return result;
        }
        std::thread::yield_now();
    }
}

fn main() {
    assert_eq!(code(open(TCP)), ErrorCode::Unreachable);
    let url: Url = TCP.parse().expect("a URL");
    assert_eq!(code(poll(async { any_executor::AsyncLun::open(&url).await.map(drop) })), ErrorCode::Unreachable);
    if cfg!(not(feature = "rdma")) {
        let error = open(RDMA).expect_err("this build has no RDMA");
        assert_eq!(error.code, ErrorCode::InvalidArgument);
        assert!(error.hint.as_ref().is_some_and(|hint| hint.contains("feature")), "{error:?}");
    }
}
