//! The shortest list of faults and attacks that still shows what is wrong.

use std::time::Duration;

use crate::{
    oracle::Wrong,
    run,
    world::{What, World},
};

/// How often a shorter list is run before it counts as one that shows nothing.
const TIMES: usize = 3;

/// Runs the world again and again. `left` are the entries of the whole list that had struck.
pub(crate) fn shrink(
    mut world: World,
    all: &[(Duration, What)],
    mut left: Vec<usize>,
    wrong: Wrong,
) {
    let mut shows = |kept: &[usize]| {
        world.timeline = kept.iter().map(|entry| all[*entry]).collect();
        (0..TIMES).any(|_| match run::run(&world, true) {
            Ok(outcomes) => outcomes.violations.iter().any(|violation| violation.wrong == wrong),
            Err(error) => {
                eprintln!("warning: {error}");
                false
            }
        })
    };
    let mut size = left.len().div_ceil(2);
    while size > 0 {
        let mut from = 0;
        while from < left.len() {
            let mut kept = left.clone();
            kept.drain(from..(from + size).min(left.len()));
            if shows(&kept) {
                left = kept;
                println!("shrunk to {} entries", left.len());
            } else {
                from += size;
            }
        }
        size = if size == 1 { 0 } else { size.div_ceil(2) };
    }
    println!("{wrong:?} is still shown by these:");
    for entry in left {
        let (at, what) = &all[entry];
        println!("{entry:3}  {:6.1} s  {what}", at.as_secs_f64());
    }
}
