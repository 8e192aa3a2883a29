//! External callers send as many raw transactions as they can, while the node announces.

use std::time::{Duration, Instant};

use mempool_ingest::txpool_fetcher::Backfill;
use testkit::{
    figures::{Spread, Table, median},
    node::{NodeProcess, Pace, What},
    usage::{process_cpu, resident_bytes},
};

use crate::{
    Plan,
    clients::{CPU_CAP, Clients, Phase, Sent},
    decoy::{Decoy, Share},
    stage::{self, FEW_REQUESTS, Parts, Policy, Setup, warn_if_short},
    table::{self, Figures, Row},
};

const TPS: u32 = 2_000;

pub(crate) const CONNECTIONS: usize = 64;

/// Contenders: with which policy; `None` is the control, whose external callers use another server.
const CONTENDERS: [(&str, Option<Policy>); 5] = [
    ("control", None),
    ("with admission", Some(Policy::On)),
    ("with it, few requests", Some(Policy::FewRequests)),
    ("without admission", Some(Policy::NoGate)),
    ("without it, internal not queued", Some(Policy::NoLine)),
];

/// What else is known of a run with external callers.
#[derive(Clone, Debug)]
pub(crate) struct Crowd {
    pub(crate) sent: Sent,
    /// CPU time of our process meanwhile.
    pub(crate) ours: Duration,
    /// And of the control's server.
    pub(crate) decoy: Duration,
    /// Cores that the node's process kept busy while it announced.
    pub(crate) node_cores: f64,
    pub(crate) resident_before: usize,
    pub(crate) resident_after: usize,
    pub(crate) pool_grew: u64,
}

pub(crate) fn bench(plan: &Plan) {
    let (mut node, _) = stage::node(0);
    let mut clients = Clients::spawn(plan.external_txs).expect("the clients start");
    let mut decoy = Decoy::spawn().expect("the control's server starts");
    let mut rows = CONTENDERS.map(|(name, _)| (Row::new(name.to_owned()), Vec::new()));
    for round in 0..plan.rounds {
        // The control's clients send as many as they did with admission just before, and as large a
        // share is accepted: then the clients burn as much. A server burns what it burns.
        let mut before: Option<Sent> = None;
        for number in [[1, 0, 2, 3, 4], [4, 3, 2, 1, 0]][round % 2] {
            let control = CONTENDERS[number].1.is_none();
            let policy = CONTENDERS[number].1.unwrap_or(Policy::On);
            let like = before.as_ref().filter(|_| control);
            let share = like.map(|sent| Share { accepted: sent.accepted, offered: sent.offered });
            if let Some(share) = share {
                decoy.accept(share).expect("the control's server runs");
            }
            let rate = like.map(|sent| (sent.offered as f64 / sent.wall.as_secs_f64()) as u32);
            let phases = [Phase { lasts: plan.external, rate }];
            let of = (&mut node, &mut clients, control.then_some(&mut decoy));
            let run = run(plan, of, policy, Pace::steady(TPS), &phases);
            let (figures, crowd) = plan.host.block_on(run);
            let sent = &crowd.sent;
            if let Some(share) = share {
                assert_eq!(sent.accepted, share.of(sent.offered), "the control's share: {sent:?}");
            } else if policy == Policy::On {
                before = Some(sent.clone());
            }
            rows[number].0.runs.push(figures);
            rows[number].1.push(crowd);
        }
    }
    let title = format!(
        "(b) {TPS} announced a second while external callers send raw transactions as fast as they can:\n\
         {CONNECTIONS} connections, clients on at most {CPU_CAP} of a core, few requests are {FEW_REQUESTS}, the control's as many a second and as many accepted;\n\
         medians of {} rounds of {:.1} s",
        plan.rounds,
        plan.external.as_secs_f64()
    );
    table::print(&title, "accepted/s", rows.iter().map(|(row, _)| row));
    crowds(&rows);
    let [(control, _), (with, crowds), (few, few_crowds), (without, _), (no_line, _)] = &rows;
    // What ours burns without external callers is what it burns beside the control.
    let burns = rows[1].1.iter().zip(&rows[0].1).map(|(ours, control)| {
        let burnt =
            |time: Duration, crowd: &Crowd| time.as_secs_f64() / crowd.sent.wall.as_secs_f64();
        (burnt(ours.ours, ours) - burnt(control.ours, control)) / burnt(control.decoy, control)
    });
    let burns = Spread::of(burns);
    println!("CPU for external callers, ours with admission / the control's server: {burns}");
    println!("goals (ratios within a round; the median of the rounds, least to most):");
    table::goal("live p99, with admission / control", table::ratio(with, control, 0.99), 1.5, "");
    println!(
        "    accepted a second, with admission / control: {}",
        table::other_ratio(with, control)
    );
    let refusal = Spread::of(crowds.iter().map(|crowd| crowd.sent.refusal_p99_ns as f64 / 1e6));
    table::goal("p99 of a refusal", refusal, 5.0, " ms");
    let outer = Spread::of(few_crowds.iter().map(|crowd| crowd.sent.outer_p99_ns as f64 / 1e6));
    table::goal("p99 of a refusal by the outer gate, few requests", outer, 5.0, " ms");
    // The most of all runs: what the first one made grow, the others find there.
    let grew = crowds.iter().map(|crowd| {
        let grew = crowd.resident_after as f64 - crowd.resident_before as f64;
        (grew - crowd.pool_grew as f64) / 1e6
    });
    let beyond = grew.fold(f64::NEG_INFINITY, f64::max);
    let beyond = Spread::of([beyond]);
    table::goal("growth beyond the orders themselves", beyond, 16.0, " MB");
    for row in [few, without, no_line] {
        let contrast = table::ratio(row, control, 0.99);
        let accepted = table::other_ratio(row, control);
        println!(
            "  for contrast, live p99 {} / control: {contrast}, accepted {accepted}",
            row.contender
        );
    }
}

