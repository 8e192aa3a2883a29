//! What `--hashes` adds: a subscriber that writes the hash of each order, one a line, in the pool's order.

use std::{
    fs::File,
    io::{self, Write as _},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::Duration,
};

use mempool_ingest::{OrderPool, order_pool::Event};

/// The interval at which the thread reads the pool.
const LOOK: Duration = Duration::from_millis(50);

pub(crate) struct Hashes {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<io::Result<()>>,
}

impl Hashes {
    pub(crate) fn start(path: &Path, pool: &OrderPool) -> io::Result<Self> {
        let mut file = File::create(path)?;
        let mut orders = pool.subscribe_all();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let run = move || {
            loop {
                // Before reading, so that everything from before the end is written.
                let last = stopped.load(Relaxed);
                let mut lines = String::new();
                loop {
                    let read = orders.visit(usize::MAX, |event| {
                        if let Event::Added(order) = event {
                            lines += &format!("{}\n", order.id().hash());
                        }
                    });
                    if read.map_err(io::Error::other)? == 0 {
                        break;
                    }
                }
                file.write_all(lines.as_bytes())?;
                if last {
                    return Ok(());
                }
                std::thread::park_timeout(LOOK);
            }
        };
        let thread = std::thread::Builder::new().name("hashes".into()).spawn(run)?;
        Ok(Self { stop, thread })
    }

    pub(crate) fn stop(self) -> io::Result<()> {
        self.stop.store(true, Relaxed);
        self.thread.thread().unpark();
        self.thread.join().unwrap_or_else(|_| Err(io::Error::other("its thread has panicked")))
    }
}
