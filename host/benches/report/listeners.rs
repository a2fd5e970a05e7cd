//! Measures how much CPU time and memory a leader needs for its links to standbys.

use std::path::Path;
use std::thread;
use std::time::Duration;

use crate::azurite::Azurite;
use crate::hosts::Site;
use crate::idle::{SETTLE, Used, Watch};
use crate::node::{Event, Node};
use crate::samples::Samples;
use crate::table::{Bar, Row, Unit};

/// Number of standbys in the larger fleet. The benchmark compares this fleet's leader with the leader of a fleet that
/// has one standby.
const MANY: usize = 100;
const KIB_IN_MIB: f64 = 1024.0;

/// Compares a leader that has many standbys with a leader that has one. On the embedded store, the links use local
/// sockets. On Azurite, the links use the network.
pub fn measure(module: &Path, window: Duration) -> anyhow::Result<Vec<Row>> {
    let azurite = Azurite::start();
    let url = |container: &str| format!("azurite://127.0.0.1:{}/{container}", azurite.address().port());
    let peer = [("--peer", "127.0.0.1:0")];
    let mut rows = cost("over sockets", module, window, [None, None], &[])?;
    rows.extend(cost("over the network", module, window, [Some(url("one")), Some(url("many"))], &peer)?);
    Ok(rows)
}

fn cost(
    how: &str,
    module: &Path,
    window: Duration,
    [with_one, with_many]: [Option<String>; 2],
    flags: &[(&str, &str)],
) -> anyhow::Result<Vec<Row>> {
    let one = Fleet::start(module, 1, with_one, flags).rests(window)?;
    let many = Fleet::start(module, MANY, with_many, flags).rests(window)?;
    let row = |what: String, unit, value: f64| Row::new(what, unit, Samples::from_iter([value]));
    let each = KIB_IN_MIB * (many.anonymous - one.anonymous) / (MANY - 1) as f64;
    Ok(vec![
        row(format!("a leader with {MANY} standbys, {how}: CPU"), Unit::Percent, many.cpu)
            .bar(Bar::P99(2.0))
            .beside("with one", one.cpu),
        row("  memory of it for each".to_owned(), Unit::KiB, each).bar(Bar::P99(128.0)),
    ])
}

struct Fleet {
    leader: Node,
    _standbys: Vec<Node>,
    _site: Site,
}

impl Fleet {
    fn start(module: &Path, standbys: usize, store: Option<String>, flags: &[(&str, &str)]) -> Self {
        let site = Site::new();
        let url = store.clone().unwrap_or_else(|| site.url());
        let start = |name: &str| {
            let launch = site.launch(name, module, "beat", &url).flag("--admin", "none");
            let launch = if store.is_some() { launch.arg("--create") } else { launch };
            flags.iter().fold(launch, |launch, (flag, value)| launch.flag(flag, value)).start()
        };
        let leader = start("leader");
        leader.after(0, "started");
        let standbys: Vec<Node> = (0..standbys).map(|number| start(&format!("standby-{number}"))).collect();
        for standby in &standbys {
            standby.event("to hear of the leader", Event::is_linked);
        }
        Self { leader, _standbys: standbys, _site: site }
    }

    fn rests(self, window: Duration) -> anyhow::Result<Used> {
        thread::sleep(SETTLE);
        let watch = Watch::begin(&self.leader, None);
        thread::sleep(window);
        watch.end()
    }
}
