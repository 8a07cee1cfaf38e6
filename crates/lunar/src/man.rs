//! `lunar man`: manual pages, for one command or for all.

use clap::{Args, Command, CommandFactory};
use clap_mangen::Man;
use lunar_server::{Diagnostic, ErrorCode};
use std::fmt::Write;
use std::path::{Path, PathBuf};

use crate::args::Cli;

/// Arguments of `lunar man`.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  lunar man serve | man -l -\n  lunar man --folder /usr/local/share/man/man1"
)]
pub struct ManArgs {
    /// Command to describe [default: lunar itself]
    command: Option<String>,

    /// Write the page of each command to this folder instead
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    folder: Option<PathBuf>,
}

/// Files that a command uses, and that none of its options explains.
const FILES: [(&[&str], &str, &str); 4] = [
    (
        &["lunar", "serve", "check", "diff", "apply", "import", "config", "adopt"],
        "/etc/lunar/lunar.toml",
        "configuration of the service lunar.service",
    ),
    (&["lunar", "attach", "detach"], "/etc/lunar/attach/", "saved attachments of root"),
    (
        &["lunar", "serve", "session", "router", "gateway", "diff", "apply"],
        "/run/lunar/lunar.sock",
        "admin socket of the service",
    ),
    (
        &["lunar", "serve"],
        "/var/lib/lunar/",
        "state of the service: reservations, serial numbers, mode pages",
    ),
];

/// The page of a command; empty if the pages were written to a folder.
///
/// # Errors
/// The command does not exist, or a page cannot be written.
pub fn man(args: &ManArgs) -> Result<String, Diagnostic> {
    let mut lunar = Cli::command();
    lunar.build();
    if let Some(folder) = &args.folder {
        write_all(&lunar, "", folder)?;
        return Ok(String::new());
    }
    let Some(name) = &args.command else { return page(&lunar, "lunar") };
    let Some(command) = lunar.find_subcommand(name) else {
        let what = format!("lunar has no command \"{}\"", name.escape_debug());
        return Err(
            Diagnostic::new(what, "lunar --help lists the commands").with_code(ErrorCode::InvalidArgument)
        );
    };
    page(command, &format!("lunar-{name}"))
}

/// Writes the pages of a command and of all below it. `above` is the name of its parent.
fn write_all(command: &Command, above: &str, folder: &Path) -> Result<(), Diagnostic> {
    let name = if above.is_empty() {
        command.get_name().to_owned()
    } else {
        format!("{above}-{}", command.get_name())
    };
    let path = folder.join(format!("{name}.1"));
    let written = std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(&path, page(command, &name).map_err(std::io::Error::other)?));
    written.map_err(|e| {
        let what = format!("cannot write {}: {e}", path.display());
        Diagnostic::new(what, "name a folder that this user may write to")
    })?;
    let below = command.get_subcommands().filter(|below| !below.is_hide_set() && below.get_name() != "help");
    below.into_iter().try_for_each(|below| write_all(below, &name, folder))
}

/// The page of a command with this name.
fn page(command: &Command, name: &str) -> Result<String, Diagnostic> {
    let man = Man::new(command.clone().display_name(name))
        .title(name.to_uppercase())
        .source(format!("lunar {}", env!("CARGO_PKG_VERSION")))
        .manual("Lunar");
    let mut roff = Vec::new();
    let rendered = man
        .render_title(&mut roff)
        .and_then(|()| man.render_name_section(&mut roff))
        .and_then(|()| man.render_synopsis_section(&mut roff))
        .and_then(|()| man.render_description_section(&mut roff))
        .and_then(|()| man.render_options_section(&mut roff))
        .and_then(|()| match command.has_subcommands() {
            true => man.render_subcommands_section(&mut roff),
            false => Ok(()),
        });
    rendered
        .map_err(|e| Diagnostic::new(format!("cannot write the manual page: {e}"), "try lunar --help"))?;
    let mut text = String::from_utf8_lossy(&roff).into_owned();
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    text += &sections(&help);
    text += &files(name);
    text += &see_also(command, name);
    Ok(text)
}

