//! Operators' commands and maintenance. Each host reads the commands at its own time, and passes the resulting
//! eligibility to its elector.

use baton_election::{Chosen, Eligibility, Ineligibility, IneligibleCause, SteeringVersion, Version};

use super::*;
use crate::plan::Command;

/// Maximum time until a host's regular polls find a new command.
const POLL: Duration = Duration::from_secs(4);
/// Maximum time for which a transfer makes all hosts but its target ineligible.
const TRANSFER: Duration = Duration::from_secs(12);
/// Time that the target of a transfer has to acquire the lease after the leader has released it.
const TAKEN_WITHIN: Duration = Duration::from_secs(4);

#[derive(Default)]
pub struct Steering {
    /// The number of commands so far. 0 if the object does not exist yet.
    version: u64,
    /// The version of the command that suspended the election, if the election is suspended.
    suspended: Option<u64>,
    /// The last command to a single host: the version in which it was added, the command, and the host's incarnation.
    order: Option<(u64, Command, u32)>,
}

impl Steering {
    pub fn version(&self) -> Option<Version> {
        (self.version > 0).then(|| Version(format!("s{}", self.version)))
    }
}

#[derive(Default)]
pub struct Heard {
    /// The version of the steering object that the process last read; `None` before the first read.
    version: Option<u64>,
    order: Option<u64>,
    suspended: Option<u64>,
    stepped_down: Option<(u64, Time)>,
    transfer: Option<(u64, usize, Time)>,
    chosen: Option<Chosen>,
    maintenance: Option<u64>,
    /// True if the process has held the lease since the transfer began.
    has_held: bool,
    /// True if the process has since given up that lease. This can end the transfer early.
    has_released: bool,
    /// The version of the steering object in the last answer, if that was the answer to a survey.
    surveyed: Option<Option<Version>>,
}

impl Heard {
    fn version(&self) -> SteeringVersion {
        match self.version {
            None => SteeringVersion::Unread,
            Some(0) => SteeringVersion::Absent,
            Some(version) => SteeringVersion::Read(Version(format!("s{version}"))),
        }
    }

    pub fn eligibility(&self, priority: u8) -> Eligibility {
        let one = |id: u64, cause, until, after_release| Ineligibility {
            id: format!("{id}"),
            reason: format!("{cause:?}"),
            cause,
            until,
            after_release,
        };
        let suspended = self.suspended.map(|id| one(id, IneligibleCause::Suspended, None, None));
        let stepped_down =
            self.stepped_down.map(|(id, until)| one(id, IneligibleCause::SteppedDown, Some(until), None));
        let transfer = self.transfer.map(|(id, to, until)| {
            one(id, IneligibleCause::Transferring { to: format!("node-{to}") }, Some(until), Some(TAKEN_WITHIN))
        });
        Eligibility {
            maintenance: self.maintenance.map(|id| format!("maintenance {id}")),
            commands: [suspended, stepped_down, transfer].into_iter().flatten().collect(),
            chosen: self.chosen,
            priority,
            yields: priority % 2 == 1,
            steering: self.version(),
        }
    }

    /// True if the commands that the process has read forbid it to lead at the time `now`.
    fn is_ineligible(&self, now: Time) -> bool {
        let transfer = self.transfer.is_some_and(|(.., until)| now < until && !self.has_released);
        self.maintenance.is_some()
            || self.suspended.is_some()
            || self.stepped_down.is_some_and(|(_, until)| now < until)
            || transfer
    }

    /// Notes the answer before the elector handles it.
    pub fn answered(&mut self, reply: &Reply) {
        match reply {
            Reply::Read(_) | Reply::Recalled(_) => self.surveyed = None,
            Reply::Surveyed { steering, .. } => self.surveyed = Some(steering.clone()),
            Reply::Version(_) | Reply::Done => {}
        }
    }
}

impl World {
    /// Lets each host read the command within [`POLL`].
    pub(super) fn command(&mut self, command: Command) {
        self.coverage.commands += 1;
        self.steering.version += 1;
        let version = self.steering.version;
        match command {
            Command::Suspend => self.steering.suspended = Some(version),
            Command::Resume => self.steering.suspended = None,
            Command::StepDown { host, .. } | Command::Transfer { to: host, .. } => {
                self.steering.order = Some((version, command, self.hosts[host].incarnation));
            }
        }
        for host in 0..self.hosts.len() {
            self.reads_commands_within(host, POLL);
        }
    }

    pub(super) fn reads_commands_within(&mut self, host: usize, longest: Duration) {
        let mut rng = Rng::about(&[self.plan.seed, 15, host as u64, self.queued]);
        let (incarnation, at) = (self.hosts[host].incarnation, self.now + rng.between(Duration::ZERO, longest));
        self.push(at, Event::ReadsCommands { host, incarnation });
    }

