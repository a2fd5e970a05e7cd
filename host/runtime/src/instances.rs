//! The instances that run in this host, and what they use.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use baton_election::{ElectionName, Term};
use rustix::process::Pid;
use serde::{Deserialize, Serialize};

use super::limits::{Effects, Limits, Tally};
use super::policy::Policy;
use super::shared::SharedMemory;
use baton_store::gate::Gate;

/// All instances that launchers with this value have started and that are not gone. Clones are the same.
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
    /// There for as long as the instance is.
    gate: Weak<Gate>,
}

/// What an instance uses of each of its limits.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct InUse {
    /// Of memory, in bytes.
    pub memory: Share,
    /// Of table elements.
    pub table_elements: Share,
    /// Of core instances; of memories or tables where there are more of these.
    pub instances: Share,
    /// Of handles of the host.
    pub handles: Share,
    /// Of files, folders and listings that are open.
    pub files: Share,
    /// Of the host's memory for its handles, in bytes.
    pub kept: u64,
    /// Of requests over HTTP.
    pub requests: Share,
    /// Lines of output, in all.
    pub lines: u64,
    /// Those that were dropped beside them.
    pub dropped: u64,
    /// How many are taken in the long run.
    pub lines_per_second: u32,
    /// What its process takes of the system now.
    pub process: ProcessUse,
}

/// What a process takes of the system, with all that it needs to run an instance.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct ProcessUse {
    /// Its number.
    pub pid: u32,
    /// Of memory, in bytes; what it shares with others, such as the program, counts.
    pub memory: u64,
    /// Of processors' time since it was started, in milliseconds.
    pub cpu_ms: u64,
}

impl ProcessUse {
    /// As the system has it now (proc_pid_stat(5)). A process that is gone takes nothing.
    fn of(pid: Pid) -> Self {
        let raw = pid.as_raw_nonzero().get();
        let number = u32::try_from(raw).unwrap_or(0);
        let stat = std::fs::read_to_string(format!("/proc/{raw}/stat")).unwrap_or_default();
        // The second field is the program's name, which may have anything in it.
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

/// What is used of one limit, at its peak so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Share {
    /// So much is used.
    pub used: u64,
    /// So much may be.
    pub limit: u64,
}

impl RunningInstances {
    pub(super) fn add(
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

    /// How many effects of each have passed or were refused, so far.
    pub fn effects(&self) -> Vec<(ElectionName, Term, Effects)> {
        let entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let there = entries.iter().filter(|entry| entry.gate.strong_count() > 0);
        there.map(|entry| (entry.election.clone(), entry.term, entry.tally.effects())).collect()
    }

    /// What each uses now.
    pub fn in_use(&self) -> Vec<(ElectionName, Term, InUse)> {
        self.in_use_by(ProcessUse::of)
    }

    /// The same, where that tells what a process takes: it may take its time, and an instance that starts meanwhile waits
    /// for none of it.
    fn in_use_by(&self, process: impl Fn(Pid) -> ProcessUse) -> Vec<(ElectionName, Term, InUse)> {
        let running: Vec<RunningInstance> = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let in_use = |entry: RunningInstance| {
            let process = process(entry.pid);
            // Of one that is gone by now, another's process may have been looked at.
            entry.gate.upgrade()?;
            let (limits, usage) = (entry.limits, entry.tally.usage());
            let in_use = InUse {
                memory: Share { used: usage.memory, limit: limits.memory },
                table_elements: Share { used: usage.table_elements, limit: limits.table_elements },
                instances: Share { used: usage.instances, limit: limits.instances },
                handles: Share { used: usage.handles, limit: limits.handles },
                files: Share { used: usage.files, limit: limits.files },
                kept: usage.kept,
                requests: Share { used: usage.requests, limit: entry.requests },
                lines: usage.lines,
                dropped: usage.dropped,
                lines_per_second: limits.output,
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

    use baton_election::Time;
    use baton_store::clock::Clock;

    use super::*;

    #[test]
    fn what_the_system_says_of_a_process_keeps_no_instance_waiting() {
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
