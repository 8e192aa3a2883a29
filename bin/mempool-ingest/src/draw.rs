//! Draws the live view: a pure function of a [`Snapshot`].

use std::{collections::VecDeque, time::Duration};

use mempool_ingest::{
    load_control::LoadState,
    txpool_fetcher::{Announcements, SourceState},
};
use ratatui::{
    Frame,
    layout::{
        Constraint::{Fill, Length, Min},
        Layout, Rect,
    },
    style::{Color, Style, Stylize as _},
    text::{Line, Span},
    widgets::{Block, Borders, Clear, Paragraph, Sparkline},
};

use crate::{
    snapshot::{BackfillProgress, Snapshot, Source},
    watcher::{TIPS, TYPES},
};

/// The number of sources that are shown. Of the others only the number is shown.
const MAX_SOURCES: usize = 4;

/// From this width on, the log is shown on the right, and the rest has [`MAIN_WIDTH`] columns.
const WIDE: u16 = 160;
const MAIN_WIDTH: u16 = 100;

/// Below this width, sections that are otherwise side by side are stacked, without curves.
const NARROW: u16 = 80;

/// The smallest and the largest number of columns for an endpoint.
const MIN_ENDPOINT: usize = 12;
const MAX_ENDPOINT: usize = 48;

/// Draws every section.
pub(crate) fn draw(frame: &mut Frame, snapshot: &Snapshot) {
    let sources = snapshot.sources.len().min(MAX_SOURCES + 1) as u16;
    let [title, body] = Layout::vertical([Length(1), Fill(1)]).areas(frame.area());
    let side_width = if body.width < WIDE { 0 } else { body.width - MAIN_WIDTH };
    let [body, side] = Layout::horizontal([Fill(1), Length(side_width)]).areas(body);
    let (curves, tables) = if body.width < NARROW { (4, 16) } else { (5, 8) };
    let rows = [Length(1 + sources), Length(curves), Length(tables), Length(3), Min(0)];
    let [top, curves, tables, load, below] = Layout::vertical(rows).areas(body);
    frame.render_widget(headline(snapshot, usize::from(title.width)), title);
    section(frame, top, "Sources", source_lines(snapshot, usize::from(top.width)));
    let [left, right] = halves(curves);
    rates(frame, left, snapshot);
    latency(frame, right, snapshot);
    let [left, right] = halves(tables);
    section(frame, left, "Hashes", hash_lines(snapshot));
    let bundles = format!("Pool, {} bundles", with_commas(snapshot.pool.bundles));
    section(frame, right, &bundles, pool_lines(snapshot));
    section(frame, load, "Load and searchers' orders", load_lines(snapshot, load.width.into()));
    let events = if side_width == 0 { below } else { side };
    section(frame, events, "Events", event_lines(snapshot, events));
    if snapshot.are_keys_shown {
        draw_keys(frame);
    }
}

/// Draws the meaning of the keys over the last lines.
fn draw_keys(frame: &mut Frame) {
    let all = frame.area();
    let height = all.height.min(4);
    let area = Rect { y: all.bottom() - height, height, ..all };
    frame.render_widget(Clear, area);
    let lines = [" q, Esc, Ctrl-C   end", " ?                show and hide this"];
    section(frame, area, "Keys", lines.map(Line::from).into());
}

fn halves(area: Rect) -> [Rect; 2] {
    if area.width < NARROW {
        return Layout::vertical([Fill(1), Fill(1)]).areas(area);
    }
    Layout::horizontal([Fill(1), Fill(1)]).spacing(2).areas(area)
}

fn block(title: &str) -> Block<'_> {
    let border = Style::new().fg(Color::DarkGray);
    Block::new()
        .borders(Borders::TOP)
        .border_style(border)
        .title(format!(" {title} ").bold().fg(Color::Reset))
}

fn section(frame: &mut Frame, area: Rect, title: &str, lines: Vec<Line>) {
    frame.render_widget(Paragraph::new(lines).block(block(title)), area);
}

fn headline(snapshot: &Snapshot, width: usize) -> Line<'static> {
    let head =
        snapshot.head.map(|(number, age)| format!("  head {number}, {} ago", format_age(age)));
    let head = head.unwrap_or("  no head yet".to_owned());
    let right = format!("up {}  ? keys  q ends ", format_uptime(snapshot.uptime));
    let client = snapshot.client.as_deref().unwrap_or("no node reached yet");
    // Truncate the client version rather than a number.
    let room = width.saturating_sub(head.len() + right.len() + 2);
    let left = format!(" {}{head}", truncate(client, room));
    let room = width.saturating_sub(right.len());
    let left = format!("{left:room$}");
    Line::from(vec![left.bold(), right.into()]).style(Style::new().bg(Color::Blue).fg(Color::White))
}

