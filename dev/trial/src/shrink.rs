//! Finds the shortest timeline that still shows a violation.

use crate::{oracle::Breach, run, world::World};

/// How often a shorter timeline is run before it counts as one that shows nothing.
const ATTEMPTS: usize = 3;

/// Runs the world again and again with fewer and fewer of these entries. Returns those that are
/// left.
pub(crate) fn shrink(world: &World, mut kept: Vec<usize>, breach: Breach) -> Vec<usize> {
    let shows_breach = |kept: &[usize]| {
        (0..ATTEMPTS).any(|_| match run::run(&world.only(kept), true) {
            Ok(result) => result.violations.iter().any(|violation| violation.breach == breach),
            Err(error) => {
                eprintln!("warning: {error}");
                false
            }
        })
    };
    let mut size = kept.len().div_ceil(2);
    while size > 0 {
        let mut start = 0;
        while start < kept.len() {
            let mut shorter = kept.clone();
            shorter.drain(start..(start + size).min(kept.len()));
            if shows_breach(&shorter) {
                kept = shorter;
                println!("shrunk to {} entries", kept.len());
            } else {
                start += size;
            }
        }
        size = if size == 1 { 0 } else { size.div_ceil(2) };
    }
    kept
}
