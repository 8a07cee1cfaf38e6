//! Reads the output of a command line by line while it runs.

use std::io::{self, BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::hang;
use super::output::HANG;

/// If the command has ended and stdout was silent for this long, the output is complete, even if another process
/// keeps it open.
const EXIT_CHECK: Duration = Duration::from_secs(2);
/// The time limit for the last lines of stderr.
const STDERR_GRACE: Duration = Duration::from_millis(200);

/// A line of output.
#[derive(Debug)]
pub enum OutputLine {
    Out(String),
    Err(String),
}

pub fn spawn(mut command: Command) -> io::Result<Child> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
}

/// Passes on every line until the command has ended. Processes that it leaves behind may keep its output open.
/// A command without output on stdout, where tests report, for `silence` is killed; the line about it begins
/// with [`HANG`].
pub fn follow(child: &mut Child, silence: Duration, mut each: impl FnMut(OutputLine)) -> Result<()> {
    let (send, receive) = mpsc::channel();
    let (out, err) = child.stdout.take().zip(child.stderr.take()).context("piped")?;
    // A line, or the end of stdout.
    let said = send.clone();
    std::thread::spawn(move || lines(err).for_each(|line| drop(said.send(Some(OutputLine::Err(line))))));
    std::thread::spawn(move || {
        lines(out).for_each(|line| drop(send.send(Some(OutputLine::Out(line)))));
        send.send(None)
    });
    let (mut heard, look) = (Instant::now(), EXIT_CHECK.min(silence));
    loop {
        match receive.recv_timeout(look) {
            Ok(Some(line)) => {
                if matches!(line, OutputLine::Out(_)) {
                    heard = Instant::now();
                }
                each(line);
            }
            Ok(None) => break,
            Err(_) => {}
        }
        // A process that was left behind keeps stdout open.
        if heard.elapsed() >= look && child.try_wait()?.is_some() {
            break;
        }
        if heard.elapsed() < silence {
            continue;
        }
        let stood = hang::end(child.id());
        heard = Instant::now();
        each(OutputLine::Out(format!("{HANG}no output for {} s\n{}", silence.as_secs(), stood.join("\n"))));
    }
    child.wait()?;
    let end = Instant::now() + STDERR_GRACE;
    while let Ok(Some(line)) = receive.recv_timeout(end.saturating_duration_since(Instant::now())) {
        each(line);
    }
    Ok(())
}

/// The lines up to the end; invalid UTF-8 is replaced.
fn lines(from: impl Read) -> impl Iterator<Item = String> {
    let lines = BufReader::new(from).split(b'\n').map_while(Result::ok);
    lines.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root;

    #[test]
    fn hanging_command_is_killed_and_others_continue() {
        let mut shell = root::command("sh");
        shell.args(["-c", "echo one; echo beside >&2; sleep 1000; echo two"]);
        let (mut shell, mut heard, mut said) = (spawn(shell).expect("sh"), Vec::new(), Vec::new());
        follow(&mut shell, Duration::from_millis(500), |line| match line {
            OutputLine::Out(line) => heard.push(line),
            OutputLine::Err(line) => said.push(line),
        })
        .expect("the command ends");
        assert!(!shell.wait().expect("the command ends").success());
        assert_eq!((heard.len(), heard[0].as_str()), (2, "one"));
        assert!(heard[1].starts_with(HANG) && said[0] == "beside", "{heard:?} {said:?}");
    }

    /// The stdout of a script, while another process, possibly left behind, writes to stderr.
    fn beside_chatter(script: &str, chatter: &str) -> Vec<String> {
        let mut shell = root::command("sh");
        shell.args(["-c", &format!("({chatter}) & echo $!; {script}")]);
        let (mut shell, mut heard) = (spawn(shell).expect("sh"), Vec::new());
        follow(&mut shell, Duration::from_millis(500), |line| {
            if let OutputLine::Out(line) = line {
                heard.push(line);
            }
        })
        .expect("the command ends");
        let _ = root::command("kill").arg(&heard[0]).stderr(Stdio::null()).status();
        heard
    }

    #[test]
    fn stderr_output_hides_no_hang_and_orphans_block_nothing() {
        const ON_STDERR: &str = "while :; do echo on >&2; sleep 0.1; done >/dev/null";
        let heard = beside_chatter("sleep 1000; echo two", ON_STDERR);
        assert!(heard.last().is_some_and(|last| last.starts_with(HANG)), "{heard:?}");
        assert_eq!(beside_chatter(":", ON_STDERR).len(), 1);
        assert_eq!(beside_chatter(":", "exec sleep 1000").len(), 1);
    }

    #[test]
    fn silent_command_is_killed() {
        let mut sleeper = root::command("sleep");
        sleeper.arg("1000");
        let mut sleeper = spawn(sleeper).expect("sleep");
        follow(&mut sleeper, Duration::from_millis(100), |_| {}).expect("the command is killed");
        assert!(!sleeper.wait().expect("the command ends").success());
    }
}
