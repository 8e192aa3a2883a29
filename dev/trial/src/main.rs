//! The whole system under everything that can go wrong, from one seed, judged by what the builders have.
//!
//! `cargo run --release -p trial -- --seed 7 --minutes 2`

mod attack;
mod clock;
mod hazard;
mod mirror;
mod net;
mod network;
mod oracle;
mod picture;
mod real;
mod run;
mod scenario;
mod searchers;
mod shrink;
mod world;

use std::{
    path::PathBuf,
    process::ExitCode,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use clap::Parser;
use testkit::{member::Member, process::run_as};

use crate::{hazard::Hazard, world::World};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[derive(Debug, Parser)]
#[command(about = "The whole system under everything that can go wrong, from one seed")]
struct Args {
    #[arg(long)]
    seed: Option<u64>,
    #[arg(long, default_value_t = 2.0)]
    minutes: f64,
    /// Whether the world has a fleet on NATS servers; else the seed decides.
    #[arg(long)]
    fleet: Option<bool>,
    /// Also what the product does not keep all its promises under yet, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',')]
    hazards: Vec<Hazard>,
    /// With anvil and geth beside the mock nodes, each read by a builder of its own; needs them installed, see
    /// scripts/real-nodes.sh.
    #[arg(long)]
    real: bool,
    /// Print what would strike when, each with its number, and end.
    #[arg(long)]
    list: bool,
    /// Of that list only the entries with these numbers, as 3,17; none without a number.
    #[arg(long, value_delimiter = ',', num_args = 0..=1)]
    only: Option<Vec<usize>>,
    /// Print only what is wrong and the summary.
    #[arg(long)]
    quiet: bool,
    /// When something is wrong, leave out one entry after the other, and print the shortest list that still shows it.
    #[arg(long)]
    shrink: bool,
    /// Draw the run into this file, as SVG.
    #[arg(long)]
    picture: Option<PathBuf>,
    /// Instead: the attacks on an RPC port whose names contain this, one by one at full size.
    #[arg(long, value_name = "NAME")]
    scenario: Vec<String>,
    /// All of them.
    #[arg(long)]
    scenarios: bool,
    /// Of scenarios: also those in which not all is kept yet that is promised.
    #[arg(long)]
    ahead: bool,
    /// Of scenarios: each for a moment.
    #[arg(long)]
    test: bool,
}

/// A thread that panics ends the run by itself.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn main() -> ExitCode {
    let ended = Member::run_if_child().or_else(|| run_as(attack::ROLE, attack::respond));
    ended.unwrap_or_else(|| match trial(&Args::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    })
}

fn trial(args: &Args) -> Result<ExitCode, run::Failure> {
    // Of all processes, which inherit it: two addresses of an attacker hold as many connections as they get.
    testkit::usage::allow_open_files(8_192)?;
    if args.scenarios || !args.scenario.is_empty() {
        let is_right = scenario::run_all(&args.scenario, args.test, args.ahead)?;
        return Ok(if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let seed = args.seed.unwrap_or_else(|| rand::random_range(0..100_000));
    let mut world =
        World::from_seed(seed, Duration::from_secs_f64(args.minutes * 60.0), args.fleet);
    if args.real {
        world = world.with_real();
    }
    world = world.with_hazards(&args.hazards);
    let entries = world.timeline.len();
    let mut kept = args.only.clone().unwrap_or_else(|| (0..entries).collect());
    if let Some(number) = kept.iter().find(|number| **number >= entries) {
        return Err(format!("--only {number}: there are {entries} entries, from 0 on").into());
    }
    // They strike in the order of the list.
    kept.sort_unstable();
    kept.dedup();
    if args.list {
        println!("{:#?}", world.only(&kept));
        world.print_timeline(&kept);
        return Ok(ExitCode::SUCCESS);
    }
    let outcomes = run::run(&world.only(&kept), args.quiet)?;
    for violation in outcomes.violations.iter().take(5) {
        println!(
            "VIOLATION, seed {seed}, member {}: {:?} {}\n{}",
            violation.member, violation.wrong, violation.hash, violation.text
        );
    }
    if let Some(path) = &args.picture {
        picture::draw(path, &outcomes)?;
    }
    println!("{}", outcomes.summary);
    if let (true, Some(violation)) = (args.shrink, outcomes.violations.first()) {
        // What came after it is not its cause.
        let found = outcomes.heads.last().map_or(world.lasts, |head| head.at);
        kept.retain(|number| world.timeline[*number].0 <= found);
        let kept = shrink::shrink(&world, kept, violation.wrong);
        println!("{:?} is still shown by these:", violation.wrong);
        world.print_timeline(&kept);
        let hazards: Vec<_> = args.hazards.iter().map(Hazard::name).collect();
        let hazards = match &hazards[..] {
            [] => String::new(),
            names => format!(" --hazards {}", names.join(",")),
        };
        let numbers: Vec<_> = kept.iter().map(usize::to_string).collect();
        println!(
            "cargo run --release -p trial -- --seed {seed} --minutes {} --fleet {}{}{hazards} --only {}",
            args.minutes,
            world.has_fleet,
            if args.real { " --real" } else { "" },
            numbers.join(",")
        );
    }
    Ok(if outcomes.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
