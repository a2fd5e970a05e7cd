//! Schedules of coordinators: cron patterns in a time zone.
//!
//! `croner` parses the patterns and handles daylight saving time. If a fixed local time does not exist on a day, the
//! run begins at the next time that exists. If a fixed local time exists twice, the run begins once. Steps such as
//! `*/15` continue through the change. `croner` treats a time as fixed only if the pattern has a single minute and a
//! single hour. This module therefore splits a pattern with lists or ranges into several such patterns. `jiff` supplies
//! the time zones.

use std::time::Duration;

use baton_election::schedule::LONGEST_SCHEDULE;
use baton_election::{Missed, Progress, Schedule};
use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

/// A due time is missed if its run has not begun within this time.
pub const MISSED_AFTER: Duration = Duration::from_secs(600);

/// Maximum number of fixed times a day. If a pattern has more fixed times, this module does not split it, and `croner`
/// treats its times as steps. When daylight saving time begins or ends, `croner` then drops the times that do not
/// exist, and runs twice at the times that exist twice.
const MOST_FIXED_TIMES: usize = 48;

/// The reason why a schedule is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSchedule {
    /// The text is not a cron pattern.
    #[error(
        "{pattern:?} is not a schedule: {reason}; write the minute, hour, day of the month, month and day of the week, \
         as in \"0 2 * * *\", or @hourly, @daily, @weekly, @monthly or @yearly"
    )]
    Pattern {
        /// The text.
        pattern: String,
        /// The parser's reason.
        reason: String,
    },
    /// The pattern matches no time, such as February 30.
    #[error("the schedule {0:?} never runs: no date matches it")]
    Never(String),
    /// The time zone is not in the bundled time zone database.
    #[error("unknown time zone {0:?}: write a name from the IANA time zone database, such as Europe/Berlin or UTC")]
    TimeZone(String),
}

/// Checks a cron pattern in a time zone, and returns the schedule.
///
/// # Errors
/// [`InvalidSchedule`] with the reason and the remedy.
pub fn schedule(pattern: &str, time_zone: &str, missed: Missed) -> Result<Schedule, InvalidSchedule> {
    let zone = TimeZone::get(time_zone).ok();
    let zone = zone.as_ref().and_then(TimeZone::iana_name);
    let zone = zone.ok_or_else(|| InvalidSchedule::TimeZone(time_zone.to_owned()))?;
    let pattern = normalized(pattern);
    let text = format!("{pattern} {zone}");
    if text.len() > LONGEST_SCHEDULE || !text.is_ascii() {
        let reason = format!("it has more than {LONGEST_SCHEDULE} bytes, or other characters than ASCII");
        return Err(InvalidSchedule::Pattern { pattern, reason });
    }
    parse(&text)?;
    let schedule = Schedule { text, next, latest, missed, missed_after: MISSED_AFTER };
    match (schedule.next)(&schedule.text, baton_base::clock::wall()) {
        Some(_) => Ok(schedule),
        None => Err(InvalidSchedule::Never(pattern)),
    }
}

/// Checks the name of a time zone.
///
/// # Errors
/// [`InvalidSchedule::TimeZone`] if the bundled database does not contain the name.
pub fn check_time_zone(name: &str) -> Result<(), InvalidSchedule> {
    TimeZone::get(name).map(drop).map_err(|_| InvalidSchedule::TimeZone(name.to_owned()))
}

/// Returns the due times after `after`, a wall-clock time since the Unix epoch.
pub fn due_times(schedule: &Schedule, after: Duration) -> impl Iterator<Item = Duration> {
    let next = move |after: &Duration| (schedule.next)(&schedule.text, *after);
    std::iter::successors(next(&after), next)
}

/// Returns the due time of the next run, according to the recorded progress. An unfinished run comes first, then a
/// missed run, then the first run after `now`. Returns `None` if the election has no schedule, or no further run.
#[must_use]
pub fn next_run(progress: &Progress, now: Duration) -> Option<Duration> {
    if let Some(run) = progress.unfinished() {
        return Some(run.due);
    }
    let missed = latest(&progress.schedule, now).filter(|due| *due > progress.base());
    missed.or_else(|| next(&progress.schedule, now.max(progress.base())))
}

