use super::scratch::NoVerdict;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    Kept(String),
    /// The store keeps its promises, but delays takeovers.
    Costs {
        found: String,
        means: &'static str,
        remedy: &'static str,
    },
    /// The store refuses a request that hosts do not strictly need.
    Refused {
        found: String,
        means: &'static str,
        /// The right that the credentials lack (Azure).
        right: &'static str,
    },
    Broken(String),
}

/// The result of a check: an outcome, or the reason why there is none.
pub(super) type Verdict = Result<Outcome, NoVerdict>;

pub(super) fn kept(found: impl Into<String>) -> Verdict {
    Ok(Outcome::Kept(found.into()))
}

pub(super) fn broken(found: impl Into<String>) -> Verdict {
    Ok(Outcome::Broken(found.into()))
}

/// The verdict if the store refuses to list its objects.
pub(super) fn may_not_list(found: String) -> Verdict {
    Ok(Outcome::Refused {
        found,
        means: "a node that takes over cannot read earlier terms, and first waits for the longest possible lease: one \
                minute",
        right: "to list (l)",
    })
}
