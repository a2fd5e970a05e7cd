//! Tests of the embedded store in several processes, which run this test binary. Some of them are killed, and some run
//! in a different time namespace.

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use baton_base::clock::nanoseconds_on;
use baton_election::{ElectionName, LeaseId, LeaseState, Op, Reply, Snapshot, StoreError, Version};
use baton_store::{LeaseStore, SqliteStore};
use rustix::time::ClockId;
use tempfile::TempDir;

use crate::patience::Patience;
use crate::skipped::skipped;
use crate::suite::record;

const ROLE: &str = "BATON_TEST_ROLE";
const FOLDER: &str = "BATON_TEST_FOLDER";
/// The start of a message to the parent process. The prefix distinguishes messages from the test harness's output,
/// which also goes to stdout.
const SAYS: &str = "\n@ ";

struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    fn start(role: &str, folder: &Path) -> Self {
        Self::start_by(Command::new(std::env::current_exe().unwrap()), role, folder)
    }

    fn start_by(mut command: Command, role: &str, folder: &Path) -> Self {
        let mut child = command
            .args(["--ignored", "--exact", "--nocapture", "processes::as_a_process_of_its_own"])
            .env(ROLE, role)
            .env(FOLDER, folder)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    fn hear(&mut self) -> String {
        self.lines
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| line.strip_prefix("@ ").map(str::to_owned))
            .expect("the process has ended")
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{SAYS}{text}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}

/// The entry point of the child processes. Does the work of the role in [`ROLE`].
#[tokio::test]
#[ignore = "run by the tests beside it, as a process of its own"]
async fn as_a_process_of_its_own() {
    let store = SqliteStore::new(std::env::var_os(FOLDER).expect("it is run by other tests only"));
    match std::env::var(ROLE).unwrap().as_str() {
        "terms" => terms(&store).await,
        "hold" => hold(&store).await,
        role => panic!("the role {role} is unknown"),
    }
}

fn election() -> ElectionName {
    ElectionName::new("job").unwrap()
}

fn random_id() -> LeaseId {
    let mut bits = [0; 16];
    getrandom::fill(&mut bits).unwrap();
    LeaseId::from_random(u128::from_be_bytes(bits))
}

async fn insist(store: &SqliteStore, election: &ElectionName, op: Op) -> Result<Reply, StoreError> {
    loop {
        match store.request(election, op.clone()).await {
            Err(StoreError::Unknown(_)) => {}
            answer => return answer,
        }
    }
}

async fn read(store: &SqliteStore, election: &ElectionName) -> (LeaseState, Version, u64) {
    match insist(store, election, Op::Read).await {
        Ok(Reply::Read(Snapshot::Object { lease, version, record })) => (lease, version, record.unwrap().term),
        other => panic!("{other:?}"),
    }
}

async fn create(store: &SqliteStore, election: &ElectionName) {
    let created = insist(store, election, Op::Create { record: record(0) }).await;
    assert!(matches!(created, Ok(Reply::Version(_))), "{created:?}");
}

async fn terms(store: &SqliteStore) {
    let (election, id) = (election(), random_id());
    let (_, version, mut term) = read(store, &election).await;
    let length = store.lease_range().1;
    let acquired =
        insist(store, &election, Op::Acquire { id, length, version: version.clone(), instead_of: None }).await;
    assert_eq!(acquired, Ok(Reply::Done));
    let mut version = version;
    loop {
        term += 1;
        let op = Op::Write { id, version: version.clone(), record: record(term) };
        match store.request(&election, op).await {
            Ok(Reply::Version(written)) => version = written,
            // The request may fail because the parent process is reading, and holds the store's lock.
            Err(StoreError::Unknown(_)) => version = read(store, &election).await.1,
            other => panic!("{other:?}"),
        }
        say(&format!("{term}"));
    }
}

#[test]
fn answered_write_survives_when_its_process_is_killed() {
    let folder = TempDir::new().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let store = SqliteStore::new(folder.path());
    runtime.block_on(async {
        store.create().await.unwrap();
        create(&store, &election()).await;
        let mut highest = 0;
        for round in 1..=5 {
            let mut process = Process::start("terms", folder.path());
            for _ in 0..10 * round {
                highest = process.hear().parse().unwrap();
            }
            process.kill();
            // If the process was killed during a transaction, this read rolls the transaction back.
            let (lease, _, term) = read(&store, &election()).await;
            assert!(term >= highest, "term {term} after {highest} was begun");
            assert_eq!(lease, LeaseState::Held);
            store.break_lease(&election(), Duration::ZERO).await.unwrap();
        }
    });
}

/// Length of the lease in `hold`. The lease is long, because renewals may be late on a slow machine.
const HELD: Duration = Duration::from_secs(8);

async fn hold(store: &SqliteStore) {
    let (election, id) = (election(), random_id());
    let (_, version, _) = read(store, &election).await;
    let mut sent = nanoseconds_on(ClockId::Monotonic);
    let acquired = insist(store, &election, Op::Acquire { id, length: HELD, version, instead_of: None }).await;
    assert_eq!(acquired, Ok(Reply::Done));
    loop {
        say(&sent.to_string());
        tokio::time::sleep(HELD / 6).await;
        sent = nanoseconds_on(ClockId::Monotonic);
        assert_eq!(insist(store, &election, Op::Renew { id }).await, Ok(Reply::Done));
    }
}

#[test]
fn holder_in_another_time_namespace_is_judged_by_watching() {
    if !rustix::process::geteuid().is_root() {
        skipped("only root may make the time namespace that it needs");
        return;
    }
    let folder = TempDir::new().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let store = SqliteStore::new(folder.path());
    // The holder's clock lags behind this process's clock by more than a lease. By this process's clock, every lease of
    // the holder seems to have expired already.
    let up = rustix::time::clock_gettime(ClockId::Boottime).tv_sec;
    let mut unshare = Command::new("unshare");
    unshare.args(["--time", "--fork", "--kill-child", "--boottime", &format!("-{}", up / 2)]);
    unshare.arg(std::env::current_exe().unwrap());
    runtime.block_on(async {
        store.create().await.unwrap();
        create(&store, &election()).await;
        let mut holder = Process::start_by(unshare, "hold", folder.path());
        let mut renewed = 0_u64;
        // All of these renewals together take longer than one lease.
        for _ in 0..8 {
            renewed = holder.hear().parse().unwrap();
            assert_eq!(read(&store, &election()).await.0, LeaseState::Held);
        }
        holder.kill();
        let ends = async {
            while read(&store, &election()).await.0 == LeaseState::Held {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        Patience::of_future(ends).await.expect("it ends");
        let after = Duration::from_nanos(nanoseconds_on(ClockId::Monotonic) - renewed);
        assert!(after >= HELD - Duration::from_millis(5), "it ended early: {after:?}");
    });
}