fn source_lines(snapshot: &Snapshot, width: usize) -> Vec<Line<'static>> {
    let shown = snapshot.sources.iter().take(MAX_SOURCES);
    let mut lines: Vec<_> = shown.map(|source| source_line(source, width)).collect();
    let more = snapshot.sources.len().saturating_sub(MAX_SOURCES);
    if more > 0 {
        lines.push(Line::from(format!(" and {more} more")));
    }
    lines
}

fn source_line(source: &Source, width: usize) -> Line<'static> {
    let color = match source.state {
        SourceState::Live => Color::Green,
        SourceState::Backfilling => Color::Cyan,
        SourceState::Connecting => Color::Yellow,
        _ => Color::Red,
    };
    let state = format!(" ● {:<12}", source.state_name);
    let chain = source.chain_id.map(|chain| format!("chain {chain}  ")).unwrap_or_default();
    // The spans behind the endpoint. The endpoint gets the columns that they leave.
    let mut spans = vec![];
    let columns_left = width.saturating_sub(state.chars().count() + chain.len() + 2);
    let room = columns_left.saturating_sub(MIN_ENDPOINT);
    if let Some(BackfillProgress { fetched, total }) = source.backfill {
        let text = format!(" backfill {} of {}", with_commas(fetched), with_commas(total));
        let bar = room.saturating_sub(text.len()).clamp(4, 16);
        let filled = (fetched * bar as u64 / total.max(1)) as usize;
        spans.push("█".repeat(filled).cyan());
        spans.push("░".repeat(bar - filled).dark_gray());
        spans.push(text.into());
    } else if let Some(error) = &source.error {
        spans.push(truncate(error, room).red());
    } else {
        // Problems come first, because a narrow terminal has no room for the last parts.
        let mut problems = if source.audited { String::new() } else { "not audited  ".to_owned() };
        if let Some((reason, age)) = source.open_gap {
            problems += &format!("gap: {reason}, {}  ", format_age(age));
        }
        let parts = [
            format!("backlog {}", source.backlog),
            format!("reconnects {}", source.reconnects),
            format!("audits {}", source.audits),
            format!("gaps {}", source.gaps),
        ];
        let are_hashes = source.announcements == Announcements::Hashes;
        let parts = parts.into_iter().chain(are_hashes.then(|| "hashes".to_owned()));
        let rest = join_fitting(parts, room.saturating_sub(problems.chars().count()));
        spans.extend([problems.yellow(), rest.into()]);
    }
    let used: usize = spans.iter().map(Span::width).sum();
    let columns = columns_left.saturating_sub(used).clamp(MIN_ENDPOINT, MAX_ENDPOINT);
    let endpoint = format!("{chain}{:<columns$}  ", truncate_start(&source.endpoint, columns));
    let mut line = vec![Span::styled(state, color), endpoint.into()];
    line.append(&mut spans);
    Line::from(line)
}

fn rates(frame: &mut Frame, area: Rect, snapshot: &Snapshot) {
    let line = Line::from(vec![
        format!(" announced {:>6}/s  pooled ", with_commas(snapshot.announced_per_s as u64)).into(),
        format!("{:>6}/s", with_commas(snapshot.pooled_per_s as u64)).green(),
    ]);
    curve(frame, area, "Rates", line, &snapshot.pooled, Color::Green, |peak| {
        format!("{}/s pooled", with_commas(peak))
    });
}

fn latency(frame: &mut Frame, area: Rect, snapshot: &Snapshot) {
    let (recent, total) = (snapshot.latency, snapshot.total_latency);
    let line = Line::from(vec![
        " p50 ".into(),
        format_latency(recent.map(|latency| latency.p50)).cyan(),
        " p99 ".into(),
        format_latency(recent.map(|latency| latency.p99)).cyan(),
        format!(" max {}", format_latency(total.map(|latency| latency.max))).dark_gray(),
    ]);
    let (title, history) = ("Latency, socket to subscriber", &snapshot.p99_us);
    curve(frame, area, title, line, history, Color::Cyan, |peak| {
        format!("p99 {}", format_micros(peak as f64))
    });
}

