//! The whole system under everything that can go wrong, from one seed, judged by what the builders
//! hold.
//!
//! `cargo run --release -p trial -- --seed 7 --minutes 2` runs the world of a seed: [`world`] draws
//! nodes, members and incidents, [`run`] lets them happen, and [`oracle`] judges before each head
//! what every builder holds. [`scenario`] runs the attacks on an RPC port at full size instead.

mod attack;
mod builder_view;
mod command;
mod fleet;
mod growth;
mod hazard;
mod host;
mod link;
mod network;
mod oracle;
mod picture;
mod real;
mod run;
mod scenario;
mod searchers;
mod shrink;
mod story;
mod world;

use std::{
    path::PathBuf,
    process::ExitCode,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use clap::Parser;
use testkit::{member::Member, process::run_as};

use crate::{hazard::Hazard, oracle::Breach, world::World};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The open files that this process and its children may have: two addresses of an attacker hold as
/// many connections as the server lets them.
const MAX_OPEN_FILES: u64 = 8_192;

/// The most violations that are printed.
const MAX_PRINTED: usize = 5;

#[derive(Debug, Parser)]
#[command(about = "The whole system under everything that can go wrong, from one seed")]
struct Args {
    /// The seed of the world [default: a random one].
    #[arg(long)]
    seed: Option<u64>,
    /// The length of the run, in minutes.
    #[arg(long, default_value_t = 2.0)]
    minutes: f64,
    /// Whether the world has a fleet on NATS servers [default: the seed decides].
    #[arg(long)]
    fleet: Option<bool>,
    /// Kinds of further incidents, separated by commas; none if empty.
    #[arg(long, value_enum, value_delimiter = ',', num_args = 0..=1, default_values_t = Hazard::DEFAULT)]
    hazards: Vec<Hazard>,
    /// Run anvil and geth too, each read by a builder of its own. They must be installed, see
    /// scripts/real-nodes.sh.
    #[arg(long)]
    real: bool,
    /// Print the world and its incidents with their numbers, and exit.
    #[arg(long)]
    list: bool,
    /// Only the incidents with these numbers, as 3,17; none if empty.
    #[arg(long, value_delimiter = ',', num_args = 0..=1)]
    only: Option<Vec<usize>>,
    /// Print only violations and the summary.
    #[arg(long)]
    quiet: bool,
    /// After a violation, look for the shortest list of incidents that still shows it.
    #[arg(long)]
    shrink: bool,
    /// Draw the run into this SVG file.
    #[arg(long)]
    picture: Option<PathBuf>,
    /// Run the scenarios whose names contain this instead, one by one at full size.
    #[arg(long, value_name = "NAME")]
    scenario: Vec<String>,
    /// Run all scenarios.
    #[arg(long)]
    scenarios: bool,
    /// With --scenarios: run each for a moment only.
    #[arg(long)]
    test: bool,
}

/// Locks a mutex. A thread that panics ends the run by itself, so a poisoned value is never used
/// long.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn main() -> ExitCode {
    let child = Member::run_if_child().or_else(|| run_as(attack::ROLE, attack::respond));
    if std::env::args_os().nth(1).is_some_and(|role| role == command::ROLE) {
        return command::run();
    }
    child.unwrap_or_else(|| match trial(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    })
}

/// Runs what the arguments ask for. Returns whether all promises were kept.
fn trial(args: &Args) -> Result<bool, run::Failure> {
    testkit::usage::allow_open_files(MAX_OPEN_FILES)?;
    if args.scenarios || !args.scenario.is_empty() {
        return scenario::run_all(&args.scenario, args.test);
    }
    let seed = args.seed.unwrap_or_else(|| rand::random_range(0..100_000));
    let duration = Duration::from_secs_f64(args.minutes * 60.0);
    let mut world = World::from_seed(seed, duration, args.fleet);
    if args.real {
        world = world.with_real();
    }
    world = world.with_hazards(&args.hazards);
    let kept = kept_entries(args, &world)?;
    if args.list {
        println!("{:#?}", world.only(&kept));
        world.print_timeline(&kept);
        return Ok(true);
    }
    let result = run::run(&world.only(&kept), args.quiet)?;
    for violation in result.violations.iter().take(MAX_PRINTED) {
        println!(
            "VIOLATION, seed {seed}, member {}: {:?} {}\n{}",
            violation.member, violation.breach, violation.hash, violation.story
        );
    }
    if let Some(path) = &args.picture {
        picture::draw(path, &result)?;
    }
    println!("{}", result.summary);
    if let (true, Some(violation)) = (args.shrink, result.violations.first()) {
        // An incident after the violation is not its cause.
        let found_at = result.heads.last().map_or(world.duration, |head| head.time);
        let before = kept.into_iter().filter(|number| world.timeline[*number].0 <= found_at);
        shrink_and_print(args, &world, before.collect(), violation.breach);
    }
    Ok(result.violations.is_empty())
}

/// Returns the numbers of the entries that are run, in order and each once.
fn kept_entries(args: &Args, world: &World) -> Result<Vec<usize>, run::Failure> {
    let entries = world.timeline.len();
    let mut kept = args.only.clone().unwrap_or_else(|| (0..entries).collect());
    if let Some(number) = kept.iter().find(|number| **number >= entries) {
        return Err(format!("--only {number}: there are {entries} entries, from 0 on").into());
    }
    kept.sort_unstable();
    kept.dedup();
    Ok(kept)
}

/// Prints the shortest list of entries that shows a breach, and the command that runs it.
fn shrink_and_print(args: &Args, world: &World, kept: Vec<usize>, breach: Breach) {
    let kept = shrink::shrink(world, kept, breach);
    println!("{breach:?} is still shown by these:");
    world.print_timeline(&kept);
    let hazards: Vec<_> = args.hazards.iter().map(Hazard::name).collect();
    let numbers: Vec<_> = kept.iter().map(usize::to_string).collect();
    println!(
        "cargo run --release -p trial -- --seed {} --minutes {} --fleet {}{} --hazards {} --only {}",
        world.seed,
        args.minutes,
        world.has_fleet,
        if args.real { " --real" } else { "" },
        hazards.join(","),
        numbers.join(",")
    );
}
