//! A simulated cluster: an object with watchers, blocks, a blocklist, and servers that learn of fences late.

use super::executor::Executor;
use super::{FAULTS, HOSTS};
use crate::store::{FENCED, Store, Swap};
use crate::{NOTIFY_TIMEOUT, WATCH_TIMEOUT};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::time::Duration;

/// Storage servers of the cluster. The object is on the first one, and block `n` on server `n % SERVERS`.
const SERVERS: usize = 3;
pub const BLOCKS: usize = 4;

/// A part of the cluster that executes operations.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Node {
    Monitor,
    Storage(usize),
}

/// The storage server of the object.
const OBJECT: Node = Node::Storage(0);

/// ENOTCONN: the watch is lost.
const NOT_CONNECTED: i32 = 107;
/// A fence ends after this time. It is short, so that pauses can be longer.
const FENCE_TIME: Duration = Duration::from_secs(20);

type OnNotify = Rc<dyn Fn(u64, Vec<u8>)>;

#[derive(Default)]
struct State {
    omap: BTreeMap<String, Vec<u8>>,
    /// The epoch of the newest map.
    map: u64,
    /// The epoch of the map that fenced a client, and the time.
    blocklist: BTreeMap<usize, (u64, Duration)>,
    servers: [u64; SERVERS],
    clients: Vec<ClientState>,
    notifications: BTreeMap<u64, Notification>,
    next: u64,
    /// The largest tag that each host has written to each block, and the violations.
    blocks: [[u64; HOSTS]; BLOCKS],
    faults: Vec<String>,
    /// The largest tag of [`Client::write_over`] in each block, and its client.
    paths: [(u64, usize); BLOCKS],
    /// The history of states: version and bytes.
    states: BTreeMap<String, Vec<u8>>,
    /// The latest version that an answer has shown to a host.
    answered: u64,
    /// The client that has taken the medium last.
    owner: Option<usize>,
}

struct ClientState {
    process: usize,
    map: u64,
    confirmed: Duration,
    watch: Option<OnNotify>,
    /// It reaches no storage server until then, or no monitor.
    cut_until: Duration,
    monitors_cut_until: Duration,
    /// Notifications that it has not handled yet, with the times at which they were sent.
    unhandled: BTreeMap<u64, Duration>,
}

struct Notification {
    waits_for: Vec<usize>,
    acks: Vec<Vec<u8>>,
}

#[derive(Clone)]
pub struct Cluster {
    executor: Executor,
    has_faults: bool,
    is_passive: bool,
    state: Rc<RefCell<State>>,
}

/// A client of the cluster.
#[derive(Clone)]
pub struct Client {
    cluster: Cluster,
    id: usize,
}

impl Cluster {
    /// A cluster whose network is slow and loses notifications, or is not and does not.
    pub fn new(executor: &Executor, has_faults: bool, is_passive: bool) -> Cluster {
        Cluster { executor: executor.clone(), has_faults, is_passive, state: Rc::default() }
    }

    pub fn client(&self, process: usize) -> Client {
        let mut state = self.state.borrow_mut();
        let map = state.map;
        let (confirmed, cut_until) = (self.executor.now(), Duration::ZERO);
        state.clients.push(ClientState {
            process,
            map,
            confirmed,
            watch: None,
            cut_until,
            monitors_cut_until: cut_until,
            unhandled: BTreeMap::new(),
        });
        Client { cluster: self.clone(), id: state.clients.len() - 1 }
    }

    pub fn omap(&self) -> BTreeMap<String, Vec<u8>> {
        self.state.borrow().omap.clone()
    }

    pub fn faults(&self) -> Vec<String> {
        self.state.borrow().faults.clone()
    }

    /// Whether one member at a time serves the medium.
    pub fn is_passive(&self) -> bool {
        self.is_passive
    }

    /// A host has received the answer of a change.
    pub fn answered(&self, version: u64) {
        let mut state = self.state.borrow_mut();
        state.answered = state.answered.max(version);
    }

    /// The latest version that an answer has shown to a host.
    pub fn answered_version(&self) -> u64 {
        self.state.borrow().answered
    }

