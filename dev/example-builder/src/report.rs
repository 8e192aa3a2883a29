//! The output: a line per block, and a summary.

use std::collections::BTreeMap;

use alloy_primitives::{B256, map::HashSet};
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::{
    builder::{Report, Slot},
    feed::ReceivedSummary,
    fill::Way,
};

/// The output of `--json`. Times are in the unit of their name.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Summary {
    pub(crate) blocks: u64,
    /// Slots whose next head came before their block was due.
    missed_slots: u64,
    /// Slots in which the blocklist or the node allowed no block.
    no_block: u64,
    /// The sum over all blocks.
    considered: u64,
    included: u64,
    bundles_included: u64,
    bundles_failed: u64,
    /// Blocks of at least 1,000 orders.
    blocks_of_1000_orders: u64,
    orders_per_block_p50: u64,
    orders_per_block_max: u64,
    gas_per_block_p50: u64,
    /// Blocked orders by how they reach a listed address.
    blocked: BTreeMap<&'static str, u64>,
    /// Blocks in which the strict check of the finished block found a listed address, or other gas: must be 0.
    pub(crate) blocks_refused_by_strict_check: u64,
    invalid: u64,
    /// Orders left out because the node did not answer.
    unread: u64,
    /// Reads that an execution waited for, per block.
    waited_reads_per_block: f64,
    /// State calls made ahead, per block.
    prefetched_calls_per_block: f64,
    fill_us: Quantiles,
    /// From the read of the announcement to the first built block with the transaction.
    first_inclusion_ms: Quantiles,
    /// With `--compare`: every way, from classic to ours.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) ways: Vec<WaySummary>,
    /// With `--compare`: blocks that two ways filled differently. Must be 0.
    pub(crate) differing_blocks: u64,
    /// With `--compare`: how much lower ours is than classic, in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    p50_lower_percent: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    p95_lower_percent: Option<f64>,
    /// One for each flow that is taken from a fleet.
    pub(crate) received: Vec<ReceivedSummary>,
    elapsed_s: f64,
}

#[derive(Debug, Default, Serialize)]
struct Quantiles {
    p50: f64,
    p95: f64,
    max: f64,
}

/// One way of filling, and its gain over the one before.
#[derive(Debug, Serialize)]
pub(crate) struct WaySummary {
    way: &'static str,
    fill_us: Quantiles,
    waited_reads_per_block: f64,
    p50_lower_than_step_before_percent: f64,
    p95_lower_than_step_before_percent: f64,
}

/// Times of one way.
#[derive(Debug)]
struct Times {
    fill: Histogram<u64>,
    waited_for: u64,
}

