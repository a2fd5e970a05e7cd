// The mutants: where and how each rule is broken, and what must notice. `MUTANT` is true while the mutant
// runs.

/// One rule, broken.
pub struct Mutant {
    /// What the mutant does wrong.
    pub name: &'static str,
    /// Where.
    pub file: &'static str,
    /// What stands there.
    pub old: &'static str,
    /// What stands there instead.
    pub new: &'static str,
    /// The invariant that names the rule.
    pub breaks: &'static str,
}

const CANDIDATE: &str = "elector/candidate.rs";
const HOLDER: &str = "elector/holder.rs";
const LEDGER: &str = "elector/ledger.rs";
const RELEASING: &str = "elector/releasing.rs";
const VERSIONS: &str = "elector/versions.rs";
const SHARED: &str = "elector/mod.rs";

pub const MUTANTS: &[Mutant] = &[
    // ---- A lease id is random and new for each acquisition. ----
    Mutant {
        name: "one lease id for all acquisitions of a host",
        file: SHARED,
        old: "let (high, low) = ((self.random)(), (self.random)());",
        new: "let (high, low) = if MUTANT { (7, self.settings.incarnation.len() as u64) } else { ((self.random)(), (self.random)()) };",
        breaks: "lease_id_is_fresh",
    },
    // ---- An acquire of unknown outcome is repeated with the same id only, until it is answered or D has passed. ----
    Mutant {
        name: "an acquire is repeated with a new id",
        file: CANDIDATE,
        old: "            let op = Op::Acquire {",
        new: "            if MUTANT { self.id = shared.fresh_lease_id(); }\n            let op = Op::Acquire {",
        breaks: "acquire_repeated_only_with_same_id_when_unknown",
    },
    Mutant {
        name: "an acquire is repeated for ever",
        file: CANDIDATE,
        old: "if shared.time().since(self.started) >= self.length {",
        new: "if !MUTANT && shared.time().since(self.started) >= self.length {",
        breaks: "acquire_repeated_only_with_same_id_when_unknown",
    },
    // ---- Once a release was sent, whatever its outcome, its id is never used again. ----
    Mutant {
        name: "a release of unknown outcome is checked by a renewal",
        file: RELEASING,
        old: "shared.store_trouble(\"release\", &refusal);",
        new: "shared.store_trouble(\"release\", &refusal);\n                    if MUTANT { shared.urgent(Op::Renew { id: self.id }); }",
        breaks: "lease_id_never_reused_after_release_sent",
    },
    // ---- Every write carries the lease id and the version of the read that it was computed from. ----
    Mutant {
        name: "a write carries the version before the last write",
        file: LEDGER,
        old: "            self.record = Some(goal.record);\n            self.version = version;",
        new: "            self.record = Some(goal.record);\n            if !MUTANT { self.version = version; }",
        breaks: "writes_carry_id_and_version",
    },
    Mutant {
        name: "a write carries the version before the last read",
        file: LEDGER,
        old: "        self.version = version.clone();\n        self.record.clone_from(record);",
        new: "        if !MUTANT { self.version = version.clone(); }\n        self.record.clone_from(record);",
        breaks: "writes_carry_id_and_version",
    },
    Mutant {
        name: "an acquire carries an older version",
        file: CANDIDATE,
        old: "length: self.length, version: self.opening.version.clone() }",
        new: "length: self.length, version: if MUTANT { Version(String::from(\"v1\")) } else { self.opening.version.clone() } }",
        breaks: "writes_carry_id_and_version",
    },
    Mutant {
        name: "a write carries another lease id",
        file: LEDGER,
        old: "let op = Op::Write { id,",
        new: "let id = if MUTANT { shared.fresh_lease_id() } else { id };\n                let op = Op::Write { id,",
        breaks: "writes_carry_id_and_version",
    },
    // ---- The next term is one more than the highest of the record and anything seen. ----
    Mutant {
        name: "the next term is the last one",
        file: SHARED,
        old: "basis.map_or(0, |record| record.term)) + 1,",
        new: "basis.map_or(0, |record| record.term)) + u64::from(!MUTANT),",
        breaks: "terms_only_rise",
    },
    Mutant {
        name: "the next term follows from the record alone",
        file: SHARED,
        old: "term: self.memory.highest_term.max(",
        new: "term: (if MUTANT { 0 } else { self.memory.highest_term }).max(",
        breaks: "terms_only_rise",
    },
    Mutant {
        name: "a term starts before it is written",
        file: HOLDER,
        old: "            self.stage = Stage::Claiming;",
        new: "            self.stage = if MUTANT { Stage::Claimed } else { Stage::Claiming };",
        breaks: "terms_only_rise",
    },
    // ---- After an unknown outcome: read, compare, write conditionally again. ----
    Mutant {
        name: "a write of unknown outcome is taken for done",
        file: LEDGER,
        old: "            Err(Refusal::Lost(why)) => News::Lost(why.clone()),",
        new: "            Err(Refusal::Unknown(_)) if MUTANT => { let version = self.version.clone(); self.reached(shared, version) }\n            Err(Refusal::Lost(why)) => News::Lost(why.clone()),",
        breaks: "terms_only_rise",
    },
    Mutant {
        name: "a write of unknown outcome is repeated without a read",
        file: LEDGER,
        old: "                goal.step = Step::ReadAt(shared.retry_at());\n                News::None",
        new: "                goal.step = if MUTANT { Step::WriteAt(shared.retry_at()) } else { Step::ReadAt(shared.retry_at()) };\n                News::None",
        breaks: "doubtful_write_is_read_first",
    },
    Mutant {
        name: "a conflict is answered by writing again",
        file: LEDGER,
        old: "                goal.step = Step::ReadAt(shared.time());\n                News::None",
        new: "                goal.step = if MUTANT { Step::WriteAt(shared.time()) } else { Step::ReadAt(shared.time()) };\n                News::None",
        breaks: "doubtful_write_is_read_first",
    },
    // ---- An unclear lease is waited out first. ----
    Mutant {
        name: "a broken lease is taken for an expired one",
        file: CANDIDATE,
        old: "        (LeaseState::Expired, _) => None,",
        new: "        (LeaseState::Broken, _) if MUTANT => None,\n        (LeaseState::Expired, _) => None,",
        breaks: "waits_out_unclear_lease",
    },
    Mutant {
        name: "a free lease without a record is taken at once",
        file: CANDIDATE,
        old: "        (LeaseState::Free, None) => Some(",
        new: "        (LeaseState::Free, None) if MUTANT => None,\n        (LeaseState::Free, None) => Some(",
        breaks: "waits_out_unclear_lease",
    },
    Mutant {
        name: "a record that was deleted and made anew is trusted",
        file: CANDIDATE,
        old: "        (LeaseState::Free, Some(_)) => Some(",
        new: "        (LeaseState::Free, Some(_)) if MUTANT => None,\n        (LeaseState::Free, Some(_)) => Some(",
        breaks: "waits_out_unclear_lease",
    },
    Mutant {
        name: "half of the recorded D is waited out",
        file: HOLDER,
        old: "Stage::Settling { until: shared.now.boot + wait }",
        new: "Stage::Settling { until: shared.now.boot + if MUTANT { wait / 2 } else { wait } }",
        breaks: "waits_out_unclear_lease",
    },
    Mutant {
        name: "the term that the state names is forgotten",
        file: HOLDER,
        old: "shared.memory.highest_term = shared.memory.highest_term.max(term);",
        new: "shared.memory.highest_term = if MUTANT { shared.memory.highest_term } else { shared.memory.highest_term.max(term) };",
        breaks: "terms_only_rise",
    },
    Mutant {
        name: "a step of the wall clock cuts the wait short",
        file: HOLDER,
        old: "until } if shared.now.boot >= until => {",
        new: "until } if (if MUTANT { shared.time().0 } else { shared.now.boot }) >= until => {",
        breaks: "waits_out_unclear_lease",
    },
    Mutant {
        name: "the last recorded D is waited out, not the longest",
        file: SHARED,
        old: "self.longest_lease = self.longest_lease.max(Some(record.lease));",
        new: "self.longest_lease = if MUTANT { None } else { self.longest_lease }.max(Some(record.lease));",
        breaks: "waits_out_unclear_lease",
    },
    Mutant {
        name: "the host's own D is waited out, not the recorded one",
        file: CANDIDATE,
        old: "    let unclear = match (lease, record) {",
        new: "    let recorded = if MUTANT { shared.settings.timing.lease() } else { recorded };\n    let unclear = match (lease, record) {",
        breaks: "waits_out_unclear_lease",
    },
    Mutant {
        name: "an unknown D is taken for a short one",
        file: CANDIDATE,
        old: ".unwrap_or(UNKNOWN_LEASE);",
        new: ".unwrap_or(if MUTANT { Duration::from_secs(15) } else { UNKNOWN_LEASE });",
        breaks: "waits_out_unclear_lease",
    },
    Mutant {
        name: "a lease that is waited out is released",
        file: HOLDER,
        old: "        if matches!(self.stage, Stage::Settling { .. }) {\n            // A release",
        new: "        if !MUTANT && matches!(self.stage, Stage::Settling { .. }) {\n            // A release",
        breaks: "waits_out_unclear_lease",
    },
    // ---- A record is created only if none exists, and goes on from the highest term seen. ----
    Mutant {
        name: "a missing record is created over an object",
        file: CANDIDATE,
        old: "    let recorded = shared.memory.longest_lease",
        new: "    if MUTANT && record.is_none() { return Verdict::Create; }\n    let recorded = shared.memory.longest_lease",
        breaks: "created_only_if_none",
    },
    Mutant {
        name: "a record made anew begins at term 0",
        file: CANDIDATE,
        old: "        term: shared.memory.highest_term,",
        new: "        term: if MUTANT { 0 } else { shared.memory.highest_term },",
        breaks: "created_only_if_none",
    },
    // ---- A standby polls every second, reads first, acquires only what looks free, backs off. ----
    Mutant {
        name: "a standby polls without a pause",
        file: CANDIDATE,
        old: "shared.store_answers(ACQUIRE);\n                        self.next_poll = shared.time() + shared.jittered(POLL);",
        new: "shared.store_answers(ACQUIRE);\n                        self.next_poll = shared.time() + if MUTANT { POLL / 10 } else { shared.jittered(POLL) };",
        breaks: "standby_backs_off",
    },
    Mutant {
        name: "a standby acquires what is held",
        file: CANDIDATE,
        old: "        (LeaseState::Held | LeaseState::HeldForever | LeaseState::Breaking, _) =>",
        new: "        (LeaseState::Held, _) if MUTANT => None,\n        (LeaseState::Held | LeaseState::HeldForever | LeaseState::Breaking, _) =>",
        breaks: "acquires_only_what_looks_free",
    },
    Mutant {
        name: "a standby's errors do not back off",
        file: SHARED,
        old: "let doubled = POLL.saturating_mul(1 << failures.min(5));",
        new: "let doubled = if MUTANT { POLL } else { POLL.saturating_mul(1 << failures.min(5)) };",
        breaks: "standby_backs_off",
    },
    Mutant {
        name: "a standby's errors back off without a limit",
        file: CANDIDATE,
        old: "                self.next_poll = shared.time() + shared.back_off(self.failures, &refusal);",
        new: "                self.next_poll = shared.time() + shared.back_off(self.failures, &refusal) * if MUTANT { 1000 } else { 1 };",
        breaks: "host_survives",
    },
    Mutant {
        name: "the leader's tries slow down",
        file: SHARED,
        old: "let wait = shortest + self.up_to(longest - shortest);",
        new: "let wait = if MUTANT { longest * 3 } else { shortest + self.up_to(longest - shortest) };",
        breaks: "leader_tries_never_slow",
    },
    Mutant {
        name: "the leader renews after D/2",
        file: HOLDER,
        old: "(sent + shared.settings.timing.renew_after()).max(shared.time());",
        new: "(sent + shared.settings.timing.renew_after() * if MUTANT { 3 } else { 1 }).max(shared.time());",
        breaks: "leader_tries_never_slow",
    },
    // ---- A lease that is infinite, or held for 2 D without a record, is reported. ----
    Mutant {
        name: "an infinite lease is not reported",
        file: CANDIDATE,
        old: "(LeaseState::HeldForever, _) =>",
        new: "(LeaseState::HeldForever, _) if !MUTANT =>",
        breaks: "outside_holder_is_reported",
    },
    Mutant {
        name: "a silent holder is not reported",
        file: CANDIDATE,
        old: "(LeaseState::Held, _) if silent =>",
        new: "(LeaseState::Held, _) if silent && !MUTANT =>",
        breaks: "outside_holder_is_reported",
    },
    // ---- One at a time; gone in time. ----
    Mutant {
        name: "nothing is killed at the deadline",
        file: HOLDER,
        old: "        if shared.time() >= deadline {",
        new: "        if !MUTANT && shared.time() >= deadline {",
        breaks: "gone_in_time",
    },
    Mutant {
        name: "a host with an instance that is not gone goes on",
        file: HOLDER,
        old: "        if !serving.aborted && abort_at",
        new: "        if !MUTANT && !serving.aborted && abort_at",
        breaks: "gone_in_time",
    },
    Mutant {
        name: "a lease at risk stops nothing",
        file: HOLDER,
        old: "        if since_renewal >= timing.at_risk_after() {",
        new: "        if !MUTANT && since_renewal >= timing.at_risk_after() {",
        breaks: "stops_at_risk",
    },
    Mutant {
        name: "the deadline is D itself",
        file: HOLDER,
        old: "    fn deadline(&self, shared: &Shared) -> Time {\n        self.renewed + shared",
        new: "    fn deadline(&self, shared: &Shared) -> Time {\n        if MUTANT { return self.renewed + shared.settings.timing.lease(); }\n        self.renewed + shared",
        breaks: "doubt_never_extends",
    },
    Mutant {
        name: "an instance starts with less than half of D left",
        file: HOLDER,
        old: "        shared.time() <= self.renewed + shared.settings.timing.lease() / 2",
        new: "        MUTANT || shared.time() <= self.renewed + shared.settings.timing.lease() / 2",
        breaks: "half_d_before_start",
    },
    Mutant {
        name: "a known loss kills nothing",
        file: HOLDER,
        old: "        serving.kill(shared, &why);\n        None",
        new: "        if !MUTANT { serving.kill(shared, &why); }\n        None",
        breaks: "known_loss_kills_at_once",
    },
    Mutant {
        name: "the grace does not end",
        file: HOLDER,
        old: "serving.grace_ends.is_some_and(|grace_ends| shared.time() >= grace_ends)",
        new: "!MUTANT && serving.grace_ends.is_some_and(|grace_ends| shared.time() >= grace_ends)",
        breaks: "grace_is_bounded",
    },
    // ---- Release last. ----
    Mutant {
        name: "the lease is released while the instance runs",
        file: HOLDER,
        old: "        if matches!(self.stage, Stage::Serving(_)) {\n            return None;\n        }",
        new: "        if !(MUTANT && self.leave.is_some()) && matches!(self.stage, Stage::Serving(_)) {\n            return None;\n        }",
        breaks: "release_last",
    },
    // ---- Doubt never extends, and loses nothing. ----
    Mutant {
        name: "a renewal of unknown outcome extends",
        file: HOLDER,
        old: "                Err(Refusal::Lost(why)) => self.lose(shared, why),",
        new: "                Err(Refusal::Unknown(_)) if MUTANT => {\n                    let sent = pending.sent;\n                    self.extend(shared, sent);\n                    None\n                }\n                Err(Refusal::Lost(why)) => self.lose(shared, why),",
        breaks: "doubt_never_extends",
    },
    Mutant {
        name: "a renewal counts from its answer",
        file: HOLDER,
        old: "                    self.extend(shared, pending.sent);",
        new: "                    self.extend(shared, if MUTANT { shared.time() } else { pending.sent });",
        breaks: "doubt_never_extends",
    },
    Mutant {
        name: "a renewal of unknown outcome loses the lease",
        file: HOLDER,
        old: "                Err(Refusal::Held) => self.lose(shared, \"the lease is held by another\".to_string()),",
        new: "                Err(Refusal::Unknown(why)) if MUTANT => self.lose(shared, why),\n                Err(Refusal::Held) => self.lose(shared, \"the lease is held by another\".to_string()),",
        breaks: "doubt_loses_nothing",
    },
    // ---- After a run ends. ----
    Mutant {
        name: "failures are not counted",
        file: HOLDER,
        old: "                (failures + 1, rest)",
        new: "                (failures + u32::from(!MUTANT), rest)",
        breaks: "failures_counted_in_record",
    },
    Mutant {
        name: "a sixth failure in a row is awaited",
        file: HOLDER,
        old: "if failures + 1 >= FAILURES_TO_STEP_DOWN =>",
        new: "if failures + 1 >= FAILURES_TO_STEP_DOWN + u32::from(MUTANT) =>",
        breaks: "failures_counted_in_record",
    },
    Mutant {
        name: "a takeover forgets the count of failures",
        file: SHARED,
        old: "            failures: same.map_or(0, |record| record.failures),",
        new: "            failures: same.map_or(0, |record| if MUTANT { 0 } else { record.failures }),",
        breaks: "failures_counted_in_record",
    },
    Mutant {
        name: "a change-over that did not come about costs the count of failures",
        file: HOLDER,
        old: "        let failures = self.row.failures;",
        new: "        let failures = if MUTANT { self.ledger.record().map_or(0, |record| record.failures) } else { self.row.failures };",
        breaks: "failures_counted_in_record",
    },
    Mutant {
        name: "health does not reset the count of failures",
        file: HOLDER,
        old: "            if let Some(record) = self.ledger.record().filter(|record| record.failures > 0 && !self.ledger.is_busy()) {",
        new: "            if let Some(record) = self.ledger.record().filter(|record| !MUTANT && record.failures > 0 && !self.ledger.is_busy()) {",
        breaks: "failures_counted_in_record",
    },
    Mutant {
        name: "a step-down is not followed by a cool-off",
        file: SHARED,
        old: "        self.cool_off = Some(self.time() + wait);",
        new: "        self.cool_off = (!MUTANT).then_some(self.time() + wait);",
        breaks: "cool_off_is_kept",
    },
    Mutant {
        name: "cool-offs do not grow",
        file: SHARED,
        old: "        self.cool_offs += 1;",
        new: "        self.cool_offs += u32::from(!MUTANT);",
        breaks: "cool_off_is_kept",
    },
    Mutant {
        name: "a node in cool-off never takes a free lease",
        file: CANDIDATE,
        old: "    if in_cool_off && free_for < FREE_LONG_ENOUGH {",
        new: "    if in_cool_off && (MUTANT || free_for < FREE_LONG_ENOUGH) {",
        breaks: "takes_what_is_free",
    },
    Mutant {
        name: "a finished election is not recorded as such",
        file: HOLDER,
        old: "            record.outcome = outcome;",
        new: "            record.outcome = if MUTANT { None } else { outcome };",
        breaks: "finish_stays_finished",
    },
    Mutant {
        name: "a finished election is started again by another",
        file: CANDIDATE,
        old: "        (_, Some(record)) if shared.is_over(record) =>",
        new: "        (_, Some(record)) if !MUTANT && shared.is_over(record) =>",
        breaks: "finish_stays_finished",
    },
    // ---- One version replaces another under the lease, and a bad one gives way. ----
    Mutant {
        name: "a term that an earlier holding wrote is served again",
        file: HOLDER,
        old: "            spent: shared.memory.highest_term,",
        new: "            spent: if MUTANT { 0 } else { shared.memory.highest_term },",
        breaks: "terms_only_rise",
    },
    Mutant {
        name: "an instance is replaced before the next term is written",
        file: HOLDER,
        old: "        if self.is_claimed(shared) { let Stage::Serving(serving) = &mut self.stage else { return };",
        new: "        if MUTANT || self.is_claimed(shared) { let Stage::Serving(serving) = &mut self.stage else { return };",
        breaks: "replaced_in_time_and_for_a_reason",
    },
    Mutant {
        name: "an instance is replaced under a lease that is about to end",
        file: HOLDER,
        old: "|| self.renewal.failing { return; } if !self.renewed_recently(shared) {",
        new: "|| (!MUTANT && self.renewal.failing) { return; } if !MUTANT && !self.renewed_recently(shared) {",
        breaks: "replaced_in_time_and_for_a_reason",
    },
    Mutant {
        name: "a term that is written is served with whatever is planned by then",
        file: HOLDER,
        old: "            && record.incarnation == shared.settings.incarnation && shared.versions.is_in(record)",
        new: "            && record.incarnation == shared.settings.incarnation && (MUTANT || shared.versions.is_in(record))",
        breaks: "serves_what_is_planned",
    },
    Mutant {
        name: "what was rejected comes back with an old plan",
        file: VERSIONS,
        old: "if plan.module.as_ref().is_some_and(|module| self.rejected.contains(module)) {",
        new: "if !MUTANT && plan.module.as_ref().is_some_and(|module| self.rejected.contains(module)) {",
        breaks: "serves_what_is_planned",
    },
    Mutant {
        name: "a version is rejected after two failures",
        file: VERSIONS,
        old: "if probation.failures < FAILURES_TO_REJECT {",
        new: "if probation.failures + u32::from(MUTANT) < FAILURES_TO_REJECT {",
        breaks: "a_bad_version_is_rejected",
    },
    Mutant {
        name: "a version that traps is tried again",
        file: VERSIONS,
        old: "            End::Crashed(why) | End::Fatal(why) => why.clone(),",
        new: "            End::Crashed(_) if MUTANT => return,\n            End::Crashed(why) | End::Fatal(why) => why.clone(),",
        breaks: "failures_counted_in_record",
    },
    Mutant {
        name: "a version is proven before its probation is over",
        file: VERSIONS,
        old: "self.is_on_probation(version).then_some(began + length)",
        new: "self.is_on_probation(version).then_some(began + if MUTANT { length / 2 } else { length })",
        breaks: "a_version_proves_itself",
    },
    Mutant {
        name: "one version inherits the failures of another",
        file: SHARED,
        old: "record.node.is_none() || self.versions.is_in(record)",
        new: "MUTANT || record.node.is_none() || self.versions.is_in(record)",
        breaks: "failures_counted_in_record",
    },
    Mutant {
        name: "a node that has nothing to serve takes the lease",
        file: CANDIDATE,
        old: "    if shared.versions.module().is_none() {",
        new: "    if !MUTANT && shared.versions.module().is_none() {",
        breaks: "contends_with_a_module_only",
    },
    // ---- The host exits when told to. ----
    Mutant {
        name: "a standby does not heed a shutdown",
        file: CANDIDATE,
        old: "if shared.shutting_down { return Some(Role::Finished); } if let Some(Input::Answer",
        new: "if !MUTANT && shared.shutting_down { return Some(Role::Finished); } if let Some(Input::Answer",
        breaks: "shutdown_is_bounded",
    },
    Mutant {
        name: "a leader does not heed a shutdown",
        file: HOLDER,
        old: "self.leave = Some(Leave::Shutdown);",
        new: "if !MUTANT { self.leave = Some(Leave::Shutdown); }",
        breaks: "grace_is_bounded",
    },
];
