//! A command whose output is read line by line while it runs.

use std::io::{self, BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::hang;
use super::output::HANG;

/// What has ended, and has said nothing on stdout for so long, says no more, though somebody holds it.
const EXIT_CHECK: Duration = Duration::from_secs(2);
/// Lines of stderr that are read after the end come within this.
const STDERR_GRACE: Duration = Duration::from_millis(200);

/// A line of what a command says.
#[derive(Debug)]
pub enum OutputLine {
    Out(String),
    Err(String),
}

pub fn spawn(mut command: Command) -> io::Result<Child> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
}

/// Passes on every line until the command has ended; programs that it leaves behind may keep what it wrote to. A command that
/// prints nothing to stdout, where tests report, for `silence` is ended; the line that reports it begins with [`HANG`].
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
        // Who holds its stdout still was left behind.
        if heard.elapsed() >= look && child.try_wait()?.is_some() {
            break;
        }
        if heard.elapsed() < silence {
            continue;
        }
        let stood = hang::end(child.id());
        heard = Instant::now();
        each(OutputLine::Out(format!(
            "{HANG}nothing was heard for {} s\n{}",
            silence.as_secs(),
            stood.join("\n")
        )));
    }
    child.wait()?;
    let end = Instant::now() + STDERR_GRACE;
    while let Ok(Some(line)) = receive.recv_timeout(end.saturating_duration_since(Instant::now())) {
        each(line);
    }
    Ok(())
}

/// Up to the end; what is no UTF-8 is shown as well as it can be.
fn lines(from: impl Read) -> impl Iterator<Item = String> {
    let lines = BufReader::new(from).split(b'\n').map_while(Result::ok);
    lines.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root;

    #[test]
    fn what_hangs_is_ended_and_the_rest_goes_on() {
        let mut shell = root::command("sh");
        shell.args(["-c", "echo one; echo beside >&2; sleep 1000; echo two"]);
        let (mut shell, mut heard, mut said) = (spawn(shell).expect("sh"), Vec::new(), Vec::new());
        follow(&mut shell, Duration::from_millis(500), |line| match line {
            OutputLine::Out(line) => heard.push(line),
            OutputLine::Err(line) => said.push(line),
        })
        .expect("it ends");
        assert!(!shell.wait().expect("it ends").success());
        assert_eq!((heard.len(), heard[0].as_str()), (2, "one"));
        assert!(heard[1].starts_with(HANG) && said[0] == "beside", "{heard:?} {said:?}");
    }

    /// What a command says on stdout while something, which is left behind if it ends before that, chatters on stderr.
    fn beside_chatter(script: &str, chatter: &str) -> Vec<String> {
        let mut shell = root::command("sh");
        shell.args(["-c", &format!("({chatter}) & echo $!; {script}")]);
        let (mut shell, mut heard) = (spawn(shell).expect("sh"), Vec::new());
        follow(&mut shell, Duration::from_millis(500), |line| {
            if let OutputLine::Out(line) = line {
                heard.push(line);
            }
        })
        .expect("it ends");
        let _ = root::command("kill").arg(&heard[0]).stderr(Stdio::null()).status();
        heard
    }

    #[test]
    fn chatter_hides_no_hang_and_who_is_left_behind_holds_nothing_up() {
        const ON_STDERR: &str = "while :; do echo on >&2; sleep 0.1; done >/dev/null";
        let heard = beside_chatter("sleep 1000; echo two", ON_STDERR);
        assert!(heard.last().is_some_and(|last| last.starts_with(HANG)), "{heard:?}");
        assert_eq!(beside_chatter(":", ON_STDERR).len(), 1);
        assert_eq!(beside_chatter(":", "exec sleep 1000").len(), 1);
    }

    #[test]
    fn who_is_silent_and_runs_nothing_is_ended() {
        let mut sleeper = root::command("sleep");
        sleeper.arg("1000");
        let mut sleeper = spawn(sleeper).expect("sleep");
        follow(&mut sleeper, Duration::from_millis(100), |_| {}).expect("it is ended");
        assert!(!sleeper.wait().expect("it ends").success());
    }
}
