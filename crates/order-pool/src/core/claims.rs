//! Who holds what external callers sent. An order counts for everyone who sent it, and stays until the
//! last of them loses it: so nobody can send another one's order first, and take it along when its own
//! share overflows.

use std::collections::BTreeMap;

use alloy_primitives::Address;

use super::{
    limits::{Caps, Limits},
    shares::{New, Shares},
};
use crate::{error::RejectReason, holder::Holder};

/// What an order is sent as: each kind has caps of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Raw,
    Private,
    Bundle,
}

/// What an order is sent as, and by whom.
pub(super) type Claim = (Kind, Holder);

/// Of a signer's, the last is evicted first, and of those of the same rank the one accepted last, so
/// that junk evicts no older ones. A transaction ranks by what it pays at the base fee of its
/// acceptance: a fee is only a claim, so it ranks one among those of its holder. A bundle ranks by its
/// block, since what it pays is not known without executing it.
type Place = (i128, u64);

/// An order that counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counted {
    pub(super) rank: i128,
    /// The signer of a bundle, the sender of a transaction.
    pub(super) signer: Option<Address>,
    pub(super) bytes: usize,
}

#[derive(Debug, Default)]
pub(super) struct Claims {
    /// Raw transactions; private ones of callers, and of the host and of signers that it knows;
    /// bundles in the same way.
    shares: [Shares<Option<Address>, Place>; 5],
    orders: BTreeMap<u64, (Counted, Vec<Claim>)>,
}

const fn class((kind, holder): &Claim) -> usize {
    match kind {
        Kind::Raw => 0,
        Kind::Private => 1 + holder.is_known() as usize,
        Kind::Bundle => 3 + holder.is_known() as usize,
    }
}

impl Claims {
    pub(super) fn insert(&mut self, seq: u64, counted: Counted, claim: Claim) {
        self.orders.insert(seq, (counted, Vec::new()));
        self.add(seq, claim);
    }

    pub(super) fn add(&mut self, seq: u64, claim: Claim) {
        if let Some((Counted { rank, signer, bytes }, claims)) = self.orders.get_mut(&seq) {
            claims.push(claim);
            self.shares[class(&claim)].insert(claim.1, *signer, (*rank, seq), *bytes);
        }
    }

    pub(super) fn of(&self, seq: u64) -> &[Claim] {
        self.orders.get(&seq).map_or(&[], |(_, claims)| claims)
    }

    /// Ends one; returns whether nobody holds the order any more.
    pub(super) fn end(&mut self, seq: u64, claim: &Claim) -> bool {
        let Some((Counted { rank, signer, bytes }, claims)) = self.orders.get_mut(&seq) else {
            return false;
        };
        if let Some(at) = claims.iter().position(|other| other == claim) {
            claims.swap_remove(at);
            self.shares[class(claim)].remove(claim.1, *signer, (*rank, seq), *bytes);
        }
        claims.is_empty()
    }

    /// The order has left.
    pub(super) fn remove(&mut self, seq: u64) {
        for claim in self.of(seq).to_vec() {
            self.end(seq, &claim);
        }
        self.orders.remove(&seq);
    }

    /// Which claims must end so that a claim on a pooled order fits; none if it is there.
    pub(super) fn room_to_add(
        &self,
        seq: u64,
        claim: &Claim,
        limits: &Limits,
    ) -> Result<Vec<(u64, Claim)>, RejectReason> {
        match self.orders.get(&seq) {
            Some((counted, _)) => self.room(seq, counted, claim, None, limits),
            None => Ok(Vec::new()),
        }
    }

    /// Which claims must end so that a new order fits, if it replaces `replaced`.
    pub(super) fn room_for(
        &self,
        counted: &Counted,
        claim: &Claim,
        replaced: Option<u64>,
        limits: &Limits,
    ) -> Result<Vec<(u64, Claim)>, RejectReason> {
        self.room(u64::MAX, counted, claim, replaced, limits)
    }

    /// See [`Shares::room_for`]. A bundle is never evicted for one of a later block.
    fn room(
        &self,
        seq: u64,
        &Counted { rank, signer, bytes }: &Counted,
        claim: &Claim,
        replaced: Option<u64>,
        limits: &Limits,
    ) -> Result<Vec<(u64, Claim)>, RejectReason> {
        let &(kind, holder) = claim;
        let options = &limits.options;
        let raw = Caps { count: options.max_external_txs, bytes: options.max_external_tx_bytes };
        let (own, all) = match kind {
            Kind::Raw => (raw, raw),
            Kind::Private => (limits.private_txs.of_holder(&holder), limits.private_txs.half),
            Kind::Bundle => (limits.bundles.of_holder(&holder), limits.bundles.half),
        };
        if bytes > own.bytes {
            return Err(RejectReason::TooLarge { size_bytes: bytes, limit_bytes: own.bytes });
        }
        let share = &self.shares[class(claim)];
        if let (Kind::Private, Some(sender)) = (kind, signer) {
            let limit = limits.max_private_per_sender;
            let count = share.of_signer(&holder, &signer).count;
            if count >= limit {
                return Err(RejectReason::SenderFull { sender, count, limit });
            }
        }
        let replaced = replaced.and_then(|old| Some((old, self.orders.get(&old)?)));
        let replaced = replaced.map(|(old, (counted, claims))| {
            let of_own = claims.iter().filter(|other| *other == claim).count();
            let of_all = claims.iter().filter(|other| class(other) == class(claim)).count();
            ((counted.rank, old), [of_own, of_all], counted.bytes)
        });
        let bytes_of = |(_, seq): &Place| self.orders.get(seq).map_or(0, |(order, _)| order.bytes);
        let new = New { holder, signer, item: (rank, seq), bytes };
        let may_go = |(of, _): &Place| kind != Kind::Bundle || *of >= rank;
        let victims = share.room_for(&new, replaced, own, all, bytes_of, may_go)?;
        Ok(victims.into_iter().map(|(holder, (_, seq))| (seq, (kind, holder))).collect())
    }
}