/// Draws a line of text above a curve with one column per second, and the peak below it.
fn curve(
    frame: &mut Frame,
    area: Rect,
    title: &str,
    line: Line,
    history: &VecDeque<u64>,
    color: Color,
    format_peak: impl Fn(u64) -> String,
) {
    let columns = usize::from(area.width.saturating_sub(2));
    let shown: Vec<u64> = history.iter().rev().take(columns).rev().copied().collect();
    let peak = shown.iter().copied().max().unwrap_or(0);
    let inside = block(title).inner(area);
    frame.render_widget(block(title), area);
    if inside.height < 4 {
        return frame.render_widget(line, inside);
    }
    let [text, bars, caption] = Layout::vertical([1, 2, 1].map(Length)).areas(inside);
    frame.render_widget(line, text);
    let bars = Rect { x: bars.x + 1, width: bars.width.saturating_sub(1), ..bars };
    frame.render_widget(Sparkline::default().data(&shown).max(peak.max(1)).style(color), bars);
    let text = format!(" {} s, peak {}", shown.len(), format_peak(peak));
    frame.render_widget(Line::from(text).dark_gray(), caption);
}

fn hash_lines(snapshot: &Snapshot) -> Vec<Line<'static>> {
    use Color::{Red, Reset, Yellow};
    let counts = &snapshot.counts;
    let pool = &snapshot.pool;
    let removed = pool.mined + pool.stale + pool.expired + pool.evicted;
    // A count that should be 0 is highlighted when it is not.
    [
        [("announced", counts.announced, Reset), ("pooled", counts.pooled, Reset)],
        [("backfilled", counts.backfilled, Reset), ("known", counts.known, Reset)],
        [("by audit", counts.audit_recovered, Yellow), ("gone", counts.gone, Reset)],
        [("lagged", counts.lagged, Red), ("mined", counts.mined, Reset)],
        [("in flight", counts.unfinished, Reset), ("malformed", counts.malformed, Red)],
        [("failed", counts.failed, Red), ("refused", counts.refused, Yellow)],
        [("removed", removed, Reset), ("postponed", counts.postponed, Yellow)],
    ]
    .map(|cells| Line::from(cells.map(|(name, value, color)| cell(name, value, color)).concat()))
    .into()
}

fn cell(name: &str, value: u64, nonzero_color: Color) -> Vec<Span<'static>> {
    let color = if value == 0 { Color::DarkGray } else { nonzero_color };
    vec![format!(" {name:<10}").into(), Span::styled(format!("{:>8}", compact(value)), color)]
}

fn pool_lines(snapshot: &Snapshot) -> Vec<Line<'static>> {
    let (pool, content) = (&snapshot.pool, &snapshot.content);
    let share = 100.0 * (pool.txs - pool.external_txs.min(pool.txs)) as f64
        / snapshot.max_txs.max(1) as f64;
    let mut lines = vec![Line::from(vec![
        format!(" {} txs", with_commas(pool.txs)).bold(),
        format!("  {:.0} MB  {share:.0} %", pool.bytes as f64 / 1e6).into(),
    ])];
    lines.push(Line::from(" type           tip offered, gwei").dark_gray());
    let most = content.by_tip.iter().copied().max().unwrap_or(0).max(1);
    for row in 0..TYPES.len() {
        let (txs, tips) = (content.by_type[row], content.by_tip[row]);
        let bar = (tips * 4).div_ceil(most) as usize;
        lines.push(Line::from(vec![
            format!(" {:<7}{:>6}  {:<11}", TYPES[row], compact(txs), TIPS[row].1).into(),
            format!("{:>6} ", compact(tips)).into(),
            "▇".repeat(bar).magenta(),
        ]));
    }
    lines
}

fn load_lines(snapshot: &Snapshot, width: usize) -> Vec<Line<'static>> {
    let color = match snapshot.load {
        LoadState::Normal => Color::Green,
        LoadState::Elevated => Color::Yellow,
        _ => Color::Red,
    };
    let load = snapshot.load.as_str();
    let parts = [
        format!("deferred {}", compact(snapshot.deferred.deferred)),
        format!("waiting {}", snapshot.deferred.waiting),
        format!("work permits {}", snapshot.gate.work_in_use),
        format!("evicted {}", compact(snapshot.pool.evicted)),
        format!("expired {}", compact(snapshot.pool.expired)),
    ];
    let rest = join_fitting(parts, width.saturating_sub(" load   ".len() + load.len()));
    let first =
        Line::from(vec![" load ".into(), Span::styled(load, color), format!("  {rest}").into()]);
    let second = match &snapshot.rpc {
        Some(rpc) => {
            let parts = [
                format!("rpc requests {}", compact(rpc.requests)),
                format!("in flight {}", snapshot.gate.requests_in_flight),
                format!("refused {}", compact(rpc.requests_refused + rpc.work_refused)),
                format!("orders {}", compact(rpc.orders)),
                format!("cancelled {}", compact(rpc.cancelled)),
            ];
            Line::from(format!(" {}", join_fitting(parts, width.saturating_sub(1))))
        }
        None => Line::from(" no RPC server: --rpc ADDR starts one").dark_gray(),
    };
    vec![first, second]
}

