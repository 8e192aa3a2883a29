//! One connection for requests: batches over IPC, each with a time-out.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::net::UnixStream,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use serde::Deserialize;
use serde_json::value::RawValue;

/// Calls in one batch. geth refuses more than 1,000, and answers to small ones overlap.
const BATCH: usize = 250;

/// Why the node's state could not be read.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum ReadError {
    /// No answer in time.
    #[error("no answer within {limit:?}")]
    Timeout { limit: Duration },
    /// A thread could not be started.
    #[error("cannot start a thread: {kind}")]
    Thread { kind: std::io::ErrorKind },
    /// The connection has ended.
    #[error("the connection is closed")]
    Closed,
    /// The node answered with an error.
    #[error("the node answered {code}: {message}")]
    Node { code: i64, message: String },
    /// The answer has the wrong form.
    #[error("the answer {found:?} is not {expected}")]
    Malformed { found: String, expected: &'static str },
    /// Unknown, and requests are not allowed at this point: recorded, and requested together with
    /// the others.
    #[error("not read yet")]
    NotReadYet,
}

impl revm::database_interface::DBErrorMarker for ReadError {}

/// A method and its parameters, written as JSON.
#[derive(Clone, Debug)]
pub(crate) struct Call(pub(crate) &'static str, pub(crate) String);

pub(crate) type Answer = Result<Box<RawValue>, ReadError>;

/// Answers with their ids.
type Batch = Vec<(u64, Answer)>;

/// By the first id of each outstanding batch.
type Waiting = Arc<Mutex<Option<BTreeMap<u64, SyncSender<Batch>>>>>;

pub(crate) struct Rpc {
    writer: Mutex<UnixStream>,
    waiting: Waiting,
    next_id: AtomicU64,
    timeout: Duration,
}

#[derive(Deserialize)]
struct Wire {
    id: Option<u64>,
    result: Option<Box<RawValue>>,
    error: Option<WireError>,
}

#[derive(Deserialize)]
struct WireError {
    code: i64,
    message: String,
}

impl Rpc {
    /// A thread of its own reads the socket until the connection ends.
    pub(crate) fn connect(path: &Path, timeout: Duration) -> std::io::Result<Self> {
        let named = |error: std::io::Error| {
            std::io::Error::new(error.kind(), format!("{}: {error}", path.display()))
        };
        let writer = UnixStream::connect(path).map_err(named)?;
        // A node that does not read must not block the builder.
        writer.set_write_timeout(Some(timeout))?;
        let reader = writer.try_clone()?;
        let waiting: Waiting = Arc::new(Mutex::new(Some(BTreeMap::new())));
        let shared = Arc::clone(&waiting);
        thread::Builder::new().name("builder-rpc".into()).spawn(move || {
            read(reader, &shared);
            // Waiting callers notice the drop of their senders; later ones find no map.
            *lock(&shared) = None;
        })?;
        Ok(Self { writer: Mutex::new(writer), waiting, next_id: AtomicU64::new(1), timeout })
    }

    pub(crate) fn one(&self, call: Call) -> Answer {
        self.batch(&[call])?.pop().unwrap_or(Err(ReadError::Closed))
    }

    pub(crate) fn chain_id(&self) -> Result<u64, ReadError> {
        let answer = self.one(Call("eth_chainId", "[]".into()))?;
        let id = serde_json::from_str::<alloy_primitives::U64>(answer.get());
        let malformed =
            |_| ReadError::Malformed { found: answer.get().into(), expected: "a chain id" };
        Ok(id.map_err(malformed)?.to())
    }

    /// Sends all calls at once; the responses are in the order of the calls.
    pub(crate) fn batch(&self, calls: &[Call]) -> Result<Vec<Answer>, ReadError> {
        let deadline = Instant::now() + self.timeout;
        let mut sent = Vec::new();
        for calls in calls.chunks(BATCH) {
            sent.push((self.send(calls)?, calls.len()));
        }
        let mut all = Vec::with_capacity(calls.len());
        for ((first, answers), len) in sent {
            let left = deadline.saturating_duration_since(Instant::now());
            let batch = match answers.recv_timeout(left) {
                Ok(batch) => batch,
                Err(RecvTimeoutError::Disconnected) => return Err(ReadError::Closed),
                Err(RecvTimeoutError::Timeout) => {
                    if let Some(waiting) = lock(&self.waiting).as_mut() {
                        waiting.remove(&first);
                    }
                    return Err(ReadError::Timeout { limit: self.timeout });
                }
            };
            let mut answers: Vec<Option<Answer>> = (0..len).map(|_| None).collect();
            for (id, answer) in batch {
                if let Some(slot) = answers.get_mut((id - first) as usize) {
                    *slot = Some(answer);
                }
            }
            all.extend(answers.into_iter().map(|answer| {
                let missing =
                    || ReadError::Malformed { found: String::new(), expected: "an answer" };
                answer.unwrap_or_else(|| Err(missing()))
            }));
        }
        Ok(all)
    }

    fn send(&self, calls: &[Call]) -> Result<(u64, Receiver<Batch>), ReadError> {
        let first = self.next_id.fetch_add(calls.len() as u64, Relaxed);
        let mut text = String::with_capacity(calls.len() * 220);
        for (id, Call(method, params)) in (first..).zip(calls) {
            text.push(if id == first { '[' } else { ',' });
            text.push_str(&format!(
                r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#
            ));
        }
        text.push_str("]\n");
        let (sender, answers) = sync_channel(1);
        lock(&self.waiting).as_mut().ok_or(ReadError::Closed)?.insert(first, sender);
        lock(&self.writer).write_all(text.as_bytes()).map_err(|_| ReadError::Closed)?;
        Ok((first, answers))
    }
}

impl Drop for Rpc {
    fn drop(&mut self) {
        // This also ends the reader. A closed socket needs no shutdown.
        let _ = lock(&self.writer).shutdown(std::net::Shutdown::Both);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Every node ends each response with a newline.
fn read(stream: UnixStream, waiting: &Waiting) {
    let mut reader = BufReader::with_capacity(1 << 16, stream);
    let mut line = Vec::new();
    loop {
        line.clear();
        match reader.read_until(b'\n', &mut line) {
            Ok(1..) => {}
            _ => return,
        }
        let text = line.trim_ascii();
        let wires = match text.first() {
            Some(b'[') => serde_json::from_slice::<Vec<Wire>>(text),
            Some(_) => serde_json::from_slice::<Wire>(text).map(|wire| vec![wire]),
            None => continue,
        };
        let Ok(wires) = wires else {
            eprintln!("warning: the node wrote what is no answer; the connection is given up");
            return;
        };
        let mut batch = Batch::new();
        for wire in wires {
            if let Some(id) = wire.id {
                batch.push((id, answer(wire)));
            }
        }
        let Some(&(id, _)) = batch.iter().min_by_key(|(id, _)| *id) else { continue };
        let mut waiting = lock(waiting);
        let Some(waiting) = waiting.as_mut() else { return };
        let first = waiting.range(..=id).next_back().map(|(first, _)| *first);
        if let Some(sender) = first.and_then(|first| waiting.remove(&first)) {
            // The caller may have stopped waiting.
            let _ = sender.send(batch);
        }
    }
}

fn answer(wire: Wire) -> Answer {
    match (wire.result, wire.error) {
        (Some(result), None) => Ok(result),
        (_, Some(error)) => Err(ReadError::Node { code: error.code, message: error.message }),
        (None, None) => Err(ReadError::Malformed { found: "null".into(), expected: "a result" }),
    }
}
