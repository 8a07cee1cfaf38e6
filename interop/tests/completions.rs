//! Completions in bash and zsh, as their completion keys call them.

use interop::tool::{self, Tool};
use interop::{Folder, Server, TARGET, lunar_bin};
use std::path::Path;
use std::process::Command;

/// The replies of bash for a line whose end is the cursor. `words`: the line as bash splits it, at colons too.
fn replies(run_dir: &Path, line: &str, words: &[&str]) -> Vec<String> {
    let script = "source <(\"$LUNAR\" completions bash); IFS=' '; COMP_WORDS=(\"$LUNAR\" \"$@\"); COMP_CWORD=$#; \
        COMP_LINE=\"$LUNAR$LINE\"; COMP_POINT=${#COMP_LINE}; COMP_TYPE=9; _lunar lunar '' ''; \
        printf '%s\\n' \"${COMPREPLY[@]}\"";
    let mut command = Command::new("bash");
    command.args(["--norc", "-c", script, "bash"]).args(words);
    command.env("LUNAR", lunar_bin()).env("LINE", format!(" {line}")).env("LUNAR_RUN_DIR", run_dir);
    let ran = command.env("XDG_CONFIG_HOME", run_dir).current_dir(run_dir).output().expect("bash runs");
    let err = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(ran.status.success() && err.is_empty(), "{line}: {err}");
    let text = String::from_utf8(ran.stdout).expect("text");
    let mut replies: Vec<String> = text.lines().map(str::to_owned).collect();
    replies.sort();
    replies
}

#[test]
fn bash_completes_commands_options_and_words_of_options() {
    let folder = Folder::fresh();
    assert_eq!(replies(&folder, "conf", &["conf"]), ["config"]);
    assert_eq!(replies(&folder, "lun re", &["lun", "re"]), ["remove", "resize"].map(String::from));
    assert_eq!(replies(&folder, "config dump --sec", &["config", "dump", "--sec"]), ["--secrets"]);
    assert_eq!(replies(&folder, "attach u --policy f", &["attach", "u", "--policy", "f"]), ["failover"]);
    assert_eq!(
        replies(&folder, "pr u reg", &["pr", "u", "reg"]),
        ["register", "register-ignore"].map(String::from)
    );
    assert_eq!(replies(&folder, "import sc", &["import", "sc"]), ["scst"]);
}

#[test]
fn bash_completes_names_of_a_running_server() {
    let folder = Folder::fresh();
    let socket = folder.join("lunar.sock").display().to_string();
    let server = Server::start(&format!(
        "[server]\nadmin_socket = \"{socket}\"\n[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\"]\n\
         [[target]]\nname = \"{TARGET}\"\n[[target.lun]]\nlun = 7\nbackend = \"null\"\nsize = \"1M\"\n\
         [[disk]]\nname = \"data\"\nbackend = \"null\"\nsize = \"1M\"\n\
         [[subsystem]]\nnqn = \"nqn.2026-11.org.example\"\n[[subsystem.namespace]]\nnsid = 3\ntarget = \"{TARGET}\"\nlun = 7\n"
    ));
    let (domain, name) = TARGET.split_once(':').expect("a name with a colon");
    assert_eq!(replies(&folder, "target show ", &["target", "show", ""]), [TARGET]);
    // Bash replaces only what follows the last colon.
    let line = format!("target show {domain}:");
    assert_eq!(replies(&folder, &line, &["target", "show", domain, ":"]), [name]);
    let line = format!("lun remove {TARGET} ");
    assert_eq!(replies(&folder, &line, &["lun", "remove", domain, ":", name, ""]), ["7"]);
    assert_eq!(replies(&folder, "portal remove ", &["portal", "remove", ""]), ["1"]);
    assert_eq!(replies(&folder, "disk remove ", &["disk", "remove", ""]), ["data"]);
    assert_eq!(
        replies(&folder, "subsystem remove ", &["subsystem", "remove", ""]),
        ["nqn.2026-11.org.example"]
    );
    let line = "namespace remove nqn.2026-11.org.example ";
    assert_eq!(replies(&folder, line, &["namespace", "remove", "nqn.2026-11.org.example", ""]), ["3"]);
    let line = format!("lun add {TARGET} disk:");
    assert_eq!(replies(&folder, &line, &["lun", "add", domain, ":", name, "disk", ":"]), ["data"]);
    let port = server.portal().port().to_string();
    let line = format!("info iscsi://127.0.0.1:{port}/{domain}:");
    let words = ["info", "iscsi", ":", "//127.0.0.1", ":", &format!("{port}/{domain}"), ":"];
    assert_eq!(replies(&folder, &line, &words), [format!("{name}/7")]);
}

const ZSH: Tool = Tool { program: "zsh", package: "zsh" };

/// The replies of zsh to its completion key at the end of a line: all that its function would show.
fn replies_of_zsh(run_dir: &Path, words: &[&str]) -> Vec<String> {
    let script = "compdef() { :; }; source <($LUNAR completions zsh); \
        _describe() { local it; for it in $@; do [[ $it == (dirs|other) ]] && print -rl -- ${(P)it}; done; }; \
        path=(${LUNAR:h} $path); words=(lunar \"$@\"); CURRENT=${#words}; _clap_dynamic_completer_lunar";
    let mut command = Command::new("zsh");
    command.args(["-f", "-c", script, "zsh"]).args(words).env("LUNAR", lunar_bin());
    command.env("LUNAR_RUN_DIR", run_dir).env("XDG_CONFIG_HOME", run_dir).current_dir(run_dir);
    let ran = command.output().expect("zsh runs");
    let err = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(err.is_empty(), "{words:?}: {err}");
    let text = String::from_utf8(ran.stdout).expect("text");
    // A description follows a colon; colons of values are escaped.
    let value =
        |line: &str| line.replace("\\:", "\0").split(':').next().unwrap_or_default().replace('\0', ":");
    text.lines().map(value).collect()
}

#[test]
fn zsh_completes_values_only_where_a_value_stands() {
    if !tool::have(&[ZSH]) {
        return;
    }
    let folder = Folder::fresh();
    let socket = folder.join("lunar.sock").display().to_string();
    let _server = Server::start(&format!(
        "[server]\nadmin_socket = \"{socket}\"\n[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\"]\n\
         [[target]]\nname = \"{TARGET}\"\n[[target.lun]]\nlun = 7\nbackend = \"null\"\nsize = \"1M\"\n"
    ));
    assert_eq!(replies_of_zsh(&folder, &["target", "show", ""]), [TARGET]);
    assert_eq!(replies_of_zsh(&folder, &["lun", "remove", TARGET, ""]), ["7"]);
    assert_eq!(replies_of_zsh(&folder, &["attach", "u", "--policy", "f"]), ["failover"]);
    assert!(replies_of_zsh(&folder, &["target", "show", "-"]).contains(&"--json".to_owned()));
    assert_eq!(replies_of_zsh(&folder, &["config", "dump", "--sec"]), ["--secrets"]);
}
