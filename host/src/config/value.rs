//! Parses and formats the values of settings. Error messages say what to write instead.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use baton_base::address::without_user;
use baton_election::eligibility::HIGHEST_PRIORITY;
use baton_election::{ElectionName, MAX_SHARDS, Missed, OnDone};

use baton_admin::{AdminPlace, AdminUrl, InvalidAdminUrl};
use baton_base::shell::quoted;
use baton_modules::{InvalidModuleSource, ModuleSource};
use baton_node::links::{InvalidPeerAddr, PeerAddr};
use baton_node::telemetry::Format;
use baton_runtime::{Grant, GrantError, Grants};
use baton_store::state::LARGEST;
use baton_store::{Digest, InvalidDigest, LONGEST_LABEL};
use baton_store::{StoreUrl, StoreUrlError};

const KIB: u64 = 1 << 10;
/// Longest accepted duration. A longer duration is probably a mistake. The limit also keeps sums of durations from
/// overflowing.
const LONGEST_DURATION: Duration = Duration::from_secs(366 * 24 * 60 * 60);
pub(super) const OFF: &str = "off";
/// Smallest memory limit, in bytes: one WebAssembly page.
const LEAST_MEMORY: u64 = 64 * KIB;

pub(super) fn store(text: &str) -> Result<StoreUrl, String> {
    match text.trim() {
        "" => Err("is empty: write sqlite:DIR, azure://ACCOUNT/CONTAINER or azurite".to_string()),
        text => text.parse().map_err(|error: StoreUrlError| error.to_string()),
    }
}

pub(super) fn module(text: &str) -> Result<ModuleSource, String> {
    text.parse().map_err(|error: InvalidModuleSource| error.to_string())
}

/// Parses a duration of at most one year.
///
/// # Errors
/// A message that says what is wrong with the text, and how to write a duration.
pub fn duration(text: &str) -> Result<Duration, String> {
    let duration = humantime::parse_duration(text.trim())
        .map_err(|_| format!("{text:?} is not a duration: write it like 15s, 1m30s or 500ms"))?;
    if duration > LONGEST_DURATION {
        return Err(format!("{text:?} is longer than a year: write a shorter duration"));
    }
    Ok(duration)
}

pub(super) fn timeout(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("0 is too short: write a longer duration".to_string()),
        timeout => Ok(timeout),
    }
}

pub(super) fn show_duration(duration: &Duration) -> String {
    humantime::format_duration(*duration).to_string().replace(' ', "")
}

pub(super) fn stall(text: &str) -> Result<Duration, String> {
    match duration(text) {
        Ok(Duration::ZERO) => Err("0 would stop every instance at once: write off, or a duration".to_string()),
        Ok(duration) => Ok(duration),
        Err(_) => Err(format!("{text:?} is neither off nor a duration: write it like 5m or 90s")),
    }
}

/// Parses `none`, or an address with a port. Also accepts `off`, for consistency with other settings.
pub(super) fn admin(text: &str) -> Result<AdminPlace, String> {
    match text.trim() {
        OFF | "none" => Ok(AdminPlace::Off),
        address => address.parse().map(AdminPlace::At).map_err(|_| {
            format!(
                "{address:?} is not an address: write one with its port, as in 127.0.0.1:7070 or [::]:7070, or none"
            )
        }),
    }
}

pub(super) fn admin_url(text: &str) -> Result<AdminUrl, String> {
    text.trim().parse().map_err(|error: InvalidAdminUrl| error.to_string())
}

pub(super) fn peer(text: &str) -> Result<SocketAddr, String> {
    text.trim().parse().map_err(|_| {
        let address = without_user(text.trim());
        format!(
            "{address:?} is not an address: write one with its port, as in 10.0.0.3:7072 or [::]:7072 (with a zone by \
             its number, as in [fe80::1%2]:7072), or off"
        )
    })
}

pub(super) fn advertise(text: &str) -> Result<PeerAddr, String> {
    text.trim().parse().map_err(|error: InvalidPeerAddr| error.to_string())
}

pub(super) fn folder(text: &str) -> Result<Option<PathBuf>, String> {
    match text {
        OFF => Ok(None),
        "" => Err("is empty: write off, or a path".to_string()),
        path => Ok(Some(PathBuf::from(path))),
    }
}

pub(super) fn size(text: &str) -> Result<u64, String> {
    let bytes = bytes(text)?;
    if bytes < LEAST_MEMORY {
        return Err(format!("{text:?} is too small: the minimum is 64KiB"));
    }
    Ok(bytes)
}

