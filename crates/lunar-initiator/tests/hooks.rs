//! The hooks of a session: its logins and its end.

mod common;

use common::run;
use interop::script::{HookAction, Script, ScriptConnection};
use interop::{Pdu, op};
use lunar_block::LocalBoxFuture;
use lunar_initiator::{Error, ErrorCode, SessionHooks, SessionLogin, Url, connect_with, luns};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(30);

/// Records the callbacks of a session, and rejects one login.
#[derive(Debug, Default)]
struct Record {
    /// The number of the login to reject, from 0.
    rejected_login: Option<usize>,
    seen: Mutex<Vec<String>>,
}

impl Record {
    fn add(&self, line: String) {
        self.seen.lock().expect("an unpoisoned lock").push(line);
    }

    fn seen(&self) -> Vec<String> {
        self.seen.lock().expect("an unpoisoned lock").clone()
    }
}

impl SessionHooks for Record {
    fn logged_in<'a>(&'a self, login: SessionLogin<'a>) -> LocalBoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let number = self.seen().len();
            self.add(format!("login first={} orphans={}", login.is_first, login.has_orphans));
            match self.rejected_login == Some(number) {
                true => Err(Error::new(ErrorCode::Refused, "not recorded")),
                false => Ok(()),
            }
        })
    }

    fn ended(&self, is_settled: bool) {
        self.add(format!("ended settled={is_settled}"));
    }
}

#[test]
fn hook_error_at_first_login_sends_no_command() {
    let target = Script::new().listen();
    let url = Url::parse(&target.url("")).expect("a URL");
    let record = Arc::new(Record { rejected_login: Some(0), ..Record::default() });
    let hooks = record.clone();
    run(LIMIT, move || async move {
        let mut options = url.options().expect("options");
        options.hooks = Some(hooks);
        let error = connect_with(&url, &options).await.map(drop).expect_err("rejected");
        assert_eq!((error.code, error.what.as_str()), (ErrorCode::Refused, "not recorded"));
    });
    assert_eq!(record.seen(), ["login first=true orphans=false"]);
    assert!(target.requests(op::SCSI).is_empty(), "no command may be sent");
}

#[test]
fn hooks_see_each_login_and_the_end() {
    let target = Script::new().listen();
    let url = Url::parse(&target.url("")).expect("a URL");
    let record = Arc::new(Record::default());
    let hooks = record.clone();
    run(LIMIT, move || async move {
        let mut options = url.options().expect("options");
        options.hooks = Some(hooks);
        let (_, session) = connect_with(&url, &options).await.expect("a session");
        luns(&session).await.expect("LUNs");
        session.close().await.expect("closed");
    });
    assert_eq!(record.seen(), ["login first=true orphans=false", "ended settled=true"]);
}

#[test]
fn hook_error_at_a_later_login_connects_again() {
    const REPORT_LUNS: u8 = 0xa0;
    let closes_first = |link: &mut ScriptConnection, _: &Pdu| {
        if link.number == 0 { HookAction::Close } else { HookAction::Usual }
    };
    let target = Script::new().scsi(REPORT_LUNS, closes_first).listen();
    let url = Url::parse(&target.url("")).expect("a URL");
    let record = Arc::new(Record { rejected_login: Some(1), ..Record::default() });
    let hooks = record.clone();
    run(LIMIT, move || async move {
        let mut options = url.options().expect("options");
        options.hooks = Some(hooks);
        let (_, session) = connect_with(&url, &options).await.expect("a session");
        luns(&session).await.expect("LUNs");
    });
    let again = "login first=false orphans=false";
    assert_eq!(record.seen()[..3], ["login first=true orphans=false", again, again]);
    let links: Vec<usize> =
        target.seen().iter().filter(|seen| seen.pdu.opcode() == op::SCSI).map(|seen| seen.link).collect();
    assert!(!links.contains(&1), "no command may be sent on the rejected connection: {links:?}");
}
