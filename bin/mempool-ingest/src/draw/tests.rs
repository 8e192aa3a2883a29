use mempool_ingest::{
    load_control::GateStats, order_pool::PoolStats, txpool_fetcher::DeferredStats,
};
use ratatui::{Terminal, backend::TestBackend, buffer::Cell, style::Color};

use super::*;
use crate::{summary::Latency, watcher::PoolContent};

fn snapshot() -> Snapshot {
    let mut pool = PoolStats::default();
    (pool.txs, pool.bytes, pool.bundles, pool.mined) = (118_204, 231_000_000, 12, 9_000);
    let mut counts = mempool_ingest::txpool_fetcher::Counts::default();
    (counts.announced, counts.pooled, counts.backfilled) = (1_234_567, 1_240_000, 5_432);
    Snapshot {
        uptime: Duration::from_secs(3_725),
        client: Some("reth/v2.5.1-d2f8cf0/x86_64-unknown-linux-gnu".into()),
        head: Some((23_456_789, Duration::from_secs(7))),
        sources: vec![source()],
        counts,
        announced_per_s: 1_998.4,
        pooled_per_s: 2_001.0,
        pooled: (0..100).map(|second| 1_900 + second).collect(),
        p99_us: (0..100).map(|second| 400 + second % 7 * 60).collect(),
        latency: Some(Latency { p50: 121.4, p95: 500.0, p99: 812.0, max: 1_500.0 }),
        total_latency: Some(Latency { p50: 120.0, p95: 600.0, p99: 1_204.0, max: 9_000.0 }),
        pool,
        max_txs: 200_000,
        content: PoolContent {
            by_type: [20_000, 204, 97_000, 400, 600],
            by_tip: [100, 5_000, 60_000, 50_000, 3_104],
        },
        load: LoadState::Normal,
        deferred: DeferredStats::default(),
        gate: GateStats::default(),
        rpc: None,
        events: (0..40).map(|n| format!("12:00:{n:02}  INFO event {n}")).collect(),
        are_keys_shown: false,
    }
}

fn source() -> Source {
    Source {
        state: SourceState::Live,
        state_name: SourceState::Live.as_str(),
        chain_id: Some(1),
        endpoint: "/data/reth/mainnet/reth.ipc".into(),
        announcements: Announcements::Full,
        audited: true,
        backlog: 3,
        gaps: 2,
        open_gap: None,
        reconnects: 1,
        audits: 61,
        backfill: None,
        error: None,
    }
}

fn screen(snapshot: &Snapshot, width: u16, height: u16) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("no terminal to fail");
    terminal.draw(|frame| draw(frame, snapshot)).expect("it fails no more than the terminal");
    terminal
}

fn text(snapshot: &Snapshot, width: u16, height: u16) -> Vec<String> {
    let terminal = screen(snapshot, width, height);
    let lines = terminal.backend().buffer().content().chunks(width.into());
    lines.map(|line| line.iter().map(Cell::symbol).collect()).collect()
}

/// Returns the colour of the first cell of this word.
fn color(snapshot: &Snapshot, word: &str) -> Color {
    let terminal = screen(snapshot, 80, 24);
    let cells = terminal.backend().buffer().content();
    let letters: Vec<_> = word.chars().map(String::from).collect();
    let mut windows = cells.windows(letters.len());
    let position = windows.position(|cells| cells.iter().map(Cell::symbol).eq(&letters));
    cells[position.expect("the word is shown")].fg
}

#[test]
fn everything_fits_80_columns_and_24_lines() {
    let lines = text(&snapshot(), 80, 24);
    println!("{}", lines.join("\n"));
    assert!(lines[0].contains("  head 23456789, 7 s ago"), "{}", lines[0]);
    assert!(lines[0].trim_end().ends_with("up 1:02:05  ? keys  q ends"), "{}", lines[0]);
    let all = lines.join("\n");
    for shown in [
        "live        chain 1  ",
        "reth.ipc  backlog 3  reconnects 1  audits 61",
        "announced  1,998/s  pooled  2,001/s",
        "p50 121 us p99 812 us max 9.0 ms",
        "37 s, peak p99 760 us",
        "announced  1234567 pooled     1240000",
        "Pool, 12 bundles",
        "118,204 txs  231 MB  59 %",
        "7702      600  below 0.01   3104 ▇",
        "load normal",
        "INFO event 39",
    ] {
        assert!(all.contains(shown), "{shown:?} is not in\n{all}");
    }
}

