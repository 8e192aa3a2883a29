//! Makes a fault strike a running node.

use std::{sync::Arc, time::Instant};

use super::load;
use crate::{
    faults::{Armed, Fault, FaultPlan, Restart, Target},
    outbox::{Freeze, Outbox},
    quirks::Topic,
    shared::{Connected, Shared},
};

pub(super) fn inject(shared: &Shared, fault: Fault) {
    tracing::debug!(?fault, "a fault strikes");
    let arm = |arm: &dyn Fn(&mut Armed)| arm(&mut shared.lock().armed);
    match fault {
        Fault::Close(at) => targets(shared, at).iter().for_each(|outbox| outbox.close()),
        Fault::CloseMidFrame(at) => targets(shared, at).iter().for_each(|outbox| outbox.cut()),
        Fault::CloseOnAccept { connections } => arm(&|it| it.close_on_accept += connections),
        Fault::CloseAfterSubscribe { connections } => {
            arm(&|it| it.close_after_subscribe += connections);
        }
        Fault::Stall { at, time } => {
            let until = Freeze::Until(Instant::now() + time);
            targets(shared, at).iter().for_each(|outbox| outbox.freeze(until));
        }
        Fault::GoDead(at) => {
            targets(shared, at).iter().for_each(|outbox| outbox.freeze(Freeze::Forever));
        }
        Fault::Restart { down, leaves_file } => {
            restart(shared, Restart { down, leaves_file, has_new_genesis: false });
        }
        Fault::DropNotifications { count } => arm(&|it| it.drop_notifications += count),
        Fault::DropObjects { count } => arm(&|it| it.drop_objects += count),
        Fault::Burst { count } => {
            load::burst(shared, count);
        }
        Fault::Duplicate { count } => arm(&|it| it.duplicate += count),
        Fault::Answers { bad, count } => arm(&|it| it.answers.push_back((bad, count))),
        Fault::Reorg { depth } => {
            // A chain of one block has nothing to replace: then nothing happens.
            let now_s = shared.now_s();
            _ = shared.change(|core| core.reorg(depth.min(core.chain.undoable()), now_s));
        }
        Fault::TableFull { time } => {
            arm(&|it| it.table_full_until = Some(Instant::now() + time));
        }
        Fault::EndSubscriptions { topic, has_note } => {
            for connected in &mut shared.lock().connections {
                connected.end_subscriptions(topic, has_note);
            }
        }
        Fault::SendLine { at, line } => {
            let line = format!("{}\n", line.text());
            targets(shared, at).iter().for_each(|outbox| outbox.push(line.clone().into(), 0));
        }
        Fault::Reset { down } => {
            assert!(shared.executor.is_none(), "the state of another genesis is not kept");
            restart(shared, Restart { down, leaves_file: false, has_new_genesis: true });
        }
    }
}

fn restart(shared: &Shared, restart: Restart) {
    shared.lock().armed.restart = Some(restart);
    shared.restart.notify_one();
}

/// Follows a plan from the moment the load begins until its end or the node's.
pub(super) fn follow(shared: &Shared, plan: &FaultPlan) {
    if shared.wait_for_start() {
        return;
    }
    let begin = Instant::now();
    for (at, fault) in plan.steps() {
        if shared.sleep_until(begin + *at) {
            return;
        }
        inject(shared, *fault);
    }
    shared.signal(|state| state.plan_finished = true);
}

fn targets(shared: &Shared, at: Target) -> Vec<Arc<Outbox>> {
    let state = shared.lock();
    let wanted = |connected: &&Connected| match at {
        Target::All => true,
        Target::Subscription => !connected.subscriptions.is_empty(),
        Target::Hashes => connected.hears(Topic::Hashes),
        Target::Objects => connected.hears(Topic::Objects),
        Target::Request => connected.subscriptions.is_empty(),
    };
    let connections = state.connections.iter().filter(wanted);
    connections.map(|connected| connected.outbox.clone()).collect()
}