fn crowds(rows: &[(Row, Vec<Crowd>)]) {
    let mut table = Table::new([
        "",
        "offered/s",
        "accepted/s",
        "refused/s",
        "no p50 us",
        "no p99 us",
        "yes p99 us",
        "clients",
        "ours",
        "control",
        "node",
        "MB before",
        "MB after",
        "orders MB",
    ]);
    for (row, crowds) in rows {
        let median = |value: &dyn Fn(&Crowd) -> f64| median(crowds.iter().map(value));
        let whole = |value: &dyn Fn(&Crowd) -> f64| format!("{:.0}", median(value));
        let per_s = |count: &dyn Fn(&Sent) -> u64| {
            whole(&|crowd| count(&crowd.sent) as f64 / crowd.sent.wall.as_secs_f64())
        };
        let cores = |time: &dyn Fn(&Crowd) -> Duration| {
            let share = |crowd: &Crowd| time(crowd).as_secs_f64() / crowd.sent.wall.as_secs_f64();
            format!("{:.2}", median(&share))
        };
        table.row([
            row.contender.clone(),
            per_s(&|sent| sent.offered),
            per_s(&|sent| sent.accepted),
            per_s(&|sent| sent.refused),
            whole(&|crowd| crowd.sent.refusal_p50_ns as f64 / 1e3),
            whole(&|crowd| crowd.sent.refusal_p99_ns as f64 / 1e3),
            whole(&|crowd| crowd.sent.accepted_p99_ns as f64 / 1e3),
            cores(&|crowd| crowd.sent.cpu),
            cores(&|crowd| crowd.ours),
            cores(&|crowd| crowd.decoy),
            format!("{:.2}", median(&|crowd| crowd.node_cores)),
            whole(&|crowd| crowd.resident_before as f64 / 1e6),
            whole(&|crowd| crowd.resident_after as f64 / 1e6),
            format!("{:+.0}", median(&|crowd| crowd.pool_grew as f64 / 1e6)),
        ]);
    }
    print!("{table}");
    println!("clients, ours, control, node: cores that each process kept busy");
}

