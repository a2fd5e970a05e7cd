//! The due times of jobs.

use std::time::Duration;

/// Jobs that are due at multiples of their periods. All times are durations since the Unix epoch.
pub struct Schedule {
    jobs: Vec<Job>,
}

struct Job {
    name: String,
    every: u64,
    next: u64,
}

impl Schedule {
    /// Parses `NAME=SECONDS,…`. The first due time of each job is after `now`.
    ///
    /// # Errors
    /// Returns a message that says what is wrong with the text.
    pub fn parse(text: &str, now: Duration) -> Result<Self, String> {
        let jobs = text.split(',').map(|entry| Job::parse(entry.trim(), now)).collect::<Result<_, _>>()?;
        Ok(Self { jobs })
    }

    pub fn next_due(&self) -> Duration {
        Duration::from_secs(self.jobs.iter().map(|job| job.next).min().unwrap_or(u64::MAX))
    }

    /// Returns the jobs that have become due by `now`, earliest first. Each job appears only once, with its latest due
    /// time.
    pub fn take_due(&mut self, now: Duration) -> Vec<(&str, Duration)> {
        let now = now.as_secs();
        let mut due = Vec::new();
        for job in self.jobs.iter_mut().filter(|job| job.next <= now) {
            let latest = now - now % job.every;
            job.next = latest.saturating_add(job.every);
            due.push((job.name.as_str(), Duration::from_secs(latest)));
        }
        due.sort_by_key(|(_, due)| *due);
        due
    }
}

impl Job {
    fn parse(entry: &str, now: Duration) -> Result<Self, String> {
        let wrong = || format!("`{entry}` is not a job: write NAME=SECONDS, with a name of letters, digits, - and _");
        let (name, every) = entry.split_once('=').ok_or_else(wrong)?;
        let every: u64 = every.parse().map_err(|_| wrong())?;
        let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
        if every == 0 || !is_name {
            return Err(wrong());
        }
        let now = now.as_secs();
        Ok(Self { name: name.to_owned(), every, next: (now - now % every).saturating_add(every) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn every_leader_computes_the_same_due_times() {
        for start in [100, 105, 119] {
            let schedule = Schedule::parse("report=60", at(start));
            assert_eq!(schedule.map(|schedule| schedule.next_due()), Ok(at(120)));
        }
    }

    #[test]
    fn due_time_is_taken_once_and_missed_ones_are_skipped() -> Result<(), String> {
        let mut schedule = Schedule::parse("report=60, tick=10", at(100))?;
        assert_eq!(schedule.take_due(at(109)), []);
        assert_eq!(schedule.take_due(at(110)), [("tick", at(110))]);
        assert_eq!(schedule.take_due(at(110)), []);
        assert_eq!(schedule.take_due(at(205)), [("report", at(180)), ("tick", at(200))]);
        assert_eq!(schedule.next_due(), at(210));
        Ok(())
    }

    #[test]
    fn error_names_the_invalid_job() {
        for text in ["", "report", "report=0", "report=soon", "=5", "a\"b=5"] {
            assert!(Schedule::parse(text, at(0)).is_err_and(|why| why.contains(&format!("`{text}`"))), "{text}");
        }
    }
}
