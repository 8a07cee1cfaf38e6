//! The commands that use targets, against a running server: their output and exit status.

use std::process::Command;

use interop::server::lunar_bin;
use interop::{Server, config, shared};

const SECRET: &str = "a secret of ours 16";

/// Stdout, stderr and exit status of a command.
struct CommandOutput {
    out: String,
    err: String,
    status: i32,
}

fn lunar(arguments: &[&str], vars: &[(&str, &str)]) -> CommandOutput {
    let mut command = Command::new(lunar_bin());
    command.args(arguments).env("LUNAR_INITIATOR", config::INITIATOR).envs(vars.iter().copied());
    let ran = command.output().expect("lunar runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    CommandOutput {
        out: text(ran.stdout),
        err: text(ran.stderr),
        status: ran.status.code().expect("an exit status"),
    }
}

/// Checks that stderr has a hint and that stdout is empty. Returns the exit status.
fn fails(arguments: &[&str]) -> i32 {
    let ran = lunar(arguments, &[]);
    assert!(ran.err.contains("\n  hint: "), "{arguments:?}: {}", ran.err);
    assert_eq!(ran.out, "", "{arguments:?}");
    ran.status
}

#[test]
fn discover_prints_what_iscsiadm_prints() {
    let server = shared();
    let portal = server.portal().to_string();
    let ran = lunar(&["discover", &portal], &[]);
    assert_eq!((ran.out, ran.status), (format!("{portal},1 {}\n", config::TARGET), 0));
    let ran = lunar(&["discover", &format!("iscsi://{portal}"), "--json", "--timeout", "30"], &[]);
    assert!(ran.out.contains(&format!("\"target\": \"{}\"", config::TARGET)), "{}", ran.out);
}

#[test]
fn ls_lists_luns() {
    let server = shared();
    let portal = server.portal().to_string();
    let ran = lunar(&["ls", &portal], &[]);
    for part in
        [&format!("{} at {portal}\n", config::TARGET), "LUN 0: disk, 64 MiB, ", "LUN 1: disk, 1 GiB, "]
    {
        assert!(ran.out.contains(part), "{part}: {}", ran.out);
    }
    let one = format!("iscsi://{portal}/{}/1", config::TARGET);
    let ran = lunar(&["ls", &one, "--json"], &[]);
    assert!(ran.out.contains(&format!("\"url\": \"{one}\"")), "{}", ran.out);
    assert!(ran.out.contains("\"capacity_bytes\": 1073741824") && !ran.out.contains("\"lun\": 0"));
}

/// A target whose first portal advertises a closed port.
#[test]
fn unreachable_portal_is_a_warning_and_the_next_is_used() {
    let closed = format!("127.0.0.1:{}", interop::ports::free());
    let portals =
        format!("portals = [{{ listen = \"127.0.0.2:0\", advertise = \"{closed}\" }}, \"127.0.0.1:0\"]");
    let server = Server::start(&config::standard().replace("portals = [\"127.0.0.1:0\"]", &portals));
    let [first, second] = [0, 1].map(|n| server.portals()[n].to_string());
    let ran = lunar(&["ls", &first], &[]);
    let warning = format!(
        "warning: {}: portal {closed}, which the portal {first} advertised: login to {closed}: ",
        config::TARGET
    );
    assert!(ran.err.contains(&warning) && ran.err.contains("hint: configure"), "{}", ran.err);
    assert!(ran.out.contains(&format!("{} at {second}\n  LUN 0: disk", config::TARGET)), "{}", ran.out);
    assert_eq!(ran.status, 0);
    let ran = lunar(&["scsi", &format!("iscsi://{first}"), "000000000000"], &[]);
    assert!(ran.err.contains("the URL names none of the"), "the login went through: {}", ran.err);
    let ran = lunar(&["doctor", &first, "--json"], &[]);
    assert!(ran.out.contains("\"usable\": true") && ran.out.contains(&closed), "{}", ran.out);
}

