//! The scheduler's settings.

use std::str::FromStr;
use std::time::Duration;

#[derive(Debug, PartialEq)]
pub(crate) struct Settings {
    /// The workers' base URLs, without a trailing `/`. The list is not empty.
    workers: Vec<String>,
    pub(crate) partitions: u64,
    pub(crate) pause: Duration,
    /// Time limit for each step of a request: connecting to the worker, the start of its answer, and each pause within
    /// the answer.
    pub(crate) timeout: Duration,
}

impl Settings {
    /// Reads environment variables. An error names the missing or invalid variable, and shows a valid value.
    pub(crate) fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let workers = variable("WORKERS").unwrap_or_default();
        let workers: Vec<String> =
            workers.split(',').filter(|url| !url.is_empty()).map(|url| url.trim_end_matches('/').to_owned()).collect();
        let is_url = |url: &String| url.starts_with("http://") || url.starts_with("https://");
        if workers.is_empty() || !workers.iter().all(is_url) {
            return Err(wrong("WORKERS", "http://10.0.0.1:8080,http://10.0.0.2:8080"));
        }
        let milliseconds = |name, default| whole(name, variable(name).or(Some(default))).map(Duration::from_millis);
        Ok(Self {
            workers,
            partitions: whole("PARTITIONS", variable("PARTITIONS"))?,
            pause: milliseconds("PAUSE_MS", "1000".to_owned())?,
            timeout: milliseconds("TIMEOUT_MS", "10000".to_owned())?,
        })
    }

    /// Returns the worker for this turn. The workers take turns in the order of the list.
    pub(crate) fn worker(&self, turn: u64) -> &str {
        let workers = self.workers.len() as u64;
        &self.workers[usize::try_from(turn % workers).unwrap_or_default()]
    }
}

fn whole<T: FromStr>(name: &str, value: Option<String>) -> Result<T, String> {
    value.and_then(|value| value.parse().ok()).ok_or_else(|| wrong(name, "100"))
}

fn wrong(name: &str, example: &str) -> String {
    format!("{name} is missing or wrong: --env {name}={example}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_names_the_missing_or_invalid_variable() {
        let with = |workers: &str, partitions: &str| {
            let pairs = [("WORKERS", workers.to_owned()), ("PARTITIONS", partitions.to_owned())];
            Settings::read(move |name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| value.clone()))
        };
        let settings = with("http://a/,https://b", "3");
        assert_eq!(settings.map(|s| (s.workers, s.partitions)), Ok((vec!["http://a".into(), "https://b".into()], 3)));
        assert!(with("", "3").is_err_and(|why| why.contains("WORKERS")));
        assert!(with("a.example", "3").is_err_and(|why| why.contains("WORKERS")));
        assert!(with("http://a", "three").is_err_and(|why| why.contains("PARTITIONS")));
    }
}
