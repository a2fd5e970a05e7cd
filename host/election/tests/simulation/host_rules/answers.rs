//! What a process has been told: the store's answers and what became of its instance.

use super::*;

impl HostRules {
    pub(super) fn answer(&mut self, now: Time, id: RequestId, result: &Result<Reply, StoreError>) {
        let Some(asked) = self.requests.get_mut(&id) else { return };
        if std::mem::replace(&mut asked.answered, true) {
            return;
        }
        let (op, sent, role) = (asked.op.clone(), asked.sent, asked.role);
        match (&op, result) {
            // One that was asked for again tells nothing any more.
            (Op::Read, _) if role != self.role || self.last_read != Some(id) => {}
            (Op::Survey, _) if role != self.role || self.last_read != Some(id) => {}
            (Op::Read, Ok(Reply::Read(snapshot))) => {
                self.read(now, snapshot);
                self.seen.was_slow = now.since(sent) > self.table().try_timeout();
                self.hears_of_whom_it_read();
            }
            (Op::Survey, Ok(Reply::Surveyed { read, term, .. })) => {
                self.read(now, read);
                self.seen.was_slow = false;
                self.hears_of_whom_it_read();
                self.recalls_early();
                self.recalled(now, sent, &Ok(Reply::Term(*term)));
            }
            // It reads as if it had asked nothing.
            (Op::Survey, _) => self.seen.looks_again = true,
            (Op::Read, Err(_)) if self.holding.is_none() => self.failed_reads = (self.failed_reads.0 + 1, now),
            (Op::Recall, _) if role != self.role => {}
            (Op::Recall, result) => self.recalled(now, sent, result),
            (Op::Acquire { id, length, .. }, result) if self.holding.as_ref().is_some_and(|one| one.id == *id) => {
                if let (Ok(_), Some(holding)) = (result, &mut self.holding) {
                    holding.length = *length;
                }
                self.renewed(now, *id, sent, result);
            }
            (Op::Acquire { id, .. } | Op::Reclaim { id, .. }, result) => self.acquired(now, *id, sent, result),
            (Op::Renew { id }, result) => self.renewed(now, *id, sent, result),
            (Op::Write { id: lease, version, record }, result) if role == self.role && self.last_write == Some(id) => {
                self.written(*lease, version, record, result);
            }
            // That the lease is lost, one that is not wanted any more tells as well.
            (Op::Write { id: lease, .. }, Err(StoreError::Lost(_) | StoreError::Held)) if role == self.role => {
                self.loses(*lease);
            }
            (Op::Write { .. } | Op::Create { .. } | Op::Release { .. } | Op::Read, _) => {}
        }
    }

    /// An acquire was not sent: it tells nothing, and its id is spent all the same.
    pub(super) fn not_sent(&mut self, id: RequestId) {
        let Some(asked) = self.requests.get_mut(&id) else { return };
        asked.answered = true;
        if let (Op::Acquire { id, .. } | Op::Reclaim { id, .. }, Some(acquisition)) = (&asked.op, &mut self.acquisition)
        {
            acquisition.decided |= acquisition.id == *id;
            if let Some((Snapshot::Object { lease: LeaseState::Held, version, .. }, _)) = &self.seen.last {
                self.seen.asked_early = Some(version.clone());
            }
        }
    }

    pub(super) fn recalled(&mut self, now: Time, sent: Time, result: &Result<Reply, StoreError>) {
        match result {
            Ok(Reply::Term(term)) => {
                let seen = &mut self.seen;
                seen.recalled_at = Some(self.least);
                seen.unrecalled_since = None;
                seen.recalled = Some(true);
                // Nothing says how long the lease was under which that term was written.
                if *term > seen.written_term {
                    seen.longest_lease = Some(SECOND * 60);
                }
                seen.highest_term = seen.highest_term.max(*term);
                seen.written_term = seen.written_term.max(*term);
                seen.history |= *term > 0;
                let longest = self.longest_lease();
                if let (Some(_), Some(acquisition)) = (&self.holding, &mut self.acquisition)
                    && !acquisition.is_clear
                {
                    acquisition.is_recalled = true;
                    acquisition.waits_until = acquisition.first_sent_least + longest;
                }
            }
            Err(StoreError::Misconfigured(_)) => {
                (self.seen.recalled_at, self.seen.recalled) = (Some(self.least), Some(false));
                self.seen.unrecalled_since.get_or_insert(sent);
            }
            _ => {
                let since = *self.seen.unrecalled_since.get_or_insert(sent);
                let is_vain = now.since(since) >= self.settings.timing.lease();
                match (&self.holding, is_vain) {
                    // What cannot be asked for within D is done without, by who waits the lease out or has done so.
                    (Some(_), true) => self.seen.recalled_at = Some(self.least),
                    (Some(_), false) => {}
                    (None, true) => self.seen.recalled = Some(false),
                    (None, false) => self.failed_reads = (self.failed_reads.0 + 1, now),
                }
            }
        }
    }

