//! The error that a coordinator's function returns.

use std::error::Error;
use std::fmt;
use std::panic::Location;

use crate::Stop;

/// Maximum length of an error's text, in bytes. The host logs at most 8192 bytes. The rest is room for the line of
/// code, which follows the text.
const SHOWN: usize = 8000;

/// The error that a coordinator's function returns.
///
/// `?` converts any error into a [retryable](Failure::retryable) failure. The host's log shows the error's text, its
/// sources, and the line of the coordinator's code where the `Failure` was created.
///
/// `Failure` does not implement [`Error`]: otherwise, `?` could not convert every error into it.
pub struct Failure {
    kind: Kind,
    location: &'static Location<'static>,
}

#[derive(Debug)]
pub(crate) enum Kind {
    Retryable(String),
    Fatal(String),
    Stopped(Stop),
    #[cfg(not(target_family = "wasm"))]
    Killed(String),
}

impl Failure {
    /// Creates a failure after which this node runs the coordinator again, 1 to 10 s later.
    #[track_caller]
    pub fn retryable(error: impl Into<Box<dyn Error>>) -> Self {
        Self::new(Kind::Retryable(with_sources(error.into().as_ref())))
    }

    /// Creates a failure after which this node hands leadership to another node.
    #[track_caller]
    pub fn fatal(error: impl Into<Box<dyn Error>>) -> Self {
        Self::new(Kind::Fatal(with_sources(error.into().as_ref())))
    }

    /// Returns true if this node hands leadership to another node because of this failure.
    pub fn is_fatal(&self) -> bool {
        matches!(self.kind, Kind::Fatal(_))
    }

    /// Returns true if the instance was killed before its function returned. Such a failure occurs only in tests.
    #[cfg(not(target_family = "wasm"))]
    pub fn is_kill(&self) -> bool {
        matches!(self.kind, Kind::Killed(_))
    }

    #[cfg(not(target_family = "wasm"))]
    #[track_caller]
    pub(crate) fn killed(why: String) -> Self {
        Self::new(Kind::Killed(why))
    }

    #[track_caller]
    fn new(kind: Kind) -> Self {
        Self { kind, location: Location::caller() }
    }

    pub(crate) fn kind(&self) -> &Kind {
        &self.kind
    }

    /// Returns `text`, followed by the file and line where this failure was created. Omits the location if its path is
    /// absolute, because the location is then in another crate. For example, `map_err(Failure::fatal)` calls `fatal`
    /// from the standard library.
    pub(crate) fn located(&self, text: &str) -> String {
        let (file, line) = (self.location.file(), self.location.line());
        if file.starts_with('/') {
            return text.to_owned();
        }
        let shown = text.floor_char_boundary(SHOWN);
        let cut = if shown < text.len() { "…" } else { "" };
        format!("{}{cut} ({file}:{line})", &text[..shown])
    }
}

impl<E: Into<Box<dyn Error>>> From<E> for Failure {
    #[track_caller]
    fn from(error: E) -> Self {
        match error.into().downcast::<Stop>() {
            Ok(stop) => Self::new(Kind::Stopped(*stop)),
            Err(error) => Self::retryable(error),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Retryable(why) | Kind::Fatal(why) => f.write_str(why),
            Kind::Stopped(stop) => stop.fmt(f),
            #[cfg(not(target_family = "wasm"))]
            Kind::Killed(why) => write!(f, "killed: {why}"),
        }
    }
}

/// Shows the text and the line of code, because a test that returns a `Failure` prints it with `Debug`.
impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.located(&self.to_string()))
    }
}

fn with_sources(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("the report was not written")]
    struct Outer(#[source] Middle);

    #[derive(Debug, thiserror::Error)]
    #[error("its table is wrong")]
    struct Middle(#[source] fmt::Error);

    #[test]
    fn failure_names_all_sources() {
        let failure = Failure::from(Outer(Middle(fmt::Error)));
        assert_eq!(failure.to_string(), format!("the report was not written: its table is wrong: {}", fmt::Error));
        assert!(!failure.is_fatal() && !failure.is_kill());
        assert!(Failure::fatal(fmt::Error).is_fatal());
    }

    #[test]
    fn failure_names_the_line_of_the_question_mark() {
        let line = line!() + 2;
        let failure = (|| -> crate::Result {
            Err(fmt::Error)?;
            Ok(())
        })();
        let located = failure.map_or_else(|failure| failure.located("text"), |()| String::new());
        assert!(located.ends_with(&format!("failure.rs:{line})")), "{located}");
        let long = Failure::fatal("").located(&"ä".repeat(SHOWN));
        assert!(long.len() < 8192 && long.contains("ä… (") && long.ends_with(')'), "{} bytes", long.len());
    }

    #[test]
    fn failure_of_a_passed_function_names_no_line_of_the_library() {
        let [failure] = ["text"].map(Failure::fatal);
        assert_eq!(failure.located("text"), "text");
    }
}