/// Formats a due time in the schedule's time zone, such as `2026-11-29T02:00:00+01:00`.
#[must_use]
pub fn local_time(schedule: &Schedule, due: Duration) -> String {
    match parse(&schedule.text).ok().and_then(|(_, zone)| zoned(due, &zone)) {
        Some(due) => due.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string(),
        None => String::new(),
    }
}

/// Returns the same text for all spellings of a pattern, so that a different spelling does not count as a change of the
/// schedule.
fn normalized(pattern: &str) -> String {
    let fields = pattern.split_whitespace().collect::<Vec<_>>().join(" ").to_ascii_uppercase();
    match fields.as_str() {
        "@HOURLY" => "0 * * * *",
        "@DAILY" | "@MIDNIGHT" => "0 0 * * *",
        "@WEEKLY" => "0 0 * * 0",
        "@MONTHLY" => "0 0 1 * *",
        "@YEARLY" | "@ANNUALLY" => "0 0 1 1 *",
        fields => fields,
    }
    .to_owned()
}

fn next(text: &str, after: Duration) -> Option<Duration> {
    let (patterns, zone) = parse(text).ok()?;
    let after = zoned(after, &zone)?;
    patterns.iter().filter_map(|one| since_epoch(&one.find_next_occurrence(&after, false).ok()?)).min()
}

fn latest(text: &str, until: Duration) -> Option<Duration> {
    let (patterns, zone) = parse(text).ok()?;
    let until = zoned(until, &zone)?;
    patterns.iter().filter_map(|one| since_epoch(&one.find_previous_occurrence(&until, true).ok()?)).max()
}

/// Parses the text of a schedule: a cron pattern, a space, and a time zone. Returns one pattern for each fixed time of
/// the day, if the pattern has at most [`MOST_FIXED_TIMES`].
fn parse(text: &str) -> Result<(Vec<Cron>, TimeZone), InvalidSchedule> {
    let (pattern, zone) = text.rsplit_once(' ').unwrap_or((text, ""));
    let parser = CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build();
    let parse = |one: &str| {
        parser.parse(one).map_err(|error| {
            let (pattern, reason) = (pattern.to_owned(), error.to_string());
            InvalidSchedule::Pattern { pattern, reason: reason.trim_end_matches('.').to_owned() }
        })
    };
    let whole = parse(pattern)?;
    let zone = TimeZone::get(zone).map_err(|_| InvalidSchedule::TimeZone(zone.to_owned()))?;
    let mut fields = pattern.splitn(3, ' ');
    let fixed = [fields.next(), fields.next()].map(|field| field.and_then(fixed_values));
    let ([Some(minutes), Some(hours)], Some(days)) = (fixed, fields.next()) else { return Ok((vec![whole], zone)) };
    if minutes.len() * hours.len() > MOST_FIXED_TIMES {
        return Ok((vec![whole], zone));
    }
    let times = hours.iter().flat_map(|hour| minutes.iter().map(move |minute| (minute, hour)));
    let patterns = times.map(|(minute, hour)| parse(&format!("{minute} {hour} {days}"))).collect::<Result<_, _>>()?;
    Ok((patterns, zone))
}

/// Returns the values of a cron field that consists of numbers, lists and ranges. Returns `None` if the field has steps
/// or wildcards.
fn fixed_values(field: &str) -> Option<Vec<u8>> {
    let mut values = Vec::new();
    for part in field.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        values.extend(first.parse().ok()?..=last.parse::<u8>().ok()?);
    }
    Some(values)
}

fn zoned(since_epoch: Duration, zone: &TimeZone) -> Option<Zoned> {
    let seconds = i64::try_from(since_epoch.as_secs()).ok()?;
    Some(Timestamp::from_second(seconds).ok()?.to_zoned(zone.clone()))
}