    /// A violation.
    pub fn found(&self, what: String) {
        self.state.borrow_mut().faults.push(what);
    }

    /// Whether there was a fence.
    pub fn has_fenced(&self) -> bool {
        !self.state.borrow().blocklist.is_empty()
    }

    /// Cuts the clients of a process off for this time.
    pub fn cut(&self, process: usize, time: Duration) {
        self.cut_from_storage(process, time);
        let until = self.executor.now() + time;
        let mut state = self.state.borrow_mut();
        state.clients.iter_mut().filter(|c| c.process == process).for_each(|c| c.monitors_cut_until = until);
    }

    /// Cuts the clients of a process off from storage servers, but not from monitors.
    pub fn cut_from_storage(&self, process: usize, time: Duration) {
        let until = self.executor.now() + time;
        let mut state = self.state.borrow_mut();
        state.clients.iter_mut().filter(|c| c.process == process).for_each(|c| c.cut_until = until);
    }

    /// Servers receive the newest map now and then, and drop watches that were not confirmed.
    pub async fn gossip(&self) {
        loop {
            self.executor.sleep(Duration::from_millis(2000 + self.executor.below(8_000))).await;
            let server = self.executor.below(SERVERS as u64) as usize;
            let mut state = self.state.borrow_mut();
            state.servers[server] = state.map;
        }
    }
}

impl State {
    /// Whether this server executes an operation that a client sent then. The operation carries the map of the client.
    /// One that was sent before a fence ended is not executed after it: a lost member closes its client, so such an
    /// operation is not sent again.
    fn admits(&mut self, server: usize, client: usize, map: u64, sent: Duration) -> bool {
        self.servers[server] = self.servers[server].max(map);
        !self.is_fenced(server, client, sent)
    }

    fn is_fenced(&self, server: usize, client: usize, now: Duration) -> bool {
        let fence = self.blocklist.get(&client);
        fence.is_some_and(|(epoch, since)| {
            self.servers[server] >= *epoch && now.saturating_sub(*since) < FENCE_TIME
        })
    }

    fn has_watch(&mut self, client: usize, now: Duration) -> bool {
        let fenced = self.is_fenced(0, client, now);
        let state = &mut self.clients[client];
        if fenced || now - state.confirmed > WATCH_TIMEOUT {
            state.watch = None;
        }
        state.watch.is_some()
    }
}

impl Client {
    fn fenced<T>() -> io::Result<T> {
        Err(io::Error::from_raw_os_error(FENCED))
    }

    /// A delay of the network, and the end of a cut.
    async fn travel(&self, to: Node) {
        let executor = &self.cluster.executor;
        let micros = match executor.below(20) {
            _ if !self.cluster.has_faults || executor.now() > FAULTS => executor.below(3_000),
            0 => 300_000 + executor.below(2_000_000),
            1..5 => executor.below(60_000),
            _ => executor.below(3_000),
        };
        executor.sleep(Duration::from_micros(micros)).await;
        loop {
            let until = {
                let client = &self.cluster.state.borrow().clients[self.id];
                if to == Node::Monitor { client.monitors_cut_until } else { client.cut_until }
            };
            if until <= executor.now() {
                return;
            }
            executor.sleep(until - executor.now()).await;
        }
    }

