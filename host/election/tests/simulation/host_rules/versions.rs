//! The rules of versions: what is served, when it is replaced, and what becomes of one on probation.

use super::*;

/// What this process was told to serve, and what it has seen of it.
#[derive(Default)]
pub(super) struct Versions {
    pub plan: Plan,
    /// The digest of the last that there was to serve.
    last: Option<String>,
    rejected: Vec<ModuleVersion>,
    /// Failures of the planned module within its probation.
    failures: u32,
    /// When the first of the instances had begun that failed so.
    began: Option<Time>,
    /// When it last heard of a plan.
    pub heard: Option<Time>,
    /// What must come out before the process waits again.
    due: Option<Due>,
    /// The probation of that version was over when an input came, and it must be said.
    proven: Option<ModuleVersion>,
    /// The instance is stopped since it made no progress within its probation.
    stalled: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    Proof,
    Rejection,
}

impl Versions {
    pub fn digest(&self) -> Option<&str> {
        self.plan.digest()
    }

    pub fn leads_anew(&mut self) {
        (self.failures, self.began) = (0, None);
    }

    /// A probation ends by time alone, whatever plan comes in the same instant.
    pub fn time_proves(&mut self, now: Time, instance: &Instance, probation: Duration) {
        let is_over = self.proven_at(instance, probation).is_some_and(|at| now >= at);
        if is_over && self.is_on_probation(&instance.version) {
            self.proven = self.plan.module.clone();
            self.plan.fallback = None;
            (self.failures, self.began) = (0, None);
        }
    }

    /// When an instance has run for as long as a probation is. One that has not begun proves nothing, however long it
    /// takes.
    fn proven_at(&self, instance: &Instance, probation: Duration) -> Option<Time> {
        instance.begun.map(|begun| self.began.unwrap_or(begun) + probation)
    }

    fn is_on_probation(&self, version: &ModuleVersion) -> bool {
        self.plan.fallback.is_some() && self.digest() == Some(&version.digest)
    }
}

impl HostRules {
    pub(super) fn planned(&mut self, now: Time, plan: &Plan) {
        self.versions.heard = Some(now);
        let versions = &mut self.versions;
        let mut plan = plan.clone();
        if plan.module.as_ref().is_some_and(|module| versions.rejected.contains(module)) {
            return;
        }
        plan.fallback = plan.fallback.filter(|version| !versions.rejected.contains(version));
        // To serve nothing for a while makes the same module no other.
        let is_other = plan.digest().is_some() && plan.digest() != versions.last.as_deref();
        if is_other {
            versions.last = plan.digest().map(str::to_string);
            (versions.failures, versions.began) = (0, None);
            self.other_heard = Some(now);
            self.cool_off_until = Time::default();
            (self.cool_offs, self.cool_offs_at_most) = (0, 0);
        } else if let (Some(instance), Some(version)) = (&mut self.instance, &plan.module)
            && instance.version.digest == version.digest
        {
            instance.version = version.clone();
        }
        self.versions.plan = plan;
    }

    pub(super) fn stalled(&mut self) {
        match &self.instance {
            // It is being stopped, or dies: that is followed through, and nothing else.
            Some(one) if one.stop.is_some() || one.at_risk || one.dying => {}
            Some(one) if self.versions.is_on_probation(&one.version) => self.versions.stalled = true,
            _ => self.step_down(),
        }
    }

    pub(super) fn serves_what_is_planned(&mut self, term: Term, version: &ModuleVersion) -> Checked {
        const RULE: &str = "serves_what_is_planned";
        self.versions.stalled = false;
        if self.versions.rejected.contains(version) {
            return broken("rejected_never_returns", format!("{version:?} starts again"));
        }
        if self.versions.plan.module.as_ref() != Some(version) {
            return broken(RULE, format!("{version:?} instead of {:?}", self.versions.plan));
        }
        if self.terms.get(&term).is_some_and(|written| written.module != version.digest) {
            let module = self.terms.get(&term).map(|written| &written.module);
            return broken(RULE, format!("term {term} was written for {module:?}"));
        }
        Ok(())
    }

    /// An instance is replaced for another version only, under a lease that is safe for a while, and once the
    /// `next` term is in the store.
    pub(super) fn replaced(&self, now: Time, next: Option<Term>) -> Checked {
        const RULE: &str = "replaced_in_time_and_for_a_reason";
        let (Some(instance), Some(holding)) = (&self.instance, &self.holding) else { return Ok(()) };
        if self.versions.stalled && next.is_none() {
            return Ok(());
        }
        let Some(module) = self.versions.digest().filter(|digest| *digest != instance.version.digest) else {
            return broken(RULE, "nothing else is to be served".to_string());
        };
        if now > holding.renewed + self.settings.timing.lease() / 2 {
            return broken(RULE, format!("with {:?} since the last renewal", now.since(holding.renewed)));
        }
        let written =
            next.filter(|next| *next > instance.term).and_then(|next| self.terms.get(&next)).map(|one| &one.module);
        if written.is_none_or(|written| written != module) {
            return broken(RULE, format!("term {next:?}, which is written for {written:?}, is to serve {module}"));
        }
        Ok(())
    }

