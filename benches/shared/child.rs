//! Children of a bench: this program again in another role, spoken with in lines of JSON over its
//! stdin and stdout, so that what they burn is theirs and can be counted.

use std::{
    io::{self, BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::Duration,
};

use nix::sys::{
    resource::{UsageWho, getrusage},
    time::TimeVal,
};
use serde::{Serialize, de::DeserializeOwned};

/// A running child. Its stdin closes when this is dropped, or when the bench dies in any way: then
/// it ends.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Process {
    pub(crate) fn spawn(role: &str) -> io::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg(role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let orders = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().expect("it is piped"));
        Ok(Self { child, orders, answers })
    }

    pub(crate) fn tell(&mut self, order: &impl Serialize) -> io::Result<()> {
        write(self.orders.as_mut().expect("taken only by the drop"), order)
    }

    pub(crate) fn hear<T: DeserializeOwned>(&mut self) -> io::Result<T> {
        read(&mut self.answers)?.ok_or_else(|| io::Error::other("the child has ended"))
    }

    pub(crate) fn ask<T: DeserializeOwned>(&mut self, order: &impl Serialize) -> io::Result<T> {
        self.tell(order)?;
        self.hear()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.orders.take());
        if let Err(error) = self.child.wait() {
            eprintln!("warning: waiting for a child: {error}");
        }
    }
}

/// Obeys until stdin ends.
pub(crate) fn obey<O: DeserializeOwned, A: Serialize>(
    mut act: impl FnMut(O) -> io::Result<A>,
) -> io::Result<()> {
    let mut stdin = io::stdin().lock();
    while let Some(order) = read(&mut stdin)? {
        write(&mut io::stdout(), &act(order)?)?;
    }
    Ok(())
}

fn read<T: DeserializeOwned>(from: &mut impl BufRead) -> io::Result<Option<T>> {
    let mut line = String::new();
    match from.read_line(&mut line)? {
        0 => Ok(None),
        _ => Ok(Some(serde_json::from_str(&line)?)),
    }
}

fn write(to: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    to.write_all(&line)?;
    to.flush()
}

/// User and system time so far, of the process or of the calling thread.
pub(crate) fn cpu(who: UsageWho) -> Duration {
    let usage = getrusage(who).expect("asked for what exists");
    let time = |time: TimeVal| {
        Duration::from_secs(time.tv_sec() as u64) + Duration::from_micros(time.tv_usec() as u64)
    };
    time(usage.user_time()) + time(usage.system_time())
}

/// User and system time of this process so far.
pub(crate) fn own_cpu() -> Duration {
    cpu(UsageWho::RUSAGE_SELF)
}