#[test]
fn doctor_reports_all_and_finds_the_slow_step() {
    let server = shared();
    let url = format!("iscsi://{}/{}/0", server.portal(), config::TARGET);
    let ran = lunar(&["doctor", &url], &[]);
    for part in
        ["ImmediateData=Yes  -> Yes", "path MTU", "window: ", "round trip: min", "reads of 4096 bytes"]
    {
        assert!(ran.out.contains(part), "{part}: {}", ran.out);
    }
    assert_eq!((ran.status, ran.err.as_str()), (0, ""));
    let odd = format!("{url}?immediate_data=no&initial_r2t=yes");
    let vars = [("LUNAR_CHAP_USER", "ann"), ("LUNAR_CHAP_PASSWORD", SECRET)];
    let ran = lunar(&["doctor", &odd, "--json"], &vars);
    for part in ["\"usable\": true", "ImmediateData=No", "InitialR2T=Yes", "requires no authentication"] {
        assert!(ran.out.contains(part), "{part}: {}", ran.out);
    }
    assert!(!ran.out.contains(SECRET));
}

#[test]
fn exit_statuses_identify_the_failure() {
    let server = shared();
    let portal = server.portal().to_string();
    let at = |path: &str| format!("iscsi://{portal}{path}");
    assert_eq!(fails(&["ls", &at("/iqn.2026-11.org.example:none")]), 21);
    assert_eq!(fails(&["ls", &at(&format!("/{}/77", config::TARGET))]), 21);
    assert_eq!(fails(&["ls", &at("?header_digets=none")]), 7);
    assert_eq!(fails(&["discover", "iscsi://127.0.0.1:1"]), 4);
    assert_eq!(fails(&["discover", "iscsi://no-such-host.invalid"]), 23);
    let ran = lunar(&["doctor", "127.0.0.1:1"], &[]);
    assert!(ran.out.contains("broken: ") && ran.status == 4, "{}", ran.out);
}

/// A server that accepts the connection and then sends nothing.
#[test]
fn silent_peer_is_awaited_for_the_given_time() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let portal = silent.local_addr().expect("an address").to_string();
    assert_eq!(fails(&["ls", &portal, "--timeout", "1"]), 8);
    assert_eq!(fails(&["discover", &format!("iscsi://{portal}?login_timeout=0.2")]), 8);
    for arguments in [
        &["doctor", &portal, "--timeout", "1"][..],
        &["doctor", &format!("iscsi://{portal}/{}?login_timeout=0.5", config::TARGET)],
    ] {
        let ran = lunar(arguments, &[]);
        assert_eq!(ran.status, 8, "{}", ran.err);
        for part in [
            "\n  connect ",
            "login, request 1: security stage, no response\n",
            " to login request 1",
            "hint: check that an iSCSI target listens at this portal",
        ] {
            assert!(ran.out.contains(part), "{part}: {}", ran.out);
        }
        assert!(
            !ran.out.contains("lunar doctor") && ran.out.matches("  connect ").count() == 1,
            "{}",
            ran.out
        );
    }
    let output = lunar(&["doctor", &portal, "--timeout", "1", "--json"], &[]).out;
    assert!(output.contains("\"took_us\": null") && output.contains("\"usable\": false"), "{output}");
}

#[test]
fn targets_are_accepted_in_each_notation() {
    let server = Server::start(&config::standard());
    let portal = server.portal();
    for url in
        [format!("ISCSI://{portal}/{}/0/", config::TARGET), format!("iscsi://{portal}/{}/", config::TARGET)]
    {
        assert_eq!(lunar(&["ls", &url], &[]).status, 0, "{url}");
    }
    // No target listens there, but each text is a valid address.
    for address in ["::1", "[::1%lo]:1", "fe80::1%lo"] {
        let ran = lunar(&["discover", address, "--timeout", "5"], &[]);
        assert!(ran.status == 4 || ran.status == 8, "{address}: {}", ran.err);
    }
}