    /// An instance of the planned module has ended by itself. Whether its version is rejected for that.
    pub(super) fn judges(
        &mut self,
        version: &ModuleVersion,
        begun: Option<Time>,
        end: &End,
        was_stopped: bool,
    ) -> bool {
        let versions = &mut self.versions;
        if !versions.is_on_probation(version) {
            versions.stalled = false;
            return false;
        }
        if std::mem::take(&mut versions.stalled) {
            versions.due = Some(Due::Rejection);
            return true;
        }
        if was_stopped {
            return false;
        }
        versions.due = match end {
            End::Done => Some(Due::Proof),
            End::Crashed(_) | End::Fatal(_) => Some(Due::Rejection),
            End::Failed(_) => {
                versions.failures += 1;
                versions.began = versions.began.or(begun);
                (versions.failures >= 3).then_some(Due::Rejection)
            }
            End::Killed | End::Superseded { .. } | End::Unable(_) => None,
        };
        versions.due == Some(Due::Rejection)
    }

    pub(super) fn proves(&mut self, now: Time, version: &ModuleVersion) -> Checked {
        const RULE: &str = "a_version_proves_itself";
        let versions = &mut self.versions;
        if versions.proven.take_if(|proven| proven == version).is_some() {
            return Ok(());
        }
        if versions.plan.module.as_ref() != Some(version) || versions.plan.fallback.take().is_none() {
            return broken(RULE, format!("{version:?} is not on probation"));
        }
        let proven_at = self.instance.as_ref().and_then(|one| versions.proven_at(one, self.settings.probation));
        if versions.due.take() != Some(Due::Proof) && proven_at.is_none_or(|at| now < at) {
            return broken(RULE, format!("{version:?}, whose probation is over at {proven_at:?}"));
        }
        (versions.failures, versions.began) = (0, None);
        Ok(())
    }

    pub(super) fn rejects(&mut self, version: &ModuleVersion, instead: Option<&ModuleVersion>) -> Checked {
        const RULE: &str = "a_bad_version_is_rejected";
        let versions = &mut self.versions;
        if versions.due.take() != Some(Due::Rejection) {
            return broken(RULE, format!("{version:?} has done nothing bad"));
        }
        if versions.plan.module.as_ref() != Some(version) || versions.plan.fallback.as_ref() != instead {
            return broken(RULE, format!("{version:?} and {instead:?}, planned is {:?}", versions.plan));
        }
        versions.rejected.push(version.clone());
        versions.plan = Plan { module: versions.plan.fallback.take(), fallback: None };
        versions.last = versions.plan.digest().map(str::to_string);
        (versions.failures, versions.began) = (0, None);
        Ok(())
    }

    /// Before it waits, a process has judged what is to be judged, and replaces what is to be replaced.
    pub(super) fn versions_are_settled(&self, now: Time, wakeup: Option<Time>) -> Checked {
        if let Some(due) = self.versions.due {
            return broken("a_bad_version_is_rejected", format!("{due:?} is due"));
        }
        if let Some(version) = &self.versions.proven {
            return broken("a_version_proves_itself", format!("{version:?} has, and it is not said"));
        }
        let (Some(instance), Some(holding)) = (&self.instance, &self.holding) else { return Ok(()) };
        let runs = instance.stop.is_none() && instance.killed.is_none();
        if runs
            && self.versions.is_on_probation(&instance.version)
            && let Some(proven_at) = self.versions.proven_at(instance, self.settings.probation)
            && (now >= proven_at || wakeup.is_none_or(|wakeup| wakeup > proven_at))
        {
            let what = format!("its probation ends at {proven_at:?}, now is {now:?}");
            return broken("a_version_proves_itself", what);
        }
        let is_other = self.versions.digest().is_some_and(|digest| *digest != instance.version.digest);
        let is_safe =
            !holding.lost && !holding.reads_of_loss && now <= holding.renewed + self.settings.timing.lease() / 2;
        let is_asked = self.requests.values().any(|asked| !asked.answered && asked.role == self.role);
        if runs && is_other && is_safe && !is_asked && wakeup.is_none_or(|wakeup| wakeup > now + SECOND * 60) {
            return broken("replaced_in_time_and_for_a_reason", "nothing leads to the next version".to_string());
        }
        Ok(())
    }
}