pub(super) fn state_size(text: &str) -> Result<u64, String> {
    let bytes = bytes(text)?;
    if bytes > LARGEST {
        return Err(format!("{text:?} is too large: the limit is 64MiB, because each commit writes the whole state"));
    }
    Ok(bytes)
}

fn bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a size: write it like 256MiB or 1GiB");
    let text_trimmed = text.trim();
    let unit_at = text_trimmed.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let (digits, unit) = text_trimmed.split_at(unit_at);
    let unit = match unit.trim() {
        "B" => 1,
        "KiB" => KIB,
        "MiB" => KIB * KIB,
        "GiB" => KIB * KIB * KIB,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        _ => return Err(wrong()),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(unit).ok_or_else(wrong)
}

pub(super) fn show_size(bytes: &u64) -> String {
    let bytes = *bytes;
    match bytes {
        _ if bytes.is_multiple_of(KIB * KIB * KIB) => format!("{}GiB", bytes >> 30),
        _ if bytes.is_multiple_of(KIB * KIB) => format!("{}MiB", bytes >> 20),
        _ if bytes.is_multiple_of(KIB) => format!("{}KiB", bytes >> 10),
        _ => format!("{bytes}B"),
    }
}

pub(super) fn grants(text: &str) -> Result<Grants, String> {
    let grants: Result<Vec<Grant>, GrantError> = text.split_whitespace().map(str::parse).collect();
    grants.map(Grants::new).map_err(|error| error.to_string())
}

pub(super) fn show_grants(grants: &Grants) -> String {
    let grants: Vec<String> = grants.iter().map(Grant::to_string).collect();
    if grants.is_empty() { "none".to_owned() } else { grants.join(" ") }
}

/// Joins arguments into one string. Ends each argument with a NUL, the only character that an argument cannot contain.
pub(super) fn join_arguments<'a>(arguments: impl Iterator<Item = &'a str>) -> String {
    arguments.flat_map(|argument| [argument, "\0"]).collect()
}

/// Splits a string created by [`join_arguments`].
pub(super) fn arguments(text: &str) -> Result<Vec<String>, String> {
    Ok(text.split_terminator('\0').map(str::to_owned).collect())
}

pub(super) fn show_arguments(arguments: &[String]) -> String {
    let arguments: Vec<_> = arguments.iter().map(|argument| quoted(argument)).collect();
    if arguments.is_empty() { "none".to_owned() } else { arguments.join(" ") }
}

pub(super) fn digests(text: &str) -> Result<Vec<Digest>, String> {
    let digests: Result<_, InvalidDigest> = text.split_whitespace().map(str::parse).collect();
    digests.map_err(|error| error.to_string())
}

pub(super) fn show_digests(digests: &[Digest]) -> String {
    let digests: Vec<String> = digests.iter().map(Digest::to_string).collect();
    if digests.is_empty() { "none".to_owned() } else { digests.join(" ") }
}

pub(super) fn files(text: &str) -> Result<Vec<PathBuf>, String> {
    Ok(text.lines().map(str::trim).filter(|line| !line.is_empty()).map(PathBuf::from).collect())
}

pub(super) fn show_files(files: &[PathBuf]) -> String {
    let files: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    if files.is_empty() { "none".to_owned() } else { files.join(" ") }
}

pub(super) fn path(text: &str) -> Result<PathBuf, String> {
    match text {
        "" => Err("is empty: name a file, or leave it out".to_owned()),
        text => Ok(PathBuf::from(text)),
    }
}

#[expect(clippy::ptr_arg, reason = "a setting's value is shown by reference to its type")]
pub(super) fn show_path(path: &PathBuf) -> String {
    path.display().to_string()
}

/// Upper bound on `--max-requests`. Each request in flight needs a file descriptor, and the number of descriptors is
/// limited.
const MOST_REQUESTS: usize = 10_000;

pub(super) fn requests(text: &str) -> Result<usize, String> {
    match text.trim().parse() {
        Ok(number @ 1..=MOST_REQUESTS) => Ok(number),
        _ => Err(format!("{text:?} is not a number from 1 to {MOST_REQUESTS}")),
    }
}

pub(super) fn shards(text: &str) -> Result<u16, String> {
    match text.trim().parse() {
        Ok(number @ 1..=MAX_SHARDS) => Ok(number),
        _ => Err(format!("{text:?} is not a number from 1 to {MAX_SHARDS}")),
    }
}

