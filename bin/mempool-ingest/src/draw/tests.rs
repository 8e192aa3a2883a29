use mempool_ingest::{
    load_control::GateStats, order_pool::PoolStats, txpool_fetcher::DeferredStats,
};
use ratatui::{Terminal, backend::TestBackend, style::Color};

use super::*;
use crate::{summary::Latency, watcher::Content};

fn picture() -> Picture {
    let mut pool = PoolStats::default();
    (pool.txs, pool.bytes, pool.bundles, pool.mined) = (118_204, 231_000_000, 12, 9_000);
    let mut counts = mempool_ingest::txpool_fetcher::Counts::default();
    (counts.announced, counts.pooled, counts.backfilled) = (1_234_567, 1_240_000, 5_432);
    Picture {
        up: Duration::from_secs(3_725),
        node: Some(("reth/v2.5.1-d2f8cf0/x86_64-unknown-linux-gnu".into(), 1)),
        head: Some((23_456_789, Duration::from_secs(7))),
        sources: vec![source()],
        counts,
        announced_per_s: 1_998.4,
        pooled_per_s: 2_001.0,
        pooled: (0..100).map(|second| 1_900 + second).collect(),
        p99_us: (0..100).map(|second| 400 + second % 7 * 60).collect(),
        latency: Latency { p50: 121.4, p95: 500.0, p99: 812.0, max: 1_500.0 },
        latency_in_all: Latency { p50: 120.0, p95: 600.0, p99: 1_204.0, max: 9_000.0 },
        pool,
        max_txs: 200_000,
        content: Content {
            by_type: [20_000, 204, 97_000, 400, 600],
            by_tip: [100, 5_000, 60_000, 50_000, 3_104],
        },
        load: LoadState::Normal,
        deferred: DeferredStats::default(),
        gate: GateStats::default(),
        rpc: None,
        events: (0..40).map(|n| format!("12:00:{n:02}  INFO event {n}")).collect(),
    }
}

fn source() -> Source {
    Source {
        state: SourceState::Live,
        chain_id: Some(1),
        is_on_other_chain: false,
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

fn screen(picture: &Picture, width: u16, height: u16) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("no terminal to fail");
    terminal.draw(|frame| draw(frame, picture)).expect("it fails no more than the terminal");
    terminal
}

fn text(picture: &Picture, width: u16, height: u16) -> Vec<String> {
    let terminal = screen(picture, width, height);
    let cells = terminal.backend().buffer().content();
    let lines = cells.chunks(width.into());
    lines.map(|line| line.iter().map(|cell| cell.symbol()).collect::<String>()).collect()
}

/// The colour of the first cell of this word.
fn color(picture: &Picture, word: &str) -> Color {
    let line = text(picture, 80, 24).iter().position(|line| line.contains(word)).expect("a line");
    let terminal = screen(picture, 80, 24);
    let row = &terminal.backend().buffer().content()[line * 80..(line + 1) * 80];
    let letters: Vec<_> = row.iter().map(|cell| cell.symbol()).collect();
    let word: Vec<_> = word.chars().map(String::from).collect();
    let at = letters.windows(word.len()).position(|some| some == word.as_slice());
    row[at.expect("in this line")].fg
}

#[test]
fn eighty_columns_and_twenty_four_lines_show_everything() {
    let lines = text(&picture(), 80, 24);
    println!("{}", lines.join("\n"));
    assert!(lines[0].contains("chain 1  head 23456789 7 s ago"), "{}", lines[0]);
    assert!(lines[0].trim_end().ends_with("up 1:02:05  q ends"), "{}", lines[0]);
    let all = lines.join("\n");
    for shown in [
        "live        …th/mainnet/reth.ipc",
        "gaps 2  backlog 3  reconnects 1  audits 61",
        "announced  1,998/s  pooled  2,001/s",
        "p50 121 us  p99 812 us  max 9.0 ms",
        "37 s, peak p99 760 us",
        "announced  1234567 pooled     1240000",
        "118,204 txs  231 MB  59 %  12 bundles",
        "7702      600  below 0.01   3104 ▇",
        "load normal",
        "INFO event 39",
    ] {
        assert!(all.contains(shown), "{shown:?} is not in\n{all}");
    }
}

#[test]
fn a_backfill_shows_how_far_it_is() {
    let mut picture = picture();
    picture.sources[0].state = SourceState::Backfilling;
    picture.sources[0].backfill = Some((12_500, 50_000));
    let line = &text(&picture, 80, 24)[2];
    assert!(line.contains("████░░░░░░░░░░░░ backfill 12,500 of 50,000"), "{line}");
}

#[test]
fn a_source_whose_node_announces_only_hashes_says_so() {
    let mut picture = picture();
    assert!(!text(&picture, 90, 24)[2].contains("hashes"));
    picture.sources[0].announcements = Announcements::Hashes;
    assert!(text(&picture, 90, 24)[2].contains("hashes"));
}

#[test]
fn what_is_wrong_stands_out() {
    let mut picture = picture();
    assert_eq!((color(&picture, "live"), color(&picture, "normal")), (Color::Green, Color::Green));
    picture.counts.failed = 314;
    picture.load = LoadState::Critical;
    picture.sources[0].state = SourceState::Connecting;
    picture.sources[0].error =
        Some("no file /data/reth/mainnet/reth.ipc: is the node running?".into());
    picture.events.push("12:01:00  WARN announcement buffer overruns count=9".into());
    assert_eq!(color(&picture, "314"), Color::Red);
    assert_eq!(color(&picture, "critical"), Color::Red);
    assert_eq!(color(&picture, "connecting"), Color::Yellow);
    assert_eq!(color(&picture, "no file"), Color::Red);
    assert_eq!(color(&picture, "12:01:00"), Color::Yellow);
    picture.sources[0] =
        Source { open_gap: Some(("lagged", Duration::from_secs(4))), audited: false, ..source() };
    assert_eq!(color(&picture, "gap: lagged, 4 s"), Color::Yellow);
}

#[test]
fn of_many_sources_four_are_shown_and_the_others_counted() {
    let mut picture = picture();
    picture.sources = vec![source(); 16];
    let lines = text(&picture, 80, 24);
    assert_eq!(lines.iter().filter(|line| line.contains("reth.ipc")).count(), 4);
    assert!(lines.iter().any(|line| line.contains("and 12 more")), "{lines:#?}");
    assert!(lines.iter().any(|line| line.contains("load normal")), "{lines:#?}");
}

#[test]
fn any_size_of_terminal_is_drawn() {
    for (width, height) in [(1, 1), (7, 3), (40, 12), (80, 24), (81, 60), (300, 100)] {
        screen(&picture(), width, height);
    }
    let mut empty = picture();
    empty.sources.clear();
    empty.events.clear();
    empty.pooled.clear();
    empty.p99_us.clear();
    (empty.node, empty.head) = (None, None);
    assert!(text(&empty, 80, 24)[0].contains("no node reached yet  no head yet"));
}

#[test]
fn numbers_are_readable() {
    assert_eq!([n(0), n(999), n(1_000), n(12_345_678)], ["0", "999", "1,000", "12,345,678"]);
    assert_eq!([compact(9_999_999), compact(10_000_000)], ["9999999", "10.0 M"]);
    assert_eq!([us(999.0), us(1_500.0), us(2e6)], ["999 us", "1.5 ms", "2.0 s"]);
    assert_eq!([cut("abcdef", 4), cut("abcd", 4), tail("abcdef", 4)], ["abc…", "abcd", "…def"]);
}
