//! The shortest list of faults and attacks that still shows what is wrong.

use std::{
    env, io,
    process::{Command, Stdio},
};

use crate::{oracle::Violation, world::World};

/// How often a shorter list is run before it counts as one that shows nothing.
const TIMES: usize = 3;

/// Runs this program again and again. `of` is the run: its minutes, and how many entries had struck.
pub(crate) fn shrink(
    world: &World,
    fleet: Option<bool>,
    (minutes, struck): (f64, usize),
    without: &[usize],
    violation: &Violation,
) -> io::Result<()> {
    let wanted = format!("{:?}", violation.wrong);
    let all = World::from_seed(world.seed, world.lasts, fleet);
    let all = if world.has_real { all.with_real() } else { all }.timeline;
    let present: Vec<_> = (0..all.len()).filter(|entry| !without.contains(entry)).collect();
    // What came after it is not its cause.
    let mut left: Vec<_> = present.into_iter().take(struck).collect();
    let shows = |kept: &[usize]| -> io::Result<bool> {
        let without = (0..all.len()).filter(|entry| !kept.contains(entry));
        let without: Vec<_> = without.map(|entry| entry.to_string()).collect();
        for _ in 0..TIMES {
            let mut again = Command::new(env::current_exe()?);
            again.args(["--quiet", "--seed", &world.seed.to_string()]);
            again.args(["--minutes", &minutes.to_string(), "--without", &without.join(",")]);
            again.args(fleet.iter().map(|fleet| format!("--fleet={fleet}")));
            again.args(world.has_real.then_some("--real"));
            let output = again.stderr(Stdio::null()).output()?;
            if String::from_utf8_lossy(&output.stdout).contains(&wanted) {
                return Ok(true);
            }
        }
        Ok(false)
    };
    let mut size = left.len().div_ceil(2);
    while size > 0 {
        let mut from = 0;
        while from < left.len() {
            let mut kept = left.clone();
            kept.drain(from..(from + size).min(left.len()));
            if shows(&kept)? {
                left = kept;
                println!("shrunk to {} entries", left.len());
            } else {
                from += size;
            }
        }
        size = if size == 1 { 0 } else { size.div_ceil(2) };
    }
    println!("{wanted} is still shown by these:");
    for entry in left {
        let (at, what) = &all[entry];
        println!("{entry:3}  {:6.1} s  {what}", at.as_secs_f64());
    }
    Ok(())
}
