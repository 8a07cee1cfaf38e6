//! The terminal while the display uses it. However the process ends, the terminal gets its former state again.

use crate::output;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::low_level::emulate_default_handler;
use std::io;
use std::sync::Mutex;

/// The terminal, restored on drop.
pub struct Screen(pub Terminal<CrosstermBackend<output::ScreenWriter>>);

/// Whether the terminal is in use. Its lock orders the restore of a signal and that of the display.
static IS_USED: Mutex<bool> = Mutex::new(false);

impl Screen {
    /// Takes the terminal. A panic of any thread, and a signal that ends the process, restore it.
    ///
    /// # Errors
    /// When the terminal cannot be changed.
    pub fn take() -> io::Result<Screen> {
        restore_on_panic();
        restore_on_signals()?;
        enable_raw_mode()?;
        set_used(true);
        let mut out = output::screen_writer();
        let entered =
            execute!(out, EnterAlternateScreen).and_then(|()| Terminal::new(CrosstermBackend::new(out)));
        entered.map(Screen).inspect_err(|_| restore())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

fn set_used(is_used: bool) -> bool {
    let mut used = IS_USED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    std::mem::replace(&mut *used, is_used)
}

/// Restores the terminal, unless that was done.
fn restore() {
    if set_used(false) {
        let mut out = output::screen_writer();
        _ = execute!(out, LeaveAlternateScreen, Show);
        _ = disable_raw_mode();
    }
}

fn restore_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        restore();
        report(info);
    }));
}

/// The signals come to a thread of their own, so that a display that hangs does not delay them.
fn restore_on_signals() -> io::Result<()> {
    let mut signals = signal_hook::iterator::Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM])?;
    let wait = move || {
        if let Some(signal) = signals.forever().next() {
            // No frame follows.
            let _out = io::stdout().lock();
            restore();
            _ = emulate_default_handler(signal);
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(wait).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Set in the process that panics in a terminal.
    const INSIDE: &str = "LUNAR_TEST_PANICS";

    #[test]
    fn panic_restores_the_terminal_before_its_message() {
        if std::env::var_os(INSIDE).is_some() {
            let _screen = Screen::take().expect("a terminal");
            panic!("the panic of the test");
        }
        let this = std::env::current_exe().expect("a program");
        let name = "top::screen::tests::panic_restores_the_terminal_before_its_message";
        let command = format!("'{}' --exact {name} --nocapture; stty -a", this.display());
        let mut script = Command::new("script");
        let ran = script.args(["-qec", &command, "/dev/null"]).env(INSIDE, "1").output();
        let ran = ran.expect("script is a part of Debian");
        let text = String::from_utf8_lossy(&ran.stdout);
        let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("no {part:?}: {text}"));
        let (entered, left) = (at("\x1b[?1049h"), at("\x1b[?1049l"));
        assert!(entered < left && left < at("the panic of the test"), "{text}");
        assert!(text.contains(" icanon") && text.contains(" echo "), "{text}");
    }
}
