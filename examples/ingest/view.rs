//! What the operator sees: a display that redraws itself in a terminal, plain lines elsewhere.

use std::{
    io::{IsTerminal as _, Write as _, stderr},
    time::Instant,
};

use hdrhistogram::Histogram;
use mempool_ingest::{
    Ingest,
    txpool_fetcher::{Counts, SourceState},
};

use crate::{RpcCounts, Seen, Summary, word};

pub(crate) struct View {
    /// Lines drawn last, to be drawn over; `None` where there is no terminal.
    drawn: Option<usize>,
    before: Counts,
    at: Instant,
}

impl View {
    pub(crate) fn new() -> Self {
        Self {
            drawn: stderr().is_terminal().then_some(0),
            before: Counts::default(),
            at: Instant::now(),
        }
    }

    pub(crate) fn begin(&mut self, ingest: &Ingest) {
        for source in ingest.fetcher().status() {
            let (client, chain_id) = source
                .node
                .map_or(("(not reached yet)".into(), 0), |node| (node.client, node.chain_id));
            self.say(&format!("{}: {client}, chain {chain_id}", source.endpoint));
        }
        self.rpc(ingest);
    }

    fn rpc(&mut self, ingest: &Ingest) {
        if let Some(rpc) = ingest.rpc() {
            self.say(&format!("orders by JSON-RPC at http://{}", rpc.local_addr()));
        }
    }

    pub(crate) fn say(&mut self, line: &str) {
        // What was drawn stays above.
        if let Some(drawn) = &mut self.drawn {
            *drawn = 0;
        }
        eprintln!("{line}");
    }

    pub(crate) fn refresh(&mut self, ingest: &Ingest, latency: &Histogram<u64>, seen: Seen) {
        let counts = ingest.fetcher().counts();
        let seconds = self.at.elapsed().as_secs_f64().max(1e-3);
        let rate = |now: u64, before: u64| (now.saturating_sub(before)) as f64 / seconds;
        let announced = rate(counts.announced, self.before.announced);
        let pooled = rate(counts.pooled, self.before.pooled);
        let us = |quantile| latency.value_at_quantile(quantile) as f64 / 1e3;
        let stats = ingest.pool().stats();
        let sources = ingest.fetcher().status();
        let mut lines = Vec::new();
        for source in &sources {
            let head = source.head.map_or("-".into(), |head| head.to_string());
            let gaps = source.gaps.iter().filter(|gap| gap.to.is_none()).count();
            lines.push(format!(
                "{:<11} {}  head {head}  backlog {}  open gaps {gaps}  reconnects {}  audits {}{}",
                word(source.state),
                source.endpoint,
                source.backlog,
                source.reconnects,
                source.audits,
                match &source.last_error {
                    // What is over is in the log.
                    Some(error) if source.state != SourceState::Live => format!("  ({error})"),
                    _ => String::new(),
                },
            ));
        }
        lines.push(format!(
            "rate        announced {announced:>6.0}/s  pooled {pooled:>6.0}/s  in flight {:>4}  lagged {}",
            counts.unfinished, counts.lagged,
        ));
        lines.push(format!(
            "latency     p50 {:>7.0} us  p95 {:>7.0} us  p99 {:>7.0} us  (socket to subscriber)",
            us(0.5),
            us(0.95),
            us(0.99),
        ));
        lines.push(format!(
            "pool        {} transactions, {:.1} MB; expired {}, evicted {}",
            stats.txs,
            stats.bytes as f64 / 1e6,
            stats.expired,
            stats.evicted,
        ));
        lines.push(format!(
            "outcomes    pooled {}  known {}  gone {}  mined {}  malformed {}  refused {}  postponed {}  failed {}",
            counts.pooled,
            counts.known,
            counts.gone,
            counts.mined,
            counts.malformed,
            counts.refused,
            counts.postponed,
            counts.failed,
        ));
        lines.push(format!(
            "entered     announced {}  backfilled {}  by audit {}",
            counts.announced, counts.backfilled, counts.audit_recovered,
        ));
        let rpc = RpcCounts::of(ingest, seen);
        if let Some(rpc) = &rpc {
            lines.push(format!(
                "rpc         requests {}  refused {}+{}  deferred {}  orders seen {}  cancelled {}",
                rpc.requests,
                rpc.requests_refused,
                rpc.work_refused,
                rpc.deferred,
                rpc.orders,
                rpc.cancelled,
            ));
        }
        self.draw(&lines, announced, pooled, &counts, rpc);
        self.before = counts;
        self.at = Instant::now();
    }

    fn draw(
        &mut self,
        lines: &[String],
        announced: f64,
        pooled: f64,
        counts: &Counts,
        rpc: Option<RpcCounts>,
    ) {
        let mut out = stderr().lock();
        // A closed stderr is no reason to stop ingesting.
        let _ = match self.drawn {
            Some(drawn) => {
                let up = if drawn > 0 { format!("\x1b[{drawn}A") } else { String::new() };
                let body: String = lines.iter().map(|line| format!("\x1b[2K{line}\n")).collect();
                self.drawn = Some(lines.len());
                write!(out, "{up}{body}").and_then(|()| out.flush())
            }
            None => {
                let state = lines.first().and_then(|line| line.split_whitespace().next());
                let rpc = rpc.map_or(String::new(), |rpc| {
                    format!(" rpc={} rpc_orders={}", rpc.requests, rpc.orders)
                });
                writeln!(
                    out,
                    "{} announced={} ({announced:.0}/s) pooled={} ({pooled:.0}/s) lagged={} failed={} in_flight={}{rpc}",
                    state.unwrap_or("-"),
                    counts.announced,
                    counts.pooled,
                    counts.lagged,
                    counts.failed,
                    counts.unfinished,
                )
            }
        };
    }

    pub(crate) fn end(&mut self, summary: &Summary) {
        let Summary { counts, latency_us, .. } = summary;
        self.say(&format!(
            "{} announced, {} backfilled, {} by audit; {} pooled; {} missing; lagged {}, failed {}; \
             p50 {:.0} us, p99 {:.0} us; {:.0} us of CPU per transaction; {:.0} MB",
            counts.announced,
            counts.backfilled,
            counts.audit_recovered,
            counts.pooled,
            summary.missing,
            counts.lagged,
            counts.failed,
            latency_us.p50,
            latency_us.p99,
            summary.cpu_us_per_tx,
            summary.max_rss_bytes as f64 / 1e6,
        ));
    }
}
