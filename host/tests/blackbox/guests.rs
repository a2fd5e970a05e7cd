//! The guests of the scenarios, by what they do.

use std::path::PathBuf;

/// What a guest does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Guest {
    /// Prints a line every few milliseconds until it is asked to stop.
    Beats,
    /// Returns ok at once.
    Done,
    /// Computes for ever.
    Loops,
    /// Goes on, and prints, whatever it is asked.
    IgnoresStop,
    /// Waits in a call of the host that never returns.
    WaitsForEver,
    /// Prints as fast as it can, for ever.
    Floods,
    /// Traps at once.
    Traps,
    /// Calls itself until the stack ends.
    Recurses,
    /// Takes memory until there is none.
    Allocates,
    /// Exits with a status other than 0.
    Exits,
    /// Returns a failure that is not worth another try.
    FailsFatally,
}

impl Guest {
    /// Its component.
    pub fn module(self) -> PathBuf {
        PathBuf::new()
    }

    /// The variable that it reads, where it reads one.
    pub fn env(self) -> Option<(&'static str, &'static str)> {
        None
    }
}
