//! Makes a fault strike a running node.

use std::{sync::Arc, time::Instant};

use super::{load, supply::Supply};
use crate::{
    faults::{Fault, FaultPlan, Target},
    outbox::{Freeze, Outbox},
    shared::{Shared, Topic, unix_s},
};

pub(super) fn inject(shared: &Shared, supply: &Supply, fault: Fault) {
    tracing::debug!(?fault, "a fault strikes");
    let switches = &shared.switches;
    match fault {
        Fault::Close(at) => targets(shared, at).iter().for_each(|outbox| outbox.close()),
        Fault::CloseMidFrame(at) => targets(shared, at).iter().for_each(|outbox| outbox.cut()),
        Fault::CloseOnAccept { connections } => switches.close_on_accept.add(connections),
        Fault::CloseAfterSubscribe { connections } => {
            switches.close_after_subscribe.add(connections);
        }
        Fault::Stall { at, time } => {
            let until = Freeze::Until(Instant::now() + time);
            targets(shared, at).iter().for_each(|outbox| outbox.freeze(until));
        }
        Fault::GoDead(at) => {
            targets(shared, at).iter().for_each(|outbox| outbox.freeze(Freeze::Forever));
        }
        Fault::Restart { down, leaves_file } => {
            switches.ask_restart(down, leaves_file);
        }
        Fault::DropNotifications { count } => switches.drop_notifications.add(count),
        Fault::DropObjects { count } => switches.drop_objects.add(count),
        Fault::Burst { count } => {
            load::burst(shared, supply, count);
        }
        Fault::Duplicate { count } => switches.duplicate.add(count),
        Fault::Answers { bad, count } => switches.arm_answers(bad, count),
        Fault::Reorg { depth } => {
            let mut state = shared.lock();
            let depth = depth.min(state.core.chain.undoable());
            // A chain of one block has nothing to replace: then nothing happens.
            if let Ok((_, effects)) = state.core.reorg(depth, unix_s()) {
                shared.publish(&state, effects);
            }
        }
        Fault::TableFull { time } => switches.fill_table(Instant::now() + time),
    }
}

/// Follows a plan from the moment the load begins until its end or the node's.
pub(super) fn follow(shared: &Shared, supply: &Supply, plan: &FaultPlan) {
    if load::wait_for_start(shared) {
        return;
    }
    let begin = Instant::now();
    for (at, fault) in plan.steps() {
        if shared.signals.sleep_until(begin + *at) {
            return;
        }
        inject(shared, supply, *fault);
    }
    shared.signals.set(|flags| flags.plan_finished = true);
}

fn targets(shared: &Shared, at: Target) -> Vec<Arc<Outbox>> {
    let state = shared.lock();
    let of = |number: u64| state.subscriptions.iter().filter(move |sub| sub.connection == number);
    let wanted = |number: u64| match at {
        Target::All => true,
        Target::Subscription => of(number).next().is_some(),
        Target::Hashes => of(number).any(|sub| sub.topic == Topic::Hashes),
        Target::Objects => of(number).any(|sub| sub.topic == Topic::Objects),
        Target::Request => of(number).next().is_none(),
    };
    let connections = state.connections.iter().filter(|(number, _)| wanted(*number));
    connections.map(|(_, outbox)| outbox.clone()).collect()
}