    /// Sends an operation to a node. The operation takes place even if the process is paused meanwhile.
    async fn operate<T: 'static>(
        &self,
        node: Node,
        operation: impl FnOnce(&mut State) -> T + 'static,
    ) -> io::Result<T> {
        self.operate_since(node, self.cluster.executor.now(), operation).await
    }

    /// As [`Client::operate`], for an operation that the client has held since then.
    async fn operate_since<T: 'static>(
        &self,
        node: Node,
        sent: Duration,
        operation: impl FnOnce(&mut State) -> T + 'static,
    ) -> io::Result<T> {
        let (client, map) = (self.clone(), self.cluster.state.borrow().clients[self.id].map);
        let (send, receive) = flume::bounded(1);
        self.cluster.executor.spawn(None, async move {
            client.travel(node).await;
            let result = {
                let mut state = client.cluster.state.borrow_mut();
                let admits = match node {
                    Node::Monitor => true,
                    Node::Storage(server) => state.admits(server, client.id, map, sent),
                };
                if admits { Ok(operation(&mut state)) } else { Client::fenced() }
            };
            client.travel(node).await;
            _ = send.send(result);
        });
        receive.recv_async().await.unwrap_or_else(|_| Client::fenced())
    }

    /// Watches the object. The process confirms the watch each second, unless it is paused or cut off.
    pub fn watch(&self, on_notify: impl Fn(u64, Vec<u8>) + 'static) {
        let process = {
            let state = &mut self.cluster.state.borrow_mut().clients[self.id];
            state.watch = Some(Rc::new(on_notify));
            state.process
        };
        let client = self.clone();
        self.cluster.executor.spawn(Some(process), async move {
            loop {
                client.cluster.executor.sleep(Duration::from_secs(1)).await;
                let now = client.cluster.executor.now();
                let mut state = client.cluster.state.borrow_mut();
                if !state.has_watch(client.id, now) {
                    return;
                }
                if state.clients[client.id].cut_until <= now {
                    state.clients[client.id].confirmed = now;
                }
            }
        });
    }

    pub fn unwatch(&self) {
        self.cluster.state.borrow_mut().clients[self.id].watch = None;
    }

    /// The client has handled a notification. It has no later confirmation of its watch before that.
    pub fn handled(&self, notification: u64) {
        self.cluster.state.borrow_mut().clients[self.id].unhandled.remove(&notification);
    }

    pub async fn acknowledge(&self, notification: u64, payload: Vec<u8>) {
        let id = self.id;
        let acknowledge = move |state: &mut State| {
            if let Some(notification) = state.notifications.get_mut(&notification) {
                notification.waits_for.retain(|client| *client != id);
                notification.acks.push(payload);
            }
        };
        _ = self.operate(OBJECT, acknowledge).await;
    }

    /// Takes the medium from its last owner.
    pub async fn take_medium(&self) -> io::Result<()> {
        let id = self.id;
        self.operate(OBJECT, move |state| state.owner = Some(id)).await
    }

    /// Writes a tag to a block. Tags of a later owner are larger, so a smaller one of another host after it is a late
    /// write. (A host that gave up a write may write again before it: that is its own affair.)
    pub async fn write(&self, host: usize, block: usize, tag: u64) -> io::Result<()> {
        let id = self.id;
        let write = move |state: &mut State| {
            // A fenced client can reach a server that does not know the fence. No one of the later clients has reached it.
            if state.owner.is_some_and(|owner| owner != id) && !state.blocklist.contains_key(&id) {
                state.faults.push(format!("client {id} wrote to the medium of client {:?}", state.owner));
            }
            let newer =
                (0..HOSTS).filter(|other| *other != host).map(|other| state.blocks[block][other]).max();
            if let Some(newer) = newer.filter(|newer| tag < *newer) {
                state.faults.push(format!("client {id} wrote {tag} over {newer}"));
            }
            state.blocks[block][host] = state.blocks[block][host].max(tag);
        };
        self.operate(Node::Storage(block % SERVERS), write).await
    }
}

impl Client {
    /// Writes a tag of the host that changes paths. After a tag that went through another client, a smaller one is late.
    pub async fn write_over(&self, block: usize, tag: u64, since: Duration) -> io::Result<()> {
        let id = self.id;
        let write = move |state: &mut State| {
            let (newest, by) = state.paths[block];
            if tag < newest && by != id {
                state.faults.push(format!("client {id} wrote {tag} over {newest} of client {by}"));
            }
            if tag > newest {
                state.paths[block] = (tag, id);
            }
        };
        self.operate_since(Node::Storage(block % SERVERS), since, write).await
    }

    fn executor(&self) -> &Executor {
        &self.cluster.executor
    }

    fn end_of_cut(&self) -> Duration {
        self.cluster.state.borrow().clients[self.id].cut_until
    }

    fn loses_a_notification(&self) -> bool {
        self.cluster.has_faults && self.executor().now() < FAULTS && self.executor().below(25) == 0
    }
}

