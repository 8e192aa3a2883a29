//! A proxy between a fetcher and a node, at Unix sockets, that delays what the node sends, freezes
//! one direction, or drops the messages of one kind.

use std::{
    collections::HashMap,
    io::{self, BufReader, Write as _},
    net::Shutdown,
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, mpsc},
    thread,
    time::{Duration, Instant},
};

use serde::Deserialize;
use serde_json::{Value, value::RawValue};

/// How often a frozen direction is looked at again.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// What the proxy does to every connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Everything that the node sends is late by this.
    Delay(Duration),
    /// Nothing that the node sends passes, until the fault ends.
    FreezeToClient,
    /// Nothing that the client sends passes, until the fault ends.
    FreezeToNode,
    /// Answers to this method are dropped.
    DropAnswers(&'static str),
    /// Notifications of this subscription are dropped: "hashes", "objects" or "heads".
    DropNotifications(&'static str),
}

#[derive(Default)]
struct State {
    fault: Mutex<Option<Fault>>,
}

/// A running proxy. Its threads end with their connections.
pub(crate) struct Proxy {
    path: PathBuf,
    state: Arc<State>,
}

impl Proxy {
    /// Listens at `path` for clients of the node at `node`.
    pub(crate) fn start(path: PathBuf, node: &Path) -> io::Result<Self> {
        let (listener, node) = (UnixListener::bind(&path)?, node.to_owned());
        let state = Arc::<State>::default();
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // A client of a node that is gone is closed.
                let Ok(node) = UnixStream::connect(&node) else { continue };
                forward(client, node, &shared).expect("the sockets can be cloned");
            }
        });
        Ok(Self { path, state })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Begins a fault, or ends the one that lasts.
    pub(crate) fn set(&self, fault: Option<Fault>) {
        *self.state.fault() = fault;
    }
}

impl State {
    fn fault(&self) -> MutexGuard<'_, Option<Fault>> {
        self.fault.lock().expect("no holder panics")
    }

    fn wait_while(&self, fault: Fault) {
        while *self.fault() == Some(fault) {
            thread::sleep(CHECK_INTERVAL);
        }
    }
}

/// The kinds of the messages of one connection that the node will send.
#[derive(Default)]
struct Kinds {
    /// The method of each request, or the topic of a subscription, by its id.
    requests: Mutex<HashMap<u64, String>>,
    /// The topic of each subscription, by its id.
    subscriptions: Mutex<HashMap<String, String>>,
}

/// Forwards both directions of a connection, each on threads of its own, until either side closes.
fn forward(client: UnixStream, node: UnixStream, state: &Arc<State>) -> io::Result<()> {
    let kinds = Arc::<Kinds>::default();
    let (to_node, to_client) = (node.try_clone()?, client.try_clone()?);
    let (up_state, up_kinds) = (Arc::clone(state), Arc::clone(&kinds));
    thread::spawn(move || {
        // The error is the end of the connection.
        let _ = forward_requests(&client, &to_node, &up_state, &up_kinds);
        let _ = to_node.shutdown(Shutdown::Both);
    });
    let (sender, messages) = mpsc::channel::<(Instant, Box<RawValue>)>();
    let read_state = Arc::clone(state);
    thread::spawn(move || read_messages(&node, &sender, &read_state, &kinds));
    let write_state = Arc::clone(state);
    thread::spawn(move || {
        let mut to_client = &to_client;
        for (due, message) in messages {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            write_state.wait_while(Fault::FreezeToClient);
            if to_client.write_all(format!("{message}\n").as_bytes()).is_err() {
                break;
            }
        }
        let _ = to_client.shutdown(Shutdown::Both);
    });
    Ok(())
}

fn forward_requests(
    client: &UnixStream,
    mut to_node: &UnixStream,
    state: &State,
    kinds: &Kinds,
) -> io::Result<()> {
    #[derive(Deserialize)]
    struct Request {
        id: u64,
        method: String,
        #[serde(default)]
        params: Value,
    }
    let requests = serde_json::Deserializer::from_reader(BufReader::new(client));
    for request in requests.into_iter::<Box<RawValue>>() {
        let request = request?;
        let Request { id, method, params } = serde_json::from_str(request.get())?;
        let kind = match (&*method, params[0].as_str(), params.get(1)) {
            ("eth_subscribe", Some("newHeads"), _) => "eth_subscribe heads".to_owned(),
            ("eth_subscribe", _, None) => "eth_subscribe hashes".to_owned(),
            ("eth_subscribe", ..) => "eth_subscribe objects".to_owned(),
            _ => method,
        };
        kinds.requests.lock().expect("no holder panics").insert(id, kind);
        state.wait_while(Fault::FreezeToNode);
        to_node.write_all(request.get().as_bytes())?;
    }
    Ok(())
}

/// Reads what the node sends, and passes on what is not dropped, with the time when it is due.
fn read_messages(
    node: &UnixStream,
    sender: &mpsc::Sender<(Instant, Box<RawValue>)>,
    state: &State,
    kinds: &Kinds,
) {
    #[derive(Deserialize)]
    struct Message {
        id: Option<u64>,
        result: Option<Box<RawValue>>,
        params: Option<Params>,
    }
    #[derive(Deserialize)]
    struct Params {
        subscription: String,
    }
    let messages = serde_json::Deserializer::from_reader(BufReader::new(node));
    for message in messages.into_iter::<Box<RawValue>>() {
        // The error is the end of the connection.
        let Ok(message) = message else { return };
        let Message { id, result, params } =
            serde_json::from_str(message.get()).expect("the node sends answers and notifications");
        let mut subscriptions = kinds.subscriptions.lock().expect("no holder panics");
        let asked = id.and_then(|id| kinds.requests.lock().expect("no holder panics").remove(&id));
        let method = asked.as_deref().map(|kind| kind.split(' ').next().unwrap_or(kind));
        if let (Some(topic), Some(result)) =
            (asked.as_deref().and_then(|kind| kind.strip_prefix("eth_subscribe ")), result)
            && let Ok(subscription) = serde_json::from_str(result.get())
        {
            subscriptions.insert(subscription, topic.to_owned());
        }
        let topic = params.and_then(|params| subscriptions.get(&params.subscription).cloned());
        drop(subscriptions);
        let delay = match *state.fault() {
            Some(Fault::DropAnswers(dropped)) if method == Some(dropped) => continue,
            Some(Fault::DropNotifications(dropped)) if topic.as_deref() == Some(dropped) => {
                continue;
            }
            Some(Fault::Delay(delay)) => delay,
            _ => Duration::ZERO,
        };
        if sender.send((Instant::now() + delay, message)).is_err() {
            return;
        }
    }
}
