//! The live display: one thread reads samples, and the main thread draws and reads keys.

use super::app::{App, Next};
use super::draw::draw;
use super::meter::{Meter, Snapshot};
use super::sample::Sample;
use super::screen::Screen;
use crate::exit::Failure;
use lunar_api::client::Client;
use lunar_server::Diagnostic;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use std::io;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

/// The pause between two looks at the sampler.
const TICK: Duration = Duration::from_millis(50);

type Measured = Result<Snapshot, String>;

/// Shows the server until a key ends the display. `first`: a sample that the server has answered.
///
/// # Errors
/// Those of the terminal, and when the sampler fails.
pub fn run(mut app: App, client: Client, first: &Sample, interval: Duration) -> Result<(), Failure> {
    let mut meter = Meter::default();
    app.update(Ok(meter.measure(first)));
    let (sender, samples) = channel();
    let sample = move || measure(&client, meter, interval, &sender);
    std::thread::Builder::new().name("sampler".into()).spawn(sample).map_err(|e| unusable(&e))?;
    let mut screen = Screen::take().map_err(|e| unusable(&e))?;
    let ended = show(&mut screen, &mut app, &samples);
    drop(screen);
    ended.map_err(|e| unusable(&e).into())
}

fn unusable(e: &io::Error) -> Diagnostic {
    let what = format!("cannot use the terminal: {}", lunar_runtime::error::text(e));
    Diagnostic::new(what, "print one table with lunar top --once")
}

/// Reads samples endlessly, also while no server answers.
fn measure(client: &Client, mut meter: Meter, interval: Duration, sender: &Sender<Measured>) {
    let mut next = Instant::now() + interval;
    loop {
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        next = (next + interval).max(Instant::now());
        let sample = Sample::take(client).map(|sample| meter.measure(&sample));
        if sender.send(sample.map_err(|failure| failure.problems[0].what.clone())).is_err() {
            return;
        }
    }
}

fn show(screen: &mut Screen, app: &mut App, samples: &Receiver<Measured>) -> io::Result<()> {
    let mut is_changed = true;
    loop {
        if is_changed {
            screen.0.draw(|frame| draw(frame, app))?;
        }
        is_changed = false;
        if event::poll(TICK)? {
            is_changed = true;
            match event::read()? {
                Event::Key(key) if key.kind != KeyEventKind::Release && app.press(key) == Next::Quit => {
                    return Ok(());
                }
                _ => {}
            }
        }
        loop {
            match samples.try_recv() {
                Ok(measured) => app.update(measured),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return Err(io::Error::other("the sampler has ended")),
            }
            is_changed = true;
        }
    }
}
