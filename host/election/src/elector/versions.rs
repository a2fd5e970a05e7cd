//! The coordinator version to serve, and the evaluation of new versions.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::time::Duration;

use super::Context;
use crate::port::{Effect, End, ModuleVersion, Plan};
use crate::record::{Record, Term};
use crate::timing::Time;

/// Number of failures during a version's probation after which the version is rejected. A crash or a fatal failure
/// rejects the version at once.
const FAILURES_TO_REJECT: u32 = 3;

/// The versions that this node could run, and the results of their probation.
#[derive(Debug, Default, Clone, Hash)]
pub(super) struct Versions {
    plan: Plan,
    /// The digest of the last planned module. It is kept while no module is planned, so that the module does not count
    /// as new if it is planned again.
    last: Option<String>,
    probation: Probation,
    /// The versions that this node has rejected. A plan that was made before the rejection cannot bring them back.
    rejected: Vec<ModuleVersion>,
}

#[derive(Debug, Default, Clone, Hash)]
struct Probation {
    /// The time at which the first instance that failed began to run.
    began: Option<Time>,
    failures: u32,
}

impl Versions {
    /// Adopts a plan, unless this node has rejected the plan's module. Returns true if the module differs from the last
    /// planned module.
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

    pub(super) fn plan(&self) -> &Plan {
        &self.plan
    }

    pub(super) fn module(&self) -> Option<&ModuleVersion> {
        self.plan.module.as_ref()
    }

    pub(super) fn digest(&self) -> Option<&str> {
        self.plan.digest()
    }

    /// True if the record's module is the planned module.
    pub(super) fn is_in(&self, record: &Record) -> bool {
        record.module.is_some() && record.module.as_deref() == self.digest()
    }

    /// True if `version` is planned, and there is an earlier version to replace it if it turns out to be bad.
    pub(super) fn is_on_probation(&self, version: &ModuleVersion) -> bool {
        self.plan.fallback.is_some() && self.digest() == Some(&version.digest)
    }

    /// Forgets the results so far. This node has become a holder again, and does not know how the version has performed
    /// on other nodes in the meantime.
    pub(super) fn forget_probation(&mut self) {
        self.probation = Probation::default();
    }

    /// The end of the version's probation if its current instance began at `begun`; `None` if the version is
    /// not on probation.
    pub(super) fn proven_at(&self, version: &ModuleVersion, begun: Time, length: Duration) -> Option<Time> {
        let began = self.probation.began.unwrap_or(begun);
        self.is_on_probation(version).then_some(began + length)
    }
}

impl Context {
    pub(super) fn prove(&mut self, term: Term) {
        self.versions.probation = Probation::default();
        self.versions.plan.fallback = None;
        if let Some(version) = self.versions.plan.module.clone() {
            self.effects.push_back(Effect::Prove { version, term });
        }
    }

    /// Evaluates a version on probation by how its instance ended. `begun` is the time at which the instance began to
    /// run, if it did.
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
                alloc::format!("{FAILURES_TO_REJECT} failures within its probation, most recently: {why}")
            }
            End::Crashed(why) | End::Fatal(why) => why.clone(),
        };
        self.reject(term, reason);
    }

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
