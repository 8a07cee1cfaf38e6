//! Routed LUNs as namespaces: NVMe hosts use storage that has only iSCSI.

use crate::*;
use interop::nvme::{NvmeEntry, NvmeHostName, NvmeReply, RawController};
use interop::scsi::pattern;

const NQN: &str = "nqn.2026-11.org.example:routed";
/// Connect: the controller is busy, and the host tries again.
const CONNECT_BUSY: u16 = 0x181;
/// Identify: the active namespaces.
const ACTIVE: u8 = 2;

/// A router with a portal of each family. Namespace `n + 1` of its subsystem is LUN `n` of a target.
fn router(target: &str, luns: &[u16], rest: &str) -> Server {
    let namespace = |lun: &u16| {
        format!("[[subsystem.namespace]]\nnsid = {}\ntarget = \"{target}\"\nlun = {lun}\n", lun + 1)
    };
    let namespaces: String = luns.iter().map(namespace).collect();
    let portals = "portals = [\"127.0.0.1:0\", { listen = \"127.0.0.1:0\", transport = [\"nvme-tcp\"] }]";
    Server::start(&format!(
        "[session]\nnop_interval_s = 0\n[[portal_group]]\ntag = 1\n{portals}\n\
         [[subsystem]]\nnqn = \"{NQN}\"\n{namespaces}[router.r1]\npath_loss_timeout_s = 2\n{rest}"
    ))
}

fn nvme(router: &Server) -> SocketAddr {
    router.portals()[1]
}

fn host() -> NvmeHostName {
    NvmeHostName::new("host")
}

/// One Connect of the admin queue.
fn try_connect(address: SocketAddr) -> NvmeReply {
    RawController::try_connect(address, &host(), NQN)
}

/// A controller, as soon as the subsystem accepts hosts. Until then it must be busy.
fn controller(router: &Server) -> RawController {
    until("the subsystem accepts hosts", || {
        let reply = try_connect(nvme(router));
        assert!(matches!(reply.status, 0 | CONNECT_BUSY), "{reply:x?}");
        (reply.status == 0).then(|| RawController::enabled(nvme(router), &host(), NQN, 0))
    })
}

fn namespaces(it: &mut RawController) -> Vec<u32> {
    let list = it.admin.execute(&NvmeEntry::identify(ACTIVE, 0), &[]).good();
    let numbers = list.chunks_exact(4).map(|four| u32::from_le_bytes(four.try_into().expect("4 bytes")));
    numbers.take_while(|number| *number != 0).collect()
}

#[test]
fn routed_luns_are_namespaces_of_the_same_disks() {
    let storage = storage();
    let up = upstream("all", &url(&storage, ""), "") + &upstream("a", &url(&storage, &format!("/{A}")), "");
    let composed =
        format!("map = \"lun\"\nname = \"{U}\"\nlun = [{{ lun = 0, upstream = \"a\", from = 3 }}]");
    for (target, luns, mapping) in [
        (T, &[0, 3][..], map_target(T, "a")),
        (A, &[0, 3], map("map = \"transparent\"\nupstream = \"all\"")),
        (U, &[0], map(&composed)),
    ] {
        let router = router(target, luns, &format!("{up}{mapping}"));
        let mut it = controller(&router);
        let expected: Vec<u32> = luns.iter().map(|lun| u32::from(*lun) + 1).collect();
        assert_eq!(namespaces(&mut it), expected, "{target}");
        let mut queue = it.queue(1);
        let data = pattern(4096, 7);
        queue.execute(&NvmeEntry::write(1, 8, 8), &data).good();
        let mut raw = session(router.portal(), target, luns);
        assert_eq!(raw.read_blocks(0, 8, 8), data, "{target}: the LUN has what the namespace wrote");
        raw.write_blocks(0, 8, &pattern(4096, 8)).good();
        let read = queue.execute(&NvmeEntry::read(1, 8, 8), &[]).good();
        assert_eq!(read, pattern(4096, 8), "{target}");
    }
}

#[test]
fn subsystem_waits_until_its_upstream_is_found() {
    let mut storage = storage();
    let there = url(&storage, &format!("/{A}"));
    let mut router = router(T, &[0], &(upstream("a", &there, "") + &map_target(T, "a")));
    drop(controller(&router));
    storage.kill9();
    router.kill9();
    router.restart();
    // A host that connected now would find no namespace, and remove its disk.
    assert_eq!(try_connect(nvme(&router)).status, CONNECT_BUSY);
    storage.restart();
    assert_eq!(namespaces(&mut controller(&router)), [1]);
}

