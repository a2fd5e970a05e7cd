//! Measures how much clients and peers slow down a node's renewals.

use std::fmt::Write as _;
use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::endpoint::{Endpoint, sample};
use crate::hosts::{SILENCE, Site};
use crate::samples::Samples;
use crate::table::{Bar, Row, Unit};

/// Number of elections that the host leads. Each has the shortest lease that the store accepts, so the host makes 24
/// renewals per second.
const ELECTIONS: usize = 8;
/// Number of connections that clients or peers open in a round, without closing them.
const CONNECTIONS: usize = 5000;
/// Maximum number of connections that are open at the same time. More would exceed this process's limit on open file
/// descriptors.
const HELD: usize = 900;
const ROUND: Duration = Duration::from_secs(10);
/// Maximum number of bytes per write: see [`say`].
const PIECE: usize = 16 << 10;
/// Number of false messages that each connection to the links' socket sends.
const LIES: usize = 100;

/// Measures renewals in three kinds of rounds, which alternate: without connections, under many requests, and under
/// many messages on links.
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
    let socket = socket(&site.store().join("links"))?;
    let [mut calm, mut asked, mut flooded] = [(); 3].map(|()| Renewals::default());
    for _ in 0..rounds {
        let begin = Renewals::read(endpoint);
        thread::sleep(ROUND);
        let after_calm = Renewals::read(endpoint);
        spread(|number| ask(endpoint, number));
        let after_asked = Renewals::read(endpoint);
        spread(|number| lie(&socket, number));
        calm.add(&begin, &after_calm);
        asked.add(&after_calm, &after_asked);
        flooded.add(&after_asked, &Renewals::read(endpoint));
    }
    let lost = site.journal.events().iter().filter(|event| event.name == "leadership_lost").count();
    anyhow::ensure!(lost == 0, "{lost} leases were lost");
    let row = |what: String, value: f64| Row::new(what, Unit::Ms, Samples::from_iter([value * 1e3]));
    let beside = |what: &str, with: &Renewals| {
        let what = format!("a renewal while {CONNECTIONS} connections {what}, p99 of {}", with.count());
        let without = format!("of {} without them", calm.count());
        row(what, with.p99()).bar(Bar::Ratio(1.5)).beside(without, calm.p99() * 1e3)
    };
    Ok(vec![beside("ask the endpoint", &asked), beside("flood the links", &flooded)])
}

/// Finds the host's socket in this folder. The socket's name is the host's incarnation.
fn socket(folder: &Path) -> anyhow::Result<PathBuf> {
    let first = fs::read_dir(folder)?.next().context("the host has no socket")??;
    Ok(first.path())
}

/// Opens [`CONNECTIONS`] connections, evenly spread over a round. Keeps up to [`HELD`] of them open, unless the host
/// closes them.
fn spread<T>(open: impl Fn(usize) -> Option<T>) {
    let begin = Instant::now();
    let mut held = Vec::with_capacity(HELD);
    for number in 0..CONNECTIONS {
        held.extend(open(number));
        // Pause between connections, so that the benchmark measures the host and not this loop.
        let due = begin + ROUND.mul_f64((number + 1) as f64 / CONNECTIONS as f64);
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if held.len() >= HELD {
            held.drain(..HELD / 9);
        }
    }
}

/// Opens a connection and sends data. The connection's `number` selects the data: of every ten connections, one sends a
/// complete request, one sends garbage, one sends up to 1 MiB of an unfinished head, and one sends up to 1 MiB of an
/// unfinished body. The other six send half a head.
fn ask(endpoint: Endpoint, number: usize) -> Option<TcpStream> {
    const HUGE: usize = 1 << 20;
    let mut stream = TcpStream::connect(endpoint.0).ok()?;
    stream.set_nonblocking(true).ok()?;
    let head = "GET /metrics HTTP/1.1\r\nHost: node";
    let said = match number % 10 {
        0 => format!("{head}\r\n\r\n"),
        1 => "\u{1}\u{2} no request\r\n\r\n".to_owned(),
        2 => format!("{head}\r\nX: {}", "x".repeat(HUGE)),
        3 => {
            let post = "POST /v1/elections/job-0/suspend HTTP/1.1\r\nHost: node\r\nContent-Length: 9000000000000000000";
            format!("{post}\r\n\r\n{}", " ".repeat(HUGE))
        }
        _ => head.to_owned(),
    };
    say(&mut stream, &said);
    Some(stream)
}

/// Writes as much as the host accepts, in small pieces. In a kernel without preemption, a single write of one megabyte
/// would take 4 ms, and would delay the host during this time.
fn say(stream: &mut impl Write, said: &str) {
    let _ = said.as_bytes().chunks(PIECE).try_for_each(|piece| stream.write_all(piece));
}

/// Opens a connection to the links' socket, introduces itself as a node, and then repeatedly claims to be the leader.
/// Every tenth connection sends garbage instead of the hello.
fn lie(socket: &Path, number: usize) -> Option<UnixStream> {
    let to = socket.file_name()?.to_str()?;
    let mut stream = UnixStream::connect(socket).ok()?;
    stream.set_nonblocking(true).ok()?;
    let election = number % ELECTIONS;
    let who = format!("\"to\":\"{to}\",\"node\":\"liar\",\"incarnation\":\"{number:032x}\"");
    let hello = match number.is_multiple_of(10) {
        true => "\0".repeat(100) + "\n",
        false => format!("{{\"hello\":{{\"election\":\"job-{election}\",{who}}}}}\n"),
    };
    let lie = "{\"leads\":{\"term\":9000000000000000000,\"age_ms\":0,\"place\":0}}\n".repeat(LIES);
    say(&mut stream, &(hello + &lie));
    Some(stream)
}

/// A histogram of renewal times. Each pair consists of an upper bound, in seconds, and the number of renewals that took
/// at most this long.
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

    /// Returns the 99th percentile. Interpolates within the bucket, as Prometheus does.
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