pub(super) fn priority(text: &str) -> Result<u8, String> {
    match text.trim().parse() {
        Ok(number @ 0..=HIGHEST_PRIORITY) => Ok(number),
        _ => Err(format!("{text:?} is not a number from 0 to {HIGHEST_PRIORITY}")),
    }
}

pub(super) fn most(text: &str) -> Result<usize, String> {
    count(text, 100_000).map(|number| usize::try_from(number).unwrap_or(usize::MAX))
}

pub(super) fn label(name: &str, value: &str) -> Result<(String, String), String> {
    let is_word = |text: &str| {
        (1..=LONGEST_LABEL).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_./:".contains(&byte))
    };
    match [name, value].into_iter().find(|text| !is_word(text)) {
        None => Ok((name.to_owned(), value.to_owned())),
        Some(text) => {
            Err(format!("{text:?} is not a label: use 1 to {LONGEST_LABEL} characters from a-z, A-Z, 0-9 and -_./:"))
        }
    }
}

pub(super) fn count(text: &str, most: u64) -> Result<u64, String> {
    match text.trim().parse() {
        Ok(0) => Err("0 is too few: write at least 1".to_string()),
        Ok(number) if number > most => Err(format!("{number} is too many: write at most {most}")),
        Ok(number) => Ok(number),
        Err(_) => Err(format!("{text:?} is not a number: write it like 1000")),
    }
}

pub(crate) fn switch(text: &str) -> Result<bool, String> {
    match text.trim() {
        "true" | "1" | "yes" | "on" => Ok(true),
        "false" | "0" | "no" | "off" => Ok(false),
        _ => Err(format!("{text:?} is neither true nor false")),
    }
}

pub(super) fn restart(text: &str) -> Result<OnDone, String> {
    match text.trim() {
        "always" => Ok(OnDone::Repeat),
        "on-failure" => Ok(OnDone::Finish),
        _ => Err(format!("{text:?} is neither always nor on-failure")),
    }
}

pub(super) fn show_restart(on_done: &OnDone) -> String {
    match on_done {
        OnDone::Repeat => "always",
        OnDone::Finish => "on-failure",
    }
    .to_string()
}

pub(super) fn time_zone(text: &str) -> Result<String, String> {
    baton_node::schedule::check_time_zone(text.trim()).map_err(|error| error.to_string())?;
    Ok(text.trim().to_string())
}

pub(super) fn missed(text: &str) -> Result<Missed, String> {
    match text.trim() {
        "run-once" => Ok(Missed::RunOnce),
        "skip" => Ok(Missed::Skip),
        _ => Err(format!("{text:?} is neither run-once nor skip")),
    }
}

pub(super) fn show_missed(missed: &Missed) -> String {
    match missed {
        Missed::RunOnce => "run-once",
        Missed::Skip => "skip",
    }
    .to_string()
}

pub(super) fn log_format(text: &str) -> Result<Format, String> {
    match text.trim() {
        "text" => Ok(Format::Text),
        "json" => Ok(Format::Json),
        _ => Err(format!("{text:?} is neither text nor json")),
    }
}

pub(super) fn show_log_format(format: &Format) -> String {
    match format {
        Format::Text => "text",
        Format::Brief => "brief",
        Format::Json => "json",
    }
    .to_string()
}

/// Parses the name of an election or a group.
///
/// # Errors
/// A message that says what is wrong with the name, and what to write instead.
pub fn election(text: &str) -> Result<ElectionName, String> {
    let name = election_or_shard(text)?;
    if name.shard().is_some() {
        return Err(format!("{text:?} is a shard: name the whole group, {}", name.group()));
    }
    Ok(name)
}

/// Parses the name of an election, a group or a shard.
///
/// # Errors
/// As for [`election`].
pub fn election_or_shard(text: &str) -> Result<ElectionName, String> {
    ElectionName::new(text).map_err(|error| {
        format!("{:?} is not an election's name{}", without_user(text), after_name(&error.to_string()))
    })
}

/// Returns the rule for names, which is the end of the error about an invalid election name. The beginning of the error
/// repeats the name unescaped, so the caller quotes the name itself.
fn after_name(error: &str) -> &str {
    error.rfind(": use").map_or("", |at| &error[at..])
}

