//! The output: one line per block, and a summary.

use std::{collections::BTreeMap, time::Duration};

use serde::Serialize;
use serde_json::Value;
use testkit::figures::median;

use crate::{fill::Built, state::NextBlock};

/// The output of `--json`. Times are in the unit of their name.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Summary {
    blocks: u64,
    /// Slots whose next head arrived before their block was due, or in which the blocklist allowed
    /// no block.
    pub(crate) missed_slots: u64,
    included: usize,
    /// Blocked orders by how they reach a listed address.
    blocked: BTreeMap<&'static str, usize>,
    /// With `--compare`: the number of blocks that the two ways filled differently, which must be
    /// 0.
    pub(crate) defective_blocks: u64,
    /// The median time to fill a block. With `--compare` there are two: with the opcode inspector,
    /// then ours.
    fill_ms_p50: Vec<f64>,
    #[serde(skip)]
    times_ms: Vec<Vec<f64>>,
    /// The counts of each flow that is taken from a fleet.
    pub(crate) received: Vec<Value>,
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

impl Summary {
    /// Whether no block is defective, and whether a block was built if there was a slot for one.
    pub(crate) const fn is_good(&self) -> bool {
        self.defective_blocks == 0 && (self.blocks > 0 || self.missed_slots == 0)
    }

    /// Adds a slot: the block as built in each way, ours last, and the time of the prefetch.
    pub(crate) fn add(
        &mut self,
        block: &NextBlock,
        considered: usize,
        built: &[Built],
        prefetch: Duration,
    ) {
        let Some(ours) = built.last() else { return };
        let number = block.number();
        if built.iter().any(|built| !built.is_like(ours)) {
            self.defective_blocks += 1;
            eprintln!("error: block {number}: the ways differ");
        }
        for (_, blocked) in &ours.blocked {
            *self.blocked.entry(blocked.how.as_str()).or_default() += 1;
        }
        self.blocks += 1;
        self.included += ours.orders;
        self.times_ms.resize(built.len(), Vec::new());
        for (times, built) in self.times_ms.iter_mut().zip(built) {
            times.push(ms(built.time));
        }
        self.fill_ms_p50 = self.times_ms.iter().map(|times| median(times.clone())).collect();
        eprintln!(
            "block {number}: considered {considered}, included {} ({} bundles), blocked {}, \
             left out {}; gas {:.1} M of {:.1} M; prefetch {:.2} ms, fill {:.2} ms; \
             waited for {} reads",
            ours.orders,
            ours.bundles,
            ours.blocked.len(),
            ours.left_out,
            ours.gas_used as f64 / 1e6,
            block.env.gas_limit as f64 / 1e6,
            ms(prefetch),
            ms(ours.time),
            ours.reads,
        );
    }
}
