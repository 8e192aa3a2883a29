//! Child processes: the running program again, in another role. They are spoken with in lines of JSON over stdin and
//! stdout, so that the CPU time and the memory that they use are theirs and can be told apart.

use std::{
    io::{self, BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio},
};

use serde::{Serialize, de::DeserializeOwned};

/// A running child. Its stdin closes when this is dropped, or when the parent dies in any way: then it ends.
#[derive(Debug)]
pub struct Process {
    child: Child,
    requests: Option<ChildStdin>,
    responses: BufReader<ChildStdout>,
}

impl Process {
    /// Starts this program with `role` as its first argument.
    pub fn spawn(role: &str) -> io::Result<Self> {
        Self::spawn_with(role, [])
    }

    /// The same with these variables in its environment.
    pub fn spawn_with<'a>(
        role: &str,
        variables: impl IntoIterator<Item = (&'a str, &'a Path)>,
    ) -> io::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg(role)
            .envs(variables)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let requests = child.stdin.take();
        let responses = BufReader::new(child.stdout.take().expect("it is piped"));
        Ok(Self { child, requests, responses })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a request; [`Self::receive`] waits for its response.
    pub fn send(&mut self, request: &impl Serialize) -> io::Result<()> {
        write(self.requests.as_mut().expect("taken only by the drop"), request)
    }

    pub fn receive<T: DeserializeOwned>(&mut self) -> io::Result<T> {
        read(&mut self.responses)?.ok_or_else(|| io::Error::other("the child has ended"))
    }

    pub fn request<T: DeserializeOwned>(&mut self, request: &impl Serialize) -> io::Result<T> {
        self.send(request)?;
        self.receive()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.requests.take());
        if let Err(error) = self.child.wait() {
            eprintln!("warning: waiting for a child process: {error}");
        }
    }
}

/// Runs `role` until its end if this process was started for it: the first thing that a program does which spawns it.
#[must_use = "the role's exit code is the process's"]
pub fn run_as(role: &str, run: impl FnOnce() -> io::Result<()>) -> Option<ExitCode> {
    (std::env::args_os().nth(1)? == role).then(|| match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{role}: {error}");
            ExitCode::FAILURE
        }
    })
}

/// In the child: answers requests until stdin ends.
pub fn serve<Request: DeserializeOwned, Response: Serialize>(
    mut respond: impl FnMut(Request) -> io::Result<Response>,
) -> io::Result<()> {
    let mut stdin = io::stdin().lock();
    while let Some(request) = read(&mut stdin)? {
        write(&mut io::stdout(), &respond(request)?)?;
    }
    Ok(())
}

/// A response of [`serve`] whose type depends on the request.
pub fn reply(response: impl Serialize) -> io::Result<serde_json::Value> {
    Ok(serde_json::to_value(response)?)
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
