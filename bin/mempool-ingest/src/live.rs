//! The terminal of the live view: enters the alternate screen, draws, reads keys, and restores the terminal.
//!
//! The lock of the next picture is held for a move, by the runtime that shows it and by the thread that draws it.

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

use crate::{draw::draw, log::Log, output, picture::Picture};

/// Time between two looks at the keyboard, at most.
const KEYS: Duration = Duration::from_millis(100);

/// How long the end waits for the terminal to be restored: one that is stopped or gone takes nothing.
const RESTORE: Duration = Duration::from_millis(500);

/// The terminal has a thread of its own, which waits for it for ever if it is stopped (Ctrl-S) or gone; nothing else does.
pub(crate) struct Live {
    next: Arc<Next>,
    end: oneshot::Receiver<io::Result<()>>,
    restored: mpsc::Receiver<()>,
}

#[derive(Default)]
struct Next {
    /// What is not drawn yet.
    picture: Mutex<Option<Picture>>,
    stop: AtomicBool,
}

impl Live {
    /// Enters the alternate screen until this is dropped, or a thread panics.
    pub(crate) fn enter(log: Log) -> io::Result<Self> {
        // First, because a line of the log would be written into the view.
        log.keep();
        output::flush(RESTORE);
        let mut terminal = ratatui::try_init().inspect_err(|_| log.release())?;
        let next = Arc::<Next>::default();
        let (ended, end) = oneshot::channel();
        let (is_restored, restored) = mpsc::channel();
        let shared = Arc::clone(&next);
        thread::Builder::new().name("view".into()).spawn(move || {
            let shown = shared.show(&mut terminal, &log);
            // A terminal that is gone needs no restoring.
            let _ = ratatui::try_restore();
            log.release();
            drop(is_restored);
            // The command may be ending for another reason.
            let _ = ended.send(shown);
        })?;
        Ok(Self { next, end, restored })
    }

    pub(crate) fn show(&self, picture: Picture) {
        *self.next.picture.lock() = Some(picture);
    }

    /// Resolves when a key press asks to end the program, or when the terminal fails.
    pub(crate) async fn end_wanted(&mut self) -> io::Result<()> {
        (&mut self.end).await.unwrap_or_else(|_| Err(io::Error::other("the view has panicked")))
    }
}

impl Next {
    /// Until a key or a stop. In raw mode Ctrl-C is a key, not a signal.
    fn show(&self, terminal: &mut DefaultTerminal, log: &Log) -> io::Result<()> {
        let (mut shown, mut keys) = (None, false);
        while !self.stop.load(Relaxed) {
            let next = self.picture.lock().take();
            let mut changed = next.is_some();
            shown = next.map(|next| Picture { events: log.kept(), ..next }).or(shown);
            if event::poll(KEYS)? {
                match event::read()? {
                    Event::Key(key) => match key.code {
                        KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                            return Ok(());
                        }
                        KeyCode::Char('?') => (keys, changed) = (!keys, true),
                        _ => {}
                    },
                    // What a terminal shows of the old size is not what was drawn.
                    Event::Resize(..) => {
                        terminal.clear()?;
                        changed = true;
                    }
                    _ => {}
                }
            }
            if let Some(picture) = shown.as_mut().filter(|_| changed) {
                picture.keys = keys;
                terminal.draw(|frame| draw(frame, picture))?;
            }
        }
        Ok(())
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.next.stop.store(true, Relaxed);
        // It ends with an error when the thread has ended, which is what is waited for.
        let _ = self.restored.recv_timeout(RESTORE);
    }
}