/// Returns the latest lines of the log that fit, the latest last. Long lines take several rows.
fn event_lines(snapshot: &Snapshot, area: Rect) -> Vec<Line<'static>> {
    let (width, room) = (usize::from(area.width), usize::from(area.height.saturating_sub(1)));
    let mut shown = VecDeque::new();
    for event in snapshot.events.iter().rev() {
        let color = match event {
            _ if event.contains(" ERROR ") => Color::Red,
            _ if event.contains(" WARN ") => Color::Yellow,
            _ => Color::Reset,
        };
        let rows = wrap(event, width.saturating_sub(1));
        if shown.len() + rows.len() > room && !shown.is_empty() {
            break;
        }
        for row in rows.into_iter().rev() {
            shown.push_front(Line::from(format!(" {row}")).style(color));
        }
    }
    shown.truncate(room);
    shown.into()
}

/// Wraps a line of the log into rows of this many columns. Continued rows are indented by the width
/// of the time and the level.
fn wrap(text: &str, columns: usize) -> Vec<String> {
    const INDENT: usize = "12:00:00  INFO ".len();
    let columns = columns.max(INDENT + 1);
    let (mut rows, mut row) = (Vec::new(), String::new());
    for (index, word) in text.split(' ').enumerate() {
        let used = row.chars().count();
        if used > INDENT && used + 1 + word.chars().count() > columns {
            rows.push(std::mem::replace(&mut row, " ".repeat(INDENT)));
        } else if index > 0 {
            row.push(' ');
        }
        for letter in word.chars() {
            if row.chars().count() == columns {
                rows.push(std::mem::replace(&mut row, " ".repeat(INDENT)));
            }
            row.push(letter);
        }
    }
    rows.push(row);
    rows
}

/// Joins the first parts that fit as a whole, because a truncated number would be another number.
fn join_fitting(parts: impl IntoIterator<Item = String>, room: usize) -> String {
    let mut line = String::new();
    for part in parts {
        let separator = if line.is_empty() { "" } else { "  " };
        if line.chars().count() + separator.len() + part.chars().count() > room {
            break;
        }
        line += separator;
        line += &part;
    }
    line
}

/// Formats a number with thousands separators.
fn with_commas(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a number in at most eight characters.
fn compact(value: u64) -> String {
    match value {
        0..10_000_000 => value.to_string(),
        10_000_000..10_000_000_000 => format!("{:.1} M", value as f64 / 1e6),
        _ => format!("{:.1} G", value as f64 / 1e9),
    }
}

fn format_latency(micros: Option<f64>) -> String {
    micros.map_or("–".to_owned(), format_micros)
}

fn format_micros(micros: f64) -> String {
    match micros {
        0.0..1e3 => format!("{micros:.0} us"),
        1e3..1e6 => format!("{:.1} ms", micros / 1e3),
        _ => format!("{:.1} s", micros / 1e6),
    }
}

fn format_age(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds => format!("{} min", seconds / 60),
    }
}

fn format_uptime(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{}:{:02}:{:02}", seconds / 3_600, seconds / 60 % 60, seconds % 60)
}

/// Returns the first `max_chars` characters, the last one being `…` if some are missing.
fn truncate(text: &str, max_chars: usize) -> String {
    if text.chars().count() <= max_chars {
        return text.to_owned();
    }
    text.chars().take(max_chars.saturating_sub(1)).chain(['…']).collect()
}

/// Returns the last `max_chars` characters, because paths differ at their end. The first one is `…`
/// if some are missing.
fn truncate_start(text: &str, max_chars: usize) -> String {
    let length = text.chars().count();
    if length <= max_chars {
        return text.to_owned();
    }
    ['…'].into_iter().chain(text.chars().skip(length - max_chars + 1)).collect()
}

#[cfg(test)]
mod tests;
