//! The API against its description: schemathesis sends requests that docs/openapi.json allows, and others that it does
//! not, and compares the responses with it.

use interop::certificates::{Authority, write};
use interop::{Folder, Server, TARGET, lunar_bin, ports, tool};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(300);
const TOKEN: &str = "0123456789abcdef0123456789abcdef";
/// Requests for each operation and phase. They take about 15 s.
const EXAMPLES: &str = "15";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the project").to_path_buf()
}

/// schemathesis of the virtual environment of `cargo xtask test`. None after printing `skipped`.
fn schemathesis() -> Option<PathBuf> {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir));
    let program = target.join("tools/python/bin/st");
    if !program.exists() {
        println!("skipped: needs schemathesis (cargo xtask test installs it)");
    }
    program.exists().then_some(program)
}

/// A server whose files belong to a user without rights, so that no request harms this host.
fn server(folder: &Folder, port: u16) -> Server {
    let files = folder.display();
    let toml = format!(
        "[api]\nlisten = [\"127.0.0.1:{port}\"]\ncertificate_file = \"{files}/server.pem\"\n\
         key_file = \"{files}/server.key\"\ntoken_file = \"{files}/tokens\"\n\
         [[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\"]\n[[target]]\nname = \"{TARGET}\"\n\
         [[target.lun]]\nlun = 0\nbackend = \"null\"\nsize = \"1GiB\"\n"
    );
    if !rustix::process::geteuid().is_root() {
        return Server::start_by_shell(&toml, "", "");
    }
    // The user may not reach the program where it is.
    std::fs::copy(lunar_bin(), folder.join("lunar")).expect("a copy of lunar");
    let prelude = format!(
        "folder=$(dirname \"$1\"); chown -R 65534:65534 \"$folder\" {files}\n\
         exec setpriv --reuid=65534 --regid=65534 --clear-groups {files}/lunar serve --config \"$1\""
    );
    Server::start_by_shell(&toml, &prelude, "")
}

#[test]
fn api_behaves_as_its_description_says() {
    let Some(program) = schemathesis() else { return };
    let (folder, ca, port) = (Folder::fresh(), Authority::new("test authority"), ports::free());
    let authority = write(&folder, "ca.pem", &ca.pem());
    ca.server(&["localhost"]).write(&folder, "server");
    write(&folder, "tokens", &format!("ann write {TOKEN}\n"));
    let mut server = server(&folder, port);
    let work = Folder::fresh();
    for config in ["free.toml", "existing.toml"] {
        let mut command = Command::new(&program);
        command.current_dir(&*work).env("NO_COLOR", "1").arg("--config-file");
        command.arg(root().join("interop/schemathesis").join(config)).arg("run");
        command.arg(root().join("docs/openapi.json")).arg("--tls-verify").arg(&authority);
        command.args(["--url", &format!("https://localhost:{port}")]);
        command.args(["--header", &format!("Authorization: Bearer {TOKEN}"), "--checks", "all"]);
        command.args(["--max-examples", EXAMPLES, "--seed", "1", "--generation-deterministic"]);
        // One would end the server, and the other one has no end.
        command.args(["--exclude-path", "/v1/server/stop", "--exclude-path", "/v1/events", "--no-color"]);
        let ran = tool::run(&mut command, LIMIT);
        assert!(ran.ok(), "{config}: {:?}\n{}", ran.status, ran.said);
        assert!(server.lives(), "{config}");
    }
    assert!(!server.log().contains("panicked"), "{}", server.log());
}
