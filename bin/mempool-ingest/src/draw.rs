//! Draws the live view: a pure function of a [`Picture`].

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
    picture::{Picture, Source},
    watcher::{TIPS, TYPES},
};

/// Most sources that are shown; of further ones, only their number.
const MAX_SOURCES: usize = 4;

/// From this width on the log stands beside the rest, which has [`MAIN`] columns.
const WIDE: u16 = 160;
const MAIN: u16 = 100;

/// Below this width what stands side by side elsewhere stands one below the other, without curves.
const NARROW: u16 = 80;

/// The fewest columns of an endpoint, and the most.
const ENDPOINT: (usize, usize) = (12, 48);

pub(crate) fn draw(frame: &mut Frame, picture: &Picture) {
    let sources = picture.sources.len().min(MAX_SOURCES + 1) as u16;
    let [title, body] = Layout::vertical([Length(1), Fill(1)]).areas(frame.area());
    let beside = if body.width < WIDE { 0 } else { body.width - MAIN };
    let [body, side] = Layout::horizontal([Fill(1), Length(beside)]).areas(body);
    let (curves, tables) = if body.width < NARROW { (4, 16) } else { (5, 8) };
    let rows = [Length(1 + sources), Length(curves), Length(tables), Length(3), Min(0)];
    let [top, curves, tables, load, below] = Layout::vertical(rows).areas(body);
    frame.render_widget(headline(picture, usize::from(title.width)), title);
    section(frame, top, "Sources", source_lines(picture, usize::from(top.width)));
    let [left, right] = halves(curves);
    rates(frame, left, picture);
    latency(frame, right, picture);
    let [left, right] = halves(tables);
    section(frame, left, "Hashes", hash_lines(picture));
    let bundles = format!("Pool, {} bundles", n(picture.pool.bundles));
    section(frame, right, &bundles, pool_lines(picture));
    section(frame, load, "Load and searchers' orders", load_lines(picture, load.width.into()));
    let events = if beside == 0 { below } else { side };
    section(frame, events, "Events", event_lines(picture, events));
    if picture.keys {
        keys(frame);
    }
}

/// What the keys do, over the last lines.
fn keys(frame: &mut Frame) {
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

fn headline(picture: &Picture, width: usize) -> Line<'static> {
    let head = picture.head.map(|(number, age)| format!("  head {number}, {} ago", short(age)));
    let head = head.unwrap_or("  no head yet".to_owned());
    let right = format!("up {}  ? keys  q ends ", clock(picture.up));
    let node = picture.node.as_ref().map_or("no node reached yet", String::as_str);
    // Its client is cut rather than a number.
    let room = width.saturating_sub(head.len() + right.len() + 2);
    let left = format!(" {}{head}", cut(node, room));
    let room = width.saturating_sub(right.len());
    let left = format!("{left:room$}");
    Line::from(vec![left.bold(), right.into()]).style(Style::new().bg(Color::Blue).fg(Color::White))
}

fn source_lines(picture: &Picture, width: usize) -> Vec<Line<'static>> {
    let shown = picture.sources.iter().take(MAX_SOURCES);
    let mut lines: Vec<_> = shown.map(|source| source_line(source, width)).collect();
    let more = picture.sources.len().saturating_sub(MAX_SOURCES);
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
    // What stands behind the endpoint, which gets the columns that are left.
    let mut spans = vec![];
    let (least, most) = ENDPOINT;
    let left = width.saturating_sub(state.chars().count() + chain.len() + 2);
    let room = left.saturating_sub(least);
    if let Some((done, all)) = source.backfill {
        let text = format!(" backfill {} of {}", n(done), n(all));
        let bar = room.saturating_sub(text.len()).clamp(4, 16);
        let filled = (done * bar as u64 / all.max(1)) as usize;
        spans.push("█".repeat(filled).cyan());
        spans.push("░".repeat(bar - filled).dark_gray());
        spans.push(text.into());
    } else if let Some(error) = &source.error {
        spans.push(cut(error, room).red());
    } else {
        // Problems come first, because a narrow terminal has no room for the last.
        let mut problems = if source.audited { String::new() } else { "not audited  ".to_owned() };
        if let Some((reason, age)) = source.open_gap {
            problems += &format!("gap: {reason}, {}  ", short(age));
        }
        let parts = [
            format!("backlog {}", source.backlog),
            format!("reconnects {}", source.reconnects),
            format!("audits {}", source.audits),
            format!("gaps {}", source.gaps),
        ];
        let hashes = source.announcements == Announcements::Hashes;
        let parts = parts.into_iter().chain(hashes.then(|| "hashes".to_owned()));
        let rest = fitting(parts, room.saturating_sub(problems.chars().count()));
        spans.extend([problems.yellow(), rest.into()]);
    }
    let used: usize = spans.iter().map(Span::width).sum();
    let columns = left.saturating_sub(used).clamp(least, most);
    let endpoint = format!("{chain}{:<columns$}  ", tail(&source.endpoint, columns));
    let mut line = vec![Span::styled(state, color), endpoint.into()];
    line.append(&mut spans);
    Line::from(line)
}

