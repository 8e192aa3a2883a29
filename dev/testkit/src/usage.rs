//! The CPU time and the memory of a process, and the clock that all processes share.

use std::{collections::BTreeMap, fs, io, time::Duration};

use nix::{
    sys::{
        resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit},
        time::TimeVal,
    },
    time::{ClockId, clock_gettime},
};
use serde::{Deserialize, Serialize};

/// Returns the user and system time of this process.
pub fn process_cpu() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("the kernel knows it");
    duration(usage.user_time()) + duration(usage.system_time())
}

fn duration(time: TimeVal) -> Duration {
    Duration::from_secs(time.tv_sec() as u64) + Duration::from_micros(time.tv_usec() as u64)
}

/// Returns the user and system time of the calling thread.
pub fn thread_cpu() -> Duration {
    // `getrusage` would only be as of the last tick of the scheduler.
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("every Linux has this clock").into()
}

/// Returns the user and system time of another process, with a resolution of 10 ms.
pub fn cpu_of(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    // The name, which is in brackets, may contain spaces.
    let (_, fields) = stat.rsplit_once(") ").expect("a name in brackets");
    let ticks = fields.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<u64>());
    // Linux reports hundredths of a second, whatever its own clock.
    Duration::from_millis(ticks.map(|ticks| ticks.expect("a number") * 10).sum())
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadUse {
    /// User and system time.
    pub cpu: Duration,
    /// How many times they waited, and were woken.
    pub waits: u64,
}

/// Returns the usage of the running threads of this process. Threads with the same name are added
/// up.
pub fn threads() -> BTreeMap<String, ThreadUse> {
    let mut threads = BTreeMap::<_, ThreadUse>::new();
    for task in fs::read_dir("/proc/self/task").expect("this is Linux") {
        let read = |name| fs::read_to_string(task.as_ref().expect("an entry").path().join(name));
        // The thread may just have ended.
        let (Ok(name), Ok(times), Ok(status)) = (read("comm"), read("schedstat"), read("status"))
        else {
            continue;
        };
        let cpu_ns = times.split(' ').next().and_then(|ns| ns.parse().ok());
        let waits = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        let entry = threads.entry(name.trim().to_owned()).or_default();
        entry.cpu += Duration::from_nanos(cpu_ns.expect("the first field is a number"));
        entry.waits += waits.and_then(|count| count.trim().parse::<u64>().ok()).expect("a number");
    }
    threads
}

/// Returns the resident memory of this process, in bytes. Memory that was freed earlier hides later
/// allocations, so a measurement needs its own process.
pub fn resident_bytes() -> usize {
    status_bytes("VmRSS:")
}

/// Returns the highest resident memory of this process since the last call, in bytes.
pub fn peak_resident_bytes() -> usize {
    let peak = status_bytes("VmHWM:");
    // This resets the peak, see proc(5).
    fs::write("/proc/self/clear_refs", "5").expect("a process may do it to itself");
    peak
}

fn status_bytes(name: &str) -> usize {
    let status = fs::read_to_string("/proc/self/status").expect("this is Linux");
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("it has a line");
    let kib = line.trim().strip_suffix(" kB").expect("in kB").trim().parse::<usize>();
    kib.expect("a number") << 10
}

/// Raises the limit of open files of this process to `count`, as far as the hard limit permits.
pub fn allow_open_files(count: u64) -> io::Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, soft.max(count.min(hard)), hard)?)
}

/// Limits the open files of this process to `count`; `None` removes the limit, as far as the hard
/// limit permits.
pub fn bound_open_files(count: Option<u64>) -> io::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, count.unwrap_or(hard), hard)?)
}

/// Returns the number of TCP connections at a port of this machine that neither side has closed.
pub fn established_connections(port: u16) -> usize {
    // See proc(5): the second field is the local address, the fourth is the state.
    let is_one = |line: &&str| {
        let fields: Vec<_> = line.split_whitespace().take(4).collect();
        matches!(fields[..], [_, local, _, "01"] if local.ends_with(&format!(":{port:04X}")))
    };
    let tables = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];
    let texts = tables.iter().filter_map(|table| fs::read_to_string(table).ok());
    texts.map(|text| text.lines().filter(is_one).count()).sum()
}

/// Returns `CLOCK_MONOTONIC` in nanoseconds, which is the same in all processes of the machine.
pub fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("every Linux has this clock");
    time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
}
