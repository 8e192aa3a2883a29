//! Applies operations to the pool and to the model.

use super::*;

pub(super) struct Run {
    pub(super) pool: OrderPool,
    pub(super) clock: Clock,
    pub(super) model: Model,
    pub(super) readers: Vec<Reader>,
    /// All blocks that were made, each with another hash.
    pub(super) made: Vec<Block>,
}

pub(super) fn key(n: usize) -> ReplacementKey {
    // Two uuids and two signers, so that keys differ in one of both.
    ReplacementKey { uuid: Uuid::from_u128(n as u128 / 2), signer: address(n as u64 % 2) }
}

pub(super) fn key_number(key: ReplacementKey) -> u64 {
    (key.uuid.as_u128() as u64) * 2 + u64::from(key.signer != address(0))
}

pub(super) fn view(tx: &Transaction, sender: u64) -> Pooled {
    let (fee, tip) = (tx.max_fee_wei() as i128, tx.max_tip_wei() as i128);
    let tx_view = TxView { sender, nonce: tx.nonce(), fee, tip };
    Pooled {
        tx: Some(tx_view),
        public: tx.is_public(),
        listed: tx.is_listed(),
        terms: tx.private_terms().copied(),
        signer: Some(tx.sender()),
        id: *tx.hash(),
        holder: tx.holder(),
        ..Pooled::default()
    }
}

impl Run {
    pub(super) fn new() -> Self {
        let clock = Clock::manual();
        let pool = OrderPool::with_limits(limits(), clock.clone());
        let (model, readers) = (Model::default(), Vec::new());
        Self { pool, clock, model, readers, made: Vec::new() }
    }

    fn insert(&mut self, spec: Spec, caller: Option<u8>, listed: bool) {
        let tx = match caller {
            Some(caller) => tx_from(spec, Origin::Rpc).held_by(holder(caller)),
            None if listed => tx_from(spec, Origin::Mempool).listed(),
            None => tx_from(spec, Origin::Mempool),
        };
        self.insert_tx(spec.sender, tx);
    }

    fn insert_tx(&mut self, sender: u64, tx: Transaction) {
        let expected = self.model.insert(view(&tx, sender));
        self.model.rejected += u64::from(expected == "Rejected");
        assert_eq!(variant(self.pool.insert_transaction(tx)), expected);
    }

    /// Returns a block by its distance. Without a head it may be any, also too far above the first
    /// head.
    fn block(&self, ahead: u64) -> u64 {
        self.model.head_number().map_or(9 + 3 * ahead, |head| head + ahead)
    }

    fn terms(&self, sender: u64, ahead: u64) -> PrivateTerms {
        let max_block = self.block(ahead);
        PrivateTerms { signer: Some(address(sender % 2)), max_block }
    }

    /// Returns some of the pooled transactions, chosen by the bits of `mask`.
    fn pooled_txs(&self, mask: u8) -> Vec<B256> {
        let txs = self.model.pooled.iter().filter(|order| order.tx.is_some());
        let chosen = txs.enumerate().filter(|(n, _)| mask >> (n % 3) & 1 == 1);
        chosen.map(|(_, order)| order.id).collect()
    }

    fn head(&mut self, parent: Option<(u64, B256)>, mined: Vec<B256>, fee: Option<u64>) -> Block {
        let (number, parent_hash) = parent.unwrap_or((9, B256::ZERO));
        let number = number + 1;
        let head = Head {
            timestamp: number * 12,
            next_base_fee_wei: fee,
            gas_limit: number * 1_000,
            fee_recipient: address(number),
            ..Head::new(number, hash(1 << 40 | self.made.len() as u64), parent_hash)
        };
        self.made.push(Block::new(head, mined));
        self.made[self.made.len() - 1].clone()
    }

    fn on_head(&mut self, block: Block, replaced: usize) {
        assert_eq!(self.pool.on_head(block.clone()).replaced(), replaced);
        assert_eq!(self.pool.on_head(block.clone()), Relation::Repeat);
        // Nor does a block whose number does not follow its parent's change anything.
        let impossible = Head::new(u64::MAX, hash(1 << 42), block.head.hash);
        let impossible = Block::new(impossible, self.pooled_txs(7));
        assert_eq!(self.pool.on_head(impossible), Relation::Inconsistent);
        self.model.on_head(block, replaced);
    }