/// Counts and times so far.
#[derive(Debug)]
pub(crate) struct Tally {
    summary: Summary,
    ways: Vec<(&'static str, Times)>,
    orders: Histogram<u64>,
    gas: Histogram<u64>,
    first_inclusion: Histogram<u64>,
    prefetched: u64,
    /// Transactions that were included before, in two generations: the older one is dropped when
    /// the newer is full.
    included: [HashSet<B256>; 2],
    quiet: bool,
}

/// Hashes in a generation: a minute at 2,000 transactions/s, which a pool keeps for as long.
const GENERATION: usize = 120_000;

fn histogram() -> Histogram<u64> {
    // Up to an hour in nanoseconds; longer times count as an hour.
    Histogram::new_with_bounds(1, 3_600_000_000_000, 3).expect("bounds in order")
}

fn quantiles(histogram: &Histogram<u64>, unit: f64) -> Quantiles {
    let at = |quantile| histogram.value_at_quantile(quantile) as f64 / unit;
    Quantiles { p50: at(0.5), p95: at(0.95), max: histogram.max() as f64 / unit }
}

fn lower_percent(than: f64, value: f64) -> f64 {
    if than > 0.0 { (1.0 - value / than) * 100.0 } else { 0.0 }
}

impl Tally {
    pub(crate) fn new(ways: &[(&'static str, Way)], quiet: bool) -> Self {
        let times = || Times { fill: histogram(), waited_for: 0 };
        Self {
            summary: Summary::default(),
            ways: ways.iter().map(|(name, _)| (*name, times())).collect(),
            orders: histogram(),
            gas: histogram(),
            first_inclusion: histogram(),
            prefetched: 0,
            included: Default::default(),
            quiet,
        }
    }

    pub(crate) fn take(&mut self, report: Report) {
        match report {
            Report::Slot(slot) => self.slot(&slot),
            Report::Missed => self.summary.missed_slots += 1,
            Report::NoBlock(reason) => {
                self.summary.no_block += 1;
                eprintln!("no block: {reason}");
            }
        }
    }

    fn slot(&mut self, slot: &Slot) {
        let summary = &mut self.summary;
        summary.blocks += 1;
        for ((_, times), built) in self.ways.iter_mut().zip(&slot.built) {
            times.fill.saturating_record(built.time.as_nanos() as u64);
            times.waited_for += built.waited_for;
        }
        let Some(ours) = slot.built.last() else { return };
        let outcome = ours.outcome();
        if slot.built.iter().any(|built| built.outcome() != outcome) {
            summary.differing_blocks += 1;
            eprintln!("error: block {} differs between the ways", slot.block.number());
        }
        if let Some(found) = &slot.found_listed {
            summary.blocks_refused_by_strict_check += 1;
            eprintln!("error: block {}: {found}", slot.block.number());
        }
        summary.considered += ours.considered as u64;
        summary.included += ours.orders as u64;
        summary.bundles_included += ours.bundles as u64;
        summary.bundles_failed += ours.failed_bundles as u64;
        summary.blocks_of_1000_orders += u64::from(ours.orders >= 1000);
        summary.invalid += ours.invalid as u64;
        summary.unread += ours.unread as u64;
        for (_, blocked) in &ours.blocked {
            *summary.blocked.entry(blocked.how.as_str()).or_default() += 1;
        }
        self.orders.saturating_record(ours.orders as u64);
        self.gas.saturating_record(ours.gas_used);
        self.prefetched += slot.warmed_calls as u64;
        let now = std::time::SystemTime::now();
        for (tx, first_seen) in &ours.txs {
            if self.included.iter().any(|included| included.contains(&tx.hash)) {
                continue;
            }
            if self.included[0].len() >= GENERATION {
                self.included.swap(0, 1);
                self.included[0].clear();
            }
            self.included[0].insert(tx.hash);
            // The wall clock may be set back.
            let age = now.duration_since(*first_seen).unwrap_or_default();
            self.first_inclusion.saturating_record(age.as_micros() as u64);
        }
        if !self.quiet {
            self.line(slot);
        }
    }

    fn line(&self, slot: &Slot) {
        let Some(ours) = slot.built.last() else { return };
        let Some((_, times)) = self.ways.last() else { return };
        let fill = quantiles(&times.fill, 1e6);
        let first = quantiles(&self.first_inclusion, 1e3);
        let mut blocked: BTreeMap<&str, usize> = BTreeMap::new();
        for (_, by) in &ours.blocked {
            *blocked.entry(by.how.as_str()).or_default() += 1;
        }
        eprintln!(
            "block {}: considered {}, included {} ({} bundles), blocked {blocked:?}, invalid {}, unread {}; \
             gas {:.1} M of {:.1} M, tips {:.4} ether; fill {:.2} ms (p50 {:.2}, p95 {:.2}), waited for {} reads; \
             announced to included p50 {:.0} ms",
            slot.block.number(),
            ours.considered,
            ours.orders,
            ours.bundles,
            ours.invalid,
            ours.unread,
            ours.gas_used as f64 / 1e6,
            slot.block.gas_limit as f64 / 1e6,
            ours.tips_wei as f64 / 1e18,
            ours.time.as_secs_f64() * 1e3,
            fill.p50,
            fill.p95,
            ours.waited_for,
            first.p50,
        );
    }

    pub(crate) fn finish(mut self, elapsed_s: f64) -> Summary {
        let blocks = self.summary.blocks.max(1) as f64;
        let mut summary = std::mem::take(&mut self.summary);
        if let Some((_, times)) = self.ways.last() {
            summary.fill_us = quantiles(&times.fill, 1e3);
            summary.waited_reads_per_block = times.waited_for as f64 / blocks;
        }
        summary.orders_per_block_p50 = self.orders.value_at_quantile(0.5);
        summary.orders_per_block_max = self.orders.max();
        summary.gas_per_block_p50 = self.gas.value_at_quantile(0.5);
        summary.first_inclusion_ms = quantiles(&self.first_inclusion, 1e3);
        summary.prefetched_calls_per_block = self.prefetched as f64 / blocks;
        summary.elapsed_s = elapsed_s;
        if let [(_, classic), .., (_, ours)] = self.ways.as_slice() {
            let (classic, ours) = (quantiles(&classic.fill, 1.0), quantiles(&ours.fill, 1.0));
            summary.p50_lower_percent = Some(lower_percent(classic.p50, ours.p50));
            summary.p95_lower_percent = Some(lower_percent(classic.p95, ours.p95));
            let mut before: Option<Quantiles> = None;
            for (way, times) in &self.ways {
                let fill = quantiles(&times.fill, 1e3);
                let than = before.as_ref().unwrap_or(&fill);
                summary.ways.push(WaySummary {
                    way,
                    waited_reads_per_block: times.waited_for as f64 / blocks,
                    p50_lower_than_step_before_percent: lower_percent(than.p50, fill.p50),
                    p95_lower_than_step_before_percent: lower_percent(than.p95, fill.p95),
                    fill_us: fill,
                });
                before = Some(quantiles(&times.fill, 1e3));
            }
        }
        summary
    }
}

impl Summary {
    pub(crate) fn print(&self) {
        eprintln!(
            "{} blocks, {} missed; {} orders included of {} considered; blocked {:?}; strict check refused {}; \
             fill p50 {:.2} ms, p95 {:.2} ms",
            self.blocks,
            self.missed_slots,
            self.included,
            self.considered,
            self.blocked,
            self.blocks_refused_by_strict_check,
            self.fill_us.p50 / 1e3,
            self.fill_us.p95 / 1e3,
        );
        for way in &self.ways {
            eprintln!(
                "{:<20} fill p50 {:>9.2} ms ({:>5.1} % lower)  p95 {:>9.2} ms ({:>5.1} % lower)  waited for {:>7.0} reads",
                way.way,
                way.fill_us.p50 / 1e3,
                way.p50_lower_than_step_before_percent,
                way.fill_us.p95 / 1e3,
                way.p95_lower_than_step_before_percent,
                way.waited_reads_per_block,
            );
        }
        if let (Some(p50), Some(p95)) = (self.p50_lower_percent, self.p95_lower_percent) {
            eprintln!("ours over classic: p50 {p50:.1} % lower, p95 {p95:.1} % lower");
        }
    }
}