    pub(super) fn read(&mut self, now: Time, snapshot: &Snapshot) {
        let mut snapshot = snapshot.clone();
        if let Snapshot::Object { lease, record, .. } = &mut snapshot
            && self.holding.is_none()
            && self.is_as_good_as_held(*lease, record.as_ref())
        {
            *lease = LeaseState::Held;
        }
        let snapshot = &snapshot;
        if let Snapshot::Object { lease: LeaseState::Abandoned { holder }, record, .. } = snapshot
            && self.seen.death.is_none_or(|(known, ..)| known != *holder)
        {
            let is_served =
                |record: &&Record| record.module.is_some() && record.module.as_deref() == self.versions.digest();
            let has_failed = record.as_ref().filter(is_served).is_some_and(|record| record.failures > 0);
            self.seen.death = Some((*holder, now, has_failed));
        }
        self.failed_reads.0 = 0;
        let seen = &mut self.seen;
        seen.recalled = None;
        seen.is_marked = matches!(snapshot, Snapshot::Object { record: Some(Record { released: true, .. }), .. });
        seen.must_read = false;
        seen.as_standby = self.holding.is_none();
        seen.last = Some((snapshot.clone(), now));
        let Snapshot::Object { lease, version, record } = snapshot else {
            seen.history |= seen.any_object;
            match &mut self.holding {
                Some(holding) => holding.reads_of_loss = true,
                None => drop(seen.free_since.get_or_insert(now)),
            }
            // Its holder had written nothing when it was last read: the length of that lease is unknown.
            if seen.outside_since.take().is_some() {
                seen.longest_lease = Some(SECOND * 60);
            }
            seen.outside_said = false;
            return;
        };
        seen.any_object = true;
        // While the lease is held nobody else writes. A reading may be from before a write that was answered since.
        if let Some(holding) = &mut self.holding {
            let is_known = [&seen.version, &seen.version_before].iter().any(|known| known.as_ref() == Some(version));
            let is_own = |asked: &Asked| match &asked.op {
                Op::Write { id, version: over, record: asked } => {
                    *id == holding.id && seen.version.as_ref() == Some(over) && record.as_ref() == Some(asked)
                }
                _ => false,
            };
            let may_be_held = matches!(lease, LeaseState::Held | LeaseState::Expired);
            holding.reads_of_loss |= !may_be_held || (!is_known && !self.requests.values().any(is_own));
        }
        seen.version = Some(version.clone());
        let is_own = self.holding.is_some();
        let is_held = matches!(lease, LeaseState::Held | LeaseState::HeldForever | LeaseState::Breaking);
        // What a holder finds when it compares tells it nothing of who could take the lease.
        if is_held {
            seen.free_since = None;
        } else if !is_own {
            seen.free_since.get_or_insert(now);
            seen.free_version = Some(version.clone());
        }
        let is_silent = !is_own && (record.is_none() || seen.free_version.as_ref() == Some(version));
        match lease {
            LeaseState::Held if is_silent => drop(seen.outside_since.get_or_insert(now)),
            LeaseState::HeldForever | LeaseState::Breaking if is_silent => {}
            LeaseState::HeldForever | LeaseState::Breaking => seen.outside_since = None,
            // Of one that is about to end nothing is said, so that what was said last stands.
            LeaseState::Held if seen.is_marked => seen.outside_since = None,
            _ => (seen.outside_since, seen.outside_said) = (None, false),
        }
        seen.history |= *lease != LeaseState::Free;
        let wanted = self.last_write.and_then(|id| self.requests.get(&id)).map(|asked| &asked.op);
        if let (Some(holding), Some(Op::Write { record: wanted, .. })) = (&mut self.holding, wanted)
            && record.as_ref() == Some(wanted)
        {
            holding.unwritten_since = None;
        }
        if let Some(record) = record {
            // An earlier record of its own may have been put back.
            let is_set_back = record.term < seen.written_term;
            seen.highest_term = seen.highest_term.max(record.term);
            seen.written_term = seen.written_term.max(record.term);
            seen.recorded_term = record.term;
            seen.longest_lease = seen.longest_lease.max(Some(record.lease));
            seen.history |= record.term > 0 || record.node.is_some();
            if record.incarnation == self.settings.incarnation
                && !is_set_back
                && let Some(holding) = &mut self.holding
            {
                holding.failures.belongs_to(record);
                holding.failures.recorded = record.failures;
                holding.done_unrecorded &= record.outcome.is_none();
            }
        }
    }

