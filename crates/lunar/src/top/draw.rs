//! Draws the display.

use super::app::App;
use super::row::{Cell, Column, Row, View};
use super::table::{GAP, Table, number};
use lunar_admin::rows::{duration, shown};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

const HELP: &str = "q quit  Tab view  < > sort  r reverse  / filter  p pause  arrows scroll";
const HELP_FILTER: &str = "Enter keep  Esc cancel";

/// Draws the display into the frame, whatever its size.
pub fn draw(frame: &mut Frame<'_>, app: &App) {
    let area = frame.area();
    let (rows, all) = app.rows();
    let table = Table::new(app.view, &rows, Some(area.width.into()));
    let mut lines = vec![state_line(app), total_line(app), view_line(app, rows.len(), all)];
    lines.push(head_line(app, &table));
    let room = usize::from(area.height).saturating_sub(lines.len() + 1);
    let is_stale = app.fault.is_some();
    let of_row = |line: &String| Line::styled(line.clone(), dim_if(is_stale));
    lines.extend(table.lines.iter().skip(app.offset).take(room).map(of_row));
    lines.truncate(usize::from(area.height).saturating_sub(1));
    lines.resize(usize::from(area.height).saturating_sub(1), Line::default());
    lines.push(help_line(app));
    for (y, line) in (area.y..area.bottom()).zip(lines) {
        frame.render_widget(line, Rect { y, height: 1, ..area });
    }
}

fn dim_if(is_dim: bool) -> Style {
    if is_dim { Style::new().add_modifier(Modifier::DIM) } else { Style::new() }
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

fn coloured(app: &App, colour: Color) -> Style {
    if app.has_colours { bold().fg(colour) } else { bold() }
}

/// The server, and its connection.
fn state_line(app: &App) -> Line<'_> {
    let mut spans = Vec::new();
    if app.is_paused {
        spans.push(Span::styled("paused  ", coloured(app, Color::Yellow)));
    }
    if let Some(fault) = &app.fault {
        spans.push(Span::styled(format!("disconnected: {}", shown(fault)), coloured(app, Color::Red)));
        return Line::from(spans);
    }
    spans.push(Span::styled(shown(&app.server), bold()));
    if let Some(server) = app.snapshot.as_ref().map(|snapshot| &snapshot.server) {
        let facts = format!("  version {}  up {}", shown(&server.version), duration(server.uptime_s));
        spans.push(Span::raw(format!("{facts}  {} sessions", server.sessions)));
        if let Some(by) = &server.confirm_by {
            let trial = format!("  rolled back at {} unless confirmed", shown(by));
            spans.push(Span::styled(trial, coloured(app, Color::Yellow)));
        }
    }
    Line::from(spans)
}

/// The sum over all LUNs.
fn total_line(app: &App) -> Line<'_> {
    let Some(snapshot) = &app.snapshot else { return Line::raw("measuring") };
    if snapshot.seconds.is_none() {
        return Line::raw("measuring");
    }
    let luns = &snapshot.rows[View::Luns as usize];
    let sum = |column: Column| {
        let values = luns.iter().map(|row: &Row| match row.cell(column) {
            Cell::Number(value) => value.unwrap_or_default(),
            _ => 0.0,
        });
        number(column, values.sum())
    };
    Line::raw(format!(
        "reads {}/s {}  writes {}/s {}  in flight {}  errors {}/s",
        sum(Column::Reads),
        sum(Column::Read),
        sum(Column::Writes),
        sum(Column::Written),
        sum(Column::InFlight),
        sum(Column::Errors)
    ))
}

/// The views, the filter and the order.
fn view_line(app: &App, found: usize, all: usize) -> Line<'_> {
    let tab = |view: View| {
        let style = if view == app.view { bold().add_modifier(Modifier::REVERSED) } else { Style::new() };
        [Span::styled(view.title(), style), Span::raw(" ")]
    };
    let mut spans: Vec<Span<'_>> = View::ALL.into_iter().flat_map(tab).collect();
    let count = if found == all { format!(" {all}") } else { format!(" {found} of {all}") };
    let (sort, reversed) = (app.arrangement.column(app.view), app.arrangement.is_reversed);
    let order = if reversed { ", reversed" } else { "" };
    spans.push(Span::raw(format!("{count}  by {}{order}", sort.name())));
    if !app.arrangement.filter.is_empty() && app.filter_before.is_none() {
        spans.push(Span::styled(format!("  filter: {}", shown(&app.arrangement.filter)), bold()));
    }
    Line::from(spans)
}

