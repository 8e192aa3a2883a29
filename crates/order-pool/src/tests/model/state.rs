//! The model's state.

use super::*;

/// An order as the model sees it.
#[derive(Clone, Debug, Default)]
pub(super) struct Pooled {
    pub(super) seq: usize,
    pub(super) id: B256,
    pub(super) block: Option<u64>,
    /// Whether a node lists it.
    pub(super) listed: bool,
    /// The time until which it is kept, if there is one.
    pub(super) deadline: Option<u64>,
    pub(super) tx: Option<TxView>,
    /// Whether it is in the share of external callers.
    pub(super) external: bool,
    /// The tip at its acceptance, if an external caller sent it.
    pub(super) tip: Option<i128>,
    /// Whether the node has announced it.
    pub(super) public: bool,
    /// The terms of a private transaction.
    pub(super) terms: Option<PrivateTerms>,
    /// The block until which it is kept, if there is one.
    pub(super) until: Option<u64>,
    pub(super) key: Option<usize>,
    /// The holder that sent it first.
    pub(super) holder: Holder,
    /// All claims on it, each with whether it was sent as a private transaction.
    pub(super) holders: Vec<Claim>,
    pub(super) signer: Option<Address>,
    /// The signer who may cancel a private transaction.
    pub(super) canceller: Option<Address>,
    pub(super) nonce: Option<u64>,
    /// The microsecond at which a message without a nonce was sent.
    pub(super) sent_at: Option<u64>,
    /// The transactions of a bundle: hash, sender, and whether it is optional.
    pub(super) contents: Vec<(B256, u64, bool)>,
    pub(super) content: B256,
}

impl Pooled {
    /// Its eviction key among the orders of its signer or sender: the highest is evicted first.
    pub(super) fn eviction_key(&self) -> EvictionKey {
        match self.tip {
            Some(tip) => (-tip, self.seq),
            None => (self.block.unwrap_or(0).into(), self.seq),
        }
    }

    /// The claim of the holder that sent it first.
    pub(super) fn claim(&self) -> Claim {
        (self.holder, self.terms.is_some())
    }

    /// The claims that are kept with it when a block removes it: those of known holders first.
    pub(super) fn retained_claims(&self) -> Vec<Claim> {
        if self.tx.is_some() && !self.external {
            return Vec::new();
        }
        let mut claims = self.holders.clone();
        claims.sort_by_key(|(holder, is_private)| (!is_known(*holder), *is_private));
        claims.truncate(MAX_RETAINED_CLAIMS);
        claims
    }

    /// What a claim on it shares caps with: bundles, or private or raw transactions, of callers or
    /// of known holders.
    pub(super) fn class(&self, (holder, is_private): Claim) -> (bool, bool, bool) {
        (self.tx.is_some(), is_private, is_known(holder))
    }
}

pub(super) type EvictionKey = (i128, usize);

/// The holder of an order, and whether it sent a private transaction.
pub(super) type Claim = (Holder, bool);

pub(super) fn is_known(holder: Holder) -> bool {
    matches!(holder, Holder::Host | Holder::Signer(_))
}

#[derive(Clone, Copy, Debug)]
pub(super) struct TxView {
    pub(super) sender: u64,
    pub(super) nonce: u64,
    pub(super) fee: i128,
    pub(super) tip: i128,
}

#[derive(Clone, Debug, Default)]
pub(super) struct KeyModel {
    pub(super) nonce: Option<u64>,
    pub(super) sent_at: Option<u64>,
    pub(super) is_final: bool,
    pub(super) holder: Holder,
    pub(super) tombstone: Option<usize>,
    /// When it was last changed without a bundle.
    pub(super) idle_since: Option<u64>,
}

#[derive(Clone, Debug)]
pub(super) struct BlockModel {
    pub(super) head: Head,
    pub(super) mined: Vec<B256>,
    pub(super) raised: BTreeMap<u64, u64>,
    pub(super) removed: Vec<Pooled>,
}

pub(super) type KeySlot = (usize, Option<u64>);

/// Why a message has no effect, and for a superseded one the nonces.
pub(super) type Refused = (&'static str, [Option<u64>; 2]);

/// An event as text, and the block that it concerns.
pub(super) type Line = (String, Option<u64>);

#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) now: u64,
    pub(super) pooled: Vec<Pooled>,
    pub(super) accepted: Vec<B256>,
    pub(super) forgotten: Vec<(B256, usize)>,
    /// The removed orders that may be inserted again.
    pub(super) may_return: BTreeSet<B256>,
    pub(super) blocks: Vec<BlockModel>,
    /// By key and block. Without a block it is the state of the key's cancellations.
    pub(super) keys: BTreeMap<KeySlot, KeyModel>,
    /// Cancelled private transactions, by signer: the time, and the position in the log.
    pub(super) withdrawn: BTreeMap<(Address, B256), (u64, usize)>,
    /// The cancellations that replays no longer show, with the position in the log from which on
    /// they do not.
    pub(super) ended: Vec<(usize, usize)>,
    pub(super) log: Vec<Line>,
    /// The nonces of the last superseded message, and of the one above it.
    pub(super) superseded: [Option<u64>; 2],
    /// The number of orders that were refused, at entry or when a reorg un-mined them.
    pub(super) rejected: u64,
}

