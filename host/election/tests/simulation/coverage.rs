//! Counts how often each case occurred in the runs. A test checks that every case occurred. Without this check, a
//! simulation in which nothing happens would pass.

#[derive(Debug, Default, Clone)]
pub struct Coverage {
    pub started: u64,
    pub never_begun: u64,
    pub killed: u64,
    pub aborted: u64,
    pub shut_down: u64,
    pub settled: u64,
    pub cooled_off: u64,
    pub held_outside: u64,
    pub lost: u64,
    pub released: u64,
    pub over: u64,
    pub renewed_late: u64,
    pub deleted: u64,
    pub rewritten: u64,
    pub seized: u64,
    pub restored: u64,
    pub replaced: u64,
    pub proven: u64,
    pub rejected: u64,
    pub supervisors_stopped: u64,
    pub ended_at_its_deadline: u64,
    pub ended_by_watchdog: u64,
    pub slewed: u64,
    pub not_sent: u64,
    pub aimed: u64,
    pub refused_late: u64,
    pub taken_from_the_dead: u64,
    pub reclaimed: u64,
    pub surveyed: u64,
    pub told: u64,
    pub lied_to: u64,
    pub dying: u64,
    pub commands: u64,
    pub ineligible: u64,
    pub deferred: u64,
    pub transfers_failed: u64,
    pub runs: u64,
    pub repeated: u64,
    pub awaited: u64,
    pub skipped: u64,
    pub ahead: u64,
}

impl Coverage {
    fn all(&self) -> [(&'static str, u64); 41] {
        [
            ("instances started", self.started),
            ("instances that never begin", self.never_begun),
            ("instances killed", self.killed),
            ("processes that ended themselves", self.aborted),
            ("orderly ends", self.shut_down),
            ("unclear leases waited out", self.settled),
            ("cool-offs", self.cooled_off),
            ("outside holders reported", self.held_outside),
            ("leases lost", self.lost),
            ("leases released", self.released),
            ("elections over", self.over),
            ("renewals of an expired lease that succeeded", self.renewed_late),
            ("objects deleted", self.deleted),
            ("records rewritten without the lease", self.rewritten),
            ("leases seized and given back", self.seized),
            ("states restored", self.restored),
            ("instances replaced", self.replaced),
            ("versions proven", self.proven),
            ("versions rejected", self.rejected),
            ("supervisors stopped alone", self.supervisors_stopped),
            ("instances that ended themselves at their deadline", self.ended_at_its_deadline),
            ("processes ended by the watchdog", self.ended_by_watchdog),
            ("clocks slewed", self.slewed),
            ("acquires not sent", self.not_sent),
            ("faults that came with what a host did", self.aimed),
            ("late effects refused by their term", self.refused_late),
            ("leases taken of who is gone", self.taken_from_the_dead),
            ("leases gone on with", self.reclaimed),
            ("openings surveyed", self.surveyed),
            ("words told to others", self.told),
            ("lies told", self.lied_to),
            ("instances that were dying for a while", self.dying),
            ("operators' commands", self.commands),
            ("times that a node must not lead", self.ineligible),
            ("deferrals of a free lease", self.deferred),
            ("transfers that no node took", self.transfers_failed),
            ("scheduled runs", self.runs),
            ("scheduled runs repeated", self.repeated),
            ("waits for the next scheduled run", self.awaited),
            ("missed runs skipped", self.skipped),
            ("recorded due times ahead of a host's clock", self.ahead),
        ]
    }

    pub fn add(&mut self, other: &Coverage) {
        self.started += other.started;
        self.never_begun += other.never_begun;
        self.killed += other.killed;
        self.aborted += other.aborted;
        self.shut_down += other.shut_down;
        self.settled += other.settled;
        self.cooled_off += other.cooled_off;
        self.held_outside += other.held_outside;
        self.lost += other.lost;
        self.released += other.released;
        self.over += other.over;
        self.renewed_late += other.renewed_late;
        self.deleted += other.deleted;
        self.rewritten += other.rewritten;
        self.seized += other.seized;
        self.restored += other.restored;
        self.replaced += other.replaced;
        self.proven += other.proven;
        self.rejected += other.rejected;
        self.supervisors_stopped += other.supervisors_stopped;
        self.ended_at_its_deadline += other.ended_at_its_deadline;
        self.ended_by_watchdog += other.ended_by_watchdog;
        self.slewed += other.slewed;
        self.not_sent += other.not_sent;
        self.aimed += other.aimed;
        self.refused_late += other.refused_late;
        self.taken_from_the_dead += other.taken_from_the_dead;
        self.reclaimed += other.reclaimed;
        self.surveyed += other.surveyed;
        self.told += other.told;
        self.lied_to += other.lied_to;
        self.dying += other.dying;
        self.commands += other.commands;
        self.ineligible += other.ineligible;
        self.deferred += other.deferred;
        self.transfers_failed += other.transfers_failed;
        self.runs += other.runs;
        self.repeated += other.repeated;
        self.awaited += other.awaited;
        self.skipped += other.skipped;
        self.ahead += other.ahead;
    }

    pub fn missing(&self) -> Vec<&'static str> {
        self.all().into_iter().filter(|(_, count)| *count == 0).map(|(name, _)| name).collect()
    }

    pub fn lines(&self) -> String {
        self.all().iter().map(|(name, count)| format!("  {count:>8} {name}\n")).collect()
    }
}