impl Store for Client {
    async fn read(&self) -> io::Result<BTreeMap<String, Vec<u8>>> {
        self.operate(OBJECT, |state| state.omap.clone()).await
    }

    async fn swap(&self, swap: Swap) -> io::Result<bool> {
        let swap_now = move |state: &mut State| {
            let value = |key: &String| state.omap.get(key).cloned().unwrap_or_default();
            if swap.expected.iter().any(|(key, expected)| value(key) != *expected) {
                return false;
            }
            state.omap.extend(swap.set);
            swap.remove.iter().for_each(|key| drop(state.omap.remove(key)));
            let version = String::from_utf8(state.omap["version"].clone()).unwrap();
            let bytes = state.omap["state"].clone();
            if state.states.insert(version.clone(), bytes).is_some() {
                state.faults.push(format!("version {version} exists twice"));
            }
            true
        };
        self.operate(OBJECT, swap_now).await
    }

    async fn notify(&self, payload: Vec<u8>) -> io::Result<Vec<Vec<u8>>> {
        let executor = self.cluster.executor.clone();
        let cluster = self.cluster.clone();
        let begin = move |state: &mut State| {
            let now = cluster.executor.now();
            state.next += 1;
            let number = state.next;
            let watchers: Vec<usize> =
                (0..state.clients.len()).filter(|id| state.has_watch(*id, now)).collect();
            for id in &watchers {
                state.clients[*id].unhandled.insert(number, now);
                let client = Client { cluster: cluster.clone(), id: *id };
                let (payload, on_notify) = (payload.clone(), state.clients[*id].watch.clone());
                let process = state.clients[*id].process;
                cluster.executor.spawn(Some(process), async move {
                    if client.loses_a_notification() {
                        return client.handled(number);
                    }
                    // The cluster sends it again when the connection is there again.
                    client.executor().sleep_until(client.end_of_cut()).await;
                    client.travel(OBJECT).await;
                    if let Some(on_notify) = on_notify {
                        on_notify(number, payload);
                    }
                });
            }
            state.notifications.insert(number, Notification { waits_for: watchers, acks: Vec::new() });
            number
        };
        let number = self.operate(OBJECT, begin).await?;
        let end = executor.now() + NOTIFY_TIMEOUT;
        while executor.now() < end {
            let now = executor.now();
            let is_over = {
                let mut state = self.cluster.state.borrow_mut();
                let waits_for = state.notifications[&number].waits_for.clone();
                !waits_for.into_iter().any(|client| state.has_watch(client, now))
            };
            if is_over {
                break;
            }
            executor.sleep(Duration::from_millis(50)).await;
        }
        self.operate(OBJECT, move |state| {
            state.notifications.remove(&number).map(|n| n.acks).unwrap_or_default()
        })
        .await
    }

    async fn blocklist(&self, addresses: &str) -> io::Result<()> {
        let fenced: usize = addresses.parse().map_err(io::Error::other)?;
        // It fences clients too.
        let executor = self.cluster.executor.clone();
        let fence = move |state: &mut State| {
            state.map += 1;
            let fence = (state.map, executor.now());
            state.blocklist.entry(fenced).or_insert(fence);
        };
        self.operate(Node::Monitor, fence).await
    }

    async fn wait_for_latest_map(&self) -> io::Result<()> {
        let map = self.operate(Node::Monitor, |state| state.map).await?;
        let client = &mut self.cluster.state.borrow_mut().clients[self.id];
        client.map = client.map.max(map);
        Ok(())
    }

    fn addresses(&self) -> String {
        self.id.to_string()
    }

    fn watch_age(&self) -> io::Result<Duration> {
        let now = self.cluster.executor.now();
        let mut state = self.cluster.state.borrow_mut();
        match state.has_watch(self.id, now) {
            true => {
                let client = &state.clients[self.id];
                let oldest = client.unhandled.values().chain([&client.confirmed]).min();
                Ok(now - *oldest.unwrap_or(&now))
            }
            false => Err(io::Error::from_raw_os_error(NOT_CONNECTED)),
        }
    }
}