/// The text after the options: a line that ends in a colon is the heading of a section, whose indented lines are kept
/// as they are. Other lines are paragraphs.
fn sections(help: &str) -> String {
    let (mut roff, mut is_kept) = (String::new(), false);
    for line in help.lines() {
        let keep = line.starts_with(' ');
        if keep != is_kept && !line.is_empty() {
            roff += if keep { ".PP\n.nf\n" } else { ".fi\n" };
            is_kept = keep;
        }
        match line.strip_suffix(':').filter(|heading| !keep && heading.len() < 20) {
            Some(heading) => _ = writeln!(roff, ".SH {}", escaped(&heading.to_uppercase())),
            None if line.is_empty() && !is_kept => roff += ".PP\n",
            None => _ = writeln!(roff, "{}", escaped(line)),
        }
    }
    if is_kept {
        roff += ".fi\n";
    }
    roff
}

fn files(name: &str) -> String {
    let command = name.strip_prefix("lunar-").unwrap_or(name);
    let first = command.split('-').next().unwrap_or_default();
    let of_command = FILES.iter().filter(|(commands, ..)| commands.contains(&first));
    let rows: String = of_command
        .map(|(_, path, what)| format!(".TP\n\\fI{}\\fR\n{}\n", escaped(path), escaped(what)))
        .collect();
    if rows.is_empty() { rows } else { format!(".SH FILES\n{rows}") }
}

fn see_also(command: &Command, name: &str) -> String {
    let mut pages: Vec<String> = Vec::new();
    if let Some((above, _)) = name.rsplit_once('-') {
        pages.push(above.into());
    }
    let below = command.get_subcommands().filter(|below| !below.is_hide_set() && below.get_name() != "help");
    pages.extend(below.map(|below| format!("{name}-{}", below.get_name())));
    let pages: Vec<_> = pages.iter().map(|page| format!("\\fB{}\\fR(1)", escaped(page))).collect();
    if pages.is_empty() { String::new() } else { format!(".SH \"SEE ALSO\"\n{}\n", pages.join(", ")) }
}

/// Text without meaning for roff.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
    if text.starts_with('.') { format!("\\&{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page_of(command: Option<&str>) -> String {
        man(&ManArgs { command: command.map(str::to_owned), folder: None }).unwrap()
    }

    #[test]
    fn examples_of_a_page_stay_lines() {
        let page = page_of(Some("serve"));
        assert!(page.contains(".SH EXAMPLES\n.PP\n.nf\n  lunar serve\n  lunar serve disk.img"), "{page}");
        assert!(page.contains(".fi\n"), "{page}");
        assert!(page.contains(".SH FILES\n.TP\n\\fI/etc/lunar/lunar.toml\\fR\n"), "{page}");
        assert!(page.contains(".SH \"SEE ALSO\"\n\\fBlunar\\fR(1)\n"), "{page}");
        let all = page_of(None);
        assert!(
            all.contains("\\fBlunar\\-serve\\fR(1), ") && all.contains(".SH \"EXIT STATUS\"")
                || all.contains(".SH EXIT STATUS"),
            "{all}"
        );
    }

    #[test]
    fn folder_gets_a_page_of_each_command() {
        let folder = std::env::temp_dir().join(format!("lunar-man-{}", std::process::id()));
        man(&ManArgs { command: None, folder: Some(folder.clone()) }).unwrap();
        for name in ["lunar.1", "lunar-serve.1", "lunar-attach.1", "lunar-session-list.1"] {
            assert!(folder.join(name).is_file(), "{name}");
        }
        assert!(!folder.join("lunar-help.1").exists());
        std::fs::remove_dir_all(folder).unwrap();
        assert!(man(&ManArgs { command: Some("sevre".into()), folder: None }).is_err());
    }
}
