//! The instances that run in this host, and the resources that they use.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use baton_election::{ElectionName, Term};
use rustix::process::Pid;
use serde::{Deserialize, Serialize};

use crate::host::policy::Policy;
use crate::wire::limits::{EffectCounts, Limits, Tally};
use crate::wire::shared::SharedMemory;
use baton_base::clock::milliseconds;
use baton_base::gate::Gate;

/// The list of running instances of one or more launchers. Clones share the list.
#[derive(Clone, Default)]
pub struct RunningInstances(Arc<Mutex<Vec<RunningInstance>>>);

#[derive(Clone)]
struct RunningInstance {
    election: ElectionName,
    term: Term,
    limits: Limits,
    requests: u64,
    tally: SharedMemory<Tally>,
    pid: Pid,
    /// Upgrading this succeeds as long as the instance exists.
    gate: Weak<Gate>,
}

/// An instance's usage of each limited resource: peaks, unless a field says otherwise.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct InstanceUsage {
    /// Memory, in bytes.
    pub memory: LimitUsage,
    /// Table elements.
    pub table_elements: LimitUsage,
    /// The highest of three numbers: core instances, memories and tables.
    pub instances: LimitUsage,
    /// Handles of host resources.
    pub handles: LimitUsage,
    /// Files, folders and listings open at a time.
    pub files: LimitUsage,
    /// Peak memory that the handles occupy in the runner, outside the guest's own memory (bytes).
    pub kept: u64,
    /// HTTP requests in flight at a time.
    pub requests: LimitUsage,
    /// Lines of output so far.
    pub lines: u64,
    /// Number of dropped lines. `lines` does not include them.
    pub dropped: u64,
    /// Maximum average number of lines per second. Short bursts may exceed the average.
    pub lines_per_second: u32,
    /// Milliseconds since the guest last reported progress. `None` if it has not.
    #[serde(default)]
    pub since_progress_ms: Option<u64>,
    /// The system resources that the instance's process uses now.
    pub process: ProcessUse,
}

/// The system resources that a process uses, including the overhead of running an instance.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct ProcessUse {
    /// Process id.
    pub pid: u32,
    /// Resident memory (bytes), including memory shared with other processes, such as the program's code.
    pub memory: u64,
    /// CPU time since the process started, in milliseconds.
    pub cpu_ms: u64,
}

impl ProcessUse {
    /// Reads the current values (proc_pid_stat(5)). Memory and CPU time are 0 if the process no longer exists.
    fn of(pid: Pid) -> Self {
        let raw = pid.as_raw_nonzero().get();
        let number = u32::try_from(raw).unwrap_or(0);
        let stat = std::fs::read_to_string(format!("/proc/{raw}/stat")).unwrap_or_default();
        // The second field is the program's name, which may contain any character, including spaces and parentheses.
        let fields: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
        let (user, system, resident) = (field(14), field(15), field(24));
        let ticks = rustix::param::clock_ticks_per_second().max(1);
        Self {
            pid: number,
            memory: resident.saturating_mul(rustix::param::page_size() as u64),
            cpu_ms: user.saturating_add(system).saturating_mul(1000) / ticks,
        }
    }
}

/// The peak usage of one resource so far, and its limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LimitUsage {
    /// The peak.
    pub used: u64,
    /// The limit.
    pub limit: u64,
}

impl RunningInstances {
    pub(crate) fn add(
        &self,
        election: &ElectionName,
        term: Term,
        policy: &Policy,
        tally: &SharedMemory<Tally>,
        pid: Pid,
        gate: &Arc<Gate>,
    ) {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        entries.retain(|entry| entry.gate.strong_count() > 0);
        entries.push(RunningInstance {
            election: election.clone(),
            term,
            limits: policy.limits,
            requests: policy.http.max_requests(),
            tally: tally.clone(),
            pid,
            gate: Arc::downgrade(gate),
        });
    }

    /// Returns, for each instance, how many effects have passed and how many have been refused so far.
    pub fn effects(&self) -> Vec<(ElectionName, Term, EffectCounts)> {
        let entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let there = entries.iter().filter(|entry| entry.gate.strong_count() > 0);
        there.map(|entry| (entry.election.clone(), entry.term, entry.tally.effects())).collect()
    }

    /// Returns the resources that each running instance has used, and the system resources that its process uses now.
    pub fn in_use(&self) -> Vec<(ElectionName, Term, InstanceUsage)> {
        self.in_use_by(ProcessUse::of)
    }

    /// Implements [`Self::in_use`]. `process` may be slow, so the list is not locked while `process` runs.
    fn in_use_by(&self, process: impl Fn(Pid) -> ProcessUse) -> Vec<(ElectionName, Term, InstanceUsage)> {
        let running: Vec<RunningInstance> = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let in_use = |entry: RunningInstance| {
            let process = process(entry.pid);
            // If the instance has ended in the meantime, its process id may belong to another process.
            entry.gate.upgrade()?;
            let (limits, usage) = (entry.limits, entry.tally.usage());
            let in_use = InstanceUsage {
                memory: LimitUsage { used: usage.memory, limit: limits.memory },
                table_elements: LimitUsage { used: usage.table_elements, limit: limits.table_elements },
                instances: LimitUsage { used: usage.instances, limit: limits.instances },
                handles: LimitUsage { used: usage.handles, limit: limits.handles },
                files: LimitUsage { used: usage.files, limit: limits.files },
                kept: usage.kept,
                requests: LimitUsage { used: usage.requests, limit: entry.requests },
                lines: usage.lines,
                dropped: usage.dropped,
                lines_per_second: limits.output,
                since_progress_ms: entry.tally.since_progress().map(milliseconds),
                process,
            };
            Some((entry.election, entry.term, in_use))
        };
        running.into_iter().filter_map(in_use).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use std::time::Duration;

    use baton_base::clock::Clock;
    use baton_election::Time;

    use super::*;

    #[test]
    fn reading_process_usage_does_not_block_starting_instances() {
        let running = RunningInstances::default();
        let gate = Arc::new(Gate::new(Clock::default(), Time(Duration::MAX), Time(Duration::MAX)));
        let (election, pid) = (ElectionName::new("job").unwrap(), rustix::process::getpid());
        running.add(&election, 7, &Policy::default(), &SharedMemory::alone(), pid, &gate);
        let in_use = running.in_use_by(|pid| {
            assert!(running.0.try_lock().is_ok(), "an instance that starts now would wait");
            ProcessUse { memory: 5, ..ProcessUse::of(pid) }
        });
        assert_eq!((in_use.len(), in_use[0].1, in_use[0].2.process.memory), (1, 7, 5));
        let gone = Mutex::new(Some(gate));
        let in_use = running.in_use_by(|pid| {
            drop(gone.lock().unwrap().take());
            ProcessUse::of(pid)
        });
        assert_eq!(in_use, [], "its number may be another's by now");
    }
}
