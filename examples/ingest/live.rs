//! The live view's terminal: the screen is taken, drawn on, and given back.

use std::io;

use hdrhistogram::Histogram;
use mempool_ingest::Ingest;
use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, Event, KeyCode, KeyModifiers},
};

use crate::{
    draw::draw,
    log::Log,
    picture::{Painter, Picture},
    watcher::Watcher,
};

pub(crate) struct Live {
    terminal: DefaultTerminal,
    painter: Painter,
    /// What was drawn last, for a terminal that changes its size.
    picture: Option<Picture>,
    log: Log,
}

impl Live {
    /// Takes the screen until this is dropped, or a thread panics.
    pub(crate) fn enter(log: Log, latency: Histogram<u64>, max_txs: u64) -> io::Result<Self> {
        let terminal = ratatui::try_init()?;
        log.keep();
        Ok(Self { terminal, painter: Painter::new(latency, max_txs), picture: None, log })
    }

    pub(crate) fn refresh(&mut self, ingest: &Ingest, watcher: &Watcher) -> io::Result<()> {
        let events = self.log.kept();
        let (latency, seen) = (watcher.latency(), watcher.seen());
        let picture = self.painter.paint(ingest, latency, seen, watcher.content(), events);
        self.picture = Some(picture);
        self.redraw()
    }

    fn redraw(&mut self) -> io::Result<()> {
        if let Some(picture) = &self.picture {
            self.terminal.draw(|frame| draw(frame, picture))?;
        }
        Ok(())
    }

    /// Takes what was typed, without waiting. Whether that is to end the program: in this mode of the terminal Ctrl-C
    /// is a key, and no signal.
    pub(crate) fn wants_to_end(&mut self) -> io::Result<bool> {
        while event::poll(std::time::Duration::ZERO)? {
            match event::read()? {
                Event::Key(key) => match key.code {
                    KeyCode::Char('q') | KeyCode::Esc => return Ok(true),
                    KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                        return Ok(true);
                    }
                    _ => {}
                },
                Event::Resize(..) => self.redraw()?,
                _ => {}
            }
        }
        Ok(false)
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        ratatui::restore();
        self.log.release();
    }
}
