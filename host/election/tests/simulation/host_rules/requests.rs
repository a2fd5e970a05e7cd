//! The rules of asking: when what may be asked of the store, under which id, version and term.

use super::*;

/// A standby that is given hints without end leaves that much between two readings.
const HINTED_POLL: Duration = Duration::from_millis(60);
/// So many may come at once.
const AT_ONCE: usize = 3;

impl HostRules {
    pub(super) fn request(&mut self, now: Time, id: RequestId, op: &Op) -> Checked {
        let asked = Asked { op: op.clone(), sent: now, answered: false, role: self.role };
        let is_new = self.requests.insert(id, asked).is_none();
        if !is_new {
            return broken("host_survives", format!("{id:?} is used twice"));
        }
        self.last_sent = now;
        match op {
            Op::Read | Op::Survey => {
                if *op == Op::Survey && !self.expects_an_opening() {
                    return broken("surveys_an_opening", format!("a survey after {:?}", self.heard));
                }
                self.last_read = Some(id);
                self.gives_up_what_was_in_vain(now);
                let is_hinted = self.hinted.is_some();
                // Which of the two was first does not show.
                self.hinted.take_if(|hinted| *hinted < now);
                // What leads to a reading by itself is no hint: the object was made, another was faster, or a lease
                // that is given up was not released yet.
                let is_held = matches!(&self.seen.last, Some((Snapshot::Object { lease: LeaseState::Held, .. }, _)));
                let looks_again = core::mem::take(&mut self.seen.looks_again);
                let is_bounded = is_hinted && is_held && !looks_again && self.holding.is_none() && !self.is_in_doubt();
                if !is_bounded {
                    self.hinted_reads.clear();
                } else {
                    self.hinted_reads.push_back(now);
                }
                if self.hinted_reads.len() > AT_ONCE
                    && let Some(first) = self.hinted_reads.pop_front()
                    && now.since(first) < HINTED_POLL
                {
                    let what = format!("a reading at {now:?}, the third after one at {first:?}");
                    return broken("hints_are_bounded", what);
                }
                self.standby_backs_off(now, is_hinted || looks_again)
            }
            Op::Recall if self.seen.was_slow && self.seen.as_standby && self.holding.is_none() => broken(
                "takes_only_what_it_can_keep",
                format!("a recall after a reading that took longer than {:?}", self.table().try_timeout()),
            ),
            Op::Recall => {
                self.recalls_early();
                Ok(())
            }
            Op::Create { record } => self.created_only_if_none(record),
            Op::Acquire { id, length, version, instead_of } => self.acquire(now, *id, *length, version, *instead_of),
            Op::Reclaim { from, id, version } => self.reclaim(now, *from, *id, version),
            Op::Renew { .. } if self.hangs(now) => {
                let killed = self.instance.as_ref().and_then(|instance| instance.killed);
                broken("ends_what_hangs", format!("a renewal at {now:?} for what was killed at {killed:?}"))
            }
            Op::Renew { id } => self.renew(now, *id),
            Op::Write { id: lease, version, record } => {
                self.a_write_that_is_found_is_done(record)?;
                self.last_write = Some(id);
                self.write(now, *lease, version, record)
            }
            Op::Release { id } => self.release(*id),
        }
    }

    /// It asks, or has asked, what else the store names while the lease is given up and not released, as far as it
    /// knows.
    pub(super) fn recalls_early(&mut self) {
        if let Some((Snapshot::Object { version, .. }, _)) = &self.seen.last
            && self.is_given_up()
        {
            self.seen.recalled_early = Some(version.clone());
        }
    }

    fn renew(&mut self, now: Time, id: LeaseId) -> Checked {
        // A holder that reads in doubt that its lease is not held asks at once whether that is so.
        let is_asking = !self.seen.as_standby
            && matches!(&self.seen.last, Some((Snapshot::Object { lease, .. }, _)) if *lease != LeaseState::Held);
        let Some(holding) = self.holding.as_mut().filter(|holding| holding.id == id) else {
            return broken("lease_id_is_fresh", "a renewal of a lease that is not held".to_string());
        };
        holding.renew_by = Time(Duration::MAX);
        if now < holding.renew_from && !is_asking {
            let what = format!("a renewal at {now:?}, before {:?}", holding.renew_from);
            return broken("leader_tries_have_a_pause", what);
        }
        Ok(())
    }