fn rates(frame: &mut Frame, area: Rect, picture: &Picture) {
    let line = Line::from(vec![
        format!(" announced {:>6}/s  pooled ", n(picture.announced_per_s as u64)).into(),
        format!("{:>6}/s", n(picture.pooled_per_s as u64)).green(),
    ]);
    curve(frame, area, "Rates", line, &picture.pooled, Color::Green, |peak| {
        format!("{}/s pooled", n(peak))
    });
}

fn latency(frame: &mut Frame, area: Rect, picture: &Picture) {
    let shown = |micros: Option<f64>| micros.map_or("–".to_owned(), us);
    let (now, all) = (picture.latency, picture.latency_in_all);
    let line = Line::from(vec![
        " p50 ".into(),
        shown(now.map(|now| now.p50)).cyan(),
        " p99 ".into(),
        shown(now.map(|now| now.p99)).cyan(),
        format!(" max {}", shown(all.map(|all| all.max))).dark_gray(),
    ]);
    let (title, history) = ("Latency, socket to subscriber", &picture.p99_us);
    let peak = |peak| format!("p99 {}", us(peak as f64));
    curve(frame, area, title, line, history, Color::Cyan, peak);
}

/// A line of text above a curve with one column per second, with its peak.
fn curve(
    frame: &mut Frame,
    area: Rect,
    title: &str,
    line: Line,
    history: &VecDeque<u64>,
    color: Color,
    peak: impl Fn(u64) -> String,
) {
    let columns = usize::from(area.width.saturating_sub(2));
    let shown: Vec<u64> = history.iter().rev().take(columns).rev().copied().collect();
    let most = shown.iter().copied().max().unwrap_or(0);
    let inside = block(title).inner(area);
    frame.render_widget(block(title), area);
    if inside.height < 4 {
        return frame.render_widget(line, inside);
    }
    let [text, bars, caption] = Layout::vertical([1, 2, 1].map(Length)).areas(inside);
    frame.render_widget(line, text);
    let bars = Rect { x: bars.x + 1, width: bars.width.saturating_sub(1), ..bars };
    frame.render_widget(Sparkline::default().data(&shown).max(most.max(1)).style(color), bars);
    let words = format!(" {} s, peak {}", shown.len(), peak(most));
    frame.render_widget(Line::from(words).dark_gray(), caption);
}

fn hash_lines(picture: &Picture) -> Vec<Line<'static>> {
    use Color::{Red, Reset, Yellow};
    let (c, pool) = (&picture.counts, &picture.pool);
    let removed = pool.mined + pool.stale + pool.expired + pool.evicted;
    // A value that should be 0 is highlighted when it is not.
    [
        [("announced", c.announced, Reset), ("pooled", c.pooled, Reset)],
        [("backfilled", c.backfilled, Reset), ("known", c.known, Reset)],
        [("by audit", c.audit_recovered, Yellow), ("gone", c.gone, Reset)],
        [("lagged", c.lagged, Red), ("mined", c.mined, Reset)],
        [("in flight", c.unfinished, Reset), ("malformed", c.malformed, Red)],
        [("failed", c.failed, Red), ("refused", c.refused, Yellow)],
        [("removed", removed, Reset), ("postponed", c.postponed, Yellow)],
    ]
    .map(|cells| Line::from(cells.map(cell).concat()))
    .into()
}

fn cell((name, value, unless_zero): (&str, u64, Color)) -> Vec<Span<'static>> {
    let color = if value == 0 { Color::DarkGray } else { unless_zero };
    vec![format!(" {name:<10}").into(), Span::styled(format!("{:>8}", compact(value)), color)]
}