fn since_epoch(time: &Zoned) -> Option<Duration> {
    u64::try_from(time.timestamp().as_second()).ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;

    fn at(text: &str) -> Duration {
        since_epoch(&text.parse::<Timestamp>().unwrap().to_zoned(TimeZone::UTC)).unwrap()
    }

    fn due(pattern: &str, zone: &str, after: &str, count: usize) -> Vec<String> {
        let schedule = schedule(pattern, zone, Missed::RunOnce).unwrap();
        let due = due_times(&schedule, at(after)).take(count).collect::<Vec<_>>();
        // The search backwards finds the same due times.
        for (number, one) in due.iter().enumerate() {
            assert_eq!((schedule.latest)(&schedule.text, *one), Some(*one));
            let just_before = *one - Duration::from_secs(1);
            assert_eq!(
                (schedule.latest)(&schedule.text, just_before),
                due[..number].last().copied().or_else(|| { (schedule.latest)(&schedule.text, at(after)) })
            );
        }
        due.into_iter().map(|due| local_time(&schedule, due)).collect()
    }

    #[test]
    fn fixed_local_time_runs_once_a_day_in_all_seasons() {
        let berlin = |after, count| due("30 2 * * *", "Europe/Berlin", after, count);
        assert_eq!(
            berlin("2026-03-28T12:00:00Z", 2),
            ["2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"],
            "02:30 does not exist on March 29"
        );
        assert_eq!(
            berlin("2026-10-24T12:00:00Z", 2),
            ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"],
            "02:30 exists twice on October 25"
        );
    }

    #[test]
    fn steps_continue_through_doubled_hour() {
        assert_eq!(
            due("*/30 * * * *", "Europe/Berlin", "2026-10-24T23:45:00Z", 5),
            [
                "2026-10-25T02:00:00+02:00",
                "2026-10-25T02:30:00+02:00",
                "2026-10-25T02:00:00+01:00",
                "2026-10-25T02:30:00+01:00",
                "2026-10-25T03:00:00+01:00"
            ]
        );
    }

    #[test]
    fn lists_and_ranges_of_fixed_times_run_once_each() {
        let berlin = |pattern, after, count| due(pattern, "Europe/Berlin", after, count);
        assert_eq!(
            berlin("0 2,14 * * *", "2027-03-27T20:00:00Z", 2),
            ["2027-03-28T03:00:00+02:00", "2027-03-28T14:00:00+02:00"]
        );
        assert_eq!(
            berlin("0 1-3 * * *", "2026-10-24T20:00:00Z", 4),
            [
                "2026-10-25T01:00:00+02:00",
                "2026-10-25T02:00:00+02:00",
                "2026-10-25T03:00:00+01:00",
                "2026-10-26T01:00:00+01:00"
            ]
        );
    }

    #[test]
    fn spellings_of_one_schedule_are_one_text() {
        let text = |pattern: &str, zone: &str| schedule(pattern, zone, Missed::Skip).unwrap().text;
        assert_eq!(text("@daily", "europe/berlin"), "0 0 * * * Europe/Berlin");
        assert_eq!(text(" 0  2 * * mon", "UTC"), text("0 2 * * MON", "utc"));
    }

    #[test]
    fn nicknames_and_leap_days_work() {
        assert_eq!(due("@daily", "UTC", "2026-01-01T00:00:00Z", 1), ["2026-01-02T00:00:00+00:00"]);
        assert_eq!(due("0 0 29 2 *", "UTC", "2026-01-01T00:00:00Z", 1), ["2028-02-29T00:00:00+00:00"]);
    }

    #[test]
    fn unusable_schedules_are_refused() {
        let refused = |pattern: &str, zone: &str| schedule(pattern, zone, Missed::Skip).unwrap_err();
        for pattern in ["", "* * * *", "* * * * * *", "61 * * * *", "@often", "@reboot", "0 2 * * * UTC", "ü * * * *"]
        {
            assert!(matches!(refused(pattern, "UTC"), InvalidSchedule::Pattern { .. }), "{pattern}");
        }
        assert!(matches!(refused(&"*,".repeat(200), "UTC"), InvalidSchedule::Pattern { .. }));
        assert_eq!(refused("0 0 30 2 *", "UTC"), InvalidSchedule::Never("0 0 30 2 *".to_owned()));
        for zone in ["", "Mars/Olympus", "Europe/Berlin ", "../UTC"] {
            assert!(matches!(refused("@daily", zone), InvalidSchedule::TimeZone(_)), "{zone}");
        }
    }
}
