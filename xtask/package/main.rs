//! A program outside the workspace that uses the packaged library. No target is there: it checks what it gets without one.

use lunar_initiator::backend::{BackendInfo, BufResult};
use lunar_initiator::command::{TaskManagementFunction, management_response};
use lunar_initiator::multipath::{LatencyTotal, MultipathOptions};
use lunar_initiator::options::{AllowedDigests, Credentials};
use lunar_initiator::{
    Backend, Buf, Error, ErrorCode, LocalBoxFuture, Lun, Options, Parameters, Session, SessionHooks,
    SessionLogin, TargetPort, Url, any_executor, blocking, lun_address, lun_number, luns,
};
use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex};
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

/// Keeps the target port and the parameters of the last login.
#[derive(Debug, Default)]
struct LastLogin(Mutex<Option<(Option<TargetPort>, Parameters)>>);

impl SessionHooks for LastLogin {
    fn logged_in<'a>(&'a self, login: SessionLogin<'a>) -> LocalBoxFuture<'a, Result<(), Error>> {
        *self.0.lock().expect("a lock") = Some((login.info.port, login.info.parameters.clone()));
        Box::pin(std::future::ready(Ok(())))
    }
}

/// A session with CHAP, data digests and hooks.
fn options(hooks: Arc<dyn SessionHooks>) -> Options {
    let mut options = Options::new("iqn.2026-11.org.example:outside");
    options.credentials = Some(Credentials::new("alice", b"a secret of 96 bits"));
    options.offer.data_digest = AllowedDigests { none: false, crc32c: true };
    options.timeouts.login_tries = 1;
    options.hooks = Some(hooks);
    options
}

/// Resets and opens every logical unit that has a number.
async fn reopen(session: &Session) -> Result<Vec<Arc<Lun>>, Error> {
    let mut opened = Vec::new();
    for number in luns(session).await?.into_iter().filter_map(lun_number) {
        let response = session.manage(TaskManagementFunction::LunReset, lun_address(number)).await?;
        assert_eq!(response, management_response::COMPLETE);
        opened.push(Lun::open(session, number).await?);
    }
    Ok(opened)
}

/// A backend that rejects writes to another one.
struct ReadOnly(Arc<dyn Backend>);

impl Backend for ReadOnly {
    fn info(&self) -> BackendInfo {
        BackendInfo { read_only: true, ..self.0.info() }
    }

    fn read(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, BufResult> {
        self.0.read(offset, buf)
    }

    fn write(&self, _offset: u64, buf: Buf, _fua: bool) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(async { (Err(io::ErrorKind::ReadOnlyFilesystem.into()), buf) })
    }

    fn flush(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        self.0.flush()
    }

    fn unmap(&self, _offset: u64, _len: u64) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(async { Err(io::ErrorKind::ReadOnlyFilesystem.into()) })
    }

    fn write_zeroes(&self, _offset: u64, _len: u64, _unmap: bool) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(async { Err(io::ErrorKind::ReadOnlyFilesystem.into()) })
    }

    fn describe(&self) -> Vec<(String, String)> {
        self.0.describe()
    }
}

/// Opens the logical units with these options.
async fn open_all(url: Url, options: Options) -> Result<Vec<ReadOnly>, Error> {
    let (_, session) = lunar_initiator::connect_with(&url, &options).await?;
    Ok(reopen(&session).await?.into_iter().map(|lun| ReadOnly(lun)).collect())
}

fn main() {
    assert_eq!(code(open(TCP)), ErrorCode::Unreachable);
    let url: Url = TCP.parse().expect("a URL");
    assert_eq!(
        code(poll(async { any_executor::AsyncLun::open(&url).await.map(drop) })),
        ErrorCode::Unreachable
    );
    let last = Arc::new(LastLogin::default());
    let hooks: Arc<dyn SessionHooks> = last.clone();
    let opened = blocking::run(move || async move { open_all(url, options(hooks)).await.map(drop) });
    assert_eq!(code(opened.expect("the background thread runs")), ErrorCode::Unreachable);
    assert!(last.0.lock().expect("a lock").is_none(), "there was no login");
    assert_eq!(LatencyTotal::default().count, 0);
    assert!(!MultipathOptions::default().check.is_zero());
    if cfg!(not(feature = "rdma")) {
        let error = open(RDMA).expect_err("this build has no RDMA");
        assert_eq!(error.code, ErrorCode::InvalidArgument);
        assert!(error.hint.as_ref().is_some_and(|hint| hint.contains("feature")), "{error:?}");
    }
}
