//! Scheduled runs: the schedule that a node is configured with, and the progress that the election records.

use alloc::boxed::Box;
use alloc::string::{String, ToString};
use core::cmp::Ordering;
use core::fmt;
use core::str::FromStr;
use core::time::Duration;

/// The schedule of an election. Each run of the coordinator serves one due time and is one term. Between runs, the
/// leader keeps the lease and has no instance.
///
/// All times are wall-clock times since the Unix epoch.
#[derive(Clone)]
pub struct Schedule {
    /// The schedule and its time zone, as one text. If the text differs from the recorded text, the schedule has
    /// changed. Due times of the new schedule up to the moment of the change do not run.
    pub text: String,
    /// Returns the first due time after the given time; `None` if there is none.
    pub next: fn(&str, Duration) -> Option<Duration>,
    /// Returns the last due time that is not after the given time; `None` if there is none.
    pub latest: fn(&str, Duration) -> Option<Duration>,
    /// Decides which missed due times still run.
    pub missed: Missed,
    /// A due time is missed if its run has not begun within this time.
    pub missed_after: Duration,
}

/// Decides which due times still run if no run began in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Missed {
    /// Runs the latest missed due time, and drops earlier ones.
    RunOnce,
    /// Drops missed due times. If a due time passes while another run is under way, it counts as missed, even if that
    /// run ends soon afterwards.
    Skip,
}

/// Ignores `next` and `latest`: they are the same for all schedules of a host.
impl core::hash::Hash for Schedule {
    fn hash<H: core::hash::Hasher>(&self, state: &mut H) {
        (&self.text, self.missed, self.missed_after).hash(state);
    }
}

impl fmt::Debug for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { text, missed, missed_after, .. } = self;
        f.debug_struct("Schedule")
            .field("text", text)
            .field("missed", missed)
            .field("missed_after", missed_after)
            .finish()
    }
}

/// The recorded progress of an election's scheduled runs. The progress belongs to the election, not to the module, so
/// neither a push nor a rollback changes it. Times are wall-clock times since the Unix epoch; zero means "never".
#[derive(Clone, PartialEq, Eq, Debug, Default, Hash)]
pub struct Progress {
    /// Number of times that the progress was set back. A progress of a higher epoch replaces one of a lower epoch.
    pub epoch: u64,
    /// Number of changes to the schedule in all epochs. A higher revision replaces `schedule` and `from` of a lower
    /// one, but not `begun` and `completed`.
    pub revision: u64,
    /// The text of the schedule ([`Schedule::text`]); empty if the last leader had none.
    pub schedule: String,
    /// Due times up to this time do not run.
    pub from: Duration,
    /// The due time of the last run that was begun.
    pub begun: Duration,
    /// The due time of the last run that was completed: its instance returned ok.
    pub completed: Duration,
}

/// The maximum length of a schedule's text ([`Schedule::text`]), in bytes.
pub const LONGEST_SCHEDULE: usize = 256;

/// Error for a text that is not a [`Progress`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the progress of scheduled runs is not `EPOCH REVISION FROM BEGUN COMPLETED SCHEDULE`, with times in seconds since \
     the Unix epoch"
)]
pub struct InvalidProgress;

/// Stands for an empty schedule in the text of a progress. Without it, the text would end with a space, which an HTTP
/// header does not keep.
const NO_SCHEDULE: &str = "-";

/// Exclusive upper limits: the first for epochs and revisions, the second for times in seconds (the year 9999).
const LIMITS: (u64, u64) = (1 << 62, 253_402_300_800);

/// Writes the progress as one line of printable ASCII characters: the epoch, the revision, the three times in seconds,
/// and the text of the schedule.
impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [from, begun, completed] = [self.from, self.begun, self.completed].map(|time| time.as_secs());
        let schedule = if self.schedule.is_empty() { NO_SCHEDULE } else { &self.schedule };
        write!(f, "{} {} {from} {begun} {completed} {schedule}", self.epoch, self.revision)
    }
}

impl FromStr for Progress {
    type Err = InvalidProgress;

