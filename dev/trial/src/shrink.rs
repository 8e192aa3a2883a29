//! The shortest list of faults and attacks that still shows what is wrong.

use crate::{oracle::Wrong, run, world::World};

/// How often a shorter list is run before it counts as one that shows nothing.
const TIMES: usize = 3;

/// Runs the world again and again, with fewer and fewer of these entries; returns those that are left.
pub(crate) fn shrink(world: &World, mut kept: Vec<usize>, wrong: Wrong) -> Vec<usize> {
    let shows = |kept: &[usize]| {
        (0..TIMES).any(|_| match run::run(&world.only(kept), true) {
            Ok(outcomes) => outcomes.violations.iter().any(|violation| violation.wrong == wrong),
            Err(error) => {
                eprintln!("warning: {error}");
                false
            }
        })
    };
    let mut size = kept.len().div_ceil(2);
    while size > 0 {
        let mut from = 0;
        while from < kept.len() {
            let mut shorter = kept.clone();
            shorter.drain(from..(from + size).min(kept.len()));
            if shows(&shorter) {
                kept = shorter;
                println!("shrunk to {} entries", kept.len());
            } else {
                from += size;
            }
        }
        size = if size == 1 { 0 } else { size.div_ceil(2) };
    }
    kept
}
