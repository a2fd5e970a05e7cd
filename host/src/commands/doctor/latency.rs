//! Measures how long renewals take, and recommends a lease duration.

use std::time::Duration;

use baton_election::Timing;
use baton_store::conformance::{Bench, Expect as _, Passage as _, Verdict};

use super::scratch::Scratch;
use crate::cli::{Finding, Latency};

const RENEWALS: u32 = 48;

/// Acquires a lease, and renews it [`RENEWALS`] times within `over`. Returns the duration of each renewal, including
/// failed attempts, shortest first.
pub(super) async fn renew(bench: &Bench, scratch: &Scratch, over: Duration) -> Verdict<Vec<Duration>> {
    let [id, ..] = bench.ids;
    bench.held_by(id).await?;
    let mut took = Vec::new();
    for _ in 0..RENEWALS {
        scratch.wait_out(over / RENEWALS).await;
        let began = bench.now();
        bench.renew(id).await.accepted("a renewal by the holder")?;
        took.push(bench.now().since(began));
    }
    took.sort_unstable();
    Ok(took)
}

pub(super) fn latency(took: &[Duration]) -> Latency {
    Latency {
        renewals: took.len(),
        median_ms: milliseconds(percentile(took, 50)),
        p99_ms: milliseconds(percentile(took, 99)),
    }
}

/// Recommends a lease duration that suits renewals as slow as the measured ones. Returns `None` if no duration in
/// `range` is long enough.
pub(super) fn recommended(took: &[Duration], range: (Duration, Duration)) -> Option<Duration> {
    Timing::lease_for(percentile(took, 99), range)
}

/// Rates the measured renewals for a lease of this duration. `quicker` is advice on how to make the store faster.
pub(super) fn judge(took: &[Duration], lease: Duration, range: (Duration, Duration), quicker: &str) -> Finding {
    const CHECK: &str = "latency";
    let (median, p99) = (percentile(took, 50), percentile(took, 99));
    let Some(longest) = try_timeout(lease, range) else {
        let (least, most) = (range.0.as_secs(), range.1.as_secs());
        return Finding::problem(
            CHECK,
            format!("`--lease` is {lease:?}"),
            "hosts cannot start with this lease",
            format!("choose a lease of {least} to {most} s"),
        );
    };
    let found = format!(
        "of {} renewals, 50% took at most {median:.1?} and 99% at most {p99:.1?}; with a lease of {lease:?}, a \
         renewal times out after {longest:.2?}",
        took.len()
    );
    let recommended = recommended(took, range);
    let remedy = match recommended {
        Some(recommended) => format!("use `--lease {}s`, or {quicker}", recommended.as_secs()),
        None => format!("{quicker}: no lease is long enough"),
    };
    if p99 > longest {
        let means = "renewals time out before the store answers: leaders lose their terms although nothing failed";
        return Finding::problem(CHECK, found, means, remedy);
    }
    if p99 * 2 > longest {
        return Finding::warning(CHECK, found, "if the store is twice as slow, leaders lose their terms", remedy);
    }
    let shortest = recommended.map(|recommended| format!("; `--lease {}s` would be enough", recommended.as_secs()));
    Finding::ok(CHECK, found + &shortest.unwrap_or_default())
}

fn try_timeout(lease: Duration, range: (Duration, Duration)) -> Option<Duration> {
    Timing::new(lease, range, Duration::ZERO, 0).ok().map(|timing| timing.try_timeout())
}

fn percentile(took: &[Duration], percent: usize) -> Duration {
    took.get((took.len() * percent).div_ceil(100).saturating_sub(1)).copied().unwrap_or_default()
}

fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e5).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Level;

    const AZURE: (Duration, Duration) = (Duration::from_secs(15), Duration::from_secs(60));

    fn all(milliseconds: u64) -> Vec<Duration> {
        vec![Duration::from_millis(milliseconds); 48]
    }

    #[test]
    fn percentiles_of_samples_are_exact() {
        let took: Vec<_> = (1..=48).map(Duration::from_millis).collect();
        assert_eq!(
            (percentile(&took, 50), percentile(&took, 99)),
            (Duration::from_millis(24), Duration::from_millis(48))
        );
        assert_eq!(percentile(&[], 99), Duration::ZERO);
    }

    #[test]
    fn lease_is_judged_by_the_timeout_of_one_attempt() {
        let of = |milliseconds, lease| judge(&all(milliseconds), Duration::from_secs(lease), AZURE, "nodes nearby");
        // With a lease of 15 s, each attempt to renew the lease may take up to 1.25 s.
        assert_eq!(of(20, 15).level, Level::Ok);
        let slow = of(700, 15);
        assert!(slow.level == Level::Warning && slow.remedy.unwrap_or_default().contains("--lease 17s"));
        assert_eq!(of(700, 17).level, Level::Ok);
        let fits_once = of(1500, 15);
        assert!(fits_once.level == Level::Problem && fits_once.remedy.unwrap_or_default().contains("--lease 24s"));
        let too_slow = of(2500, 60);
        assert!(too_slow.level == Level::Problem && too_slow.remedy.unwrap_or_default().contains("no lease"));
        let out_of_range = of(20, 5);
        assert!(out_of_range.level == Level::Problem && out_of_range.remedy.unwrap_or_default().contains("15 to 60 s"));
    }
}