#[test]
fn namespace_that_is_awaited_later_closes_no_subsystem() {
    let storage = storage();
    let there = url(&storage, &format!("/{A}"));
    let mut router = router(T, &[0], &(upstream("a", &there, "") + &map_target(T, "a")));
    let it = controller(&router);
    let mut queue = it.queue(1);
    let text = std::fs::read_to_string(router.dir().join("lunar.toml")).expect("a configuration");
    let more = upstream("dead", &format!("iscsi://127.0.0.1:1/{B}"), "") + &map_target(U, "dead");
    let namespace = format!("[[subsystem.namespace]]\nnsid = 9\ntarget = \"{U}\"\nlun = 0\n");
    router.rewrite(&(text.replace("[router.r1]", &format!("{namespace}[router.r1]")) + &more));
    router.said(&["reload", "--force"]);
    queue.execute(&NvmeEntry::write(1, 0, 1), &pattern(512, 1)).good();
    assert_eq!(try_connect(nvme(&router)).status, 0);
}

#[test]
fn lost_upstream_is_a_path_error_and_comes_back() {
    let mut storage = storage();
    let there = url(&storage, &format!("/{A}"));
    let router = router(T, &[0], &(upstream("a", &there, "") + &map_target(T, "a")));
    let it = controller(&router);
    let mut queue = it.queue(1);
    queue.execute(&NvmeEntry::write(1, 0, 1), &pattern(512, 1)).good();
    storage.kill9();
    // It waits for the upstream at first. Then the host may try another path.
    let reply = queue.execute(&NvmeEntry::read(1, 0, 1), &[]);
    assert_eq!(reply.status, 0x303, "ANA transition, without DNR: {reply:x?}");
    storage.restart();
    until("the namespace works again", || {
        let reply = queue.execute(&NvmeEntry::read(1, 0, 1), &[]);
        assert!(matches!(reply.status, 0 | 0x303), "{reply:x?}");
        (reply.status == 0).then(|| assert_eq!(reply.data, pattern(512, 1)))
    });
}

#[test]
fn drained_router_ends_its_controllers_until_resumed() {
    let storage = storage();
    let own = "nqn.2026-11.org.example:own";
    let local = format!(
        "[[subsystem]]\nnqn = \"{own}\"\n[[subsystem.namespace]]\nnsid = 1\nbackend = \"null\"\nsize = \"1M\"\n"
    );
    let there = upstream("a", &url(&storage, &format!("/{A}")), "") + &map_target(T, "a") + &local;
    let router = router(T, &[0], &there);
    let mut it = controller(&router);
    let mut other = RawController::enabled(nvme(&router), &host(), own, 0);
    let mut queue = it.queue(1);
    // The command ends before its queue does.
    let id = queue.submit(&NvmeEntry::write(1, 0, 1), &[]);
    let request = queue.recv_for(id);
    router.said(&["router", "drain", "r1"]);
    until("hosts are refused", || (try_connect(nvme(&router)).status == CONNECT_BUSY).then_some(()));
    queue.answer(&request, &pattern(512, 1));
    queue.collect(id, &[]).good();
    queue.expect_close(PATIENCE);
    it.admin.expect_close(PATIENCE);
    assert_eq!(try_connect(nvme(&router)).status, CONNECT_BUSY);
    assert_eq!(namespaces(&mut other), [1], "a subsystem without LUNs of the router");
    router.said(&["router", "resume", "r1"]);
    assert_eq!(namespaces(&mut controller(&router)), [1]);
}

#[test]
fn device_that_executes_commands_is_no_namespace() {
    let storage = storage();
    let there = url(&storage, "");
    let all =
        upstream("all", &there, "mode = \"passthrough\"\n") + &upstream("a", &format!("{there}/{A}"), "");
    // The name is known, its mode is not: another upstream in block mode could have it.
    let mapping = map("map = \"transparent\"\nupstream = \"all\"") + &map_target(T, "a");
    let router = router(T, &[0], &(all + &mapping));
    assert_eq!(namespaces(&mut controller(&router)), [1]);
    let text = std::fs::read_to_string(router.dir().join("lunar.toml")).expect("a configuration");
    let file = router.dir().join("other.toml");
    let named = text
        .replace(&there, &format!("{there}/{A}"))
        .replace("map = \"transparent\"\n", &format!("map = \"target\"\nname = \"{U}\"\n"));
    let named = named.replace(&format!("target = \"{T}\"\nlun"), &format!("target = \"{U}\"\nlun"));
    std::fs::write(&file, named).expect("a configuration");
    let refused = lunar(&["check", file.to_str().expect("a path")]);
    assert!(!refused.ok() && refused.said.contains("cannot be a namespace"), "{}", refused.said);
}
