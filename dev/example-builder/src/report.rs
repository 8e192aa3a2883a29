//! The output: a line per block, and a summary.

use std::{collections::BTreeMap, time::Duration};

use serde::Serialize;
use serde_json::Value;
use testkit::figures::median;

use crate::{
    block::NextBlock,
    fill::{Built, Way},
};

/// One slot: the blocks built in each way.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) block: NextBlock,
    pub(crate) considered: usize,
    /// In the order of the ways.
    pub(crate) built: Vec<Built>,
    /// What the steps beside the filling took.
    pub(crate) prefetch: Duration,
    pub(crate) verify: Duration,
    /// What the strict check of the block has found: nothing, or a defect.
    pub(crate) defect: Option<String>,
}

/// The output of `--json`. Times are in the unit of their name.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Summary {
    blocks: u64,
    /// Slots whose next head came before their block was due.
    pub(crate) missed_slots: u64,
    /// Slots in which the blocklist allowed no block.
    pub(crate) no_block: u64,
    /// Orders, over all blocks.
    included: usize,
    /// Blocked orders by how they reach a listed address.
    blocked: BTreeMap<&'static str, usize>,
    /// Blocks in which the strict check of the finished block found a listed address or other gas,
    /// or, with `--compare`, that the two ways filled differently: must be 0.
    pub(crate) defective_blocks: u64,
    /// With `--compare` both, otherwise ours.
    ways: Vec<WaySummary>,
    /// One for each flow that is taken from a fleet.
    pub(crate) received: Vec<Value>,
}

/// One way of filling.
#[derive(Debug, Serialize)]
struct WaySummary {
    way: &'static str,
    fill_ms_p50: f64,
    #[serde(skip)]
    times_ms: Vec<f64>,
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

impl Summary {
    pub(crate) fn new(ways: &[Way]) -> Self {
        let way = |way: &Way| WaySummary { way: way.name(), fill_ms_p50: 0.0, times_ms: vec![] };
        Self { ways: ways.iter().map(way).collect(), ..Self::default() }
    }

    pub(crate) fn slot(&mut self, slot: &Slot) {
        let Some(ours) = slot.built.last() else { return };
        let number = slot.block.number();
        let differs = slot.built.iter().any(|built| !built.is_like(ours));
        if let Some(defect) = slot.defect.as_deref().or(differs.then_some("the ways differ")) {
            self.defective_blocks += 1;
            eprintln!("error: block {number}: {defect}");
        }
        for (_, by) in &ours.blocked {
            *self.blocked.entry(by.how.as_str()).or_default() += 1;
        }
        self.blocks += 1;
        self.included += ours.orders;
        for (way, built) in self.ways.iter_mut().zip(&slot.built) {
            way.times_ms.push(ms(built.time));
            way.fill_ms_p50 = median(way.times_ms.iter().copied());
        }
        eprintln!(
            "block {number}: considered {}, included {} ({} bundles), blocked {}, left out {}; gas {:.1} M of {:.1} M; \
             prefetch {:.2} ms, fill {:.2} ms, strict check {:.2} ms; waited for {} reads",
            slot.considered,
            ours.orders,
            ours.bundles,
            ours.blocked.len(),
            ours.left_out,
            ours.gas_used as f64 / 1e6,
            slot.block.env.gas_limit as f64 / 1e6,
            ms(slot.prefetch),
            ms(ours.time),
            ms(slot.verify),
            ours.reads,
        );
    }

    pub(crate) fn print(&self) {
        let Self { blocks, missed_slots, included, blocked, defective_blocks, .. } = self;
        eprintln!(
            "{blocks} blocks, {missed_slots} missed; {included} orders included; blocked {blocked:?}; \
             defective {defective_blocks}",
        );
        for WaySummary { way, fill_ms_p50, .. } in &self.ways {
            eprintln!("{way:<20} fill p50 {fill_ms_p50:.2} ms");
        }
    }
}