fn pool_lines(picture: &Picture) -> Vec<Line<'static>> {
    let (pool, content) = (&picture.pool, &picture.content);
    let share =
        100.0 * (pool.txs - pool.external_txs.min(pool.txs)) as f64 / picture.max_txs.max(1) as f64;
    let mut lines = vec![Line::from(vec![
        format!(" {} txs", n(pool.txs)).bold(),
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

fn load_lines(picture: &Picture, width: usize) -> Vec<Line<'static>> {
    let color = match picture.load {
        LoadState::Normal => Color::Green,
        LoadState::Elevated => Color::Yellow,
        _ => Color::Red,
    };
    let load = picture.load.as_str();
    let parts = [
        format!("deferred {}", compact(picture.deferred.deferred)),
        format!("waiting {}", picture.deferred.waiting),
        format!("work permits {}", picture.gate.work_in_use),
        format!("evicted {}", compact(picture.pool.evicted)),
        format!("expired {}", compact(picture.pool.expired)),
    ];
    let rest = fitting(parts, width.saturating_sub(" load   ".len() + load.len()));
    let first =
        Line::from(vec![" load ".into(), Span::styled(load, color), format!("  {rest}").into()]);
    let second = match &picture.rpc {
        Some(rpc) => {
            let parts = [
                format!("rpc requests {}", compact(rpc.requests)),
                format!("in flight {}", picture.gate.requests_in_flight),
                format!("refused {}", compact(rpc.requests_refused + rpc.work_refused)),
                format!("orders {}", compact(rpc.orders)),
                format!("cancelled {}", compact(rpc.cancelled)),
            ];
            Line::from(format!(" {}", fitting(parts, width.saturating_sub(1))))
        }
        None => Line::from(" no RPC server: --rpc ADDR starts one").dark_gray(),
    };
    vec![first, second]
}

/// The latest lines of the log that fit, the latest last, each whole: on several rows if need be.
fn event_lines(picture: &Picture, area: Rect) -> Vec<Line<'static>> {
    let (width, room) = (usize::from(area.width), usize::from(area.height.saturating_sub(1)));
    let mut shown = VecDeque::new();
    for event in picture.events.iter().rev() {
        let color = match event {
            _ if event.contains(" ERROR ") => Color::Red,
            _ if event.contains(" WARN ") => Color::Yellow,
            _ => Color::Reset,
        };
        let rows = wrapped(event, width.saturating_sub(1));
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

/// Rows of at most so many columns. All but the first begin below the text behind the time and the level.
fn wrapped(text: &str, columns: usize) -> Vec<String> {
    const INDENT: usize = "12:00:00  INFO ".len();
    let columns = columns.max(INDENT + 1);
    let (mut rows, mut row) = (Vec::new(), String::new());
    for (at, word) in text.split(' ').enumerate() {
        let used = row.chars().count();
        if used > INDENT && used + 1 + word.chars().count() > columns {
            rows.push(std::mem::replace(&mut row, " ".repeat(INDENT)));
        } else if at > 0 {
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

/// The first of these parts that fit whole: a number that is cut is another number.
fn fitting(parts: impl IntoIterator<Item = String>, room: usize) -> String {
    let mut line = String::new();
    for part in parts {
        let between = if line.is_empty() { "" } else { "  " };
        if line.chars().count() + between.len() + part.chars().count() > room {
            break;
        }
        line += between;
        line += &part;
    }
    line
}

/// A number with commas.
fn n(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number in at most eight characters.
fn compact(value: u64) -> String {
    match value {
        0..10_000_000 => value.to_string(),
        10_000_000..10_000_000_000 => format!("{:.1} M", value as f64 / 1e6),
        _ => format!("{:.1} G", value as f64 / 1e9),
    }
}

fn us(micros: f64) -> String {
    match micros {
        0.0..1e3 => format!("{micros:.0} us"),
        1e3..1e6 => format!("{:.1} ms", micros / 1e3),
        _ => format!("{:.1} s", micros / 1e6),
    }
}

fn short(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds => format!("{} min", seconds / 60),
    }
}

fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{}:{:02}:{:02}", seconds / 3_600, seconds / 60 % 60, seconds % 60)
}

/// The first `most` characters.
fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some(_) => text.chars().take(most.saturating_sub(1)).chain(['…']).collect(),
        None => text.to_owned(),
    }
}

/// The last `most` characters, because paths differ at their end.
fn tail(text: &str, most: usize) -> String {
    let length = text.chars().count();
    match length > most {
        true => ['…'].into_iter().chain(text.chars().skip(length - most + 1)).collect(),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests;
