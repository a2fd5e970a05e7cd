//! The rules of running: when an instance may start, until when it may act, and when it must end.

use super::*;

impl HostRules {
    pub(super) fn start(
        &mut self,
        now: Time,
        (term, version): (Term, &ModuleVersion),
        deadline: Time,
        abort_at: Time,
    ) -> Checked {
        if self.instance.is_some() {
            return broken("one_at_a_time", "a start while an instance is not gone".to_string());
        }
        let Some(holding) = &mut self.holding else {
            return broken("one_at_a_time", "a start without the lease".to_string());
        };
        if holding.lost || holding.reads_of_loss {
            return broken("one_at_a_time", "a start under a lost lease".to_string());
        }
        if self.acquisition.as_ref().is_some_and(|last| last.id == holding.id && last.gives_way) {
            return broken("crash_loop_is_slow", format!("term {term} starts after failures in a row"));
        }
        if holding.must_step_down {
            return broken("failures_counted_in_record", "a start instead of a step-down".to_string());
        }
        if holding.done_unrecorded {
            return broken("finish_stays_finished", "a start after the election was done".to_string());
        }
        if holding.has_marked {
            return broken("marks_what_is_gone", format!("term {term} starts after the mark"));
        }
        if let Some((module, until)) = &holding.rests
            && *module == version.digest
            && now < *until
        {
            return broken("rests_between_terms", format!("{module} begins again at {now:?}, not at {until:?}"));
        }
        // Somebody may have read that the lease had run out: only a record that was written since keeps it from them.
        let asked = self.terms.get(&term).map_or(Time::default(), |written| written.last_asked);
        if holding.in_doubt_until.is_some_and(|until| asked < until) {
            return broken("serves_what_is_written_since_doubt", format!("term {term} was asked for at {asked:?}"));
        }
        if now > holding.renewed + self.settings.timing.lease() / 2 {
            return broken("half_d_before_start", format!("renewed {:?} ago", now.since(holding.renewed)));
        }
        if let Some(acquisition) = &self.acquisition
            && self.least < acquisition.waits_until
        {
            let short = acquisition.waits_until - self.least;
            return broken("waits_out_unclear_lease", format!("{short:?} too early"));
        }
        holding.unwritten_since = None;
        holding.failures.served = Some(version.digest.clone());
        self.cool_off_until = Time::default();
        self.spent = self.spent.max(term);
        self.instance = Some(Instance {
            term,
            version: version.clone(),
            started: now,
            begun: None,
            deadline,
            abort_at,
            stop: None,
            killed: None,
            aborted: false,
            dying: false,
            at_risk: false,
            overdue: false,
        });
        self.serves_under_a_lease_of_d()?;
        self.doubt_never_extends(deadline, abort_at)
    }

