//! Which version of the coordinator is served, and whether a new one proves itself.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::time::Duration;

use super::Context;
use crate::port::{Effect, End, ModuleVersion, Plan};
use crate::record::{Record, Term};
use crate::timing::Time;

/// Failures within its probation after which a version is rejected, where one alone is not enough for that.
const FAILURES_TO_REJECT: u32 = 3;

/// What this node could run, and what it has found out about it.
#[derive(Debug, Default, Clone, Hash)]
pub(super) struct Versions {
    plan: Plan,
    /// The digest of what it last had to serve: one that has nothing to serve for a while has the same module afterwards.
    last: Option<String>,
    /// Of the planned module, where that is on probation.
    probation: Probation,
    /// What was rejected here. A plan that was made before anybody heard of it does not bring it back.
    rejected: Vec<ModuleVersion>,
}

/// What the instances before have shown.
#[derive(Debug, Default, Clone, Hash)]
struct Probation {
    /// When the first of those that failed had begun.
    began: Option<Time>,
    failures: u32,
}

impl Versions {
    /// Takes a plan, and says whether it brings another module.
    pub(super) fn take(&mut self, mut plan: Plan) -> bool {
        if plan.module.as_ref().is_some_and(|module| self.rejected.contains(module)) {
            return false;
        }
        plan.fallback = plan.fallback.filter(|fallback| !self.rejected.contains(fallback));
        let is_other = plan.digest().is_some_and(|digest| self.last.as_deref() != Some(digest));
        if is_other {
            self.probation = Probation::default();
            self.last = plan.digest().map(ToString::to_string);
        }
        self.plan = plan;
        is_other
    }

    /// What is to be served, and what instead.
    pub(super) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What is to be served; none if there is nothing that may run here.
    pub(super) fn module(&self) -> Option<&ModuleVersion> {
        self.plan.module.as_ref()
    }

    /// Its digest.
    pub(super) fn digest(&self) -> Option<&str> {
        self.plan.digest()
    }

    /// Whether the record says that this module is served or about to be.
    pub(super) fn is_in(&self, record: &Record) -> bool {
        record.module.is_some() && record.module.as_deref() == self.digest()
    }

    /// Whether an instance of that version, if it is bad, would be replaced by one of an earlier version.
    pub(super) fn is_on_probation(&self, version: &ModuleVersion) -> bool {
        self.plan.fallback.is_some() && self.digest() == Some(&version.digest)
    }

    /// A node that leads anew knows nothing of how a version did before.
    pub(super) fn forget_probation(&mut self) {
        self.probation = Probation::default();
    }

    /// When the probation of a version is over whose instance has begun at `begun`. One that has not proves nothing.
    pub(super) fn proven_at(&self, version: &ModuleVersion, begun: Time, length: Duration) -> Option<Time> {
        let began = self.probation.began.unwrap_or(begun);
        self.is_on_probation(version).then_some(began + length)
    }
}

impl Context {
    /// A version on probation has done well.
    pub(super) fn prove(&mut self, term: Term) {
        self.versions.probation = Probation::default();
        self.versions.plan.fallback = None;
        if let Some(version) = self.versions.plan.module.clone() {
            self.effects.push_back(Effect::Prove { version, term });
        }
    }

    /// Draws from the end of an instance that has begun at `begun`, if ever, what it says of its version, if that is
    /// on probation: it has proven itself, is rejected, or neither yet.
    pub(super) fn judge(&mut self, version: &ModuleVersion, term: Term, begun: Option<Time>, end: &End) {
        if !self.versions.is_on_probation(version) {
            return;
        }
        let reason = match end {
            End::Killed | End::Superseded { .. } | End::Unable(_) => return,
            End::Done => return self.prove(term),
            End::Failed(why) => {
                let probation = &mut self.versions.probation;
                probation.began = probation.began.or(begun);
                probation.failures += 1;
                if probation.failures < FAILURES_TO_REJECT {
                    return;
                }
                alloc::format!("{FAILURES_TO_REJECT} failures within its probation, the last: {why}")
            }
            End::Crashed(why) | End::Fatal(why) => why.clone(),
        };
        self.reject(term, reason);
    }

    /// Goes back to the version before the planned one.
    pub(super) fn reject(&mut self, term: Term, reason: String) {
        self.versions.probation = Probation::default();
        let instead = self.versions.plan.fallback.take();
        let Some(version) = core::mem::replace(&mut self.versions.plan.module, instead) else { return };
        self.versions.last = self.versions.digest().map(ToString::to_string);
        self.versions.rejected.push(version.clone());
        let instead = self.versions.plan.module.clone();
        self.effects.push_back(Effect::Reject { version, term, reason, instead });
    }
}
