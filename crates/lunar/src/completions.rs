//! `lunar completions`: scripts that ask this program at each press of the completion key. So they know the names of a
//! running server, of attachments, and of the objects of a configuration.

mod names;

use crate::args::Cli;
use clap::{Arg, Command, CommandFactory};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter};
use clap_complete::env::{CompleteEnv, EnvCompleter, Fish, Zsh};
use clap_complete::{Shell, generate};
use lunar_server::Diagnostic;
use std::ffi::OsStr;

/// The variable with which a script asks. Its value is the shell.
const VARIABLE: &str = "LUNAR_COMPLETE";

/// Bash splits words at colons and equals signs, which names and URLs have. The script joins these words, and returns
/// the part after the last such character, because bash replaces only that.
const BASH: &str = r#"_lunar() {
    local rest="${COMP_LINE:0:COMP_POINT}" words=() word trimmed i
    for ((i = 0; i <= COMP_CWORD; i++)); do
        trimmed="${rest#"${rest%%[![:space:]]*}"}"
        word="${COMP_WORDS[i]}"
        ((i == COMP_CWORD)) && word="$trimmed"
        if ((i == 0)) || [[ "$trimmed" != "$rest" ]]; then
            words+=("$word")
        else
            words[${#words[@]}-1]+="$word"
        fi
        rest="${trimmed#"$word"}"
    done
    local current="${words[${#words[@]}-1]}" lunar="${words[0]/#\~/$HOME}" IFS=$'\n'
    COMPREPLY=($(LUNAR_COMPLETE=bash _CLAP_IFS=$'\n' _CLAP_COMPLETE_INDEX=$((${#words[@]} - 1)) \
        "$lunar" -- "${words[@]}" 2>/dev/null))
    # Options only where one begins, or where nothing else fits.
    if [[ "$current" != -* ]]; then
        local plain=() reply
        for reply in "${COMPREPLY[@]}"; do [[ "$reply" != -* ]] && plain+=("$reply"); done
        ((${#plain[@]})) && COMPREPLY=("${plain[@]}")
    fi
    local before="${current%"${current##*[:=]}"}"
    if [[ -n "$before" && "$COMP_WORDBREAKS" == *:* ]]; then
        for ((i = 0; i < ${#COMPREPLY[@]}; i++)); do
            COMPREPLY[i]="${COMPREPLY[i]#"$before"}"
        done
    fi
    [[ "${COMPREPLY-}" =~ [=/:]$ ]] && compopt -o nospace 2>/dev/null
    return 0
}
complete -o bashdefault -F _lunar lunar
"#;

/// The start of the line of the script for zsh that looks at the replies, and the lines before it: options only where one
/// begins, or where nothing else fits.
const ZSH_REPLIES: &str = "    if [[ -n $completions ]]; then";
const ZSH_VALUES_ONLY: &str = r#"    if [[ "${words[CURRENT]}" != -* ]]; then
        local -a plain=("${(@)completions:#-*}")
        (( ${#plain} )) && completions=("${plain[@]}")
    fi

"#;

/// The script for a shell.
///
/// # Errors
/// None in practice: the script is written to memory.
pub fn script(shell: Shell) -> Result<Vec<u8>, Diagnostic> {
    let mut script = Vec::new();
    let written = match shell {
        Shell::Bash => {
            script.extend_from_slice(BASH.as_bytes());
            Ok(())
        }
        Shell::Zsh => zsh(&mut script),
        Shell::Fish => Fish.write_registration(VARIABLE, "lunar", "lunar", "lunar", &mut script),
        other => {
            generate(other, &mut Cli::command(), "lunar", &mut script);
            Ok(())
        }
    };
    written.map_err(|e| Diagnostic::new(format!("cannot make the script: {e}"), "use another shell"))?;
    Ok(script)
}

/// The script of the library mixes options into values.
fn zsh(script: &mut Vec<u8>) -> std::io::Result<()> {
    let mut text = Vec::new();
    Zsh.write_registration(VARIABLE, "lunar", "lunar", "lunar", &mut text)?;
    let text = String::from_utf8_lossy(&text);
    script.extend(text.replacen(ZSH_REPLIES, &format!("{ZSH_VALUES_ONLY}{ZSH_REPLIES}"), 1).into_bytes());
    Ok(())
}

/// Answers a script, and ends the process. Returns if no script asks.
pub fn answer() {
    if std::env::var_os(VARIABLE).is_some() {
        CompleteEnv::with_factory(|| with_values(Cli::command(), "")).var(VARIABLE).complete();
    }
}

/// The command with the values of its arguments. `path` are the words before it, without the program.
fn with_values(command: Command, path: &str) -> Command {
    let command = command.mut_args(|arg| with_completer(arg, path));
    command.mut_subcommands(|below| {
        let path = format!("{path} {}", below.get_name());
        with_values(below, path.trim_start())
    })
}

fn with_completer(arg: Arg, path: &str) -> Arg {
    let noun = path.split(' ').next().unwrap_or_default();
    let values: fn() -> Vec<String> = match (noun, arg.get_id().as_str()) {
        ("target", "target") if path == "target add" => return arg,
        ("target" | "lun" | "access", "target") => names::targets,
        ("lun", "lun") if path != "lun add" => names::luns,
        ("lun", "new_target") => names::targets,
        ("disk", "name") if path != "disk add" => names::disks,
        ("access", "index" | "at") => names::access_entries,
        ("chap", "user") if path != "chap add" => names::chap_users,
        ("access", "chap" | "mutual") => names::chap_users,
        ("portal", "tag") if path != "portal add" => names::portal_groups,
        ("subsystem", "subsystem") if path == "subsystem add" => return arg,
        ("subsystem" | "namespace" | "host", "subsystem") => names::subsystems,
        ("namespace", "nsid") if path != "namespace add" => names::namespaces,
        ("host", "host") if path != "host add" => names::hosts,
        ("session", "id") => names::sessions,
        ("router", "name") => names::routers,
        ("gateway", "image") => names::shared_images,
        ("diff", "since") | ("rollback", "to") => names::history,
        ("attach", "lun") => names::urls_and_saved,
        ("attach", "paths") => names::urls,
        ("attach", "policy") => || words(&["failover", "least-queue", "round-robin"]),
        ("attach", "late_writes") => || words(&["risk", "wait"]),
        ("attach", "name") if path == "attach list" => names::attached,
        ("detach", "attachment") => names::attached,
        ("adopt", "objects") => names::objects,
        ("pr", "kind") => || words(&["we", "ea", "we-ro", "ea-ro", "we-ar", "ea-ar"]),
        ("discover" | "ls" | "doctor" | "info" | "pr" | "scsi", "url" | "portal") => names::urls,
        ("copy", "source" | "destination") | ("bench", "targets") => return arg.add(files_and(names::urls)),
        ("man", "command") => commands,
        ("serve", "luns") | ("disk", "medium") => return arg.add(files_and(|| words(&["memory:", "null:"]))),
        ("lun", "medium") => return arg.add(files_and(names::media)),
        ("namespace", "medium") => return arg.add(files_and(names::media_and_luns)),
        _ => return arg,
    };
    arg.add(ArgValueCompleter::new(move |current: &OsStr| matching(values(), current)))
}

/// Values and paths of files.
fn files_and(values: fn() -> Vec<String>) -> ArgValueCompleter {
    ArgValueCompleter::new(move |current: &OsStr| {
        let mut found = matching(values(), current);
        found.extend(PathCompleter::any().complete(current));
        found
    })
}

/// The values that begin with the current word.
fn matching(values: Vec<String>, current: &OsStr) -> Vec<CompletionCandidate> {
    let current = current.to_string_lossy();
    values.into_iter().filter(|value| value.starts_with(&*current)).map(CompletionCandidate::new).collect()
}

fn words(list: &[&str]) -> Vec<String> {
    list.iter().map(|word| (*word).to_owned()).collect()
}

fn commands() -> Vec<String> {
    Cli::command().get_subcommands().map(|command| command.get_name().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn every_named_argument_is_one_of_a_command() {
        // An argument that was renamed would lose its values without a notice.
        let command = with_values(Cli::command(), "");
        let has_values = |path: &[&str], id: &str| {
            let command = path.iter().fold(&command, |at, name| at.find_subcommand(name).expect("a command"));
            let arg = command.get_arguments().find(|arg| arg.get_id() == id);
            arg.is_some_and(|arg| arg.get::<ArgValueCompleter>().is_some())
        };
        for (path, id) in [
            (&["target", "show"][..], "target"),
            (&["lun", "remove"], "lun"),
            (&["lun", "move"], "new_target"),
            (&["disk", "remove"], "name"),
            (&["disk", "add"], "medium"),
            (&["target", "set"], "target"),
            (&["lun", "set"], "lun"),
            (&["access", "remove"], "index"),
            (&["access", "set"], "index"),
            (&["access", "show"], "index"),
            (&["access", "add"], "at"),
            (&["access", "set"], "chap"),
            (&["chap", "set"], "user"),
            (&["chap", "show"], "user"),
            (&["portal", "show"], "tag"),
            (&["access", "add"], "mutual"),
            (&["chap", "remove"], "user"),
            (&["portal", "remove"], "tag"),
            (&["session", "end"], "id"),
            (&["router", "drain"], "name"),
            (&["gateway", "show"], "image"),
            (&["attach"], "lun"),
            (&["attach"], "paths"),
            (&["attach"], "policy"),
            (&["attach"], "late_writes"),
            (&["attach", "list"], "name"),
            (&["detach"], "attachment"),
            (&["adopt"], "objects"),
            (&["pr"], "url"),
            (&["pr"], "kind"),
            (&["discover"], "portal"),
            (&["info"], "url"),
            (&["copy"], "destination"),
            (&["bench"], "targets"),
            (&["serve"], "luns"),
            (&["lun", "add"], "medium"),
            (&["man"], "command"),
        ] {
            assert!(has_values(path, id), "{path:?} {id}");
        }
        assert!(!has_values(&["target", "add"], "target") && !has_values(&["lun", "add"], "lun"));
        assert!(!has_values(&["disk", "add"], "name"));
    }

    #[test]
    fn each_shell_has_a_script() {
        for shell in Shell::value_variants() {
            let script = String::from_utf8(script(*shell).unwrap()).unwrap();
            assert!(script.contains("lunar"), "{shell}");
            assert_eq!(script.contains(ZSH_VALUES_ONLY), *shell == Shell::Zsh, "{shell}");
        }
    }
}