    /// Whether a lease is to be taken for held though its holder is gone.
    fn is_as_good_as_held(&self, lease: LeaseState, record: Option<&Record>) -> bool {
        // Who is gone had waited for another, who may not be.
        let Some(record) = record.filter(|record| record.node.is_some()) else {
            return matches!(lease, LeaseState::Abandoned { .. } | LeaseState::Reclaimable { .. });
        };
        let Table(own) = self.table();
        match lease {
            // A release may be under way; it is another's, as the store has said; it is longer or shorter than it
            // counts.
            LeaseState::Reclaimable { holder } => {
                record.released
                    || self.seen.refused_reclaim == Some(holder)
                    || !(own..own + SECOND).contains(&record.lease)
            }
            _ => false,
        }
    }

    pub(super) fn acquired(&mut self, now: Time, id: LeaseId, sent: Time, result: &Result<Reply, StoreError>) {
        let renew_by = sent + self.table().renew_after();
        // Once it is decided, an answer is one to a shortening of a lease that ran out meanwhile, and tells nothing.
        let is_open = |acquisition: &&mut Acquisition| acquisition.id == id && !acquisition.decided;
        let is_early = matches!(&self.seen.last, Some((Snapshot::Object { lease: LeaseState::Held, .. }, _)));
        let Some(acquisition) = self.acquisition.as_mut().filter(is_open) else { return };
        match result {
            Err(StoreError::Unknown(_)) => acquisition.in_doubt = true,
            // An earlier try may be carried out yet, once the lease is released.
            Err(StoreError::Held) if acquisition.in_doubt && is_early => {}
            Err(StoreError::Misconfigured(_)) => acquisition.decided = !acquisition.in_doubt,
            Err(error) => {
                acquisition.decided = true;
                if acquisition.reclaims.is_some() && matches!(error, StoreError::Held | StoreError::Lost(_)) {
                    self.seen.refused_reclaim = acquisition.reclaims;
                }
                let is_refused = matches!(error, StoreError::Held | StoreError::Conflict | StoreError::Lost(_));
                self.seen.history |= is_refused;
                if let Some((Snapshot::Object { lease: LeaseState::Held, version, .. }, _)) = &self.seen.last {
                    self.seen.looks_again = is_refused;
                    if *error == StoreError::Held {
                        self.seen.asked_early = Some(version.clone());
                    }
                }
            }
            Ok(_) => {
                acquisition.decided = true;
                self.seen.history = true;
                self.seen.free_since = None;
                self.seen.outside_since = None;
                self.heard = hints::Heard::default();
                self.role += 1;
                self.failed_reads.0 = 0;
                self.versions.leads_anew();
                let record = match &self.seen.last {
                    Some((Snapshot::Object { record, .. }, _)) => record.as_ref(),
                    _ => None,
                };
                let module = record.and_then(|record| record.module.clone());
                let is_same = module.is_some() && module.as_deref() == self.versions.digest();
                // Under a record that names no module any more the end is nobody's failure.
                // The rest of a pause that the holder before has begun: its end in that is nobody's failure.
                let rests_until = record.and_then(|record| record.rests_until).filter(|_| is_same);
                let pause = rests_until
                    .map_or(Duration::ZERO, |until| until.saturating_sub(self.wall))
                    .min(self.settings.pause);
                let is_failure = acquisition.is_of_the_dead && module.is_some() && pause.is_zero();
                let failures = record.map_or(0, |record| record.failures) + u32::from(is_failure);
                acquisition.gives_way = acquisition.reclaims.is_some() && is_same && failures > 1;
                let must_step_down = acquisition.gives_way;
                self.holding = Some(Holding {
                    id,
                    length: acquisition.length,
                    renewed: sent,
                    renewed_before: None,
                    in_doubt_until: None,
                    has_marked: false,
                    had_nothing: self.versions.digest().is_none(),
                    rests: module.clone().filter(|_| !pause.is_zero()).map(|module| (module, now + pause)),
                    pauses: !pause.is_zero(),
                    unwritten_since: None,
                    lost: false,
                    reads_of_loss: false,
                    renew_by,
                    renew_from: Time::default(),
                    failures: Count {
                        expected: failures,
                        recorded: failures,
                        module,
                        others: BTreeMap::new(),
                        served: None,
                    },
                    done_unrecorded: false,
                    has_begun: false,
                    must_step_down,
                    unable: 0,
                    is_leaving: must_step_down,
                    cool_off_said: false,
                });
            }
        }
    }

