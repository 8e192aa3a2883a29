//! Asks the builders for their reports before each head, and gathers the facts that the oracle
//! judges.

use std::collections::HashSet;

use alloy_primitives::B256;
use testkit::{
    figures::Times,
    member::{RETENTION, Report, Seen, Setup},
    usage::now_ns,
};

use super::{Failure, HeadRow, Run, RunningMember, STARTED, lasting::Listed};
use crate::{
    oracle::{
        self, BlockPhase, Disturbance, Facts, GRACE_NS, JUDGED_NS, ListedTx, Message, MinedTx,
        OrderFacts, OrderTarget, Outcome, REMEMBERED_BLOCKS, Verdict, Violation, deadline,
        is_disturbed, is_for_next_block,
    },
    searchers::{SearcherOrder, SentMessage, is_known},
    story,
    world::{ANSWERED, Part, SLOT},
};

/// The longest delay that a node which does not respond causes to a transaction that another node
/// has too: a hash waits for a slot until the fetcher's request times out, and is then requested
/// from the other node.
const OTHER_NODE_NS: u64 = 4_000_000_000;

impl Run<'_> {
    /// Asks all builders, and the oracle about each.
    pub(super) fn check_builders(&mut self) -> Result<(), Failure> {
        let nodes = 0..self.world.nodes;
        let listed: Vec<_> = nodes.clone().map(|node| self.network.listed(node)).collect();
        let now = now_ns();
        for node in nodes.filter(|node| self.network.has_bad_answers_left(*node)) {
            let begins = now - SLOT.as_nanos() as u64;
            let disturbance = Disturbance::new(Part::Node(node), begins, SLOT + ANSWERED);
            disturbance.add_to(&mut self.disturbances);
        }
        for process in self.members.iter_mut().filter_map(RunningMember::answering) {
            process.ask()?;
        }
        let (mut reports, asked_at) = (Vec::new(), now_ns());
        for number in 0..self.members.len() {
            let Some(process) = self.members[number].answering() else { continue };
            let report = process.report().map_err(|error| format!("member {number}: {error}"))?;
            reports.push((number, report));
            let elapsed_s = (now_ns() - asked_at) as f64 / 1e9;
            if elapsed_s > 1.0 {
                self.print(&format!("member {number} answered after {elapsed_s:.1} s"));
            }
        }
        self.latencies[0].reset();
        for (number, report) in &reports {
            self.apply_report(*number, report);
        }
        let mut facts: Vec<_> = self.members.iter().map(|_| Facts::default()).collect();
        self.add_lasting_facts(&reports, &listed, now, &mut facts);
        for (number, report) in &reports {
            if report.is_current {
                let facts = std::mem::take(&mut facts[*number]);
                let facts = self.gather(*number, report, &listed, Facts { now, ..facts });
                let verdict = oracle::judge(&facts);
                self.conclude(*number, report, verdict);
            } else {
                self.print(&format!("member {number} still reads older events: not judged"));
            }
        }
        self.print_check();
        self.forget_old();
        Ok(())
    }

    fn print_check(&mut self) {
        let times = Times::from(&self.latencies[0]);
        let held: Vec<_> = self.members.iter().map(|member| member.view.len()).collect();
        let usage = |member: &RunningMember| {
            member.view.usages.last().map_or(0, |(_, usage)| usage[0] >> 20)
        };
        let memory_mib: Vec<_> = self.members.iter().map(usage).collect();
        let announced = self.network.ledger().txs.len();
        let accepted = self.searchers.log().accepted();
        let [p50_ms, p99_ms] = [times.p50, times.p99].map(|us| us / 1e3);
        self.print(&format!(
            "before head {}: {announced} transactions and {accepted} searchers' messages; builders \
             hold {held:?} and use {memory_mib:?} MiB besides; p50 {p50_ms:.1} ms, p99 \
             {p99_ms:.1} ms; {} checks, {} violations",
            self.head + 1,
            self.checks,
            self.result.violations.len()
        ));
        let (time, orders) = (self.begin.elapsed(), announced + accepted as usize);
        self.result.heads.push(HeadRow { time, orders, held, p50_ms, p99_ms });
    }

    /// Applies what a builder has seen since the check before, and measures how late it was.
    fn apply_report(&mut self, number: usize, report: &Report) {
        let ledger = self.network.ledger();
        let searcher_orders: HashSet<B256> = {
            let log = self.searchers.log();
            let recent = log.orders.len().saturating_sub(3_000);
            log.orders[recent..].iter().flat_map(SearcherOrder::versions).collect()
        };
        let nodes: HashSet<_> = self.paths(number).into_iter().map(|(node, _)| node).collect();
        let member = &mut self.members[number];
        for (seen_at, event, hash) in &report.seen {
            let tx = ledger.by_hash.get(hash).map(|index| &ledger.txs[*index]);
            let Some(tx) = tx else { continue };
            if *event != Seen::Added || member.view.events.contains_key(hash) {
                continue;
            }
            // A transaction that was announced before it started, or by a node that nobody reads
            // until a reorg spread it, measures nothing.
            if tx.announced_at < member.remembers_since
                || tx.only_node.is_some_and(|node| !nodes.contains(&node))
            {
                continue;
            }
            let latency_ns = seen_at.saturating_sub(tx.announced_at);
            self.worst_latency_ns = self.worst_latency_ns.max(latency_ns);
            if !member.config.is_slow {
                self.latencies[0].saturating_record(latency_ns);
            }
            let read = self.world.members[number].nodes.iter().map(|node| Part::Node(*node));
            let path: Vec<_> = read.chain([Part::Member(number), Part::Fleet]).collect();
            // At a node that has lost its pool, a transaction may wait for a nonce.
            let is_slow = member.config.is_slow || self.network.is_lossy();
            // In a scenario all transactions are measured that were announced during its attack.
            let is_measured = self.world.setup != Setup::Small
                || !is_disturbed(tx.announced_at, &path, &self.disturbances);
            if !is_slow && is_measured {
                self.latencies[1].saturating_record(latency_ns);
            }
        }
        let is_known =
            |hash: &B256| ledger.by_hash.contains_key(hash) || searcher_orders.contains(hash);
        member.view.apply(report, is_known);
    }

    /// Returns the paths of nodes' transactions to a builder: each node, and the parts on the path.
    fn paths(&self, number: usize) -> Vec<(usize, Vec<Part>)> {
        let members = &self.world.members;
        let paths_over = |machine: usize, further: &[Part]| -> Vec<_> {
            let path = |node| [&[Part::Node(node), Part::Member(machine)], further].concat();
            members[machine].nodes.iter().map(|node| (*node, path(*node))).collect()
        };
        if !members[number].reads_fleet {
            return paths_over(number, &[]);
        }
        let machines = (0..members.len()).filter(|machine| members[*machine].has_rpc);
        machines
            .flat_map(|machine| paths_over(machine, &[Part::Fleet, Part::Member(number)]))
            .collect()
    }

    /// Adds the facts about one builder to those that last.
    fn gather(&self, number: usize, report: &Report, listed: &Listed, mut facts: Facts) -> Facts {
        let paths = self.paths(number);
        let all_parts: Vec<_> = paths.iter().flat_map(|(_, path)| path.clone()).collect();
        for (node, path) in &paths {
            if let Some(listed) = listed[*node].as_ref() {
                facts.listed.extend(self.listed_txs(number, listed, path, &all_parts, facts.now));
            }
        }
        facts.mined = self.mined_txs(number, &all_parts);
        facts.heads = self.heads(number, &all_parts);
        facts.orders = self.orders(number, &all_parts, facts.now);
        facts.added_twice.clone_from(&self.members[number].view.added_twice);
        facts.is_miscounted = report.is_miscounted();
        facts
    }

    fn listed_txs(
        &self,
        number: usize,
        listed: &[(B256, u64)],
        path: &[Part],
        all_parts: &[Part],
        now: u64,
    ) -> Vec<ListedTx> {
        let (view, plan) = (&self.members[number].view, &self.world.members[number]);
        let remembers_since = path.iter().filter_map(|part| match part {
            Part::Member(member) => Some(self.members[*member].remembers_since),
            _ => None,
        });
        let remembers_since = remembers_since.max().unwrap_or_default();
        let facts = listed.iter().map(|&(hash, since)| {
            let since = since.max(remembers_since);
            let mut deadline = deadline(since, path, &self.disturbances);
            // Its first announcement may be of another node, which does not respond.
            let is_other = |part: &&Part| matches!(part, Part::Node(_)) && !path.contains(part);
            let mut nodes = all_parts.iter().filter(is_other);
            if nodes.any(|node| is_disturbed(since, &[*node], &self.disturbances)) {
                deadline += OTHER_NODE_NS;
            }
            let is_held = view.holds(&hash);
            // To ask a node takes time, so it is asked only about a transaction that is late.
            let is_mined = !is_held
                && deadline <= now
                && plan.nodes.iter().any(|node| self.network.has_mined(*node, &hash));
            let has_old_sidecar = view.old_sidecars.contains(&hash);
            ListedTx { hash, deadline, is_held, is_mined, has_old_sidecar }
        });
        facts.collect()
    }

    fn mined_txs(&self, number: usize, all_parts: &[Part]) -> Vec<MinedTx> {
        let (view, plan) = (&self.members[number].view, &self.world.members[number]);
        let ledger = self.network.ledger();
        let mut facts = Vec::new();
        for tx in ledger.txs.iter().rev().take(30_000) {
            let is_recent = |block: u64| block + REMEMBERED_BLOCKS > self.head;
            let Some((block, mined_at)) = tx.mined.filter(|(block, _)| is_recent(*block)) else {
                continue;
            };
            // The heads of a fleet have no nonces: the builder cannot know that of a replacement
            // which it never had.
            let replacement = tx.replaced_by.map(|index| ledger.txs[index].hash);
            if plan.reads_fleet && replacement.is_some_and(|hash| !view.events.contains_key(&hash))
            {
                continue;
            }
            let Some(reached_at) = view.reached_at(block) else { continue };
            // A reorg that leaves the block and comes back announces it again.
            let announced_at = self.reannounced_at.get(&block).copied().unwrap_or_default();
            let mut known_at = reached_at.max(mined_at).max(announced_at);
            let reset_at = self.members[number].reset_at;
            if mined_at < reset_at {
                // A chain that comes back is followed from its head then. What a block before it
                // contains is only known not to be listed any more.
                known_at = known_at.max(reset_at + RETENTION.as_nanos() as u64);
            }
            // A node that imports old blocks undoes the latest ones for a while. The builder learns
            // of its head only after what that head brings back.
            let is_back = |added_at: &u64| is_disturbed(*added_at, all_parts, &self.disturbances);
            if let Some(added_at) = view.added_at(&tx.hash).filter(is_back) {
                known_at = known_at.max(added_at);
            }
            let deadline = deadline(known_at, all_parts, &self.disturbances);
            facts.push(MinedTx { hash: tx.hash, deadline, is_held: view.holds(&tx.hash) });
        }
        facts
    }

    fn heads(&self, number: usize, all_parts: &[Part]) -> Vec<(u64, bool)> {
        let (member, plan) = (&self.members[number], &self.world.members[number]);
        // In a fleet the first machine publishes the heads.
        let sources = if plan.reads_fleet { &self.world.members[0].nodes } else { &plan.nodes };
        let follows_since: Option<Vec<_>> =
            sources.iter().map(|node| self.network.follows_since(*node)).collect();
        // A node that lags announces later at once what it had not heard of.
        let Some(follows_since) = follows_since.and_then(|times| times.into_iter().max()) else {
            return Vec::new();
        };
        let latest = self.chain_heads.iter().rev().take(3).map(|(head, announced_at)| {
            let announced_at = *self.reannounced_at.get(head).unwrap_or(announced_at);
            let since = announced_at.max(member.remembers_since).max(follows_since);
            let deadline = deadline(since, all_parts, &self.disturbances);
            (deadline, member.view.reached_at(*head).is_some())
        });
        latest.collect()
    }

    fn orders(&self, number: usize, all_parts: &[Part], now: u64) -> Vec<OrderFacts> {
        let member = &self.members[number];
        let log = self.searchers.log();
        let recent = log.orders.len().saturating_sub(1_500);
        let mut facts = Vec::new();
        let is_judged = |order: &&SearcherOrder| {
            let sent_at = order.messages.last().map_or(0, |sent| sent.sent_at);
            // A machine whose node has begun another chain takes a while to learn of it, and then
            // forgets what came before.
            let has_chain = |sent: &SentMessage| {
                sent.sent_at > self.members[sent.machine].reset_at + STARTED.as_nanos() as u64
            };
            let is_recent = sent_at + JUDGED_NS > now;
            !order.is_void && is_recent && order.messages.iter().all(has_chain)
        };
        for order in log.orders[recent..].iter().filter(is_judged) {
            let is_known_signer = is_known(order.searcher);
            if !is_known_signer && !self.world.promises_unknown {
                continue;
            }
            let was_displaced =
                order.messages.iter().any(|sent| sent.machine == number && sent.is_displaced());
            let messages = self.messages(number, order);
            if messages.is_empty() && !was_displaced || self.is_in_mined_bundle(order, now) {
                continue;
            }
            let target = match (order.block, messages.first()) {
                (Some(block), _) => {
                    let end = order.mined_in.map_or(block, |mined_in| mined_in.min(block));
                    let phase = match member.view.reached_at(end) {
                        Some(reached_at)
                            if deadline(reached_at, all_parts, &self.disturbances) <= now =>
                        {
                            BlockPhase::Over
                        }
                        Some(_) => BlockPhase::Ending,
                        None if self.head >= end => BlockPhase::Ending,
                        None => BlockPhase::Open,
                    };
                    let versions = order.versions();
                    let held = versions.filter(|version| member.view.holds(version)).collect();
                    let latest = order.versions().last().unwrap_or_default();
                    OrderTarget::Block { phase, held, latest }
                }
                (None, Some(message)) => self.next_block_target(number, order, message, now),
                (None, None) => OrderTarget::NextBlock {
                    bundle: order.tx,
                    must_be_seen: false,
                    was_seen: false,
                },
            };
            let tx = order.tx;
            facts.push(OrderFacts { tx, is_known_signer, was_displaced, messages, target });
        }
        facts
    }

    /// Whether an order is a bundle with the shared transaction while a block contains that, or
    /// just after a reorg has undone the block: the builder may hold it or not.
    fn is_in_mined_bundle(&self, order: &SearcherOrder, now: u64) -> bool {
        let is_in_bundle = self.network.shared_tx.is_some() && !order.is_private;
        let is_uncertain = self.is_shared_mined || self.shared_undone_at + GRACE_NS / 2 > now;
        is_in_bundle && is_uncertain
    }

    /// Its machine has such a bundle at once; at other builders it must come before the head that
    /// ends it.
    fn next_block_target(
        &self,
        number: usize,
        order: &SearcherOrder,
        message: &Message,
        now: u64,
    ) -> OrderTarget {
        let bundle = message.content.unwrap_or_default();
        let sent = &order.messages[0];
        let answered_at = sent.answered_at.min(now);
        let machine_heads = &self.members[sent.machine].view.heads;
        let has_time = is_for_next_block(machine_heads, &self.chain_heads, answered_at);
        let is_due = message.outcome == Outcome::Accepted
            && message.deadline <= now
            && message.deadline == answered_at + GRACE_NS;
        let was_seen = self.members[number].view.events.contains_key(&bundle);
        OrderTarget::NextBlock { bundle, must_be_seen: is_due && has_time, was_seen }
    }

    /// Counts a verdict, and adds the story of each violation.
    fn conclude(&mut self, number: usize, report: &Report, verdict: Verdict) {
        self.checks += verdict.checks;
        for (sum, kept) in self.result.kept.iter_mut().zip(verdict.kept) {
            sum.add(kept);
        }
        for (breach, hash) in verdict.breaches {
            let story = self.story(number, &hash, report);
            self.result.violations.push(Violation { breach, member: number, hash, story });
        }
    }

    /// Returns the messages of an order that a builder must have heard of, oldest first.
    fn messages(&self, number: usize, order: &SearcherOrder) -> Vec<Message> {
        let mut messages: Vec<Message> = Vec::new();
        for sent in &order.messages {
            let Some(mut message) = self.message(number, sent) else { continue };
            // A late repetition has no effect wherever the cancellation came first.
            let cancelled = messages.last().filter(|before| before.content.is_none());
            if let Some(cancelled) = cancelled.filter(|_| sent.is_late) {
                let is_certain =
                    cancelled.outcome == Outcome::Accepted && cancelled.deadline <= sent.sent_at;
                message.outcome = if is_certain { Outcome::Refused } else { Outcome::InDoubt };
            }
            messages.push(message);
        }
        messages
    }

    fn message(&self, number: usize, sent: &SentMessage) -> Option<Message> {
        let member = &self.members[number];
        let reads_fleet = self.world.members[number].reads_fleet;
        // A restart loses every order that does not come from the fleet.
        let is_forgotten = sent.answered_at < member.remembers_since
            || sent.answered_at == u64::MAX && sent.sent_at < member.remembers_since;
        if !reads_fleet && (sent.machine != number || is_forgotten) {
            return None;
        }
        let path = [Part::Fleet, Part::Member(sent.machine), Part::Member(number)];
        let own_path = if reads_fleet { &path[..] } else { &path[2..] };
        let answered_at = sent.answered_at.min(u64::MAX / 2);
        let published_by = deadline(answered_at, &path[..2], &self.disturbances);
        // An order that a machine had accepted and not published when it was killed is lost.
        let kills = &self.members[sent.machine].kills;
        let may_be_lost = kills.iter().any(|kill| (answered_at..published_by).contains(kill));
        let outcome = match sent.outcome {
            Outcome::Accepted if may_be_lost => Outcome::InDoubt,
            outcome => outcome,
        };
        let since = answered_at.max(member.remembers_since);
        let deadline = deadline(since, own_path, &self.disturbances);
        Some(Message { content: sent.content, outcome, deadline })
    }

    /// Returns the history of an order as each part knows it.
    fn story(&self, number: usize, hash: &B256, report: &Report) -> String {
        if hash.is_zero() {
            let head = self.members[number].view.heads.last();
            return format!(
                "    balance of hashes {:?}, orders in the builder's view and in the pool {:?}, \
                 head {head:?}\n",
                report.balance, report.sizes
            );
        }
        let (mut lines, now) = (Vec::new(), now_ns());
        let ledger = self.network.ledger();
        if let Some(tx) = ledger.by_hash.get(hash).map(|index| &ledger.txs[*index]) {
            lines.push((tx.announced_at, format!("announced, {} bytes", tx.raw.len())));
            lines.extend(tx.mined.map(|(block, time)| (time, format!("mined in block {block}"))));
        }
        drop(ledger);
        for node in 0..self.world.nodes {
            let is_held = self.network.with(node, |node| node.pending().contains(hash));
            lines.push((now, format!("node {node} holds it: {is_held:?}")));
        }
        let log = self.searchers.log();
        let is_meant = |order: &&SearcherOrder| {
            order.tx == *hash || order.versions().any(|version| version == *hash)
        };
        for order in log.orders.iter().filter(is_meant) {
            let SearcherOrder { searcher, is_private, block, .. } = order;
            for sent in &order.messages {
                let SentMessage { machine, outcome, answer, .. } = sent;
                let kind = sent
                    .content
                    .map_or("cancellation".to_owned(), |content| format!("version {content}"));
                let text = format!(
                    "searcher {searcher}: {kind} at member {machine}, {outcome:?} {answer}, \
                     private {is_private}, block {block:?}"
                );
                lines.push((sent.sent_at, text));
            }
            lines.extend(order.mined_in.map(|block| (now, format!("mined in block {block}"))));
        }
        drop(log);
        for (number, member) in self.members.iter().enumerate() {
            lines.extend(member.view.story(&format!("member {number}"), hash));
        }
        let member = &self.members[number];
        let text = format!("member {number} remembers; its head is {:?}", member.view.heads.last());
        lines.push((member.remembers_since, text));
        let run_begins = now - self.begin.elapsed().as_nanos() as u64;
        story::tell(lines, run_begins, &self.disturbances)
    }
}