    /// A node that takes over from this one has been promised to wait no longer than D.
    fn serves_under_a_lease_of_d(&self) -> Checked {
        let Table(lease) = self.table();
        match &self.holding {
            Some(holding) if holding.length != lease => {
                broken("serves_under_a_lease_of_d", format!("its lease is of {:?}, and D is {lease:?}", holding.length))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn extend(&mut self, deadline: Time, abort_at: Time) -> Checked {
        let Some(instance) = &mut self.instance else { return Ok(()) };
        (instance.deadline, instance.abort_at) = (deadline, abort_at);
        self.doubt_never_extends(deadline, abort_at)
    }

    pub(super) fn doubt_never_extends(&self, deadline: Time, abort_at: Time) -> Checked {
        let Some(holding) = &self.holding else { return Ok(()) };
        if deadline > holding.renewed + holding.length * 8 / 10
            || abort_at > holding.renewed + holding.length * 93 / 100
        {
            let what = format!("deadline {deadline:?} for a request sent at {:?}", holding.renewed);
            return broken("doubt_never_extends", what);
        }
        Ok(())
    }

    pub(super) fn stop(&mut self, now: Time, reason: StopReason, grace_ends: Time, next: Option<Term>) -> Checked {
        let (Some(instance), Some(holding)) = (&mut self.instance, &self.holding) else { return Ok(()) };
        instance.stop = Some(grace_ends);
        if grace_ends > now + self.settings.timing.grace() {
            return broken("grace_is_bounded", format!("a stop at {now:?} with grace until {grace_ends:?}"));
        }
        let is_due = match reason {
            StopReason::LeaseAtRisk => instance.at_risk,
            StopReason::LeaseLost => holding.lost || holding.reads_of_loss,
            StopReason::StepDown => self.step_down_asked || self.versions.plan.module.is_none(),
            StopReason::Shutdown => self.shutdown_asked,
            StopReason::Replaced => return self.replaced(now, next),
        };
        if !is_due {
            return broken("doubt_loses_nothing", format!("a stop for {reason:?} without that"));
        }
        if let Some(next) = next {
            return broken("replaced_in_time_and_for_a_reason", format!("a stop for {reason:?} names term {next}"));
        }
        Ok(())
    }

    pub(super) fn kill(&mut self, now: Time) -> Checked {
        let takes = self.table().kill_timeout();
        let (Some(instance), Some(holding)) = (&mut self.instance, &self.holding) else { return Ok(()) };
        let after_a_pause = now > instance.deadline + takes / 4;
        instance.killed = Some(Killed { counted_from: now, seen: (now, self.least), after_a_pause, hangs: false });
        let is_due = instance.overdue
            || instance.stop.is_some_and(|grace_ends| now >= grace_ends)
            || holding.lost
            || holding.reads_of_loss
            || self.skip_grace_asked;
        if is_due { Ok(()) } else { broken("doubt_loses_nothing", "a kill without a reason".to_string()) }
    }

    pub(super) fn abort(&mut self, now: Time) -> Checked {
        let table = self.table();
        let Some(instance) = &mut self.instance else {
            return broken("host_survives", "an abort without an instance".to_string());
        };
        instance.aborted = true;
        if instance.dying {
            return broken("host_survives", "an abort for what the system alone can end".to_string());
        }
        match instance.due(table) {
            Some(due) if now >= due => Ok(()),
            due => broken("host_survives", format!("an abort at {now:?}, which was due at {due:?}")),
        }
    }

    /// What has ended by itself has from now on the time that a kill may take.
    pub(super) fn dying(&mut self, now: Time) {
        let (takes, least) = (self.table().kill_timeout(), self.least);
        let Some(instance) = &mut self.instance else { return };
        let after_a_pause = now > instance.deadline + takes / 4;
        let killed = Killed { counted_from: now, seen: (now, least), after_a_pause, hangs: false };
        instance.killed.get_or_insert(killed);
        instance.dying = true;
    }

    /// Whether an instance is dying that was to be gone by now.
    fn is_dying_late(&self, now: Time) -> bool {
        let Some(instance) = self.instance.as_ref().filter(|instance| instance.dying) else { return false };
        instance.due(self.table()).is_some_and(|due| now >= due)
    }

    /// Whether nothing is left to be done for an instance: it is dying, had its time, and its lease is lost.
    pub(super) fn is_left_dying(&self, now: Time) -> bool {
        self.is_dying_late(now) && self.holding.as_ref().is_some_and(|holding| holding.lost || holding.reads_of_loss)
    }

    /// Before the elector has an input: a process that did not run at its deadline, or since, has from its kill on, or
    /// once from its waking on, what there is between deadline and abort.
    pub(super) fn wakes(&mut self, now: Time) {
        let (takes, least) = (self.table().kill_timeout(), self.least);
        let Some(instance) = &mut self.instance else { return };
        let (deadline, Some(killed)) = (instance.deadline, &mut instance.killed) else { return };
        killed.hangs |= killed.seen.0.since(killed.counted_from) >= takes;
        let was_paused = least.saturating_sub(killed.seen.1) > takes / 4;
        if was_paused && now >= deadline && !killed.hangs && !killed.after_a_pause {
            (killed.counted_from, killed.after_a_pause) = (now, true);
        }
        killed.seen = (now, least);
    }

    pub(super) fn report(&mut self, now: Time, report: &Report) -> Checked {
        match report {
            Report::HeldOutside { .. } => self.seen.outside_said = true,
            Report::Lost { .. } if self.is_dying_late(now) => {
                if let Some(holding) = &mut self.holding {
                    holding.lost = true;
                }
            }
            Report::Lost { .. }
                if self.holding.as_ref().is_some_and(|holding| !holding.lost && !holding.reads_of_loss) =>
            {
                return broken("doubt_loses_nothing", format!("{report:?} without that"));
            }
            Report::Standby { .. } => {
                self.role += 1;
                self.gives_up_what_was_in_vain(now);
                if self.instance.is_none() {
                    self.holding = None;
                }
            }
            Report::CoolOff { wait, .. } => {
                let full = |cool_offs: u32| SECOND * (10 << cool_offs.min(6)).min(600);
                let (shortest, longest) = (full(self.cool_offs) * 3 / 4, full(self.cool_offs_at_most) * 5 / 4);
                self.cool_off_until = now + *wait;
                self.cool_off_is_unclear = self.other_heard == Some(now);
                self.cool_offs += u32::from(!self.cool_off_is_unclear);
                self.cool_offs_at_most += 1;
                if let Some(holding) = &mut self.holding {
                    holding.cool_off_said = true;
                }
                if !self.cool_off_is_unclear && (*wait < shortest || *wait > longest) {
                    return broken("cool_off_is_kept", format!("{wait:?}, not {shortest:?} to {longest:?}"));
                }
            }
            _ => {}
        }
        Ok(())
    }

    pub(super) fn takes_what_is_free(&self, now: Time) -> Checked {
        let Some((snapshot, at)) = &self.seen.last else { return Ok(()) };
        let is_free = match snapshot {
            Snapshot::Nothing => true,
            Snapshot::Object { record: Some(record), .. } if self.is_over(record) => false,
            Snapshot::Object { lease, version, .. } => {
                let waits = self.seen.death.is_some_and(|(.., has_failed)| has_failed);
                let is_abandoned = matches!(lease, LeaseState::Abandoned { .. }) && !waits;
                let is_reclaimable = matches!(lease, LeaseState::Reclaimable { .. });
                let is_over = matches!(lease, LeaseState::Free | LeaseState::Expired | LeaseState::Broken);
                // What else the store names may have it waited for.
                let is_given_up = self.is_given_up() && self.seen.recalled_early.as_ref() != Some(version);
                is_over || is_abandoned || is_reclaimable || is_given_up
            }
        };
        let free_for = self.seen.free_since.map_or(Duration::ZERO, |since| now.since(since));
        let may_take = self.versions.plan.module.is_some() && (now >= self.cool_off_until || free_for >= SECOND * 10);
        let is_news = *at == now && self.versions.heard != Some(now) && self.seen.as_standby && !self.shutdown_asked;
        if is_free && may_take && is_news && !self.seen.was_slow && self.last_sent < now {
            return broken("takes_what_is_free", format!("nothing follows from {snapshot:?}, free for {free_for:?}"));
        }
        Ok(())
    }

    /// Who has asked for a lease that was not released yet reads at once: what it has heard meanwhile may have been of
    /// that.
    pub(super) fn looks_again_at_once(&self) -> Checked {
        if self.seen.looks_again && !self.shutdown_asked {
            return broken("looks_again_at_once", format!("nothing is read after {:?}", self.seen.last));
        }
        Ok(())
    }

    /// A host that holds a lease and cannot write the record gives the lease up within D: another node might do better.
    pub(super) fn gives_up_what_it_cannot_write(&self, now: Time) -> Checked {
        let Some(holding) = self.holding.as_ref().filter(|_| self.instance.is_none()) else { return Ok(()) };
        // What a release needs to be written may come after that, as long as the lease lasts.
        let late = self.settings.timing.lease().max(holding.length) * 21 / 10;
        match holding.unwritten_since {
            Some(since) if !holding.lost && now >= since + late => {
                broken("gives_up_what_it_cannot_write", format!("{:?} after the first try", now.since(since)))
            }
            _ => Ok(()),
        }
    }

    /// A host that has taken a lease under which nothing can still run begins its term as soon as half of D is left.
    pub(super) fn starts_at_once(&self, now: Time) -> Checked {
        let (Some(holding), Some(acquisition)) = (&self.holding, &self.acquisition) else { return Ok(()) };
        let is_over = self.has_read_that_it_is_over();
        let is_leaving = self.shutdown_asked || holding.is_leaving || holding.had_nothing || is_over;
        let may_begin = acquisition.is_clear && now <= holding.renewed + self.settings.timing.lease() / 2;
        if may_begin && !holding.has_begun && !holding.lost && !is_leaving {
            return broken("starts_at_once", format!("no term is begun after {:?}", self.seen.last));
        }
        Ok(())
    }

    pub(super) fn known_loss_kills_at_once(&self) -> Checked {
        match (&self.instance, &self.holding) {
            (Some(Instance { killed: None, .. }), Some(Holding { lost: true, .. })) => {
                broken("known_loss_kills_at_once", "the lease is known to be lost, and it runs on".to_string())
            }
            _ => Ok(()),
        }
    }

    /// Only a renewal known to have succeeded extends the deadline, and that one does.
    pub(super) fn known_renewal_extends(&self) -> Checked {
        let (Some(instance), Some(holding)) = (&self.instance, &self.holding) else { return Ok(()) };
        let (table, renewed) = (self.table(), holding.renewed);
        // No later answer brings back a lease that is known to be lost.
        if holding.lost || holding.reads_of_loss {
            return Ok(());
        }
        if instance.deadline < renewed + table.deadline_after() || instance.abort_at < renewed + table.abort_after() {
            let what = format!("deadline {:?} for a request sent at {renewed:?}", instance.deadline);
            return broken("known_renewal_extends", what);
        }
        Ok(())
    }

    pub(super) fn deadlines_are_kept(&self, now: Time, awake_by: &dyn Fn(&'static str, Time) -> Checked) -> Checked {
        let (Some(instance), Some(holding)) = (&self.instance, &self.holding) else { return Ok(()) };
        let table = self.table();
        if instance.aborted {
            return Ok(());
        }
        if let Some(killed) = instance.killed {
            let abort_at = instance.abort_at.max(killed.counted_from + table.kill_timeout());
            if self.is_left_dying(now) && !self.shutdown_asked {
                return Ok(());
            }
            if now >= abort_at {
                return broken("gone_in_time", format!("nothing at {now:?}, with its end due at {abort_at:?}"));
            }
            return awake_by("gone_in_time", abort_at);
        }
        let at_risk = holding.renewed + table.at_risk_after();
        if instance.overdue || now >= instance.deadline {
            return broken("gone_in_time", format!("no kill at {now:?}, with the deadline at {:?}", instance.deadline));
        }
        if now >= at_risk && instance.stop.is_none() {
            return broken("stops_at_risk", format!("no stop at {now:?}, which was due at {at_risk:?}"));
        }
        match instance.stop {
            Some(grace_ends) if now >= grace_ends => broken("grace_is_bounded", format!("no kill at {grace_ends:?}")),
            Some(grace_ends) => awake_by("grace_is_bounded", grace_ends.min(instance.deadline)),
            None if self.shutdown_asked => broken("grace_is_bounded", "no stop at a shutdown".to_string()),
            None => awake_by("stops_at_risk", at_risk),
        }
    }

    /// An instance was killed and is not gone in the time that it had: its lease is to run out with its host.
    pub(super) fn hangs(&self, now: Time) -> bool {
        let killed = self.instance.as_ref().and_then(|instance| instance.killed);
        killed.is_some_and(|killed| killed.hangs || now.since(killed.counted_from) >= self.table().kill_timeout())
    }

    pub(super) fn leader_tries_never_slow(
        &self,
        now: Time,
        awake_by: &dyn Fn(&'static str, Time) -> Checked,
    ) -> Checked {
        const RULE: &str = "leader_tries_never_slow";
        let Some(holding) = &self.holding else { return Ok(()) };
        // A host that gives the lease up does so before it runs out, or not at all.
        let is_left = self.instance.is_none()
            && (holding.has_marked
                || holding.is_leaving
                || holding.must_step_down
                || holding.done_unrecorded
                || self.shutdown_asked
                || holding.had_nothing
                || self.has_read_that_it_is_over());
        let is_kept = !holding.lost && !holding.reads_of_loss && !is_left;
        let is_held = is_kept && now < holding.renewed + holding.length;
        if !is_held || holding.renew_by == Time(Duration::MAX) || self.hangs(now) {
            return Ok(());
        }
        if now > holding.renew_by {
            return broken(RULE, format!("no renewal at {now:?}, which was due at {:?}", holding.renew_by));
        }
        awake_by(RULE, holding.renew_by)
    }

    pub(super) fn outside_holder_is_reported(&self, now: Time) -> Checked {
        let seen = &self.seen;
        let Some((Snapshot::Object { lease, .. }, at)) = &seen.last else { return Ok(()) };
        let long = seen.outside_since.is_some_and(|since| at.since(since) >= self.settings.timing.lease() * 2);
        let is_outside = *lease == LeaseState::HeldForever || (*lease == LeaseState::Held && long);
        // A host that gave the lease up, and read that in doubt, says it at its next reading.
        let was_standby = seen.as_standby;
        let is_standby = self.holding.is_none() && self.acquisition.as_ref().is_none_or(|last| last.decided);
        if is_outside && was_standby && is_standby && *at == now && !seen.outside_said && !self.shutdown_asked {
            return broken("outside_holder_is_reported", format!("{:?} is not reported", seen.last));
        }
        Ok(())
    }

    pub(super) fn health_resets_the_count(&self, now: Time) -> Checked {
        let (Some(instance), Some(holding)) = (&self.instance, &self.holding) else { return Ok(()) };
        let is_healthy = instance.killed.is_none() && now.since(instance.started) >= SECOND * 61;
        // A holder that reads after a doubt that its lease is not held any more asks a renewal about that before it
        // writes anything.
        let is_broken = match &self.seen.last {
            Some((Snapshot::Object { lease, .. }, _)) => !self.seen.as_standby && *lease != LeaseState::Held,
            _ => false,
        };
        if is_healthy && holding.failures.expected > 0 && !self.seen.must_read && !is_broken {
            return broken("failures_counted_in_record", "60 s of health do not reset the count".to_string());
        }
        Ok(())
    }
}

impl Instance {
    /// When something is to follow from its not being gone, once it was killed.
    fn due(&self, table: Table) -> Option<Time> {
        self.killed.map(|killed| self.abort_at.max(killed.counted_from + table.kill_timeout()))
    }
}
