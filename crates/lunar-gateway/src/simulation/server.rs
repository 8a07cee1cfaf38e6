//! A gateway: one logical unit, one nexus for each host, and members that replace each other.

use super::cluster::{Client, Cluster};
use super::executor::Executor;
use super::{HOSTS, is_conflict};
use crate::member::{Member, Phase};
use crate::object::SharedView;
use crate::store::Unit;
use lunar_scsi::{
    InitiatorPort, Lu, LuIdentity, LuSettings, Nexus, NexusId, NexusPorts, Op, PassthroughMode,
    PeripheralDeviceType, Plan, PlanResult, TargetPort, TargetPorts, TransportProtocol,
};
use lunar_wire::scsi::op;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// The answer that a host receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Good,
    Conflict,
    /// No answer, BUSY or sense data: the host tries again.
    Failed,
}

pub struct Server {
    number: usize,
    executor: Executor,
    cluster: Cluster,
    lu: RefCell<Arc<Lu>>,
    ports: Arc<[TargetPort]>,
    nexuses: RefCell<BTreeMap<usize, Nexus>>,
    member: RefCell<Option<Rc<SimMember>>>,
    /// The running writes of each nexus.
    running: Rc<RefCell<BTreeMap<NexusId, usize>>>,
    /// The number of the process: a kill begins another one. Processes of this server have the same remainder.
    process: Cell<usize>,
}

/// Difference of the numbers of a server's processes.
pub const PROCESSES: usize = 1000;

pub type SimMember = Member<Client, SimUnit>;

pub struct SimUnit {
    lu: Arc<Lu>,
    executor: Executor,
    running: Rc<RefCell<BTreeMap<NexusId, usize>>>,
    client: Client,
    is_passive: bool,
}

impl Unit for SimUnit {
    fn lu(&self) -> &Arc<Lu> {
        &self.lu
    }

    async fn abort(&self, victims: Option<Vec<NexusId>>) {
        let is_victim = |id: &NexusId| victims.as_ref().is_none_or(|victims| victims.contains(id));
        while self.running.borrow().iter().any(|(id, count)| is_victim(id) && *count > 0) {
            self.executor.sleep(Duration::from_millis(5)).await;
        }
    }

    fn follow_members(&self, _: &SharedView, _: bool) {}

    fn is_passive(&self) -> bool {
        self.is_passive
    }

    async fn take_medium(&self) -> io::Result<()> {
        self.client.take_medium().await
    }

    async fn give_medium(&self) -> io::Result<()> {
        self.abort(None).await;
        Ok(())
    }
}

fn lu() -> Arc<Lu> {
    let identity = LuIdentity {
        vendor: "LUNAR".into(),
        product: "DISK".into(),
        revision: "1".into(),
        serial: "1".into(),
        naa: vec![0x30, 0, 0, 0, 0, 0, 0, 1],
        designators: None,
    };
    let settings = LuSettings {
        device_type: PeripheralDeviceType::Disk,
        identity,
        block_size: 512,
        physical_block_size: 512,
        capacity: 1 << 20,
        read_only: false,
        removable: false,
        write_cache: false,
        thin: true,
        max_atomic: 0,
        medium_compares: false,
        max_registrants: 32,
        reservable: true,
        passthrough: PassthroughMode::None,
        explicit_access: false,
        shared: true,
    };
    Arc::new(Lu::new(settings, None).expect("settings"))
}

/// The only port of a server.
fn port_of(server: usize) -> TargetPort {
    TargetPort::new(TransportProtocol::Iscsi, server as u16 + 1, None)
}

fn shared_lu() -> Arc<Lu> {
    let lu = lu();
    lu.share(|| {});
    lu
}