    pub(super) fn renewed(&mut self, now: Time, id: LeaseId, sent: Time, result: &Result<Reply, StoreError>) {
        let table = self.table();
        let Some(holding) = self.holding.as_mut().filter(|holding| holding.id == id) else { return };
        match result {
            Ok(_) => {
                if now >= holding.renewed + table.deadline_after() {
                    holding.in_doubt_until = Some(now);
                }
                holding.renewed_before = Some((holding.renewed, now));
                holding.renewed = holding.renewed.max(sent);
                holding.renew_by = (sent + table.renew_after()).max(now);
            }
            // Of an acquire, whose version is the last that this holder knows of.
            Err(StoreError::Lost(_) | StoreError::Held | StoreError::Conflict) => holding.lost = true,
            Err(_) => {
                let (shortest, longest) = table.retry_range();
                (holding.renew_from, holding.renew_by) = (now + shortest, now + longest);
            }
        }
    }

    pub(super) fn written(&mut self, id: LeaseId, over: &Version, record: &Record, result: &Result<Reply, StoreError>) {
        match result {
            Ok(Reply::Version(version)) => {
                self.seen.version_before = self.seen.version.replace(version.clone());
                self.seen.must_read = false;
                self.seen.highest_term = self.seen.highest_term.max(record.term);
                self.seen.written_term = self.seen.written_term.max(record.term);
                self.seen.is_marked = record.released;
                self.seen.recorded_term = record.term;
                self.seen.longest_lease = self.seen.longest_lease.max(Some(record.lease));
            }
            // A reading since has shown what became of it, if it showed another version than the one that it was to
            // replace.
            Ok(_) | Err(StoreError::Unknown(_) | StoreError::Misconfigured(_) | StoreError::Conflict) => {
                self.seen.must_read |= self.seen.version.as_ref() == Some(over);
            }
            Err(StoreError::Lost(_) | StoreError::Held) => {}
        }
        match result {
            Ok(_) => {
                let Some(holding) = self.holding.as_mut().filter(|holding| holding.id == id) else { return };
                holding.unwritten_since = None;
                holding.failures.recorded = record.failures;
                holding.done_unrecorded &= record.outcome.is_none();
            }
            Err(StoreError::Lost(_) | StoreError::Held) => self.loses(id),
            Err(_) => {}
        }
    }

    /// The store has said that the lease is not held any more.
    fn loses(&mut self, id: LeaseId) {
        if let Some(holding) = self.holding.as_mut().filter(|holding| holding.id == id) {
            holding.lost = true;
        }
    }

    pub(super) fn gone(&mut self, now: Time, end: &End) {
        let Some(instance) = self.instance.take() else { return };
        let is_lost = self.holding.as_ref().is_none_or(|holding| holding.lost);
        let was_stopped = instance.stop.is_some() || instance.at_risk || instance.overdue || is_lost;
        let is_rejected = !is_lost && self.judges(&instance.version, instance.begun, end, was_stopped);
        let is_replaced = self.versions.digest() != Some(&instance.version.digest);
        let Some(holding) = &mut self.holding else { return };
        if let End::Superseded { term } = end {
            self.spent = self.spent.max(*term);
            self.seen.highest_term = self.seen.highest_term.max(*term);
        }
        let count = &mut holding.failures;
        let module = &instance.version.digest;
        if now.since(instance.started) >= Duration::from_secs(60) {
            count.forgives(module);
        }
        if !is_replaced {
            count.stays_with(module);
        }
        // What leads to another version counts for neither.
        if was_stopped || is_rejected || (is_replaced && !holding.is_leaving && !self.shutdown_asked) {
            return;
        }
        count.stays_with(module);
        holding.unable = match end {
            End::Unable(_) => holding.unable + 1,
            End::Killed | End::Superseded { .. } => holding.unable,
            _ => 0,
        };
        match end {
            End::Unable(_) => {
                (holding.rests, holding.pauses) = (Some((module.clone(), now + Duration::from_secs(1))), false);
                holding.must_step_down = holding.unable >= 3;
            }
            End::Done => {
                count.expected = 0;
                holding.rests = Some((module.clone(), now + self.settings.pause));
                holding.pauses = self.settings.on_done == OnDone::Repeat;
                holding.done_unrecorded = self.settings.on_done == OnDone::Finish;
            }
            End::Failed(_) | End::Crashed(_) | End::Fatal(_) => {
                count.expected += 1;
                (holding.rests, holding.pauses) = (Some((module.clone(), now + Duration::from_secs(1))), false);
                holding.must_step_down = count.expected >= 5 || matches!(end, End::Fatal(_));
            }
            End::Killed | End::Superseded { .. } => {}
        }
    }
}