    fn tip(&self) -> Option<(u64, B256)> {
        self.model.blocks.last().map(|block| (block.head.number, block.head.hash))
    }

    pub(super) fn step(&mut self, op: Op) {
        match op {
            Op::Insert { sender, nonce, max_fee, max_tip, holder, listed } => {
                let spec = Spec { sender, nonce, max_fee, max_tip, ..Spec::default() };
                self.insert(spec, holder, listed);
            }
            Op::Listed { mask, is_listed } => {
                let hashes = self.pooled_txs(mask);
                if is_listed {
                    self.pool.on_listed(&hashes);
                } else {
                    self.pool.on_unlisted(&hashes);
                }
                for id in hashes {
                    let order = self.model.get_mut(id);
                    if !is_listed {
                        self.model.unlist(id);
                    } else if order.public && !order.listed {
                        self.model.list(id);
                    }
                }
            }
            Op::Private { sender, nonce, count, max_tip, ahead, holder: caller } => {
                let terms = self.terms(sender, ahead);
                for nonce in nonce..nonce + count {
                    // Other operations send some of them too.
                    let max_fee = PRIVATE_FEE;
                    let spec = Spec { sender, nonce, max_fee, max_tip, ..Spec::default() };
                    self.insert_tx(sender, private_from(spec, terms).held_by(holder(caller)));
                }
            }
            Op::Again { which, holder: caller, ahead, listed } => {
                let Some(pooled) = self.model.pooled.get(which).cloned() else { return };
                let order = self.pool.get(&pooled.id).expect("what the model holds");
                let holder = holder(caller.unwrap_or(0));
                if let (Some(tx), Some(view)) = (order.as_tx(), pooled.tx) {
                    let (tx, first_seen) = (tx.recovered().clone(), tx.first_seen());
                    let tx = match (caller, ahead) {
                        (None, _) if listed => {
                            Transaction::new(tx, Origin::Mempool, first_seen).listed()
                        }
                        (None, _) => Transaction::new(tx, Origin::Mempool, first_seen),
                        (_, None) => Transaction::new(tx, Origin::Rpc, first_seen),
                        (_, Some(ahead)) => {
                            // Each of two signers may send the other's transaction.
                            let signer = view.sender + u64::from(caller.unwrap_or(0));
                            Transaction::private(tx, self.terms(signer, ahead), first_seen)
                        }
                    };
                    self.insert_tx(view.sender, tx.held_by(holder));
                } else if let Some(bundle) = order.as_bundle() {
                    let parts = BundleParts { holder, ..bundle.parts().clone() };
                    self.insert_bundle(parts, pooled.key, pooled.contents);
                }
            }
            Op::CancelPrivate { which, signer } => {
                let removed = self.model.blocks.iter().rev().flat_map(|block| &block.removed);
                let txs =
                    self.model.pooled.iter().chain(removed).filter(|order| order.tx.is_some());
                let Some(id) = txs.map(|order| order.id).nth(which) else { return };
                let expected = self.model.cancel_private(id, address(signer));
                // Later than any of them was sent. The pool's clock decides when it is forgotten.
                let cancelled_at = SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 33);
                assert_eq!(
                    self.pool.cancel_private(&id, address(signer), Holder::Host, cancelled_at),
                    expected
                );
            }
            Op::Burst { salt } => (0..40).for_each(|n| {
                let (sender, max_fee, max_tip) = (n % 5, 30 + u128::from(n), u128::from(n));
                let spec = Spec { sender, nonce: 9, max_fee, max_tip, salt, ..Spec::default() };
                self.insert(spec, None, false);
            }),
            Op::Bundle { n, ahead, key: keyed, signer, caller, sent_at } => {
                let block = ahead.map(|ahead| self.block(ahead));
                let key_of = keyed.map(|(n, _)| self::key(n));
                let signer = key_of.map_or(signer.map(address), |key| Some(key.signer));
                // Every other bundle has an optional second transaction.
                let mut txs = Vec::new();
                if n != EMPTY || keyed.is_none() {
                    txs.push(nth(100 + n));
                    txs.extend((n % 2 == 1).then(|| nth(200 + n)));
                }
                let dropping: Vec<B256> = txs.iter().skip(1).map(|tx| *tx.hash()).collect();
                let contents = txs.iter().zip([100 + n, 200 + n]);
                let contents =
                    contents.map(|(tx, sender)| (*tx.hash(), sender, sender >= 200)).collect();
                let parts = BundleParts {
                    txs,
                    block,
                    dropping_tx_hashes: dropping,
                    uuid: key_of.map(|key| key.uuid),
                    signer,
                    replacement_nonce: keyed.and_then(|(_, nonce)| nonce),
                    holder: holder(caller),
                    first_seen: Some(
                        SystemTime::UNIX_EPOCH + Duration::from_micros(sent_at.into()),
                    ),
                    ..Default::default()
                };
                self.insert_bundle(parts, keyed.map(|(n, _)| n), contents);
            }
            Op::Cancel { key: (n, nonce), holder: caller } => {
                let before = self.model.pooled.len();
                let expected = self.model.cancel(n, nonce, None, holder(caller));
                let cancelled =
                    self.pool.cancel_bundle(cancellation(key(n), nonce, holder(caller)));
                assert_eq!(variant(cancelled), expected);
                match cancelled {
                    CancelOutcome::Cancelled { removed } => {
                        assert_eq!(removed, before - self.model.pooled.len());
                    }
                    CancelOutcome::Superseded { nonce, current } => {
                        assert_eq!([nonce, current].map(Some), self.model.superseded);
                    }
                    _ => {}
                }
            }
            Op::Head { mined, unknown, base_fee } => {
                let mut mined = self.pooled_txs(mined);
                // One that was removed, too.
                let mut left = self.model.may_return.iter().filter(|id| !self.model.is_pooled(id));
                mined.extend(left.nth(unknown as usize));
                // A transaction of a bundle, or one that nobody has sent.
                mined.push(match unknown {
                    0..6 => *nth(100 + unknown).hash(),
                    6..12 => *nth(200 + unknown - 6).hash(),
                    _ => hash(unknown),
                });
                let head = self.head(self.tip(), mined, base_fee);
                self.on_head(head, 0);
            }
            Op::Reorg { depth, mined } => {
                let depth = depth.min(self.model.blocks.len().saturating_sub(1));
                let kept = self.model.blocks.len() - depth;
                let parent = kept.checked_sub(1).map(|newest| &self.model.blocks[newest].head);
                let parent = parent.map(|head| (head.number, head.hash));
                let mut hashes = self.pooled_txs(mined);
                // It contains half of the transactions that it un-mines.
                let undone = self.model.blocks[kept..].iter().flat_map(|block| &block.mined);
                hashes.extend(undone.step_by(2));
                let head = self.head(parent, hashes, None);
                self.on_head(head, depth);
            }
            Op::Return { which } => {
                let blocks = &self.model.blocks;
                let above = |hash| blocks.iter().rev().position(|block| block.head.hash == hash);
                let gone = self.made.iter().rev().filter(|made| above(made.head.hash).is_none());
                let mut gone =
                    gone.filter_map(|made| Some((made.clone(), above(made.head.parent_hash)?)));
                let Some((block, replaced)) = gone.nth(which) else { return };
                self.on_head(block, replaced);
            }
            Op::Gap { skip } => {
                let Some((number, _)) = self.tip() else { return };
                let parent = (number + skip, hash(1 << 41 | self.made.len() as u64));
                let head = self.head(Some(parent), Vec::new(), None);
                self.on_head(head, 0);
            }
            Op::Nonces { back, sender, next } => {
                // A sender of single transactions, or of transactions in bundles.
                let sender = match sender {
                    0..5 => sender,
                    5..11 => 95 + sender,
                    _ => 189 + sender,
                };
                let index = self.model.blocks.len().checked_sub(1 + back);
                let block = index.map_or(B256::ZERO, |index| self.model.blocks[index].head.hash);
                self.model.on_nonces(&block, sender, next);
                self.pool.on_nonces(block, [(address(sender), next)]);
            }
            Op::Pass { seconds } => {
                self.model.now += seconds;
                self.clock.advance(Duration::from_secs(seconds));
            }
            Op::Upkeep => {
                self.model.upkeep();
                while self.pool.upkeep() {}
                for id in &self.model.accepted {
                    assert_eq!(self.pool.status(id), self.model.status(id));
                }
            }
            Op::Subscribe { ahead } => {
                let block = ahead.map(|ahead| self.model.head_number().unwrap_or(0) + ahead);
                let real = match block {
                    Some(block) => self.pool.subscribe(block),
                    None => self.pool.subscribe_all(),
                };
                if self.readers.len() < 4 {
                    let (replay, next) = (self.model.snapshot(block), self.model.log.len());
                    self.readers.push(Reader { real, block, replay, next });
                }
            }
            Op::Read { which, max } => {
                if let Some(reader) = self.readers.get_mut(which) {
                    reader.read(&self.model, max);
                }
            }
            Op::Resync { which } => {
                if let Some(reader) = self.readers.get_mut(which) {
                    reader.resync(&self.model);
                }
            }
            Op::Drop { which } => {
                if which < self.readers.len() {
                    self.readers.remove(which);
                }
            }
        }
    }

    fn insert_bundle(
        &mut self,
        parts: BundleParts,
        key: Option<usize>,
        contents: Vec<(B256, u64, bool)>,
    ) {
        let BundleParts { block, signer, holder, replacement_nonce: nonce, first_seen, .. } = parts;
        let sent_at = first_seen.filter(|_| nonce.is_none());
        let sent_at = sent_at.map(crate::arrival::unix_micros);
        let bundle = Bundle::new(parts).expect("a valid bundle");
        let content = *bundle.id();
        let order =
            Pooled { block, key, signer, contents, content, holder, sent_at, ..Pooled::default() };
        let settled = self.settled_id(&order, nonce);
        let expected = self.model.insert_bundle(order, nonce, settled);
        self.model.rejected += u64::from(expected == "Rejected");
        let outcome = self.pool.insert_bundle(bundle);
        if let InsertOutcome::Superseded { nonce, current } = outcome {
            assert_eq!([nonce, current].map(Some), self.model.superseded);
        }
        assert_eq!(variant(outcome), expected);
    }

    /// Returns the id by its definition: a hash over the content, then the block and the nonce that
    /// the pool assigned, each with its presence.
    fn settled_id(&self, order: &Pooled, nonce: Option<u64>) -> B256 {
        let block = self.model.settled_block(order);
        let assign_nonce =
            |key| self.model.assign_nonce(key, block.unwrap_or(0), nonce, order.sent_at).ok();
        let nonce = order.key.and_then(assign_nonce);
        let mut preimage = order.content.to_vec();
        for number in [block, nonce] {
            preimage.push(u8::from(number.is_some()));
            preimage.extend(number.unwrap_or(0).to_be_bytes());
        }
        keccak256(preimage)
    }

    pub(super) fn check(&self) {
        let (pool, model) = (&self.pool, &self.model);
        assert_eq!(pool.len(), model.pooled.len());
        let mut bytes = 0;
        for order in &model.pooled {
            let found = pool.get(&order.id).expect("what the model holds");
            assert_eq!((found.as_tx().is_some(), found.block()), (order.tx.is_some(), order.block));
            assert_eq!(pool.status(&order.id), OrderStatus::Pooled);
            bytes += found.size_bytes();
        }
        assert_eq!(pool.bytes(), bytes);
        assert_eq!(pool.head(), model.blocks.last().map(|block| block.head));
        let stats = pool.stats();
        let txs = model.pooled.iter().filter(|order| order.tx.is_some()).count();
        assert_eq!((stats.txs, stats.keys), (txs as u64, model.keys.len() as u64));
        assert_eq!(stats.rejected, model.rejected);
        // The counters add up: orders that were added and not removed are pooled.
        let removed = stats.mined + stats.stale + stats.expired + stats.evicted;
        let removed = removed + stats.block_passed + stats.replaced + stats.cancelled;
        let removed = removed + stats.block_too_far;
        let external = model.pooled.iter().filter(|order| order.external).count();
        assert_eq!(stats.external_txs, external as u64);
        assert!(stats.inserted + stats.put_back - removed == pool.len() as u64);
    }
}
