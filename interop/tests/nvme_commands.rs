//! Commands with `nvme://` URLs against a running server: their output and exit status.

use interop::command::{CommandOutput, lunar};
use interop::{Server, TARGET};

const NQN: &str = "nqn.2026-11.org.example:disks";

/// Namespaces 1 and 3 are LUNs 0 and 1 of the target.
fn server() -> Server {
    Server::start(&format!(
        r#"
[[portal_group]]
tag = 1
portals = [{{ listen = "127.0.0.1:0", transport = ["nvme-tcp"] }}]
[[portal_group]]
tag = 2
portals = ["127.0.0.1:0"]
[[target]]
name = "{TARGET}"
portal_groups = [2]
[[target.lun]]
lun = 0
backend = "memory"
size = "16MiB"
[[target.lun]]
lun = 1
backend = "memory"
size = "8MiB"
[[subsystem]]
nqn = "{NQN}"
portal_groups = [1]
[[subsystem.namespace]]
nsid = 1
target = "{TARGET}"
lun = 0
[[subsystem.namespace]]
nsid = 3
target = "{TARGET}"
lun = 1
"#
    ))
}

/// The URL of a namespace for a host.
fn url(server: &Server, namespace: &str, host: &str) -> String {
    let portal = server.portals()[0];
    format!("nvme://{portal}/{NQN}/{namespace}?host_nqn=nqn.2026-11.org.example:{host}")
}

fn done(ran: CommandOutput) -> String {
    assert_eq!((ran.1.as_str(), ran.2), ("", 0), "{}", ran.0);
    ran.0
}

#[test]
fn url_with_an_identifier_leads_to_its_namespace() {
    let server = server();
    let info = |namespace: &str| lunar(&["info", &url(&server, namespace, "one"), "--json"]);
    let identity = |text: &str| {
        let (_, rest) = text.split_once("\"identity\": \"").expect("an identity");
        rest.split_once('"').expect("its end").0.to_owned()
    };
    // The controller has another number each time.
    let namespace = |out: String| out.split_once("\"namespace\": {").expect("a namespace").1.to_owned();
    let third = namespace(info("3").0);
    let uuid = identity(&third);
    assert!(uuid.starts_with("uuid.") && uuid != identity(&info("1").0), "{uuid}");
    assert_eq!(namespace(done(info(&uuid))), third);
    assert_eq!(namespace(done(info(&uuid.replace('-', "").to_uppercase()))), third);
    let listed = done(lunar(&["ls", &url(&server, &uuid, "one")]));
    assert!(listed.contains("8 MiB") && !listed.contains("16 MiB"), "{listed}");
    let (_, err, status) = info("uuid.00000000-0000-0000-0000-000000000001");
    assert_eq!(status, 21, "{err}");
    assert!(err.contains("has the identifier uuid.00000000") && err.contains("lunar ls nvme://"), "{err}");
    let (_, err, status) = info("eui.07");
    assert!(status == 7 && err.contains("eui.07") && err.contains("is not a namespace"), "{err}");
}