    /// Whether it has asked for the lease and heard of no outcome, or just now.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.acquisition.as_ref().is_some_and(|acquisition| !acquisition.decided) || self.shutdown_asked
    }

    /// A host that is a standby, or reads as one, has given up an acquire in doubt of which nothing can come any more.
    pub(super) fn gives_up_what_was_in_vain(&mut self, now: Time) {
        if let Some(acquisition) = self.acquisition.as_mut().filter(|_| self.holding.is_none()) {
            let is_over = now.since(acquisition.first_sent) >= acquisition.length;
            acquisition.decided |= is_over && !self.shutdown_asked;
        }
    }

    pub(super) fn standby_backs_off(&self, now: Time, is_hinted: bool) -> Checked {
        const RULE: &str = "standby_backs_off";
        // A host that ends and gives up what it may have acquired tries as a holder does.
        if self.holding.is_some() || self.shutdown_asked {
            return Ok(());
        }
        let (failures, at) = self.failed_reads;
        let shortest = match failures {
            0 => Duration::ZERO,
            1..5 => SECOND * 3 / 4,
            _ => SECOND * 5,
        };
        if failures > 0 && now.since(at) < shortest {
            return broken(RULE, format!("reads {:?} after {failures} failures in a row", now.since(at)));
        }
        if let Some((Snapshot::Object { lease: LeaseState::Held, .. }, at)) = &self.seen.last
            && failures == 0
            && !is_hinted
            && !self.may_be_eager(now)
            && self.acquisition.as_ref().is_none_or(|acquisition| acquisition.decided)
            && now.since(*at) < SECOND * 3 / 4
        {
            return broken(RULE, format!("polls after {:?}", now.since(*at)));
        }
        Ok(())
    }

    /// A standby reads once a second, a quarter more or less, and never in step with others; the first time within the
    /// first second.
    pub(super) fn polls_every_second(&mut self, now: Time, wakeup: Option<Time>) -> Checked {
        const RULE: &str = "polls_every_second";
        if self.finished || self.shutdown_asked {
            return Ok(());
        }
        if self.requests.is_empty() {
            let first = Time::default() + SECOND;
            return match wakeup {
                Some(wakeup) if wakeup <= first => Ok(()),
                _ => broken(RULE, format!("the first poll is due at {wakeup:?}")),
            };
        }
        let is_news = self.seen.last.as_ref().is_some_and(|(_, at)| *at == now) && self.seen.as_standby;
        // What else is answered at the same moment, or asked for, may lead elsewhere.
        let is_asked = || self.requests.values().any(|asked| !asked.answered && asked.role == self.role);
        if !is_news
            || self.hinted.is_some()
            || self.has_heard()
            || self.failed_reads.0 > 0
            || self.last_sent == now
            || self.holding.is_some()
            || is_asked()
        {
            return Ok(());
        }
        let wait = wakeup.map_or(Duration::MAX, |wakeup| wakeup.since(now));
        let (before, last) = self.polls;
        // Who has heard that it is given up reads as often as that says, also when it must have run out.
        let is_given_up = match &self.seen.last {
            Some((Snapshot::Object { lease: LeaseState::Held, record: Some(record), .. }, _)) => record.released,
            _ => false,
        };
        let is_early = !is_given_up && (wait < SECOND * 3 / 4 || (last < now && before == [wait; 2]));
        if is_early || wait > SECOND * 5 / 4 {
            return broken(RULE, format!("the next poll is {wait:?} away, the ones before were {before:?}"));
        }
        if last < now {
            self.polls = ([before[1], wait], now);
        }
        Ok(())
    }

    pub(super) fn created_only_if_none(&self, record: &Record) -> Checked {
        const RULE: &str = "created_only_if_none";
        if !matches!(self.seen.last, Some((Snapshot::Nothing, _))) {
            return broken(RULE, format!("the last reading was {:?}", self.seen.last));
        }
        // Others take what is marked at once: nobody may mark it who knows, or cannot know, that somebody has led.
        if record.released != (self.seen.recalled == Some(true) && !self.seen.history) {
            return broken(RULE, format!("{record:?}, with history {}", self.seen.history));
        }
        let longest = self.longest_lease();
        if !record.released && record.lease < longest {
            return broken(RULE, format!("it names a D of {:?}, and {longest:?} may still run", record.lease));
        }
        // A term that this host has tried to write counts, whether it was seen or not.
        if record.term < self.seen.highest_term || record.node.is_some() {
            return broken(RULE, format!("{record:?} does not go on from term {}", self.seen.highest_term));
        }
        Ok(())
    }

    /// A holder that has waited another's lease out asks for one of D under its id, before it begins a term.
    fn shorten(&mut self, now: Time, id: LeaseId, length: Duration, version: &Version) -> Checked {
        const RULE: &str = "serves_under_a_lease_of_d";
        let Table(lease) = self.table();
        let waits = self.acquisition.as_ref().is_none_or(|acquisition| self.least < acquisition.waits_until);
        match &self.holding {
            _ if length != lease => broken(RULE, format!("a lease of {length:?} is asked for, and D is {lease:?}")),
            Some(holding) if holding.length == lease => broken(RULE, "it is as long already".to_string()),
            _ if self.instance.is_some() || waits => broken(RULE, "while something may still run".to_string()),
            _ if self.seen.version.as_ref() != Some(version) => {
                let what = format!("an acquire with {version:?}, and known is {:?}", self.seen.version);
                broken("writes_carry_id_and_version", what)
            }
            _ => self.renew(now, id),
        }
    }

    /// A lease that is asked for now, after which nothing else runs.
    fn asks_for(&self, now: Time, id: LeaseId, length: Duration) -> Acquisition {
        Acquisition {
            id,
            length,
            first_sent: now,
            first_sent_least: self.least,
            in_doubt: false,
            decided: false,
            waits_until: self.least,
            is_clear: true,
            is_of_the_dead: false,
            reclaims: None,
            gives_way: false,
            is_recalled: self.seen.recalled == Some(true),
        }
    }

    /// Reclaims a lease as it was read, if nothing is unclear, under an id that is its own.
    fn reclaim(&mut self, now: Time, from: LeaseId, id: LeaseId, version: &Version) -> Checked {
        const RULE: &str = "reclaims_what_it_read";
        if id == from {
            return broken("lease_id_is_fresh", "a reclaim under the id of the dead holder".to_string());
        }
        if self.instance.is_some() || self.holding.is_some() {
            return broken(RULE, "while it holds a lease".to_string());
        }
        let Some((Snapshot::Object { lease, version: read, record: Some(record) }, _)) = &self.seen.last else {
            return broken(RULE, "without a reading".to_string());
        };
        if (*lease, read) != (LeaseState::Reclaimable { holder: from }, version) {
            return broken(RULE, format!("{from:?} with {version:?} after {lease:?} with {read:?}"));
        }
        self.acquire_repeated_only_with_same_id_when_unknown(now, id)?;
        let is_new = self.acquisition.as_ref().is_none_or(|acquisition| acquisition.id != id);
        let is_to_lead = self.versions.digest().is_some() && !self.is_over(record);
        if is_new && (!is_to_lead || self.seen.recalled.is_none()) {
            return broken(RULE, format!("{:?} after {:?}", self.seen.recalled, self.seen.last));
        }
        let wait = self.wait_for(*lease, Some(record));
        if !wait.is_zero() {
            return broken(RULE, format!("though something may still run for {wait:?}"));
        }
        self.cool_off_is_kept(now)?;
        if is_new {
            self.role += 1;
            self.holding = None;
            let Table(length) = self.table();
            self.used_ids.insert(id.as_u128());
            self.acquisition =
                Some(Acquisition { is_of_the_dead: true, reclaims: Some(from), ..self.asks_for(now, id, length) });
        }
        Ok(())
    }

    pub(super) fn acquire(
        &mut self,
        now: Time,
        id: LeaseId,
        length: Duration,
        version: &Version,
        instead_of: Option<LeaseId>,
    ) -> Checked {
        if self.holding.as_ref().is_some_and(|holding| holding.id == id) {
            return self.shorten(now, id, length, version);
        }
        if self.instance.is_some() {
            return broken("release_last", "an acquire while an instance is not gone".to_string());
        }
        let is_new = self.acquisition.as_ref().is_none_or(|acquisition| acquisition.id != id);
        if is_new && self.versions.digest().is_none() {
            return broken("contends_with_a_module_only", "an acquire with nothing to serve".to_string());
        }
        let Some((Snapshot::Object { lease, version: read, record }, _)) = &self.seen.last else {
            return broken("writes_carry_id_and_version", "an acquire without a reading".to_string());
        };
        if read != version {
            return broken(
                "writes_carry_id_and_version",
                format!("an acquire with {version:?}, but read was {read:?}"),
            );
        }
        if matches!(lease, LeaseState::Reclaimable { .. }) {
            return broken("reclaims_what_it_read", format!("an acquire after reading {lease:?}"));
        }
        // An acquire in doubt is repeated whatever was read.
        if lease.is_held() && is_new && !self.is_given_up() {
            return broken("acquires_only_what_looks_free", format!("an acquire after reading {lease:?}"));
        }
        let dead = if let LeaseState::Abandoned { holder } = lease { Some(*holder) } else { None };
        if instead_of != dead {
            return broken("takes_the_place_that_it_read", format!("{instead_of:?} after {lease:?}"));
        }
        if let Some((holder, since, has_failed)) = self.seen.death
            && is_new
            && dead == Some(holder)
            && has_failed
            && now.since(since) < SECOND
        {
            return broken("crash_loop_is_slow", format!("an acquire {:?} after {lease:?}", now.since(since)));
        }
        // An acquire in doubt is repeated whatever is planned by now: only its answer tells whether there is a lease to
        // give up.
        if is_new && record.as_ref().is_some_and(|record| self.is_over(record)) {
            return broken("finish_stays_finished", "an acquire of a finished election".to_string());
        }
        if is_new && self.seen.recalled.is_none() {
            return broken("recalls_before_it_asks", format!("an acquire after {:?} alone", self.seen.last));
        }
        self.cool_off_is_kept(now)?;
        let wait = self.wait_for(*lease, record.as_ref());
        self.acquire_repeated_only_with_same_id_when_unknown(now, id)?;
        if is_new {
            self.role += 1;
            self.used_ids.insert(id.as_u128());
            self.holding = None;
            self.acquisition = Some(Acquisition {
                waits_until: self.least + wait,
                is_clear: wait.is_zero(),
                is_of_the_dead: instead_of.is_some(),
                ..self.asks_for(now, id, length)
            });
        }
        Ok(())
    }

    /// Whether the lease that was read is held, but marked, and was not asked for in vain.
    pub(super) fn is_given_up(&self) -> bool {
        match &self.seen.last {
            Some((Snapshot::Object { lease: LeaseState::Held, version, record: Some(record) }, _)) => {
                record.released && self.seen.asked_early.as_ref() != Some(version)
            }
            _ => false,
        }
    }

    pub(super) fn acquire_repeated_only_with_same_id_when_unknown(&self, now: Time, id: LeaseId) -> Checked {
        const RULE: &str = "acquire_repeated_only_with_same_id_when_unknown";
        match &self.acquisition {
            Some(last) if last.id == id && last.decided => {
                broken("lease_id_is_fresh", "an acquire with the id of an acquisition that was answered".to_string())
            }
            Some(last) if last.id == id && now.since(last.first_sent) > last.length => {
                broken(RULE, "still repeated after D".to_string())
            }
            Some(last) if last.id == id => Ok(()),
            _ if self.used_ids.contains(&id.as_u128()) => {
                broken("lease_id_is_fresh", "an id that was used before".to_string())
            }
            Some(last) if !last.decided && now.since(last.first_sent) < last.length => {
                broken(RULE, format!("another id {:?} after an unknown outcome", now.since(last.first_sent)))
            }
            _ => Ok(()),
        }
    }

    /// How long the lease may last under which an instance still runs.
    pub(super) fn longest_lease(&self) -> Duration {
        // What could not be asked for may be of a term that no record says anything of, and so may one that was tried
        // here and never seen.
        let has_tried = self.terms.keys().next_back().is_some_and(|term| *term > self.seen.written_term);
        let is_known = self.seen.recalled == Some(true) && !has_tried;
        self.seen.longest_lease.filter(|_| is_known).unwrap_or(SECOND * 60)
    }

    /// How long a new holder must wait that read this before its acquire.
    pub(super) fn wait_for(&self, lease: LeaseState, record: Option<&Record>) -> Duration {
        let recorded = self.longest_lease();
        let term = record.map_or(0, |record| record.term);
        if self.seen.recalled != Some(true) || term < self.seen.written_term {
            return recorded;
        }
        match (lease, record) {
            (LeaseState::Expired | LeaseState::Abandoned { .. } | LeaseState::Reclaimable { .. }, _) => Duration::ZERO,
            (LeaseState::Free | LeaseState::Held, Some(record))
                if record.released && (term > 0 || !self.seen.history) =>
            {
                Duration::ZERO
            }
            _ => recorded,
        }
    }

    pub(super) fn is_over(&self, record: &Record) -> bool {
        record.outcome == Some(Outcome::Done)
            && record.module.is_some()
            && record.module.as_deref() == self.versions.digest()
    }

    /// Whether the election ended with what is to be served, as far as the last reading told.
    pub(super) fn has_read_that_it_is_over(&self) -> bool {
        match &self.seen.last {
            Some((Snapshot::Object { record: Some(record), .. }, _)) => self.is_over(record),
            _ => false,
        }
    }

    /// The lease of an election that turns out to be over is not kept. Who does not know what is in the record reads it
    /// before the mark is written.
    pub(super) fn over_is_not_held(&self) -> Checked {
        let may_mark = |asked: &Asked| !asked.answered && matches!(asked.op, Op::Read | Op::Write { .. });
        let is_marking = self.requests.values().any(may_mark);
        if self.holding.as_ref().is_some_and(|holding| !holding.has_marked && !is_marking)
            && let Some((Snapshot::Object { version, record: Some(record), .. }, _)) = &self.seen.last
            && self.seen.version.as_ref() == Some(version)
            && !self.seen.must_read
            && self.is_over(record)
        {
            return broken("finish_stays_finished", "the lease of a finished election is kept".to_string());
        }
        Ok(())
    }

    pub(super) fn cool_off_is_kept(&self, now: Time) -> Checked {
        let until = self.cool_off_until;
        let free_for = self.seen.free_since.map_or(Duration::ZERO, |since| now.since(since));
        if now < until && free_for < SECOND * 10 && !self.cool_off_is_unclear {
            return broken("cool_off_is_kept", format!("an acquire before {until:?}, free for {free_for:?}"));
        }
        Ok(())
    }

    pub(super) fn write(&mut self, now: Time, id: LeaseId, version: &Version, record: &Record) -> Checked {
        const RULE: &str = "writes_carry_id_and_version";
        if self.seen.must_read {
            return broken("doubtful_write_is_read_first", format!("{record:?} is written without a reading"));
        }
        if self.seen.version.as_ref() != Some(version) {
            return broken(RULE, format!("it carries {version:?}, known is {:?}", self.seen.version));
        }
        let Some(holding) = self.holding.as_mut().filter(|holding| holding.id == id) else {
            // A host that ends gives up what it may have acquired.
            let may_have =
                self.acquisition.as_ref().is_some_and(|last| last.id == id && last.in_doubt && last.is_clear);
            if may_have && record.released && self.shutdown_asked {
                return Ok(());
            }
            return broken(RULE, "a write without the lease".to_string());
        };
        if holding.reads_of_loss {
            return broken("writes_over_nobody", format!("{record:?} is written over what others have"));
        }
        // The mark says that nothing can still run, and that its holder begins nothing more.
        if record.released && self.instance.is_some() {
            return broken("marks_what_is_gone", format!("{record:?} is written while an instance is not gone"));
        }
        if let Some(last) = self.acquisition.as_ref().filter(|last| last.id == id && record.released)
            && self.least < last.waits_until
        {
            return broken(
                "waits_out_unclear_lease",
                "the mark tells the next one that nothing still runs".to_string(),
            );
        }
        // A holder knows what began while it waited only if it asks once more.
        if let Some(last) = self.acquisition.as_ref().filter(|last| last.id == id && !last.is_clear)
            && record.node.is_some()
            && record.incarnation == self.settings.incarnation
            // A holder that has not even waited breaks another rule as soon as it starts.
            && self.least >= last.waits_until
            && self.seen.recalled_at.is_none_or(|at| at < last.waits_until)
        {
            return broken("recalls_before_it_asks", format!("{record:?} is written after a wait"));
        }
        if self.acquisition.as_ref().is_some_and(|last| last.id == id && last.gives_way) && !record.released {
            return broken("crash_loop_is_slow", format!("{record:?} is written after failures in a row"));
        }
        if let Some((module, until)) = &holding.rests
            && (holding.pauses && now < *until && record.module.as_ref() == Some(module))
            && self.settings.pause > Duration::ZERO
            && record.rests_until.is_none()
        {
            return broken("rests_between_terms", format!("{record:?} is written without the pause of its module"));
        }
        holding.has_marked |= record.released;
        if self.instance.is_none() {
            holding.unwritten_since.get_or_insert(now);
        }
        // A holder that waits another's lease out notes that, and begins nothing.
        holding.has_begun |= record.node.is_some();
        let running_for = self.instance.as_ref().map(|instance| now.since(instance.started));
        // What became of a term is noted in its record, even if the state has named a later one since.
        let is_note = record.outcome.is_some() || record.term == self.seen.recorded_term;
        if running_for.is_none() && !is_note && record.term < self.seen.highest_term {
            return broken("terms_only_rise", format!("term {} after {}", record.term, self.seen.highest_term));
        }
        let count = &mut holding.failures;
        count.belongs_to(record);
        if let Some(module) = &record.module {
            let written = self.terms.entry(record.term).or_insert_with(|| Written {
                module: module.clone(),
                first_asked: now,
                last_asked: now,
            });
            (written.module, written.last_asked) = (module.clone(), now);
        }
        if record.failures == 0 && running_for.is_some_and(|length| length >= SECOND * 60) {
            count.expected = 0;
        }
        // Who takes a lease of the dead and begins nothing leaves their count as it was.
        let is_left = self.acquisition.as_ref().is_some_and(|last| last.id == id && last.is_of_the_dead);
        let is_left = is_left && (record.node.is_none() || record.released) && record.failures + 1 == count.expected;
        if record.failures != count.expected && !is_left {
            let what = format!("{} failures are written, {} are in a row", record.failures, count.expected);
            return broken("failures_counted_in_record", what);
        }
        Ok(())
    }

    /// A host that reads after a doubt compares: what it finds to be there it does not write again under a later term.
    pub(super) fn a_write_that_is_found_is_done(&self, record: &Record) -> Checked {
        let wanted = self.last_write.and_then(|id| self.requests.get(&id)).map(|asked| &asked.op);
        let (Some(Op::Write { record: wanted, .. }), Some((Snapshot::Object { record: Some(found), .. }, _))) =
            (wanted, &self.seen.last)
        else {
            return Ok(());
        };
        // What was written before a doubt about the lease is not served.
        let doubt = self.holding.as_ref().and_then(|holding| holding.in_doubt_until);
        let is_doubted =
            doubt.is_some_and(|until| self.terms.get(&found.term).is_none_or(|one| one.first_asked < until));
        let is_unserved = found.node.is_some() && found.term > self.spent && !self.seen.as_standby && !is_doubted;
        if is_unserved && found == wanted && found.module == record.module && record.term == found.term + 1 {
            let what = format!("term {} is written, though term {} was found", record.term, found.term);
            return broken("a_write_that_is_found_is_done", what);
        }
        Ok(())
    }

    pub(super) fn release(&mut self, id: LeaseId) -> Checked {
        if self.instance.is_some() {
            return broken("release_last", "a release while an instance is not gone".to_string());
        }
        if let Some(last) = self.acquisition.as_ref().filter(|last| last.id == id)
            && self.least < last.waits_until
        {
            return broken(
                "waits_out_unclear_lease",
                "a release tells the next one that nothing still runs".to_string(),
            );
        }
        if !self.seen.is_marked {
            return broken("releases_what_is_marked", format!("a release after {:?}", self.seen.last));
        }
        let Some(holding) = self.holding.take_if(|holding| holding.id == id) else { return Ok(()) };
        if holding.done_unrecorded {
            return broken("finish_stays_finished", "a release before the outcome is recorded".to_string());
        }
        // Who takes a lease of the dead and begins nothing leaves their count as it was.
        let is_of_the_dead = self.acquisition.as_ref().is_some_and(|last| last.id == id && last.is_of_the_dead);
        let Count { expected, recorded, .. } = holding.failures;
        if expected != recorded && !(is_of_the_dead && expected == recorded + 1) {
            return broken("failures_counted_in_record", "a release before the count is recorded".to_string());
        }
        if holding.must_step_down && !holding.cool_off_said && !self.shutdown_asked {
            return broken("cool_off_is_kept", "a step-down after failures without a cool-off".to_string());
        }
        Ok(())
    }
}
