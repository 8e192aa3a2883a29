//! What the builders have, and what the oracle says to it.

use std::collections::HashSet;

use alloy_primitives::B256;
use testkit::{
    figures::Times,
    member::{Report, Seen, Setup},
    usage::now_ns,
};

use super::{Failure, Head, Run, Seat};
use crate::{
    oracle::{
        self, ASKED_ELSEWHERE_NS, Findings, GRACE_NS, Message, Outcome, REMEMBERED, Time, Trouble,
        Violation, Wrong, due, is_touched,
    },
    searchers::{Sent, Wish, is_known},
    world::{ANSWERED, Part, SLOT},
};

impl Run<'_> {
    /// Asks all builders, and the oracle about each.
    pub(super) fn look(&mut self) -> Result<(), Failure> {
        let held: Vec<_> = (0..self.world.nodes).map(|node| self.network.held(node)).collect();
        let now = now_ns();
        for node in (0..self.world.nodes).filter(|node| self.network.owes_bad_answers(*node)) {
            let from = now - SLOT.as_nanos() as u64;
            Trouble::new(Part::Node(node), from, SLOT + ANSWERED).add_to(&mut self.troubles);
        }
        for member in self.seats.iter_mut().filter_map(Seat::running) {
            member.ask()?;
        }
        let mut reports = Vec::new();
        let asked = now_ns();
        for at in 0..self.seats.len() {
            let Some(member) = self.seats[at].running() else { continue };
            let report = member.report().map_err(|error| format!("member {at}: {error}"))?;
            reports.push((at, report));
            let took = (now_ns() - asked) as f64 / 1e9;
            if took > 1.0 {
                self.say(&format!("member {at} told after {took:.1} s"));
            }
        }
        self.late[0].reset();
        for (at, report) in &reports {
            self.take(*at, report);
        }
        if self.world.asks_more {
            for (at, found) in self.ask_further(&reports, &held, now) {
                let report = reports.iter().find(|(member, _)| *member == at);
                self.conclude(at, found, report.map(|(_, report)| report));
            }
        }
        for (at, report) in reports {
            self.judge(at, &report, &held, now);
        }
        let now_late = Times::from(&self.late[0]);
        let live: Vec<_> = self.seats.iter().map(|seat| seat.mirror.len()).collect();
        let beside = |seat: &Seat| seat.mirror.uses.last().map_or(0, |(_, uses)| uses[0] >> 20);
        let beside: Vec<_> = self.seats.iter().map(beside).collect();
        let orders_in = self.network.ledger().txs.len();
        let accepted = self.searchers.log().accepted();
        let [p50_ms, p99_ms] = [now_late.p50, now_late.p99].map(|us| us / 1e3);
        self.say(&format!(
            "before head {}: {orders_in} transactions and {accepted} searchers' messages in; builders hold {live:?} and {beside:?} MiB beside them; p50 {p50_ms:.1} ms, p99 {p99_ms:.1} ms; {} checks, {} violations",
            self.head + 1,
            self.checks,
            self.outcomes.violations.len()
        ));
        let (at, orders_in) = (self.begin.elapsed(), orders_in + accepted as usize);
        self.outcomes.heads.push(Head { at, orders_in, live, p50_ms, p99_ms });
        self.forget();
        Ok(())
    }

    /// What a builder saw since the look before.
    fn take(&mut self, at: usize, report: &Report) {
        let ledger = self.network.ledger();
        let ours: HashSet<B256> = {
            let log = self.searchers.log();
            let recent = log.wishes.len().saturating_sub(3_000);
            log.wishes[recent..].iter().flat_map(Wish::versions).collect()
        };
        let nodes: HashSet<_> = self.ways(at).into_iter().map(|(node, _)| node).collect();
        let seat = &mut self.seats[at];
        for (seen_at, seen, hash) in &report.seen {
            let Some(tx) = ledger.by_hash.get(hash).map(|at| &ledger.txs[*at]) else { continue };
            if *seen != Seen::Added || seat.mirror.lives.contains_key(hash) {
                continue;
            }
            let late = seen_at.saturating_sub(tx.at);
            // What was announced before it came up, or by a node that nobody reads until a reorg spread it, is no measure.
            if tx.at < seat.started || tx.only.is_some_and(|node| !nodes.contains(&node)) {
                continue;
            }
            self.worst = self.worst.max(late);
            if !seat.config.is_slow {
                self.late[0].saturating_record(late);
            }
            let read = self.world.members[at].nodes.iter().map(|node| Part::Node(*node));
            let way: Vec<_> = read.chain([Part::Member(at), Part::Fleet]).collect();
            // At a node that has lost its pool, a transaction may wait for a nonce.
            let is_slow = seat.config.is_slow || self.network.is_lossy();
            // Under one attack alone, all that was announced during it counts.
            let is_alone = self.world.setup != Setup::Small;
            let is_measured = is_alone || due(tx.at, &way, &self.troubles) == tx.at + GRACE_NS;
            if !is_slow && is_measured {
                self.late[1].saturating_record(late);
            }
        }
        seat.mirror.take(report, |hash| ledger.by_hash.contains_key(hash) || ours.contains(hash));
    }

    /// The ways of a node's transactions to a builder.
    fn ways(&self, at: usize) -> Vec<(usize, Vec<Part>)> {
        let members = &self.world.members;
        let by = |machine: usize, further: &[Part]| -> Vec<_> {
            let way = |node| [&[Part::Node(node), Part::Member(machine)], further].concat();
            members[machine].nodes.iter().map(|node| (*node, way(*node))).collect()
        };
        if !members[at].reads_fleet {
            return by(at, &[]);
        }
        let machines = (0..members.len()).filter(|machine| members[*machine].has_rpc);
        machines.flat_map(|machine| by(machine, &[Part::Fleet, Part::Member(at)])).collect()
    }

    fn judge(&mut self, at: usize, report: &Report, held: &[Option<Vec<(B256, u64)>>], now: u64) {
        if !report.is_current {
            self.say(&format!("member {at} reads what came before: not judged"));
            return;
        }
        let (seat, plan) = (&self.seats[at], &self.world.members[at]);
        let mirror = &seat.mirror;
        let mut found = Findings::new(now);
        let ways = self.ways(at);
        let own: Vec<_> = ways.iter().flat_map(|(_, way)| way.clone()).collect();
        let first_start = |way: &[Part]| {
            let started = way.iter().filter_map(|part| match part {
                Part::Member(member) => Some(self.seats[*member].started),
                _ => None,
            });
            started.max().unwrap_or_default()
        };
        for (node, way) in &ways {
            let Some(held) = held.get(*node).and_then(Option::as_ref) else { continue };
            let started = first_start(way);
            for (hash, since) in held {
                let since = (*since).max(started);
                let mut due = due(since, way, &self.troubles);
                // Its first announcement may be of another node that does not answer.
                let beside = own.iter().filter(|part| matches!(part, Part::Node(_)));
                if beside.into_iter().any(|part| is_touched(since, &[*part], &self.troubles)) {
                    due += ASKED_ELSEWHERE_NS;
                }
                // The chain is what the node that leads has told: what is mined there is not pending.
                let is_mined = || plan.nodes.iter().any(|node| self.network.has_mined(*node, hash));
                let is_kept = mirror.has(hash) || due <= now && is_mined();
                found.ask(due, is_kept, Wrong::Missing, *hash);
            }
        }
        let known_since = |block: u64| mirror.reached(block);
        // In a fleet the first machine tells the heads.
        let tellers = if plan.reads_fleet { &self.world.members[0].nodes } else { &plan.nodes };
        // A node that lagged tells at once what it had not heard of.
        let follow: Option<Vec<_>> =
            tellers.iter().map(|node| self.network.follows_since(*node)).collect();
        if let Some(since) = follow.and_then(|since| since.into_iter().max()) {
            for (number, at) in self.told.iter().rev().take(3) {
                let at = self.told_last.get(number).unwrap_or(at);
                let due = due((*at).max(seat.started).max(since), &own, &self.troubles);
                found.ask(due, known_since(*number).is_some(), Wrong::Behind, B256::ZERO);
            }
        }
        let ledger = self.network.ledger();
        for tx in ledger.txs.iter().rev().take(30_000) {
            let recent = tx.mined.filter(|(block, _)| block + REMEMBERED > self.head);
            let Some((block, mined_at)) = recent else { continue };
            // Heads of a fleet tell no nonces: that of a transaction which the builder never had is unknown to it.
            let other = tx.replaced_by.map(|at| ledger.txs[at].hash);
            if plan.reads_fleet && other.is_some_and(|hash| !mirror.lives.contains_key(&hash)) {
                continue;
            }
            let Some(reached) = known_since(block) else { continue };
            let due = due(reached.max(mined_at), &own, &self.troubles);
            found.ask(due, !mirror.has(&tx.hash), Wrong::Mined, tx.hash);
        }
        drop(ledger);
        let log = self.searchers.log();
        let recent = log.wishes.len().saturating_sub(1_500);
        let is_promised = |wish: &&Wish| self.world.promises_unknown || is_known(wish.searcher);
        let wishes = log.wishes[recent..].iter().filter(|wish| !wish.is_void);
        for wish in wishes.filter(is_promised) {
            if wish.messages.iter().any(|sent| sent.machine == at && sent.is_displaced()) {
                found.wrong.insert((Wrong::Refused, wish.tx));
            }
            let messages = self.messages(at, wish, seat.started);
            if messages.is_empty() {
                continue;
            }
            found.checks += 1;
            let Some(block) = wish.block else {
                // Its machine has it at once; elsewhere it must come before the head that ends it.
                let Message { makes, outcome, due } = messages[0];
                let hash = makes.unwrap_or_default();
                let answered = wish.messages[0].answered.min(now);
                let machine = &self.seats[wish.messages[0].machine].mirror.heads;
                let has_time = oracle::is_for_next_block(machine, &self.told, answered);
                let is_due =
                    outcome == Outcome::Accepted && due <= now && due == answered + GRACE_NS;
                if is_due && has_time && !mirror.lives.contains_key(&hash) {
                    found.wrong.insert((Wrong::Missing, hash));
                }
                continue;
            };
            let end = wish.mined.map_or(block, |mined| mined.min(block));
            let time = match known_since(end) {
                Some(reached) if due(reached, &own, &self.troubles) <= now => Time::Over,
                Some(_) => Time::Ending,
                None if self.head >= end => Time::Ending,
                None => Time::Open,
            };
            let there: Vec<_> = wish.versions().filter(|version| mirror.has(version)).collect();
            if let Some(what) = oracle::order(&messages, now, time, &there) {
                let hash = there.first().copied().or(wish.versions().last());
                found.wrong.insert((what, hash.unwrap_or_default()));
            }
        }
        drop(log);
        found.wrong.extend(mirror.twice.iter().map(|hash| (Wrong::Twice, *hash)));
        found.wrong.extend(report.is_miscounted().then_some((Wrong::Counts, B256::ZERO)));
        self.conclude(at, found, Some(report));
    }

    /// Counts what was found at a builder, and tells each violation's story.
    fn conclude(&mut self, at: usize, found: Findings, report: Option<&Report>) {
        self.checks += found.checks;
        let violation = |(wrong, hash)| {
            let text = self.life(at, &hash, report);
            Violation { wrong, member: at, hash, text }
        };
        let texts: Vec<_> = found.wrong.into_iter().map(violation).collect();
        self.outcomes.violations.extend(texts);
    }

    /// What a searcher has said of an order, as far as this builder must have heard of it.
    fn messages(&self, at: usize, wish: &Wish, started: u64) -> Vec<Message> {
        let plan = &self.world.members[at];
        let of = |sent: &Sent| {
            // A restart loses everything that does not come from the fleet.
            let is_gone =
                sent.answered < started || sent.answered == u64::MAX && sent.sent < started;
            if !plan.reads_fleet && (sent.machine != at || is_gone) {
                return None;
            }
            let ways = [Part::Fleet, Part::Member(sent.machine), Part::Member(at)];
            let way = if plan.reads_fleet { &ways[..] } else { &ways[2..] };
            let answered = sent.answered.min(u64::MAX / 2);
            let published = due(answered, &ways[..2], &self.troubles);
            // What a machine had accepted and not published when it was killed is lost.
            let kills = &self.seats[sent.machine].kills;
            let is_lost = kills.iter().any(|kill| (answered..published).contains(kill));
            let outcome = match sent.outcome {
                Outcome::Accepted if is_lost => Outcome::InDoubt,
                outcome => outcome,
            };
            let due = due(answered.max(started), way, &self.troubles);
            Some(Message { makes: sent.makes, outcome, due })
        };
        let mut messages: Vec<Message> = Vec::new();
        for sent in &wish.messages {
            let Some(mut message) = of(sent) else { continue };
            // It comes to nothing wherever the cancellation has come before.
            let before = messages.last().filter(|before| before.makes.is_none());
            if let Some(cancelled) = before.filter(|_| sent.is_late) {
                let is_known = cancelled.outcome == Outcome::Accepted && cancelled.due <= sent.sent;
                message.outcome = if is_known { Outcome::Refused } else { Outcome::InDoubt };
            }
            messages.push(message);
        }
        messages
    }

    /// An order's life as each part knows it.
    fn life(&self, at: usize, hash: &B256, report: Option<&Report>) -> String {
        if hash.is_zero() {
            let (balance, sizes) = report.map(|report| (report.balance, report.sizes)).unzip();
            let sizes = sizes.flatten();
            let head = self.seats[at].mirror.heads.last();
            return format!(
                "balance of hashes {balance:?}, orders in the builder's view and in the pool {sizes:?}, head {head:?}"
            );
        }
        let (mut lines, now) = (Vec::new(), now_ns());
        let ledger = self.network.ledger();
        if let Some(tx) = ledger.by_hash.get(hash).map(|at| &ledger.txs[*at]) {
            lines.push((tx.at, "announced".to_owned()));
            lines.extend(tx.mined.map(|(block, at)| (at, format!("mined in block {block}"))));
        }
        drop(ledger);
        for node in 0..self.world.nodes {
            let is_held = self.network.with(node, |node| node.pending().contains(hash));
            lines.push((now, format!("node {node} holds it: {is_held:?}")));
        }
        let log = self.searchers.log();
        let is_of = |wish: &&Wish| wish.tx == *hash || wish.versions().any(|it| it == *hash);
        for wish in log.wishes.iter().filter(is_of) {
            let Wish { searcher, is_private, block, .. } = wish;
            for Sent { machine, makes, outcome, sent, answer, .. } in &wish.messages {
                let what = makes.map_or("cancelled".to_owned(), |makes| format!("made {makes}"));
                let text = format!(
                    "searcher {searcher}: {what} at member {machine}, {outcome:?} {answer}, private {is_private}, block {block:?}"
                );
                lines.push((*sent, text));
            }
            lines.extend(wish.mined.map(|block| (now, format!("mined in block {block}"))));
        }
        drop(log);
        for (member, seat) in self.seats.iter().enumerate() {
            lines.extend(seat.mirror.life(&format!("member {member}"), hash));
        }
        let (started, head) = (self.seats[at].started, self.seats[at].mirror.heads.last());
        lines.push((started, format!("member {at} started; its head is {head:?}")));
        oracle::life(lines, now - self.begin.elapsed().as_nanos() as u64, &self.troubles)
    }
}