    fn from_str(text: &str) -> Result<Self, InvalidProgress> {
        let mut parts = text.splitn(6, ' ');
        let mut number = |limit: u64| {
            let number = parts.next().and_then(|part| part.parse().ok());
            number.filter(|number| *number < limit).ok_or(InvalidProgress)
        };
        let (epoch, revision) = (number(LIMITS.0)?, number(LIMITS.0)?);
        let [from, begun, completed] =
            [number(LIMITS.1)?, number(LIMITS.1)?, number(LIMITS.1)?].map(Duration::from_secs);
        let schedule = parts.next().ok_or(InvalidProgress)?;
        let schedule = if schedule == NO_SCHEDULE { "" } else { schedule };
        let is_printable = schedule.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
        if !is_printable || schedule.len() > LONGEST_SCHEDULE || schedule.trim() != schedule {
            return Err(InvalidProgress);
        }
        Ok(Self { epoch, revision, schedule: schedule.to_string(), from, begun, completed })
    }
}

/// One run of the coordinator, for one due time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct ScheduledRun {
    /// The due time. A run that is cut short is repeated with the same due time.
    pub due: Duration,
    /// The due time of the last completed run, if any.
    pub last_completed: Option<Duration>,
}

impl Progress {
    /// True unless the last leader had no schedule.
    #[must_use]
    pub fn has_schedule(&self) -> bool {
        !self.schedule.is_empty()
    }

    /// The run that has begun and is not completed, if any.
    #[must_use]
    pub fn unfinished(&self) -> Option<ScheduledRun> {
        let last_completed = self.last_completed();
        (self.begun > self.completed).then_some(ScheduledRun { due: self.begun, last_completed })
    }

    /// The due time of the last completed run, if any.
    #[must_use]
    pub fn last_completed(&self) -> Option<Duration> {
        Some(self.completed).filter(|completed| !completed.is_zero())
    }

    /// The time after which the next due time is chosen: the later of [`from`](Self::from) and [`begun`](Self::begun).
    #[must_use]
    pub fn base(&self) -> Duration {
        self.from.max(self.begun)
    }

    /// Changes the schedule, if `schedule` differs from the recorded text. Due times up to `now` do not run under the
    /// new schedule. If the last run has a due time later than `now` by more than `tolerance`, a clock was wrong. The
    /// progress is then set back.
    pub(crate) fn change(&mut self, schedule: &str, now: Duration, tolerance: Duration) {
        if self.schedule == schedule {
            return;
        }
        self.revision = self.revision.saturating_add(1);
        self.schedule = schedule.to_string();
        self.from = now;
        if self.begun > now + tolerance {
            self.count_from(now);
        }
    }

    /// Makes the next run the first one that is due after `from`, under a new epoch. Drops a run that has begun and is
    /// not completed.
    pub fn count_from(&mut self, from: Duration) {
        self.epoch = self.epoch.saturating_add(1);
        self.from = from;
        if self.completed > from {
            self.completed = Duration::ZERO;
        }
        self.begun = self.completed;
    }

    /// Merges `other` into this progress. The higher epoch wins; within an epoch, the higher revision and the later
    /// runs win. The result does not depend on the order of merges.
    pub fn merge(&mut self, other: &Self) {
        match self.epoch.cmp(&other.epoch) {
            Ordering::Less => return self.clone_from(other),
            Ordering::Greater => return,
            Ordering::Equal => {}
        }
        let key = |one: &Self| (one.revision, one.schedule.clone(), one.from);
        if key(other) > key(self) {
            self.revision = other.revision;
            self.schedule.clone_from(&other.schedule);
            self.from = other.from;
        }
        self.begun = self.begun.max(other.begun);
        self.completed = self.completed.max(other.completed);
    }

    /// Merges two optional progresses: see [`merge`](Self::merge).
    pub fn merge_into(known: &mut Option<Box<Self>>, other: Option<&Self>) {
        match (known.as_mut(), other) {
            (Some(known), Some(other)) => known.merge(other),
            (None, Some(other)) => *known = Some(Box::new(other.clone())),
            (_, None) => {}
        }
    }
}