/// One run: live announcements, and external callers by the schedule of `phases`, to our RPC server or,
/// if there is one, the control's server.
pub(crate) async fn run(
    plan: &Plan,
    (node, clients, mut decoy): (&mut NodeProcess, &mut Clients, Option<&mut Decoy>),
    policy: Policy,
    pace: Pace,
    phases: &[Phase],
) -> (Figures, Crowd) {
    let lasts: Duration = phases.iter().map(|phase| phase.lasts).sum();
    let bursts: usize = pace.bursts.iter().map(|(_, count)| count).sum();
    let tps = pace.tps.expect("these announcements are paced");
    let signed = plan.signed(tps, lasts.as_secs() as usize + 5) + bursts;
    let signed = node.prepare(signed).expect("it signs");
    let setup = Setup { policy, backfill: Backfill::Off, rpc: true };
    let mut parts = Parts::start(node.path(), setup).await;
    let tenth = u64::from(tps) / 10;
    node.announce(What::Prepared, pace).expect("the node announces");
    // Warm: connections, allocator and page tables have seen some.
    parts.until(|parts| parts.fetcher.counts().pooled >= tenth).await;

    let before = (process_cpu(), decoy_cpu(&mut decoy), resident_bytes(), parts.pool.bytes());
    let begin = Instant::now();
    let server = decoy.as_ref().map_or_else(|| parts.rpc().local_addr(), |decoy| decoy.address);
    clients.run(server, CONNECTIONS, phases).expect("the clients run");
    parts.until(|_| begin.elapsed() >= lasts).await;
    let end = Instant::now();
    let sent = clients.sent().expect("the clients end");
    let after = (process_cpu(), decoy_cpu(&mut decoy), resident_bytes(), parts.pool.bytes());
    let announced = node.stop().expect("the node stops");
    warn_if_short(&announced, plan, policy);

    assert_eq!(sent.failed, 0, "neither accepted nor refused: {:?}", sent.failure);
    assert_eq!(sent.offered, sent.accepted + sent.refused);
    let external = if decoy.is_some() { 0 } else { sent.distinct as usize };
    parts.check(&[&signed[..announced.count]], external).await;
    if decoy.is_none() {
        let [outer, inner] = parts.refused();
        assert_eq!(outer + inner, sent.refused, "refusals counted and received");
        assert_eq!(outer, sent.refused_outer, "refusals of the outer gate, counted and received");
        assert!(policy != Policy::FewRequests || outer > 0, "nobody met the outer gate: {sent:?}");
    }
    let live = parts.live(begin, end);
    let figures = Figures {
        live_per_s: live.len() as f64 / (end - begin).as_secs_f64(),
        live,
        other_per_s: sent.accepted as f64 / sent.wall.as_secs_f64(),
        refused: parts.refused(),
        deferred: parts.deferred(),
        oldest: parts.watched().oldest,
        resident_bytes: after.2,
        late: announced.late,
        pressed_share: f64::from(parts.watched().pressed) / f64::from(parts.watched().looks.max(1)),
    };
    let crowd = Crowd {
        sent,
        ours: after.0 - before.0,
        decoy: after.1 - before.1,
        node_cores: announced.cpu.as_secs_f64() / announced.lasted.as_secs_f64(),
        resident_before: before.2,
        resident_after: after.2,
        pool_grew: (after.3 - before.3) as u64,
    };
    parts.stop().await;
    node.reset().expect("the node mines what it announced");
    (figures, crowd)
}

fn decoy_cpu(decoy: &mut Option<&mut Decoy>) -> Duration {
    decoy.as_mut().map_or(Duration::ZERO, |decoy| decoy.cpu().expect("it runs"))
}