impl Model {
    pub(super) fn is_pooled(&self, id: &B256) -> bool {
        self.pooled.iter().any(|order| order.id == *id)
    }

    /// Whether it is one of the last accepted orders, and was not forgotten since.
    pub(super) fn was_accepted(&self, id: &B256) -> bool {
        let first = self.accepted.len().saturating_sub(DEDUPE);
        self.accepted.iter().enumerate().skip(first).any(|(index, accepted)| {
            accepted == id && !self.forgotten.iter().any(|(gone, when)| gone == id && *when > index)
        })
    }

    pub(super) fn next_nonce(&self, sender: u64) -> Option<u64> {
        self.blocks.iter().filter_map(|block| block.raised.get(&sender)).max().copied()
    }

    pub(super) fn is_mined(&self, id: &B256) -> bool {
        self.blocks.iter().any(|block| block.mined.contains(id))
    }

    pub(super) fn base_fee(&self) -> i128 {
        self.blocks.last().and_then(|b| b.head.next_base_fee_wei).map_or(0, i128::from)
    }

    pub(super) fn worth(&self, tx: &TxView) -> i128 {
        tx.tip.min(tx.fee - self.base_fee())
    }

    pub(super) fn add(&mut self, mut order: Pooled) {
        order.canceller = order.terms.and_then(|terms| terms.signer);
        order.seq = self.log.len();
        self.log.push((format!("+{}", order.id), order.block));
        self.pooled.push(order);
    }

    pub(super) fn get_mut(&mut self, id: B256) -> &mut Pooled {
        self.pooled.iter_mut().find(|order| order.id == id).expect("it is pooled")
    }

    pub(super) fn remove(&mut self, id: B256, reason: &str) -> Pooled {
        let index = self.pooled.iter().position(|order| order.id == id).expect("it is pooled");
        let order = self.pooled.remove(index);
        self.log.push((format!("-{id} {reason}"), order.block));
        order
    }

    /// Removes an order that may be inserted again.
    pub(super) fn release(&mut self, id: B256, reason: &str) {
        self.remove(id, reason);
        self.may_return.insert(id);
    }

    pub(super) fn accept(&mut self, id: B256) {
        if self.was_accepted(&id) {
            self.forgotten.push((id, self.accepted.len()));
        }
        self.may_return.remove(&id);
        self.accepted.push(id);
    }

    pub(super) fn head_number(&self) -> Option<u64> {
        self.blocks.last().map(|block| block.head.number)
    }

    /// Returns the status that the pool must report once its upkeep is done.
    pub(super) fn status(&self, id: &B256) -> OrderStatus {
        if self.is_pooled(id) {
            OrderStatus::Pooled
        } else if !self.was_accepted(id) {
            OrderStatus::Unknown
        } else if self.may_return.contains(id) {
            OrderStatus::MayReturn
        } else {
            OrderStatus::Removed
        }
    }

    /// Returns the head and the live events, in the order of acceptance, with cancellations.
    pub(super) fn snapshot(&self, block: Option<u64>) -> VecDeque<(usize, String)> {
        let orders =
            self.pooled.iter().map(|order| (order.seq, format!("+{}", order.id), order.block));
        let tombstones = self.keys.values().filter_map(|state| state.tombstone);
        let ended = self.ended.iter().filter(|(_, end)| *end >= self.log.len());
        let withdrawn =
            self.withdrawn.values().map(|(_, seq)| *seq).chain(ended.map(|(seq, _)| *seq));
        let tombstones =
            tombstones.chain(withdrawn).map(|seq| (seq, self.log[seq].0.clone(), None));
        let mut live: Vec<_> = orders.chain(tombstones).collect();
        live.sort();
        let live = live.into_iter().filter(|(_, _, only)| concerns(*only, block));
        let head = self.blocks.last().map(|block| (0, head_line(&block.head)));
        head.into_iter().chain(live.map(|(seq, line, _)| (seq, line))).collect()
    }

    /// Returns the events at these positions of the log that were live at the end of the range.
    pub(super) fn live(&self, places: Range<usize>, block: Option<u64>) -> Vec<(usize, String)> {
        let (mut live, mut removed) = (Vec::new(), HashSet::new());
        let is_over = |seq, (ended, end): &(usize, usize)| *ended == seq && *end < places.end;
        for seq in places.clone().rev() {
            let (line, only) = &self.log[seq];
            let id = line[1..].split(' ').next();
            removed.extend(line.starts_with('-').then_some(id));
            let is_live = match &line[..1] {
                "+" => !removed.remove(&id),
                "x" | "w" => !self.ended.iter().any(|ended| is_over(seq, ended)),
                _ => false,
            };
            live.extend((is_live && concerns(*only, block)).then(|| (seq, line.clone())));
        }
        live.reverse();
        live
    }
}

pub(super) fn concerns(only: Option<u64>, block: Option<u64>) -> bool {
    match (only, block) {
        (Some(only), Some(block)) => only == block,
        _ => true,
    }
}
