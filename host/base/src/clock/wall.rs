//! The wall clock, for schedules and for display: no lease depends on this clock.

use std::time::{Duration, SystemTime};

use time::OffsetDateTime;

/// Returns the wall-clock time since the Unix epoch.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "log lines carry the time that people go by")]
pub fn wall() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// Formats a time since the epoch as RFC 3339 (`2026-11-21T12:00:01.234567Z`). A time after the year 9999 is formatted
/// as the epoch.
#[must_use]
pub fn rfc3339(since_epoch: Duration) -> String {
    let nanos = i128::try_from(since_epoch.as_nanos()).unwrap_or_default();
    let at = OffsetDateTime::from_unix_timestamp_nanos(nanos).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}Z",
        at.year(),
        u8::from(at.month()),
        at.day(),
        at.hour(),
        at.minute(),
        at.second(),
        at.microsecond()
    )
}

/// Formats a time since the epoch as RFC 3339 without a fraction (`2026-11-21T12:00:01Z`).
#[must_use]
pub fn rfc3339_seconds(since_epoch: Duration) -> String {
    let mut text = rfc3339(since_epoch);
    text.truncate(text.len() - ".000000Z".len());
    text + "Z"
}

/// Converts a duration to milliseconds, rounded down.
#[must_use]
pub fn milliseconds(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_formatted_as_rfc_3339() {
        assert_eq!(rfc3339(Duration::ZERO), "1970-01-01T00:00:00.000000Z");
        assert_eq!(rfc3339(Duration::from_micros(1_709_210_096_000_042)), "2024-02-29T12:34:56.000042Z");
        assert_eq!(rfc3339_seconds(Duration::from_micros(1_709_210_096_000_042)), "2024-02-29T12:34:56Z");
        assert_eq!(rfc3339(Duration::MAX), "1970-01-01T00:00:00.000000Z");
    }
}
