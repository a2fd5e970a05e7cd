//! Progress of a command on a terminal: one line on stderr. The command erases the line before it prints anything else.

use std::cell::Cell;
use std::io::{self, IsTerminal, Write as _};
use std::pin::pin;
use std::time::Duration;

use tokio::time::{Instant, interval_at};

use baton_base::escape::escape;

/// Time after which the progress line appears. Shorter work shows no progress.
const AFTER: Duration = Duration::from_secs(1);
const EVERY: Duration = Duration::from_millis(250);
/// Number of columns to assume if the terminal does not report its width.
const DEFAULT_WIDTH: usize = 80;
const SPINNER: [char; 4] = ['|', '/', '-', '\\'];

/// The progress line, shown only if stderr is a terminal that can overwrite text.
#[derive(Debug)]
pub struct Progress {
    shows: bool,
    is_shown: Cell<bool>,
}

/// True if the stream is a terminal that can overwrite text.
pub(super) fn moves_its_cursor(stream: &impl IsTerminal) -> bool {
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    stream.is_terminal() && !is_dumb
}

impl Progress {
    /// Creates the progress line on stderr.
    #[must_use]
    pub fn on_terminal() -> Self {
        Self { shows: moves_its_cursor(&io::stderr()), is_shown: Cell::new(false) }
    }

    /// Waits for `work`. If that takes longer than a second, shows `what` and the elapsed time.
    pub async fn during<T>(&self, what: &str, work: impl Future<Output = T>) -> T {
        let (mut work, began) = (pin!(work), Instant::now());
        let mut ticks = interval_at(began + AFTER, EVERY);
        let mut spinner = SPINNER.into_iter().cycle();
        loop {
            tokio::select! {
                biased;
                output = &mut work => {
                    self.clear();
                    return output;
                }
                now = ticks.tick() => {
                    let frame = spinner.next().unwrap_or_default();
                    self.show(&format!("{frame} {what}, {} s", (now - began).as_secs()));
                }
            }
        }
    }

    /// Replaces the text of the line.
    pub fn show(&self, what: &str) {
        if self.shows {
            // A line that is wider than the terminal would wrap, and only its last row could be erased.
            let width = rustix::termios::tcgetwinsize(io::stderr()).map_or(0, |size| usize::from(size.ws_col));
            let width = if width == 0 { DEFAULT_WIDTH } else { width };
            let line: String = escape(what).chars().take(width - 1).collect();
            self.write(&line);
            self.is_shown.set(true);
        }
    }

    /// Erases the progress line, so that the command can print something else.
    pub fn clear(&self) {
        if self.is_shown.take() {
            self.write("");
        }
    }

    fn write(&self, line: &str) {
        // Ignore errors: the command must not fail if stderr is closed.
        let _ = write!(io::stderr().lock(), "\r\u{1b}[K{line}");
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}
