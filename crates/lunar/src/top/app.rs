//! The state of the live display, and its keys.

use super::meter::Snapshot;
use super::row::{Row, View};
use super::table::Arrangement;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// The state of the display.
pub struct App {
    /// The server, as the command line chooses it.
    pub server: String,
    /// The view.
    pub view: View,
    /// The order of the rows, and their filter.
    pub arrangement: Arrangement,
    /// The filter before the one that is being typed. None: no filter is being typed.
    pub filter_before: Option<String>,
    /// Whether new samples are ignored.
    pub is_paused: bool,
    /// Rows above the first one that is shown.
    pub offset: usize,
    /// The latest rows.
    pub snapshot: Option<Snapshot>,
    /// Why the server does not answer.
    pub fault: Option<String>,
    /// Whether colours are used.
    pub has_colours: bool,
}

/// Whether the display goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It goes on.
    Continue,
    /// It ends.
    Quit,
}

/// The rows of one page, if the height of the terminal is not known.
const PAGE: usize = 10;

impl App {
    /// Shows a result of the sampler.
    pub fn update(&mut self, result: Result<Snapshot, String>) {
        match result {
            Err(fault) => self.fault = Some(fault),
            Ok(_) if self.is_paused => self.fault = None,
            Ok(snapshot) => (self.snapshot, self.fault) = (Some(snapshot), None),
        }
    }

    /// The rows to show, and the number of all rows.
    pub fn rows(&self) -> (Vec<&Row>, usize) {
        let rows = self.snapshot.as_ref().map_or(&[][..], |snapshot| &snapshot.rows[self.view as usize]);
        (self.arrangement.apply(self.view, rows), rows.len())
    }

    /// Handles a key.
    pub fn press(&mut self, key: KeyEvent) -> Next {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Next::Quit;
        }
        if self.filter_before.is_some() {
            self.type_filter(key.code);
            return Next::Continue;
        }
        match key.code {
            KeyCode::Char('q') => return Next::Quit,
            KeyCode::Char('/') => self.filter_before = Some(self.arrangement.filter.clone()),
            KeyCode::Char('p' | ' ') => self.is_paused = !self.is_paused,
            KeyCode::Char('r') => self.arrangement.is_reversed = !self.arrangement.is_reversed,
            KeyCode::Esc => self.arrangement.filter.clear(),
            KeyCode::Tab => self.turn(1),
            KeyCode::BackTab => self.turn(View::ALL.len() - 1),
            KeyCode::Right | KeyCode::Char('>' | 's') => self.sort(1),
            KeyCode::Left | KeyCode::Char('<' | 'S') => self.sort(self.view.columns().len() - 1),
            code => self.scroll(code),
        }
        Next::Continue
    }

    fn type_filter(&mut self, code: KeyCode) {
        self.offset = 0;
        match code {
            KeyCode::Enter => self.filter_before = None,
            KeyCode::Esc => self.arrangement.filter = self.filter_before.take().unwrap_or_default(),
            KeyCode::Backspace => drop(self.arrangement.filter.pop()),
            KeyCode::Char(typed) if !typed.is_control() => self.arrangement.filter.push(typed),
            _ => {}
        }
    }

    fn turn(&mut self, by: usize) {
        self.view = View::ALL[(self.view as usize + by) % View::ALL.len()];
        self.offset = 0;
    }

    fn sort(&mut self, by: usize) {
        let (columns, now) = (self.view.columns(), self.arrangement.column(self.view));
        let at = columns.iter().position(|column| *column == now).unwrap_or_default();
        self.arrangement.sort = columns[(at + by) % columns.len()];
        self.offset = 0;
    }

    fn scroll(&mut self, code: KeyCode) {
        let last = self.rows().0.len().saturating_sub(1);
        let offset = match code {
            KeyCode::Down | KeyCode::Char('j') => self.offset + 1,
            KeyCode::Up | KeyCode::Char('k') => self.offset.saturating_sub(1),
            KeyCode::PageDown => self.offset + PAGE,
            KeyCode::PageUp => self.offset.saturating_sub(PAGE),
            KeyCode::Home => 0,
            KeyCode::End => last,
            _ => self.offset,
        };
        self.offset = offset.min(last);
    }
}

#[cfg(test)]
pub mod tests {
    use super::super::row::Column;
    use super::super::table::tests::luns;
    use super::*;
    use lunar_api::client::ServerReport;