impl Server {
    pub fn start(executor: &Executor, cluster: &Cluster, number: usize, servers: usize) -> Rc<Server> {
        let server = Rc::new(Server {
            number,
            executor: executor.clone(),
            cluster: cluster.clone(),
            lu: RefCell::new(shared_lu()),
            ports: (0..servers).map(port_of).collect(),
            nexuses: RefCell::default(),
            member: RefCell::default(),
            running: Rc::default(),
            process: Cell::new(number),
        });
        executor.spawn(Some(number), server.clone().live());
        server
    }

    pub fn lu(&self) -> Arc<Lu> {
        self.lu.borrow().clone()
    }

    /// The number of its process.
    pub fn process(&self) -> usize {
        self.process.get()
    }

    pub fn is_serving(&self) -> bool {
        self.member.borrow().as_ref().is_some_and(|member| member.phase() == Phase::Serving)
    }

    pub fn serving_member(&self) -> Option<Rc<SimMember>> {
        self.member.borrow().clone().filter(|member| member.phase() == Phase::Serving)
    }

    pub fn is_active(&self) -> bool {
        self.member.borrow().as_ref().is_some_and(|member| member.is_active())
    }

    /// Makes a server the active one.
    pub async fn activates(self: &Rc<Self>, number: usize) {
        let server = self.clone();
        let work = async move {
            let Some(member) = server.member.borrow().clone().filter(|m| m.phase() == Phase::Serving) else {
                return;
            };
            _ = member.activate(number as u8 + 1).await;
        };
        self.on_process(work).await;
    }

    pub fn version(&self) -> Option<u64> {
        self.member.borrow().as_ref().map(|member| member.version())
    }

    /// kill -9: operations that the cluster has are executed, nothing else.
    pub fn kill(self: &Rc<Self>) {
        self.executor.kill(self.process.get());
        self.process.set(self.process.get() + PROCESSES);
        self.end_member();
        self.running.borrow_mut().clear();
        *self.lu.borrow_mut() = shared_lu();
        let server = self.clone();
        self.executor.spawn(Some(self.process.get()), async move {
            server.executor.sleep(Duration::from_millis(server.executor.below(20_000))).await;
            server.live().await;
        });
    }

    fn end_member(&self) {
        if let Some(member) = self.member.borrow_mut().take() {
            member.lose("it ended");
        }
        self.nexuses.borrow_mut().clear();
    }

    /// One member after the other, as long as the process lives.
    async fn live(self: Rc<Self>) {
        let mut continues = false;
        loop {
            let client = self.cluster.client(self.process.get());
            let unit = SimUnit {
                lu: self.lu(),
                executor: self.executor.clone(),
                running: self.running.clone(),
                client: client.clone(),
                is_passive: self.cluster.is_passive(),
            };
            let incarnation = self.executor.below(u64::MAX);
            let member = Rc::new(Member::new(
                "sim",
                self.number as u8 + 1,
                incarnation,
                Vec::new(),
                continues,
                (client.clone(), unit),
            ));
            *self.member.borrow_mut() = Some(member.clone());
            self.watch(&client, &member);
            self.spawn_ticks(&member);
            self.spawn_rounds(&member);
            let lost = async {
                while member.phase() != Phase::Lost {
                    self.executor.sleep(Duration::from_millis(100)).await;
                }
                false
            };
            if first(async { member.join().await.is_ok() }, lost).await {
                continues = true;
                self.serve(&member).await;
            } else {
                member.lose("it could not join");
            }
            client.unwatch();
            self.end_member();
            self.executor.sleep(Duration::from_millis(100)).await;
        }
    }

    fn watch(&self, client: &Client, member: &Rc<SimMember>) {
        let (executor, process) = (self.executor.clone(), self.process.get());
        let (member, acks) = (member.clone(), client.clone());
        client.watch(move |notification, payload| {
            let (member, acks) = (member.clone(), acks.clone());
            let alarm = executor.clone();
            let (following, (done, end)) = (member.clone(), flume::bounded::<()>(0));
            executor.spawn(Some(process), async move {
                following.notified(&payload).await;
                following.finish().await;
                drop(done);
            });
            executor.spawn(Some(process), async move {
                let ended = async { _ = end.recv_async().await };
                first(ended, alarm.sleep(crate::ACKNOWLEDGE_WITHIN)).await;
                if let Some(ack) = member.acknowledgement(alarm.now()) {
                    acks.acknowledge(notification, ack).await;
                    acks.handled(notification);
                }
            });
        });
    }

