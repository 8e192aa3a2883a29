//! The shortest list of faults and attacks that still shows what is wrong.

use crate::{oracle::Wrong, run, world::World};

/// How often a shorter list is run before it counts as one that shows nothing.
const TIMES: usize = 3;

/// Runs the world again and again.
pub(crate) fn shrink(mut world: World, wrong: Wrong) {
    let shows = |world: &World| {
        (0..TIMES).any(|_| match run::run(world, true) {
            Ok(outcomes) => outcomes.violations.iter().any(|violation| violation.wrong == wrong),
            Err(error) => {
                eprintln!("warning: {error}");
                false
            }
        })
    };
    let mut size = world.timeline.len().div_ceil(2);
    while size > 0 {
        let mut from = 0;
        while from < world.timeline.len() {
            let mut shorter = world.clone();
            shorter.timeline.drain(from..(from + size).min(world.timeline.len()));
            if shows(&shorter) {
                world = shorter;
                println!("shrunk to {} entries", world.timeline.len());
            } else {
                from += size;
            }
        }
        size = if size == 1 { 0 } else { size.div_ceil(2) };
    }
    println!("{wrong:?} is still shown by these:");
    world.print_timeline();
}
