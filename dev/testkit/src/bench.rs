//! The arguments of a bench, from the command line and the environment, and its pace.

use std::{
    env,
    fmt::Display,
    ops::RangeInclusive,
    process,
    str::FromStr,
    thread,
    time::{Duration, Instant},
};

/// The command line: flags of the harness, and words that select parts of the bench.
#[derive(Clone, Debug)]
pub struct Args {
    pub flags: Vec<String>,
    pub words: Vec<String>,
}

/// Options of criterion that are followed by a value.
const WITH_VALUE: [&str; 20] = [
    "-b",
    "-c",
    "-s",
    "--baseline",
    "--baseline-lenient",
    "--color",
    "--colour",
    "--confidence-level",
    "--format",
    "--load-baseline",
    "--measurement-time",
    "--noise-threshold",
    "--nresamples",
    "--output-format",
    "--plotting-backend",
    "--profile-time",
    "--sample-size",
    "--save-baseline",
    "--significance-level",
    "--warm-up-time",
];

impl Args {
    pub fn read() -> Self {
        Self::parse(env::args().skip(1))
    }

    fn parse(mut args: impl Iterator<Item = String>) -> Self {
        let mut parsed = Self { flags: Vec::new(), words: Vec::new() };
        while let Some(arg) = args.next() {
            if WITH_VALUE.contains(&arg.as_str()) {
                args.next();
            }
            let is_flag = arg.starts_with('-');
            if is_flag { &mut parsed.flags } else { &mut parsed.words }.push(arg);
        }
        parsed
    }

    /// Whether a flag was given.
    pub fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|given| given == flag)
    }

    /// Whether each part runs only once: with `cargo bench -- --test`, and without `cargo bench`.
    pub fn is_test(&self) -> bool {
        self.has("--test") || !self.has("--bench")
    }

    /// Whether a part runs: its name contains one of the words, or there are no words.
    pub fn choose(&self, part: &str) -> bool {
        self.words.is_empty() || self.words.iter().any(|word| part.contains(word.as_str()))
    }
}

/// Reads numbers from an environment variable, separated by commas. Ends the process if the text is
/// invalid or a number is out of range.
pub fn numbers<T: FromStr + PartialOrd + Display>(
    name: &str,
    default: &str,
    range: RangeInclusive<T>,
) -> Vec<T> {
    let text = env::var(name).unwrap_or_else(|_| default.to_owned());
    let number = |text: &str| text.trim().parse().ok().filter(|number| range.contains(number));
    text.split(',').map(number).collect::<Option<_>>().unwrap_or_else(|| {
        let (least, most) = (range.start(), range.end());
        eprintln!("error: {name} is {text:?}, expected {least} to {most}, as in {default}");
        process::exit(2)
    })
}

/// Like [`numbers`], for a single number.
pub fn number<T: FromStr + PartialOrd + Display>(
    name: &str,
    default: &str,
    range: RangeInclusive<T>,
) -> T {
    numbers(name, default, range).swap_remove(0)
}

/// Yields the times at which items are due: `tps` per second, or all at once. It sleeps until each
/// is due. The schedule does not depend on how late earlier items were, so the pace does not drift.
pub fn pace(tps: Option<u32>) -> impl Iterator<Item = Instant> {
    let start = Instant::now();
    (0_u64..).map(move |number| {
        let after = tps.map_or(0, |tps| number * 1_000_000_000 / u64::from(tps));
        let due = start + Duration::from_nanos(after);
        thread::sleep(due.saturating_duration_since(Instant::now()));
        due
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_of_an_option_selects_no_part() {
        let args = "--save-baseline before rates --noplot --bench".split(' ').map(str::to_owned);
        let args = Args::parse(args);
        assert_eq!(args.words, ["rates"]);
        assert_eq!(args.flags, ["--save-baseline", "--noplot", "--bench"]);
        assert!(args.choose("rates") && !args.choose("scale"));
    }
}