    /// A display of two LUNs.
    pub fn app() -> App {
        let rows = luns(&[("iqn.example:fast", 0, Some(900.0)), ("iqn.example:slow", 1, Some(3.0))]);
        let server = ServerReport {
            version: "1.2.3".into(),
            process: 1,
            uptime_s: 61,
            config_file: None,
            config_version: "1".into(),
            confirm_by: None,
            stopping: false,
            targets: 1,
            luns: 2,
            subsystems: 0,
            namespaces: 0,
            sessions: 4,
            warnings: Vec::new(),
        };
        let snapshot = Snapshot {
            time: "2026-11-22T10:30:00Z".into(),
            seconds: Some(1.0),
            server,
            rows: [rows, Vec::new(), Vec::new()],
        };
        App {
            server: "/run/lunar/lunar.sock".into(),
            view: View::Luns,
            arrangement: Arrangement { sort: Column::Reads, is_reversed: false, filter: String::new() },
            filter_before: None,
            is_paused: false,
            offset: 0,
            snapshot: Some(snapshot),
            fault: None,
            has_colours: true,
        }
    }

    fn press(app: &mut App, keys: &str) -> Next {
        let mut next = Next::Continue;
        for key in keys.chars() {
            let code = match key {
                '\t' => KeyCode::Tab,
                '\n' => KeyCode::Enter,
                '\u{1b}' => KeyCode::Esc,
                '\u{8}' => KeyCode::Backspace,
                other => KeyCode::Char(other),
            };
            next = app.press(KeyEvent::from(code));
        }
        next
    }

    #[test]
    fn sort_keys_go_through_all_columns() {
        let mut app = app();
        for column in View::Luns.columns().iter().cycle().skip(3).take(11) {
            press(&mut app, ">");
            assert_eq!(app.arrangement.sort, *column);
        }
        press(&mut app, "<");
        assert_eq!(app.arrangement.sort, Column::Lun);
        press(&mut app, "r");
        assert!(app.arrangement.is_reversed);
    }

    #[test]
    fn filter_is_typed_kept_and_cancelled() {
        let mut app = app();
        assert_eq!(press(&mut app, "/qslow\u{8}\u{8}\u{8}\u{8}\u{8}slow\n"), Next::Continue);
        assert_eq!((app.arrangement.filter.as_str(), app.rows().0.len()), ("slow", 1));
        press(&mut app, "/xyz\u{1b}");
        assert_eq!((app.arrangement.filter.as_str(), app.filter_before.clone()), ("slow", None));
        press(&mut app, "\u{1b}");
        assert_eq!(app.rows().0.len(), 2);
    }

    #[test]
    fn tab_turns_through_all_views() {
        let mut app = app();
        let seen = View::ALL.map(|_| {
            press(&mut app, "\t");
            app.view
        });
        assert_eq!(seen, [View::Sessions, View::Paths, View::Luns]);
        app.press(KeyEvent::from(KeyCode::BackTab));
        assert_eq!(app.view, View::Paths);
    }

    #[test]
    fn paused_display_keeps_its_rows() {
        let mut app = app();
        let empty = Snapshot { rows: Default::default(), ..app.snapshot.clone().expect("rows") };
        press(&mut app, "p");
        app.update(Ok(empty.clone()));
        assert_eq!(app.rows().1, 2);
        press(&mut app, "p");
        app.update(Ok(empty));
        assert_eq!(app.rows().1, 0);
    }

    #[test]
    fn fault_stays_until_the_server_answers() {
        let mut app = app();
        app.update(Err("no server".into()));
        assert_eq!((app.fault.as_deref(), app.rows().1), (Some("no server"), 2));
        let snapshot = app.snapshot.clone().expect("rows");
        app.update(Ok(snapshot));
        assert_eq!(app.fault, None);
    }

    #[test]
    fn q_and_control_c_quit() {
        let mut app = app();
        assert_eq!(press(&mut app, "q"), Next::Quit);
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        press(&mut app, "/");
        assert_eq!(app.press(control_c), Next::Quit);
    }

    #[test]
    fn rows_are_scrolled_within_the_table() {
        let mut app = app();
        press(&mut app, "jjjj");
        assert_eq!(app.offset, 1);
        press(&mut app, "kkk");
        assert_eq!(app.offset, 0);
    }
}
