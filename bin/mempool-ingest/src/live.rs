//! The terminal of the live view: enters the alternate screen, draws, and restores the terminal.

use std::io;

use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, Event, KeyCode, KeyModifiers},
};

use crate::{draw::draw, log::Log, picture::Picture};

pub(crate) struct Live {
    terminal: DefaultTerminal,
    /// The last picture, for a redraw when the terminal changes its size.
    picture: Option<Picture>,
    log: Log,
}

impl Live {
    /// Enters the alternate screen until this is dropped, or a thread panics.
    pub(crate) fn enter(log: Log) -> io::Result<Self> {
        let terminal = ratatui::try_init()?;
        log.keep();
        Ok(Self { terminal, picture: None, log })
    }

    pub(crate) fn show(&mut self, picture: Picture) -> io::Result<()> {
        self.picture = Some(Picture { events: self.log.kept(), ..picture });
        self.redraw()
    }

    fn redraw(&mut self) -> io::Result<()> {
        if let Some(picture) = &self.picture {
            self.terminal.draw(|frame| draw(frame, picture))?;
        }
        Ok(())
    }

    /// Reads key presses without waiting. Returns whether they ask to end the program: in raw mode
    /// Ctrl-C is a key, not a signal.
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