#[test]
fn secrets_come_from_files_and_the_environment() {
    let folder = interop::server::Folder::fresh();
    let secret = folder.join("ann.secret");
    std::fs::write(&secret, SECRET).expect("a file");
    let mode = |mode| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(mode)).expect("chmod");
    };
    mode(0o600);
    let file = secret.display().to_string();
    let tables = format!(
        "[[chap_user]]\nname = \"ann\"\nsecret_file = \"{file}\"\n\
         [[target.access]]\nnetworks = [\"127.0.0.0/8\"]\nchap = [\"ann\"]\n"
    );
    // [[target.access]] belongs to the last target, which is the only one.
    let (users, access) = tables.split_once("[[target.access]]").expect("both");
    let server =
        Server::start(&format!("{users}{}", config::with("", "", &format!("[[target.access]]{access}"))));
    let portal = server.portal();
    let url = format!("iscsi://ann@{portal}/{}?auth=sha-256", config::TARGET);
    assert_eq!(lunar(&["ls", &format!("{url}&password_file={file}")], &[]).status, 0);
    assert_eq!(lunar(&["ls", &url], &[("LUNAR_CHAP_PASSWORD_FILE", &file)]).status, 0);
    assert_eq!(lunar(&["ls", &url], &[("LIBISCSI_CHAP_PASSWORD", SECRET)]).status, 0);
    assert_eq!(lunar(&["ls", &url], &[("LUNAR_CHAP_PASSWORD", "another secret")]).status, 24);
    let ran = lunar(&["doctor", &url], &[("LUNAR_CHAP_PASSWORD", SECRET)]);
    assert!(ran.out.contains("authentication: CHAP, SHA-256") && !ran.out.contains(SECRET), "{}", ran.out);
    mode(0o644);
    let ran = lunar(&["ls", &format!("{url}&password_file={file}")], &[]);
    assert!(ran.status == 7 && ran.err.contains("chmod 0600"), "{}", ran.err);
    let bare = lunar(&["ls", &format!("iscsi://{portal}/{}", config::TARGET)], &[]);
    assert_eq!(bare.status, 24, "{}", bare.err);
}

#[test]
fn nvme_secrets_are_made_in_new_files() {
    use std::os::unix::fs::PermissionsExt;
    let folder = interop::server::Folder::fresh();
    let path = |name: &str| folder.join(name).display().to_string();
    let make = |owner: &str, nqn: &str, file: &str, more: &[&str]| {
        let line = ["chap", "add", owner, nqn, "--output", file];
        lunar(&[&line, more].concat(), &[])
    };
    let (host, subsystem) = ("nqn.2026-11.org.example:ann", "nqn.2026-11.org.example:safe");
    let files = ["ann.key", "safe.key"].map(path);
    let made = make("--nvme", host, &files[0], &["--hash", "sha384"]);
    assert_eq!(made.status, 0, "{}", made.err);
    let text = std::fs::read_to_string(&files[0]).expect("the secret");
    assert!(text.starts_with("DHHC-1:02:") && text.ends_with(":\n"), "{text}");
    assert!(made.out.contains(&format!("secret_file = \"{}\"\n", files[0])), "{}", made.out);
    assert!(made.out.contains("nvme connect ") && !made.out.contains(text.trim()), "{}", made.out);
    let mode = std::fs::metadata(&files[0]).expect("the file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    let again = make("--nvme", host, &files[0], &[]);
    assert!(again.status == 15 && again.err.contains("\n  hint: move it away"), "{}", again.err);
    assert_eq!(std::fs::read_to_string(&files[0]).expect("the secret"), text);
    let wrong = make("--nvme", host, &files[1], &["--hash", "sha256", "--key-length", "64"]);
    assert!(wrong.status == 7 && wrong.err.contains("--key-length: a key of 64 bytes"), "{}", wrong.err);
    for wrong in ["iqn.2026-11.org.example:ann", "nqn.2026-11.org.example:a b"] {
        let made = make("--nvme", wrong, &files[1], &[]);
        assert!(made.status == 7 && made.err.contains(wrong), "{}", made.err);
    }
    assert_eq!(make("--nvme", host, &files[1], &["--dry-run"]).status, 2);
    let made = make("--nvme=subsystem", subsystem, &files[1], &["--key-length", "64", "--show-secret"]);
    let own = std::fs::read_to_string(&files[1]).expect("the secret");
    assert!(made.out.ends_with(&format!("-C \"{}\"\n", own.trim())), "{}", made.out);
}
