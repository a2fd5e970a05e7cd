//! The version of the coordinator to serve, and the judgement of a new one.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::time::Duration;

use super::Context;
use crate::port::{Effect, End, ModuleVersion, Plan};
use crate::record::{Record, Term};
use crate::timing::Time;

/// Failures within a probation after which a version is rejected, if a single one does not suffice.
const FAILURES_TO_REJECT: u32 = 3;

/// The versions that this node could run, and its judgements.
#[derive(Debug, Default, Clone, Hash)]
pub(super) struct Versions {
    plan: Plan,
    /// The digest that was last planned. It outlives times without a module, so the same module is not new afterwards.
    last: Option<String>,
    /// The probation of the planned module, if it is on probation.
    probation: Probation,
    /// The versions rejected here. A plan made before the rejection was known does not bring one back.
    rejected: Vec<ModuleVersion>,
}

/// The results of the version's instances so far.
#[derive(Debug, Default, Clone, Hash)]
struct Probation {
    /// The time at which the first failed instance had begun.
    began: Option<Time>,
    failures: u32,
}

impl Versions {
    /// Takes a plan. Returns true if it brings another module.
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

    /// The version to serve; `None` if nothing may run here.
    pub(super) fn module(&self) -> Option<&ModuleVersion> {
        self.plan.module.as_ref()
    }

    pub(super) fn digest(&self) -> Option<&str> {
        self.plan.digest()
    }

    /// True if the record names the planned module.
    pub(super) fn is_in(&self, record: &Record) -> bool {
        record.module.is_some() && record.module.as_deref() == self.digest()
    }

    /// True if an earlier version would replace `version` if that is bad.
    pub(super) fn is_on_probation(&self, version: &ModuleVersion) -> bool {
        self.plan.fallback.is_some() && self.digest() == Some(&version.digest)
    }

    /// Forgets earlier results: a node that leads again does not know how the version did in between.
    pub(super) fn forget_probation(&mut self) {
        self.probation = Probation::default();
    }

    /// The end of the version's probation if its instance began at `begun`.
    pub(super) fn proven_at(&self, version: &ModuleVersion, begun: Time, length: Duration) -> Option<Time> {
        let began = self.probation.began.unwrap_or(begun);
        self.is_on_probation(version).then_some(began + length)
    }
}

impl Context {
    /// Ends the probation of a version that has done well.
    pub(super) fn prove(&mut self, term: Term) {
        self.versions.probation = Probation::default();
        self.versions.plan.fallback = None;
        if let Some(version) = self.versions.plan.module.clone() {
            self.effects.push_back(Effect::Prove { version, term });
        }
    }

    /// Judges a version on probation by the end of its instance, which began at `begun`, if at all.
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

    /// Rejects the planned version and falls back to the previous one.
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
