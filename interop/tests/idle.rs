//! The memory of idle sessions.

use interop::{Login, Raw, Server, config};
use rustix::process::{Resource, getrlimit, setrlimit};

const SESSIONS: usize = 1000;
/// Limit for all sessions together, in KiB.
const COST_KIB: u64 = 64 << 10;

/// Raises the limit of open files for this process and the server that it starts.
fn raise_open_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).expect("raise the limit to its maximum");
}

#[test]
fn thousand_idle_sessions_cost_less_than_64_mib() {
    raise_open_files();
    let mut server = Server::start(&(config::standard() + "[limits]\nsessions_per_initiator = 2000\n"));
    Raw::session(server.portal(), &[]).ping(); // the cost of the first session is not counted
    let before = server.rss_kib();
    // Each session executes commands, so that it allocates all that a session needs.
    let session = |_| {
        let mut raw = Login::new().on(server.portal());
        raw.clear_attentions(0);
        raw.read_blocks(0, 0, 8);
        raw
    };
    let mut sessions: Vec<Raw> = (0..SESSIONS).map(session).collect();
    let cost = server.rss_kib().saturating_sub(before);
    assert!(cost < COST_KIB, "{SESSIONS} sessions cost {cost} KiB");
    println!("{SESSIONS} sessions cost {cost} KiB");
    sessions.iter_mut().for_each(Raw::ping);
    assert!(server.lives());
}
