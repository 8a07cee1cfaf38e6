//! Random reservation commands of hosts on three gateways. Some order of them, consistent with real time, with the log of the
//! gateways and with the state after them, explains all answers as those of one server.

use crate::commands::{GATEWAYS, HOSTS, choose, host, hosts};
use crate::model::{Answer, Command, Model};
use crate::order::{Event, Search, shown};
use interop::ceph::CephCluster;
use interop::gateways::{session_of, shared_state};
use interop::reserve::action::{CLEAR, REGISTER_AND_IGNORE};
use interop::routed::until;
use interop::scsi::{READ, WRITE, reserve_out};
use interop::{Login, Random, Raw, Server};
use lunar_gateway::SharedView;
use lunar_gateway::object::LOG_LEN;
use std::time::{Duration, Instant};

/// Rounds; after each one the log is read, which contains all its changes.
const ROUNDS: usize = 24;
/// Commands of each host in a round.
const COMMANDS: usize = 6;
/// Rounds in which a gateway is killed.
const KILLS: [usize; 1] = [8];
/// Longer than a round.
const NEVER: Duration = Duration::from_secs(3600);
const BUSY: u8 = 8;
const TASK_ABORTED: u8 = 0x40;

/// A seed, for a run of the same commands: `LUNAR_TEST_SEED`, or the time.
fn seed() -> u64 {
    let chosen = std::env::var("LUNAR_TEST_SEED").ok().map(|text| text.parse().expect("a number"));
    let now = || std::time::SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_nanos() as u64;
    chosen.unwrap_or_else(now)
}

fn session(servers: &[Server; 3], number: usize) -> Raw {
    let host = host(number);
    let login = Login::new().initiator(&host.name).isid(host.isid);
    let mut raw = session_of(&servers[usize::from(host.gateway) - 1], &login);
    raw.check_stat_sn = true;
    raw
}

/// The shared state. Its log has the last changes without a gap.
fn view(cluster: &CephCluster) -> SharedView {
    let view = SharedView::decode(&shared_state(cluster)).expect("a valid state");
    let expected = view.version.saturating_sub(LOG_LEN - 1).max(1)..=view.version;
    assert!(view.log.keys().copied().eq(expected), "versions {:?}, at {}", view.log.keys(), view.version);
    view
}

pub fn answers_are_those_of_one_server(cluster: &CephCluster, servers: &mut [Server; 3]) {
    let seed = seed();
    println!("LUNAR_TEST_SEED={seed}");
    let mut random = Random::new(seed);
    let mut raws = std::array::from_fn(|number| session(servers, number));
    abort_with_status(&mut raws[0]);
    let mut model = Model::new(&hosts(), &GATEWAYS);
    let (mut before, mut unanswered) = (view(cluster), 0);
    for round in 0..ROUNDS {
        let is_kill = KILLS.contains(&round);
        let victim = random.below(GATEWAYS.len() as u64) as usize;
        let delay = Duration::from_micros(random.below(20_000));
        let histories = play(&mut raws, &mut random, || {
            if is_kill {
                std::thread::sleep(delay);
                servers[victim].kill9();
            }
        });
        let after = view(cluster);
        let (changes, is_complete) = after.changes_since(before.version).expect("a valid log");
        assert!(is_complete, "round {round} has more changes than the log");
        // Those with fences are none of a command.
        let members = changes.iter().filter(|change| change.fenced.is_empty() && change.claimed.is_empty());
        let members: Vec<u8> = members.map(|change| change.member).collect();
        let explained =
            Search::new(&mut model, &histories, &members, &after.state).explains_all(&before.state);
        assert!(
            explained,
            "LUNAR_TEST_SEED={seed}: no order explains round {round}:\n{}",
            shown(&histories, &members)
        );
        unanswered += histories.iter().flatten().filter(|event| event.answer.is_none()).count();
        before = after;
        if is_kill {
            servers[victim].restart();
            raws = std::array::from_fn(|number| session(servers, number));
            before = settled(cluster);
        }
    }
    clear(&mut raws[0]);
    println!("{} changes, {unanswered} commands without an answer", before.version);
}

/// The shared state when the members do not change it any more.
fn settled(cluster: &CephCluster) -> SharedView {
    let mut last = view(cluster);
    until("the members have joined", || {
        let now = view(cluster);
        let is_same = now == last;
        last = now.clone();
        is_same.then_some(now)
    })
}

/// Sets TAS: a command that another host aborts ends with TASK ABORTED.
fn abort_with_status(raw: &mut Raw) {
    let mut page = raw.read(0, &[0x1a, 8, 0x0a, 0, 64, 0], 64).good();
    // These bits are reserved in MODE SELECT.
    (page[0], page[2], page[4]) = (0, 0, page[4] & 0x3f);
    page[4 + 5] |= 0x40;
    raw.write(0, &[0x15, 0x10, 0, 0, page.len() as u8, 0], &page).good();
}

/// Ends all registrations.
fn clear(raw: &mut Raw) {
    raw.clear_attentions(0);
    reserve_out(raw, 0, REGISTER_AND_IGNORE, 0, 0, 1, 0).good();
    reserve_out(raw, 0, CLEAR, 0, 1, 0, 0).good();
}

/// Each host sends its commands, one after the other, until its session ends. Meanwhile, `during` runs.
fn play(raws: &mut [Raw; HOSTS.len()], random: &mut Random, during: impl FnOnce()) -> Vec<Vec<Event>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = raws
            .iter_mut()
            .enumerate()
            .map(|(number, raw)| {
                let mut random = random.fork();
                scope.spawn(move || {
                    let mut ended = false;
                    let commands = (0..COMMANDS).map(|_| choose(number, &mut random));
                    let next = |command| (!ended).then(|| run(raw, command, &mut ended));
                    commands.map_while(next).collect()
                })
            })
            .collect();
        during();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

/// Runs a command, again if it has not taken place: it ended with a unit attention, or with BUSY because another host aborts
/// the commands of this one. `ended`: the session has ended before the command.
fn run(raw: &mut Raw, command: Command, ended: &mut bool) -> Event {
    loop {
        let sent = Instant::now();
        let (flags, length) = match command.parameters.len() {
            0 => (READ, 4096),
            length => (WRITE, length as u32),
        };
        let pdu = raw.command(0, 0x80 | flags, &command.cdb, length).data(&command.parameters);
        raw.send(&pdu);
        let Some(reply) = raw.try_collect(pdu.tag(), &[]) else {
            *ended = true;
            // It may take place later.
            return Event { command, sent, answered: sent + NEVER, answer: None };
        };
        let answered = Instant::now();
        let sense = reply.sense();
        assert_eq!(reply.response, 0);
        if sense >> 16 == 6 {
            assert!(
                [0x06_2a_01, 0x06_2a_03, 0x06_2a_04, 0x06_2a_05, 0x06_2a_06].contains(&sense),
                "{sense:06x}"
            );
        }
        if reply.status != BUSY && sense >> 16 != 6 {
            let answer = Answer { status: reply.status, sense, data: reply.data };
            let answer = Some(answer).filter(|answer| answer.status != TASK_ABORTED);
            return Event { command, sent, answered, answer };
        }
    }
}
