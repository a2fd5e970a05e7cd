//! What the scheduler needs to know.

use std::str::FromStr;
use std::time::Duration;

/// The settings, from the environment.
#[derive(Debug, PartialEq)]
pub(crate) struct Settings {
    /// Base URLs, without a `/` at the end; at least one.
    workers: Vec<String>,
    /// They are numbered from 0.
    pub(crate) partitions: u64,
    /// Before a partition is offered again.
    pub(crate) pause: Duration,
    /// How long a worker may take to answer.
    pub(crate) timeout: Duration,
}

impl Settings {
    /// Reads them from variables.
    ///
    /// # Errors
    /// What is wrong, and how to say it.
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

    /// The workers take turns.
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
    fn what_is_missing_or_wrong_is_said() {
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
