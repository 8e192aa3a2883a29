//! Injects faults into a running node.

use std::{sync::Arc, time::Instant};

use super::load;
use crate::{
    faults::{Armed, Fault, FaultPlan, Restart, Target},
    outbox::{Freeze, Outbox},
    quirks::Topic,
    shared::{Connected, Shared},
};

pub(super) fn inject(shared: &Shared, fault: Fault) {
    tracing::debug!(?fault, "a fault is injected");
    let arm = |arm: &dyn Fn(&mut Armed)| arm(&mut shared.lock().armed);
    match fault {
        Fault::Close(target) => targets(shared, target).iter().for_each(|outbox| outbox.close()),
        Fault::CloseMidFrame(target) => {
            targets(shared, target).iter().for_each(|outbox| outbox.cut())
        }
        Fault::CloseOnAccept { connections } => arm(&|armed| armed.close_on_accept += connections),
        Fault::CloseAfterSubscribe { connections } => {
            arm(&|armed| armed.close_after_subscribe += connections);
        }
        Fault::SilenceSubscriptions { subscriptions } => {
            arm(&|armed| armed.silence_subscriptions += subscriptions);
        }
        Fault::Stall { target, time } => {
            let until = Freeze::Until(Instant::now() + time);
            targets(shared, target).iter().for_each(|outbox| outbox.freeze(until));
        }
        Fault::GoDead(target) => {
            targets(shared, target).iter().for_each(|outbox| outbox.freeze(Freeze::Forever));
        }
        Fault::Restart { down, leaves_file } => {
            restart(shared, Restart { down, leaves_file, has_new_genesis: false });
        }
        Fault::DropNotifications { count } => arm(&|armed| armed.drop_notifications += count),
        Fault::DropObjects { count } => arm(&|armed| armed.drop_objects += count),
        Fault::Burst { count } => {
            load::burst(shared, count);
        }
        Fault::Duplicate { count } => arm(&|armed| armed.duplicate += count),
        Fault::Answers { bad, count } => arm(&|armed| armed.answers.push_back((bad, count))),
        Fault::Reorg { depth } => {
            // This fails, and changes nothing, if the chain has only its genesis block.
            let now_s = shared.now_s();
            _ = shared.change(|core| core.reorg(depth.min(core.chain.undoable()), now_s));
        }
        Fault::TableFull { time } => {
            arm(&|armed| armed.table_full_until = Some(Instant::now() + time));
        }
        Fault::EndSubscriptions { topic, notifies } => {
            for connected in &mut shared.lock().connections {
                connected.end_subscriptions(topic, notifies);
            }
        }
        Fault::SendLine { target, line } => {
            let line = format!("{}\n", line.text());
            targets(shared, target).iter().for_each(|outbox| outbox.push(line.clone().into(), 0));
        }
        Fault::Reset { down } => {
            assert!(shared.executor.is_none(), "a node that keeps state cannot change its genesis");
            restart(shared, Restart { down, leaves_file: false, has_new_genesis: true });
        }
    }
}

fn restart(shared: &Shared, restart: Restart) {
    shared.lock().armed.restart = Some(restart);
    shared.restart.notify_one();
}

/// Injects the faults of a plan, from the beginning of the load on.
pub(super) fn follow(shared: &Shared, plan: &FaultPlan) {
    if shared.wait_for_start() {
        return;
    }
    let begin = Instant::now();
    for (time, fault) in plan.steps() {
        if shared.sleep_until(begin + *time) {
            return;
        }
        inject(shared, *fault);
    }
    shared.signal(|state| state.plan_finished = true);
}

/// Returns the connections that a fault affects.
fn targets(shared: &Shared, target: Target) -> Vec<Arc<Outbox>> {
    let state = shared.lock();
    let is_affected = |connected: &&Connected| match target {
        Target::All => true,
        Target::Subscription => !connected.subscriptions.is_empty(),
        Target::Hashes => connected.is_subscribed(Topic::Hashes),
        Target::Objects => connected.is_subscribed(Topic::Objects),
        Target::Request => connected.subscriptions.is_empty(),
    };
    let connections = state.connections.iter().filter(is_affected);
    connections.map(|connected| connected.outbox.clone()).collect()
}