/// Derives an election's name from a module's name. Underscores become hyphens, as in crate names. If more characters
/// were replaced, two modules could get the same election, and one of them would never run.
pub(super) fn election_called(stem: &str) -> Result<ElectionName, String> {
    ElectionName::new(&stem.replace('_', "-")).map_err(|_| {
        format!(
            "the module's name {stem:?} cannot be an election's name: set another name with --election, using 1 to \
             63 characters: a-z, 0-9 and hyphens, starting with a letter"
        )
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;

    #[test]
    fn duration_is_parsed_and_shown() {
        for (text, millis, shown) in [
            ("15s", 15_000, "15s"),
            ("1m30s", 90_000, "1m30s"),
            ("500ms", 500, "500ms"),
            (" 2m ", 120_000, "2m"),
            ("0s", 0, "0s"),
        ] {
            let parsed = duration(text).unwrap();
            assert_eq!(parsed, Duration::from_millis(millis));
            assert_eq!(show_duration(&parsed), shown);
        }
        for text in ["", "15", "s", "-1s", "15x", "99999999999999999999s", "1e3s", "∞"] {
            assert!(duration(text).unwrap_err().contains("15s, 1m30s or 500ms"), "{text}");
        }
    }

    #[test]
    fn duration_longer_than_a_year_is_refused() {
        assert!(duration("366d").is_ok());
        for text in ["367d", "500000000000y"] {
            assert!(duration(text).unwrap_err().contains("longer than a year"), "{text}");
        }
    }

    #[test]
    fn size_is_parsed_and_shown() {
        for (text, bytes, shown) in [
            ("256MiB", 256 << 20, "256MiB"),
            ("1GiB", 1 << 30, "1GiB"),
            ("1024 MiB", 1 << 30, "1GiB"),
            ("65536B", 65_536, "64KiB"),
            ("100MB", 100_000_000, "97656KiB"),
            ("100001kB", 100_001_000, "100001000B"),
        ] {
            let parsed = size(text).unwrap();
            assert_eq!(parsed, bytes);
            if text != "100MB" {
                assert_eq!(show_size(&parsed), shown);
            }
        }
        for text in ["", "256", "MiB", "1.5GiB", "-1MiB", "20000000000GiB", "1TiB", "0MiB", "99999999999999999999B"] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn grants_are_separated_by_white_space() {
        let parsed = grants("https://a.example\n http://b:81/x/  http://c#private").unwrap();
        assert_eq!(show_grants(&parsed), "https://a.example http://b:81/x http://c#private");
        assert_eq!(show_grants(&grants("").unwrap()), "none");
        assert!(grants("https://a.example, https://b.example").is_err());
        assert!(grants("api.example.com").unwrap_err().contains("https://api.example.com"));
    }

    #[test]
    fn number_of_requests_is_bounded() {
        assert_eq!(requests(" 64 "), Ok(64));
        for text in ["", "0", "-1", "10001", "many", "64MiB"] {
            assert!(requests(text).unwrap_err().contains("1 to 10000"), "{text}");
        }
    }

    #[test]
    fn count_is_bounded_and_not_zero() {
        assert_eq!(count(" 7 ", 7), Ok(7));
        assert!(count("8", 7).unwrap_err().contains("at most 7"));
        for text in ["0", "", "-1", "1.5", "1k", "99999999999999999999"] {
            assert!(count(text, 7).unwrap_err().contains("write"), "{text}");
        }
    }

    #[test]
    fn stall_of_zero_is_refused() {
        assert_eq!(stall("5m").unwrap(), Duration::from_secs(300));
        assert!(stall("0s").is_err());
        assert!(stall("never").unwrap_err().contains("neither off nor a duration"));
    }

    #[test]
    fn election_is_named_after_module_unless_characters_are_lost() {
        for (stem, name) in [("heartbeat", "heartbeat"), ("my_job-v2", "my-job-v2")] {
            assert_eq!(election_called(stem).unwrap().as_str(), name);
        }
        for stem in ["My_job", "job.v2", "zähler", "_x", "1job", "日本", "..", "", &"x".repeat(64)] {
            assert!(election_called(stem).unwrap_err().contains("--election"), "{stem}");
        }
    }

    #[test]
    fn invalid_election_error_states_the_rule() {
        let error = election("Not\x1bThis").unwrap_err();
        assert_eq!(
            error,
            "\"Not\\u{1b}This\" is not an election's name: use 1 to 63 characters: a-z, 0-9 and hyphens, \
             starting with a letter"
        );
    }
}