    pub(super) fn reads_commands(&mut self, host: usize) -> Checked {
        let Steering { version, suspended, order } = self.steering;
        let (now, priority) = (self.now, self.plan.hosts[host].priority);
        let incarnation = self.hosts[host].incarnation;
        let Some(process) = &mut self.hosts[host].process else { return Ok(()) };
        let local = process.local(now);
        let heard = &mut process.heard;
        if heard.version == Some(version) {
            return Ok(());
        }
        let is_first = heard.version.replace(version).is_none();
        heard.suspended = suspended;
        if let Some((id, command, of)) = order
            && heard.order.replace(id) != Some(id)
            && !is_first
        {
            (heard.transfer, heard.chosen) = (None, None);
            (heard.has_held, heard.has_released) = (process.elector.holds_lease(), false);
            match command {
                Command::StepDown { host: leader, length } if (leader, of) == (host, incarnation) => {
                    heard.stepped_down = Some((id, local + length));
                }
                Command::Transfer { to, by_operator } if (to, of) == (host, incarnation) => {
                    heard.stepped_down = None;
                    heard.chosen = Some(Chosen { until: local + TRANSFER, by_operator });
                }
                Command::Transfer { to, .. } => heard.transfer = Some((id, to, local + TRANSFER)),
                Command::StepDown { .. } | Command::Suspend | Command::Resume => {}
            }
        }
        let eligibility = heard.eligibility(priority);
        self.passes(host, eligibility)
    }

    pub(super) fn maintain(&mut self, host: usize, id: Option<u64>) -> Checked {
        let priority = self.plan.hosts[host].priority;
        let Some(process) = &mut self.hosts[host].process else { return Ok(()) };
        process.heard.maintenance = id;
        let eligibility = process.heard.eligibility(priority);
        self.passes(host, eligibility)
    }

    /// Passes the eligibility to the elector. If the node must not lead, checks that it immediately asks its instance
    /// to stop.
    fn passes(&mut self, host: usize, eligibility: Eligibility) -> Checked {
        self.feed(host, Input::Eligibility(eligibility))?;
        let now = self.now;
        let Some(process) = &self.hosts[host].process else { return Ok(()) };
        let is_ineligible = process.heard.is_ineligible(process.local(now));
        self.coverage.ineligible += u64::from(is_ineligible);
        let runs_on = |one: &Instance| !one.is_asked_to_stop && !one.ending && !one.is_gone;
        if is_ineligible && process.instance.as_ref().is_some_and(runs_on) {
            return broken("ineligible_node_stops", format!("host {host} goes on, though it must not lead"));
        }
        Ok(())
    }

    pub(super) fn commands_are_obeyed(&mut self, host: usize, effect: &Effect) -> Checked {
        let now = self.now;
        let Some(process) = &mut self.hosts[host].process else { return Ok(()) };
        let local = process.local(now);
        let holds = process.elector.holds_lease();
        process.heard.has_released |= process.heard.has_held && !holds;
        process.heard.has_held |= holds;
        let is_new = |id: &LeaseId| process.lease != Some(*id);
        match effect {
            Effect::Start { term, .. } if process.heard.is_ineligible(local) => {
                broken("ineligible_node_starts_nothing", format!("host {host} starts term {term}"))
            }
            Effect::Request { op: Op::Acquire { id, .. } | Op::Reclaim { id, .. }, .. } if is_new(id) => {
                if process.heard.is_ineligible(local) {
                    return broken("ineligible_node_requests_nothing", format!("host {host} requests {id}"));
                }
                let surveyed = process.heard.surveyed.as_ref();
                if surveyed.is_some_and(|version| !process.heard.version().is(version.as_ref())) {
                    return broken(
                        "acquires_under_surveyed_steering",
                        format!("host {host} has not read {surveyed:?}"),
                    );
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Usually makes the process read the commands before it handles an answer. A real supervisor does this during a
    /// recall and after a survey.
    pub(super) fn reads_commands_with(&mut self, host: usize, reply: &Reply) -> Checked {
        let mut rng = Rng::about(&[self.plan.seed, 16, host as u64, self.queued]);
        if matches!(reply, Reply::Recalled(_) | Reply::Surveyed { .. }) && rng.per_mille(800) {
            return self.reads_commands(host);
        }
        Ok(())
    }

    pub(super) fn end_commands(&mut self) -> Checked {
        self.steering.version += 1;
        (self.steering.suspended, self.steering.order) = (None, None);
        for host in 0..self.hosts.len() {
            if let Some(process) = &mut self.hosts[host].process {
                process.heard = Heard { version: process.heard.version, ..Heard::default() };
            }
            self.reads_commands(host)?;
        }
        Ok(())
    }
}