    fn spawn_ticks(self: &Rc<Self>, member: &Rc<SimMember>) {
        let (server, member) = (self.clone(), member.clone());
        self.executor.spawn(Some(self.process.get()), async move {
            while member.tick(server.executor.now()).is_ok() {
                let recovering = member.clone();
                server.executor.spawn(Some(server.process.get()), async move {
                    recovering.probe().await;
                    _ = recovering.recover().await;
                });
                server.executor.sleep(Duration::from_secs(1)).await;
            }
        });
    }

    fn spawn_rounds(self: &Rc<Self>, member: &Rc<SimMember>) {
        let (executor, member) = (self.executor.clone(), member.clone());
        self.executor.spawn(Some(self.process.get()), async move {
            while member.supervise().await.is_ok() {
                executor.sleep(Duration::from_secs(1)).await;
            }
        });
    }

    async fn serve(&self, member: &Rc<SimMember>) {
        while member.phase() != Phase::Lost {
            if let Some(pending) = member.unit().lu.follow_nexuses() {
                _ = member.publish(pending).await;
            }
            self.executor.sleep(Duration::from_millis(500)).await;
        }
    }

    /// The member, with a session of the host.
    fn session(&self, host: usize) -> Option<Rc<SimMember>> {
        let member = self.member.borrow().clone().filter(|member| member.phase() == Phase::Serving)?;
        let mut nexuses = self.nexuses.borrow_mut();
        nexuses.entry(host).or_insert_with(|| {
            assert!(host < HOSTS);
            let initiator =
                InitiatorPort::Iscsi { name: format!("iqn.2026-11.org.example:h{host}"), isid: [0; 6] };
            let port = NexusPorts {
                initiator,
                user: String::new(),
                target: "iqn.2026-11.org.example:disk".into(),
                own: port_of(self.number),
                ports: TargetPorts::new(self.ports.clone()),
            };
            let mut nexus = member.unit().lu.attach(Arc::new(port), false);
            _ = nexus.begin(&[0; 16]);
            nexus
        });
        Some(member)
    }