/// The header. The column that decides the order is marked.
fn head_line<'t>(app: &App, table: &'t Table) -> Line<'t> {
    let sort = app.arrangement.column(app.view);
    let style =
        |column: Column| if column == sort { bold().add_modifier(Modifier::REVERSED) } else { bold() };
    let cell = |(column, head): (&Column, &'t String)| {
        [Span::styled(&**head, style(*column)), Span::styled(GAP, bold())]
    };
    table.columns.iter().zip(&table.head).flat_map(cell).collect()
}

fn help_line(app: &App) -> Line<'_> {
    match app.filter_before {
        Some(_) => Line::raw(format!("/{}_  {HELP_FILTER}", shown(&app.arrangement.filter))),
        None => Line::styled(HELP, dim_if(true)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::app::tests::app;
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::buffer::Buffer;

    fn drawn(app: &App, width: u16, height: u16) -> Buffer {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        terminal.draw(|frame| draw(frame, app)).expect("a drawing");
        terminal.backend().buffer().clone()
    }

    fn lines(buffer: &Buffer) -> Vec<String> {
        let width = usize::from(buffer.area.width);
        let row =
            |cells: &[ratatui::buffer::Cell]| cells.iter().map(|cell| cell.symbol()).collect::<String>();
        buffer.content.chunks(width).map(|cells| row(cells).trim_end().to_owned()).collect()
    }

    #[test]
    fn display_has_state_totals_table_and_help() {
        let shown = lines(&drawn(&app(), 120, 8));
        let expected = [
            "/run/lunar/lunar.sock  version 1.2.3  up 1m 1s  4 sessions",
            "reads 903/s 3.70 MB/s  writes 0/s 0 B/s  in flight 10  errors 0/s",
            "LUNs Sessions Paths  2  by reads",
            "TARGET            LUN  READS/S  WRITES/S       READ  WRITTEN  IN FLIGHT  MEAN  P50     P99  ERRORS/S",
            "iqn.example:fast    0      900         -  3.69 MB/s        -          0     -    -  900 µs         -",
            "iqn.example:slow    1        3         -  12.3 kB/s        -         10     -    -    3 µs         -",
            "",
            HELP,
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn disconnected_server_is_shown_over_its_last_rows() {
        let mut app = app();
        app.fault = Some("no server answers at \u{1b}[31m".into());
        let shown = lines(&drawn(&app, 120, 8));
        assert_eq!(shown[0], "disconnected: no server answers at \\u{1b}[31m");
        assert!(shown[4].starts_with("iqn.example:fast "), "{shown:?}");
    }

    #[test]
    fn filter_is_shown_while_it_is_typed_and_after() {
        let mut app = app();
        app.arrangement.filter = "fast".into();
        app.filter_before = Some(String::new());
        let typed = lines(&drawn(&app, 100, 8));
        assert_eq!(
            (typed[7].as_str(), typed[2].as_str()),
            ("/fast_  Enter keep  Esc cancel", "LUNs Sessions Paths  1 of 2  by reads")
        );
        app.filter_before = None;
        assert!(lines(&drawn(&app, 100, 8))[2].ends_with("  filter: fast"));
    }

    #[test]
    fn no_size_of_the_terminal_panics() {
        let mut app = app();
        for view in View::ALL {
            app.view = view;
            for (width, height) in [(40, 10), (1, 1), (0, 0), (3, 2), (79, 3), (300, 100)] {
                drawn(&app, width, height);
            }
        }
        app.view = View::Luns;
        let shown = lines(&drawn(&app, 40, 10));
        assert!(shown[4].contains("fast") && shown[9].starts_with("q quit"), "{shown:?}");
        app.snapshot = None;
        drawn(&app, 40, 10);
    }

    #[test]
    fn colours_are_optional() {
        let mut app = app();
        (app.is_paused, app.fault) = (true, Some("gone".into()));
        let is_coloured = |app: &App| drawn(app, 80, 8).content.iter().any(|cell| cell.fg != Color::Reset);
        assert!(is_coloured(&app));
        app.has_colours = false;
        assert!(!is_coloured(&app));
    }

    #[test]
    fn rows_below_the_offset_are_shown() {
        let mut app = app();
        app.offset = 1;
        let shown = lines(&drawn(&app, 100, 8));
        assert!(shown[4].starts_with("iqn.example:slow ") && shown[5].is_empty(), "{shown:?}");
    }
}
