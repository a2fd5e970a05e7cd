//! Why a coordinator's work came to nothing.

use std::error::Error;
use std::fmt;

use crate::Stop;

/// Why a coordinator's work came to nothing.
///
/// Made by `?` from any error, as one that is worth another try. It is no [`Error`] itself, which is what
/// lets every error become one.
#[derive(Debug)]
pub struct Failure(Kind);

#[derive(Debug)]
pub(crate) enum Kind {
    Retryable(String),
    Fatal(String),
    Stopped(Stop),
    #[cfg(not(target_family = "wasm"))]
    Killed(String),
}

impl Failure {
    /// Worth another try on this node, after a while.
    pub fn retryable(error: impl Into<Box<dyn Error>>) -> Self {
        Self(Kind::Retryable(with_causes(error.into().as_ref())))
    }

    /// Not worth another try here: this node steps down.
    pub fn fatal(error: impl Into<Box<dyn Error>>) -> Self {
        Self(Kind::Fatal(with_causes(error.into().as_ref())))
    }

    /// Whether this node steps down for it.
    pub fn is_fatal(&self) -> bool {
        matches!(self.0, Kind::Fatal(_))
    }

    /// Whether the instance was killed before its function returned. Only tests see that.
    #[cfg(not(target_family = "wasm"))]
    pub fn is_kill(&self) -> bool {
        matches!(self.0, Kind::Killed(_))
    }

    #[cfg(not(target_family = "wasm"))]
    pub(crate) fn killed(why: String) -> Self {
        Self(Kind::Killed(why))
    }

    pub(crate) fn kind(&self) -> &Kind {
        &self.0
    }
}

impl<E: Into<Box<dyn Error>>> From<E> for Failure {
    fn from(error: E) -> Self {
        match error.into().downcast::<Stop>() {
            Ok(stop) => Self(Kind::Stopped(*stop)),
            Err(error) => Self::retryable(error),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Retryable(why) | Kind::Fatal(why) => f.write_str(why),
            Kind::Stopped(stop) => stop.fmt(f),
            #[cfg(not(target_family = "wasm"))]
            Kind::Killed(why) => write!(f, "killed: {why}"),
        }
    }
}

fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
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
    fn a_failure_tells_all_causes() {
        let failure = Failure::from(Outer(Middle(fmt::Error)));
        assert_eq!(failure.to_string(), format!("the report was not written: its table is wrong: {}", fmt::Error));
        assert!(!failure.is_fatal() && !failure.is_kill());
        assert!(Failure::fatal(fmt::Error).is_fatal());
    }
}
