//! Child processes that run the current program in another role, so that their CPU time and memory
//! can be measured separately. Requests and responses are lines of JSON over stdin and stdout.

use std::{
    io::{self, BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio},
};

use serde::{Serialize, de::DeserializeOwned};

/// A running child. It ends when its stdin is closed: when this is dropped, and when the parent
/// ends for any reason.
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

    /// Like [`Self::spawn`], with these environment variables.
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

/// Runs `role` if this process was started for it. A program that spawns such processes must call
/// this first.
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

/// Answers requests until stdin ends, in the child.
pub fn serve<Request: DeserializeOwned, Response: Serialize>(
    mut respond: impl FnMut(Request) -> io::Result<Response>,
) -> io::Result<()> {
    let mut stdin = io::stdin().lock();
    while let Some(request) = read(&mut stdin)? {
        write(&mut io::stdout(), &respond(request)?)?;
    }
    Ok(())
}

/// Makes a response for [`serve`] whose type depends on the request.
pub fn reply(response: impl Serialize) -> io::Result<serde_json::Value> {
    Ok(serde_json::to_value(response)?)
}

fn read<T: DeserializeOwned>(reader: &mut impl BufRead) -> io::Result<Option<T>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    Ok(Some(serde_json::from_str(&line)?))
}

fn write(writer: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    writer.write_all(&line)?;
    writer.flush()
}
