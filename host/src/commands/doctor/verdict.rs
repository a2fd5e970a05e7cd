//! What a check comes to, and what each would mean.

use super::scratch::Untold;

/// What was seen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Seen {
    /// It is as it should be.
    Kept(String),
    /// It breaks no promise.
    Costs { found: String, means: &'static str, remedy: &'static str },
    /// The store refuses what a host can do without.
    Refused {
        found: String,
        means: &'static str,
        /// What the credentials lack on Azure.
        right: &'static str,
    },
    /// It is not as it should be.
    Broken(String),
}

/// What a check of the store comes to.
pub(super) type Verdict = Result<Seen, Untold>;

pub(super) fn kept(found: impl Into<String>) -> Verdict {
    Ok(Seen::Kept(found.into()))
}

pub(super) fn broken(found: impl Into<String>) -> Verdict {
    Ok(Seen::Broken(found.into()))
}

/// That the store refuses to list what it has, which a host can do without.
pub(super) fn may_not_list(found: String) -> Verdict {
    Ok(Seen::Refused {
        found,
        means: "a node that takes over cannot read earlier terms, and first waits for the longest possible lease: one \
                minute",
        right: "to list (l)",
    })
}
