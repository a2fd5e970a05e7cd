//! What is under way, for who waits at a terminal: one line on stderr, which is gone before anything else is printed.

use std::cell::Cell;
use std::io::{self, IsTerminal, Write as _};
use std::pin::pin;
use std::time::Duration;

use tokio::time::{Instant, interval_at};

use baton_runtime::escape::escape;

/// Nobody is told of what takes less.
const AFTER: Duration = Duration::from_secs(1);
/// How often the line changes.
const EVERY: Duration = Duration::from_millis(250);
/// How wide a terminal is that does not say so.
const USUAL_WIDTH: usize = 80;
/// What moves, so that it is seen that this program still does.
const TURNS: [char; 4] = ['|', '/', '-', '\\'];

/// Shows it if stderr is a terminal that can move its cursor, and nothing anywhere else.
#[derive(Debug)]
pub struct Progress {
    shows: bool,
    is_shown: Cell<bool>,
}

/// Whether that is a terminal which can draw over what it shows.
pub(super) fn moves_its_cursor(stream: &impl IsTerminal) -> bool {
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    stream.is_terminal() && !is_dumb
}

impl Progress {
    /// For this process.
    #[must_use]
    pub fn on_terminal() -> Self {
        Self { shows: moves_its_cursor(&io::stderr()), is_shown: Cell::new(false) }
    }

    /// Waits for something, and shows what it is and how long it has taken, once that is a second.
    pub async fn during<T>(&self, what: &str, work: impl Future<Output = T>) -> T {
        let (mut work, began) = (pin!(work), Instant::now());
        let mut ticks = interval_at(began + AFTER, EVERY);
        let mut turns = TURNS.into_iter().cycle();
        loop {
            tokio::select! {
                biased;
                output = &mut work => {
                    self.clear();
                    return output;
                }
                now = ticks.tick() => {
                    let turn = turns.next().unwrap_or_default();
                    self.show(&format!("{turn} {what}, {} s", (now - began).as_secs()));
                }
            }
        }
    }

    /// Shows this, instead of what was shown.
    pub fn show(&self, what: &str) {
        if self.shows {
            // A line that is longer than the terminal would stay.
            let width = rustix::termios::tcgetwinsize(io::stderr()).map_or(0, |size| usize::from(size.ws_col));
            // Some terminals do not say.
            let width = if width == 0 { USUAL_WIDTH } else { width };
            let line: String = escape(what).chars().take(width - 1).collect();
            self.write(&line);
            self.is_shown.set(true);
        }
    }

    /// Takes the line away.
    pub fn clear(&self) {
        if self.is_shown.take() {
            self.write("");
        }
    }

    fn write(&self, line: &str) {
        // Nobody depends on it.
        let _ = write!(io::stderr().lock(), "\r\u{1b}[K{line}");
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}