#[test]
fn all_values_fit_60_columns() {
    let all = text(&snapshot(), 60, 36).join("\n");
    println!("{all}");
    for shown in [
        "head 23456789, 7 s ago",
        "announced  1,998/s  pooled  2,001/s",
        "p50 121 us p99 812 us max 9.0 ms",
        "announced  1234567 pooled     1240000",
        "118,204 txs  231 MB  59 %",
        "7702      600  below 0.01   3104 ▇",
        "load normal",
        "INFO event 39",
    ] {
        assert!(all.contains(shown), "{shown:?} is not in\n{all}");
    }
}

/// The view once showed 0 us.
#[test]
fn without_a_transaction_no_latency_is_shown() {
    let mut snapshot = snapshot();
    (snapshot.latency, snapshot.total_latency) = (None, None);
    let all = text(&snapshot, 80, 24).join("\n");
    assert!(all.contains("p50 – p99 – max –"), "{all}");
}

#[test]
fn the_keys_are_shown_on_request() {
    let mut snapshot = snapshot();
    assert!(!text(&snapshot, 80, 24).join("\n").contains("Esc"));
    snapshot.are_keys_shown = true;
    assert!(text(&snapshot, 80, 24).join("\n").contains(" q, Esc, Ctrl-C   end"));
}

#[test]
fn a_source_shows_its_kind_of_announcements_and_its_backfill() {
    let mut snapshot = snapshot();
    assert!(!text(&snapshot, 100, 30)[2].contains("hashes"));
    snapshot.sources[0].announcements = Announcements::Hashes;
    assert!(text(&snapshot, 100, 30)[2].contains("hashes"));
    snapshot.sources[0].backfill = Some(BackfillProgress { fetched: 12_500, total: 50_000 });
    let line = &text(&snapshot, 80, 24)[2];
    assert!(line.contains("████░░░░░░░░░░░░ backfill 12,500 of 50,000"), "{line}");
}

/// A line was once truncated in the middle of its reason.
#[test]
fn each_log_line_is_shown_completely() {
    let mut snapshot = snapshot();
    let path =
        "/a/path/that/is/longer/than/a/row/of/the/smallest/terminal/that/somebody/has/today.ipc";
    let text_of =
        |reason: &str| format!("12:00:41  WARN connection lost source={path} reason={reason}");
    snapshot.events = vec![text_of("unanswered_pings"), text_of("end_of_file")];
    for (width, height) in [(80, 30), (100, 30), (200, 24)] {
        let lines = text(&snapshot, width, height);
        let all: String = lines.concat().chars().filter(|c| *c != ' ').collect();
        for event in &snapshot.events {
            let whole: String = event.chars().filter(|c| *c != ' ').collect();
            assert!(width > 100 || all.contains(&whole), "{whole} is not in\n{}", lines.join("\n"));
        }
        assert!(all.contains("end_of_file"), "{}", lines.join("\n"));
    }
}

/// A number that is truncated at the edge is another number.
#[test]
fn no_number_is_truncated_at_any_width() {
    let mut snapshot = snapshot();
    snapshot.sources[0].chain_id = Some(11_155_111);
    (snapshot.deferred.deferred, snapshot.deferred.waiting) = (1_234_567, 98_765);
    (snapshot.pool.expired, snapshot.pool.evicted, snapshot.pool.bundles) =
        (7_654_321, 3_345_678, 20_000);
    (snapshot.pool.txs, snapshot.pool.bytes) = (218_000, 1_634_000_000);
    let slow = Latency { p50: 999_900.0, p95: 0.0, p99: 999_900.0, max: 999_900.0 };
    (snapshot.latency, snapshot.total_latency) = (Some(slow), Some(slow));
    snapshot.rpc = Some(crate::summary::RpcCounts {
        requests: 1_234_567,
        requests_refused: 1_234_567,
        work_refused: 0,
        deferred: 0,
        orders: 1_234_567,
        cancelled: 998_877,
    });
    let whole = "11155111 23456789, 1234567 98765 7654321 3345678 20,000 218,000 1634 999.9 998877";
    for width in 60..240 {
        for line in text(&snapshot, width, 30).iter().filter(|line| !line.contains("INFO")) {
            for word in line.split([' ', '/']).filter(|word| word.len() > 3) {
                let is_cut = |whole: &str| whole.starts_with(word) && whole != word;
                assert!(!whole.split(' ').any(is_cut), "{width}: {word} in {line}");
            }
        }
    }
}

