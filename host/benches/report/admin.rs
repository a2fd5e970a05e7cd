//! What those who ask a node cost its renewals.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::net::TcpStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::endpoint::{Endpoint, sample};
use crate::hosts::{SILENCE, Site};
use crate::samples::Samples;
use crate::table::{Bar, Row, Unit};

/// Elections that the host leads, each with the shortest lease that the store keeps: 24 renewals a second.
const ELECTIONS: usize = 8;
/// Connections that are opened in each round, and left open by those who open them.
const CONNECTIONS: usize = 5000;
/// How long a round takes, with them and without.
const ROUND: Duration = Duration::from_secs(10);

/// Renewals while nobody asks, and while many do, by turns.
pub fn measure(module: &Path, rounds: u32) -> anyhow::Result<Vec<Row>> {
    let site = Site::new();
    let mut text = format!(
        "store = \"{}\"\nlease = \"2s\"\nenv = {{ BEHAVIOUR = \"beat\", BEAT_MS = \"{SILENCE}\" }}\n",
        site.url()
    );
    for number in 0..ELECTIONS {
        writeln!(text, "[coordinators.job-{number}]\nmodule = '{}'", module.display())?;
    }
    let file = site.path("admin.toml");
    fs::write(&file, text)?;
    let node = site.launch_file("asked", &file).start();
    site.journal.wait("all to lead", |events| {
        (events.iter().filter(|event| event.name == "started").count() >= ELECTIONS).then_some(())
    });
    let endpoint = Endpoint::of(&node);
    let (mut calm, mut busy) = (Renewals::default(), Renewals::default());
    for _ in 0..rounds {
        let begin = Renewals::read(endpoint);
        thread::sleep(ROUND);
        let between = Renewals::read(endpoint);
        crowd(endpoint);
        calm.add(&begin, &between);
        busy.add(&between, &Renewals::read(endpoint));
    }
    let lost = site.journal.events().iter().filter(|event| event.name == "lost").count();
    anyhow::ensure!(lost == 0, "{lost} leases were lost");
    let row = |what: String, value: f64| Row::new(what, Unit::Ms, Samples::from_iter([value * 1e3]));
    let what = format!("a renewal while {CONNECTIONS} connections ask the endpoint, p99 of {}", busy.count());
    let before = format!("of {} without them", calm.count());
    Ok(vec![row(what, busy.p99()).bar(Bar::Ratio(1.5)).beside(before, calm.p99() * 1e3)])
}

/// Opens as many connections as are to be there, asks on every tenth, says half a head on the others, and holds all for
/// as long as the host lets it.
fn crowd(endpoint: Endpoint) {
    let until = Instant::now() + ROUND;
    let mut held = Vec::with_capacity(CONNECTIONS);
    for number in 0..CONNECTIONS {
        if let Ok(mut stream) = TcpStream::connect(endpoint.0) {
            let asks = number % 10 == 0;
            let end = if asks { "\r\n\r\n" } else { "" };
            // The host may have hung up by now.
            let _ = write!(stream, "GET /metrics HTTP/1.1\r\nHost: node{end}");
            held.push(stream);
        }
        // Spread over the round: what is measured is the host, and not this loop beside it.
        let due = ROUND.mul_f64((number + 1) as f64 / CONNECTIONS as f64);
        thread::sleep((until - ROUND + due).saturating_duration_since(Instant::now()));
        // More are not let into this process.
        if held.len() >= 900 {
            held.drain(..100);
        }
    }
}

/// How many renewals took no longer than each bound, in seconds.
#[derive(Default)]
struct Renewals(Vec<(f64, f64)>);

impl Renewals {
    fn read(endpoint: Endpoint) -> Self {
        let page = endpoint.ask("/metrics").body;
        let bounds = page.lines().filter_map(|line| {
            let label = line.strip_prefix("baton_renewal_duration_seconds_bucket{le=\"")?;
            Some(label.split_once("\",election=\"job-0\"")?.0.to_owned())
        });
        let of = |bound: &str, number| {
            sample(&page, &format!("baton_renewal_duration_seconds_bucket{{le=\"{bound}\",election=\"job-{number}\"}}"))
        };
        let all = |bound: String| {
            (bound.parse().unwrap_or(f64::INFINITY), (0..ELECTIONS).map(|number| of(&bound, number)).sum())
        };
        Self(bounds.map(all).collect())
    }

    /// Adds what came between two readings.
    fn add(&mut self, begin: &Self, end: &Self) {
        if self.0.is_empty() {
            self.0 = begin.0.iter().map(|(bound, _)| (*bound, 0.0)).collect();
        }
        for (sum, (begin, end)) in self.0.iter_mut().zip(begin.0.iter().zip(&end.0)) {
            sum.1 += end.1 - begin.1;
        }
    }

    fn count(&self) -> f64 {
        self.0.last().map_or(0.0, |(_, count)| *count)
    }

    /// As Prometheus computes it: in its bucket, the value lies where its rank does.
    fn p99(&self) -> f64 {
        let rank = 0.99 * self.count();
        let mut below = (0.0, 0.0);
        for (bound, count) in &self.0 {
            if *count >= rank {
                return below.0 + (bound - below.0) * (rank - below.1) / (count - below.1);
            }
            below = (*bound, *count);
        }
        f64::NAN
    }
}
