//! The terminal of the live view: enters the alternate screen, draws, reads keys, and restores the
//! terminal.
//!
//! The lock of the next snapshot is held for a move, by the runtime that passes it on and by the
//! thread that draws it.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::Duration,
};

use parking_lot::Mutex;
use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, Event, KeyCode, KeyModifiers},
};
use tokio::sync::oneshot;

use crate::{draw::draw, log::Log, output, snapshot::Snapshot};

/// The longest time between two reads of the keyboard.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The time that the end waits for the terminal to be restored. A terminal that is stopped or gone
/// never takes the output.
const RESTORE_TIMEOUT: Duration = Duration::from_millis(500);

/// The live view. A thread of its own draws it: writing to a terminal that is stopped (Ctrl-S) or
/// gone may block for ever.
pub(crate) struct Live {
    shared: Arc<Shared>,
    ended: oneshot::Receiver<io::Result<()>>,
    /// Disconnected when the terminal has been restored.
    restored: mpsc::Receiver<()>,
}

/// What the runtime and the drawing thread share.
#[derive(Default)]
struct Shared {
    /// The next snapshot to draw.
    next: Mutex<Option<Snapshot>>,
    stop: AtomicBool,
}

impl Live {
    /// Enters the alternate screen until this is dropped.
    ///
    /// # Errors
    /// The terminal cannot show it, or the thread cannot be started.
    pub(crate) fn enter(log: Log) -> io::Result<Self> {
        // Keep the lines of the log from now on: they would be written over the view.
        log.keep();
        output::flush(RESTORE_TIMEOUT);
        let mut terminal = ratatui::try_init().inspect_err(|_| log.release())?;
        let shared = Arc::<Shared>::default();
        let (end_sender, ended) = oneshot::channel();
        let (restored_sender, restored) = mpsc::channel();
        let drawing = Arc::clone(&shared);
        thread::Builder::new().name("view".into()).spawn(move || {
            let result = drawing.draw_until_end(&mut terminal, &log);
            // This fails for a terminal that is gone, which needs no restoring.
            let _ = ratatui::try_restore();
            log.release();
            drop(restored_sender);
            // Nobody receives this if the command is ending for another reason.
            let _ = end_sender.send(result);
        })?;
        Ok(Self { shared, ended, restored })
    }

    /// Draws this snapshot next, in place of one that has not been drawn yet.
    pub(crate) fn show(&self, snapshot: Snapshot) {
        *self.shared.next.lock() = Some(snapshot);
    }

    /// Resolves when a key press asks to end the program, or when the terminal fails.
    pub(crate) async fn end_requested(&mut self) -> io::Result<()> {
        (&mut self.ended).await.unwrap_or_else(|_| Err(io::Error::other("the view has panicked")))
    }
}

impl Shared {
    /// Draws until a key or a stop ends it. In raw mode Ctrl-C is a key, not a signal.
    fn draw_until_end(&self, terminal: &mut DefaultTerminal, log: &Log) -> io::Result<()> {
        let mut shown = None;
        let mut are_keys_shown = false;
        while !self.stop.load(Relaxed) {
            let next = self.next.lock().take();
            let mut changed = next.is_some();
            shown = next.map(|next| Snapshot { events: log.kept(), ..next }).or(shown);
            if event::poll(POLL_INTERVAL)? {
                match event::read()? {
                    Event::Key(key) => match key.code {
                        KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                            return Ok(());
                        }
                        KeyCode::Char('?') => {
                            are_keys_shown = !are_keys_shown;
                            changed = true;
                        }
                        _ => {}
                    },
                    // After a resize the terminal does not show what was drawn.
                    Event::Resize(..) => {
                        terminal.clear()?;
                        changed = true;
                    }
                    _ => {}
                }
            }
            if let Some(snapshot) = shown.as_mut().filter(|_| changed) {
                snapshot.are_keys_shown = are_keys_shown;
                terminal.draw(|frame| draw(frame, snapshot))?;
            }
        }
        Ok(())
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
        // Nothing is ever sent: the thread drops its sender when the terminal is restored, which is
        // an error here.
        let _ = self.restored.recv_timeout(RESTORE_TIMEOUT);
    }
}