#[test]
fn a_wide_terminal_shows_the_log_on_the_right() {
    let lines = text(&snapshot(), 200, 24);
    let title = lines.iter().find(|line| line.contains(" Events ")).expect("the log");
    assert!(title.contains(" Sources "), "{title}");
    assert_eq!(lines.iter().filter(|line| line.contains("INFO event")).count(), 22, "{lines:#?}");
    assert!(lines[2].contains(" /data/reth/mainnet/reth.ipc "), "{}", lines[2]);
}

#[test]
fn problems_are_highlighted() {
    let mut snapshot = snapshot();
    assert_eq!(
        (color(&snapshot, "live"), color(&snapshot, "normal")),
        (Color::Green, Color::Green)
    );
    snapshot.counts.failed = 314;
    snapshot.load = LoadState::Critical;
    let connecting = SourceState::Connecting;
    (snapshot.sources[0].state, snapshot.sources[0].state_name) = (connecting, connecting.as_str());
    snapshot.sources[0].error =
        Some("no file /data/reth/mainnet/reth.ipc: is the node running?".into());
    snapshot.events.push("12:01:00  WARN announcement buffer overruns count=9".into());
    assert_eq!(color(&snapshot, "314"), Color::Red);
    assert_eq!(color(&snapshot, "critical"), Color::Red);
    assert_eq!(color(&snapshot, "connecting"), Color::Yellow);
    assert_eq!(color(&snapshot, "no file"), Color::Red);
    assert_eq!(color(&snapshot, "12:01:00"), Color::Yellow);
    snapshot.sources[0] =
        Source { open_gap: Some(("lagged", Duration::from_secs(4))), audited: false, ..source() };
    assert_eq!(color(&snapshot, "gap: lagged, 4 s"), Color::Yellow);
}

#[test]
fn four_of_many_sources_are_shown_and_the_others_counted() {
    let mut snapshot = snapshot();
    snapshot.sources = vec![source(); 16];
    let lines = text(&snapshot, 80, 24);
    assert_eq!(lines.iter().filter(|line| line.contains("reth.ipc")).count(), 4);
    assert!(lines.iter().any(|line| line.contains("and 12 more")), "{lines:#?}");
    assert!(lines.iter().any(|line| line.contains("load normal")), "{lines:#?}");
}

#[test]
fn any_size_of_terminal_is_drawn() {
    for (width, height) in [(1, 1), (7, 3), (40, 12), (80, 24), (81, 60), (300, 100)] {
        screen(&snapshot(), width, height);
    }
    let mut empty = snapshot();
    empty.sources.clear();
    empty.events.clear();
    empty.pooled.clear();
    empty.p99_us.clear();
    (empty.client, empty.head) = (None, None);
    assert!(text(&empty, 80, 24)[0].contains("no node reached yet  no head yet"));
}

#[test]
fn numbers_are_readable() {
    assert_eq!(
        [with_commas(0), with_commas(999), with_commas(1_000), with_commas(12_345_678)],
        ["0", "999", "1,000", "12,345,678"]
    );
    assert_eq!([compact(9_999_999), compact(10_000_000)], ["9999999", "10.0 M"]);
    assert_eq!(
        [format_micros(999.0), format_micros(1_500.0), format_micros(2e6)],
        ["999 us", "1.5 ms", "2.0 s"]
    );
    assert_eq!(
        [truncate("abcdef", 4), truncate("abcd", 4), truncate_start("abcdef", 4)],
        ["abc…", "abcd", "…def"]
    );
}