    /// Runs a part of a command on this server, when the process is not paused.
    async fn on_process<T: 'static>(self: &Rc<Self>, work: impl Future<Output = T> + 'static) -> Option<T> {
        let (send, receive) = flume::bounded(1);
        self.executor.spawn(Some(self.process.get()), async move {
            _ = send.send(work.await);
        });
        // A host gives up after a while, and uses another path.
        let given_up = self.executor.clone();
        let timeout = async move {
            given_up.sleep(Duration::from_secs(3)).await;
            None
        };
        first(async move { receive.recv_async().await.ok() }, timeout).await
    }

    pub async fn command(self: &Rc<Self>, host: usize, cdb: &[u8], list: Option<&[u8]>) -> Answer {
        let server = self.clone();
        let (mut cdb, list) = (cdb.to_vec(), list.map(<[u8]>::to_vec));
        cdb.resize(cdb.len().max(16), 0);
        let work = async move { server.execute(host, &cdb, list.as_deref()).await };
        self.on_process(work).await.unwrap_or(Answer::Failed)
    }

    async fn execute(&self, host: usize, cdb: &[u8], list: Option<&[u8]>) -> Answer {
        let Some(member) = self.session(host) else { return Answer::Failed };
        let begin = |nexus: &mut Nexus| match nexus.begin(cdb) {
            Ok(Plan::Parameters { .. }) => nexus.parameters(cdb, list.unwrap_or_default()),
            other => other,
        };
        // Unit attentions are reported first.
        let mut answer: Option<PlanResult> = None;
        for _ in 0..8 {
            let now = self.nexuses.borrow_mut().get_mut(&host).map(&begin);
            let attention = matches!(&now, Some(Err(e)) if e.sense.is_some_and(|s| s.key == 6));
            answer = now;
            if !attention {
                break;
            }
        }
        if !member.may_decide(self.executor.now()) {
            return Answer::Failed;
        }
        let answer = match answer {
            Some(Ok(Plan::Op(op))) => match *op {
                Op::Persist(pending) => {
                    let published = member.publish(pending).await.ok();
                    if published.is_some() {
                        self.cluster.answered(member.announced_version());
                    }
                    published
                }
                op => Some(Ok(Plan::Op(Box::new(op)))),
            },
            other => other,
        };
        // A lost server does not answer.
        if member.phase() == Phase::Lost {
            return Answer::Failed;
        }
        match answer {
            Some(Ok(Plan::Op(op))) => {
                let Op::Preempt { victims } = *op else { return Answer::Failed };
                member.unit().abort(Some(victims)).await;
                if member.phase() == Phase::Lost { Answer::Failed } else { Answer::Good }
            }
            Some(Ok(_)) => Answer::Good,
            Some(Err(e)) if is_conflict(e.status) => Answer::Conflict,
            _ => Answer::Failed,
        }
    }

    /// PERSISTENT RESERVE IN: the state that it reports has all changes that were answered before it began.
    pub async fn reads_state(self: &Rc<Self>, host: usize) {
        let (server, answered) = (self.clone(), self.cluster.answered_version());
        let work = async move {
            let Some(member) = server.session(host) else { return };
            let refreshed = member.refresh().await;
            if refreshed.is_ok() && member.may_decide(server.executor.now()) && member.version() < answered {
                server.cluster.found(format!("state {} was reported after {answered}", member.version()));
            }
        };
        self.on_process(work).await;
    }

    pub async fn write(self: &Rc<Self>, host: usize, block: usize, tag: u64) -> Answer {
        let server = self.clone();
        let work = async move { server.execute_write(host, block, tag).await };
        self.on_process(work).await.unwrap_or(Answer::Failed)
    }

    async fn execute_write(&self, host: usize, block: usize, tag: u64) -> Answer {
        let Some(member) = self.session(host) else { return Answer::Failed };
        let cdb = [op::WRITE_10, 0, 0, 0, 0, block as u8, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
        let Some((id, plan)) = self.nexuses.borrow_mut().get_mut(&host).map(|n| (n.id(), n.begin(&cdb)))
        else {
            return Answer::Failed;
        };
        if !member.may_decide(self.executor.now()) {
            return Answer::Failed;
        }
        match plan {
            Ok(Plan::Write { .. }) => {}
            Err(e) if is_conflict(e.status) => return Answer::Conflict,
            _ => return Answer::Failed,
        }
        *self.running.borrow_mut().entry(id).or_default() += 1;
        // Some operations take longer than the time for an acknowledgement.
        let time = if self.executor.below(40) == 0 { 9_000 } else { 50 };
        self.executor.sleep(Duration::from_millis(self.executor.below(time))).await;
        let now = self.executor.now();
        let may_write = member.is_current(now) && member.has_round(now) && member.is_active();
        let written = if may_write { member.store().write(host, block, tag).await.is_ok() } else { false };
        *self.running.borrow_mut().entry(id).or_default() -= 1;
        if written && member.phase() != Phase::Lost { Answer::Good } else { Answer::Failed }
    }
}

/// The result of the future that ends first.
async fn first<T>(one: impl Future<Output = T>, other: impl Future<Output = T>) -> T {
    let (mut one, mut other) = (std::pin::pin!(one), std::pin::pin!(other));
    std::future::poll_fn(|context| match one.as_mut().poll(context) {
        std::task::Poll::Pending => other.as_mut().poll(context),
        ready => ready,
    })
    .await
}
