//! The metrics that Prometheus scrapes. The endpoint computes them for each request, on a thread that neither renews
//! leases nor kills instances.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use crate::watched::Watched;
use baton_base::clock::wall;
use baton_election::Progress;
use baton_node::schedule::next_run;
use baton_node::telemetry::{ElectionTracker, Ended, Histogram, LinkStatus, StoreOp, StoreResult, Transition};
use baton_node::view::NodeView;
use baton_runtime::{EffectCounts, EffectKind, InstanceUsage, LimitUsage};
use baton_store::Labels;

pub(super) const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Content type of the older Prometheus text format.
pub(super) const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Formats the metrics in the OpenMetrics format. Never returns an error, because writing to memory does not fail.
pub(super) fn open_metrics(watched: &Watched) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Scrape::of(watched)));
    let mut page = String::new();
    text::encode(&mut page, &registry)?;
    Ok(page)
}

/// Converts a page from OpenMetrics to the older Prometheus format. In that format, a counter's description has the
/// same name as its samples, and there are no units and no end marker.
pub(super) fn as_prometheus(page: &str) -> String {
    let is_counter = |line: &str| line.starts_with("# TYPE ") && line.ends_with(" counter");
    let counters: Vec<&str> =
        page.lines().filter(|line| is_counter(line)).filter_map(|line| line.split(' ').nth(2)).collect();
    let mut old = String::with_capacity(page.len());
    for line in page.lines().filter(|line| !line.starts_with("# UNIT ") && *line != "# EOF") {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some(what), Some(name), Some(rest)) if counters.contains(&name) => {
                old.push_str(&format!("# {what} {name}_total {rest}\n"));
            }
            _ => old.extend([line, "\n"]),
        }
    }
    old
}

#[derive(Debug)]
struct Scrape {
    node: String,
    labels: Labels,
    elections: Vec<Election>,
}

#[derive(Debug)]
struct Election {
    tracker: Arc<ElectionTracker>,
    view: NodeView,
    links: LinkStatus,
    leads: Option<Duration>,
    vacant: Duration,
    in_use: Option<InstanceUsage>,
    effects: EffectCounts,
}

impl Scrape {
    fn of(watched: &Watched) -> Self {
        let now = watched.clock.now();
        // Read these values before `tracker.effects()`. In the other order, the effects of an instance that ends
        // between the two reads would be missing.
        let (in_use, effects) = (watched.running.in_use(), watched.running.effects());
        let elections = watched.trackers.iter().map(|tracker| {
            let view = tracker.view();
            let running = effects.iter().rfind(|(election, ..)| *election == tracker.election);
            Election {
                effects: tracker.effects(running.map(|(_, term, effects)| (*term, *effects))),
                leads: view.leads(now).map(|(_, left)| left),
                vacant: tracker.vacant(now),
                // During a swap, there may be two instances: use the newer one.
                in_use: in_use.iter().rfind(|(election, ..)| *election == tracker.election).map(|one| one.2.clone()),
                links: tracker.links(),
                tracker: Arc::clone(tracker),
                view,
            }
        });
        Self { node: watched.node.clone(), labels: watched.labels.clone(), elections: elections.collect() }
    }
}

type Limit = fn(&InstanceUsage) -> LimitUsage;

type Written = Result<(), fmt::Error>;

/// Writes the description of one metric, then its samples.
struct Metric<'a>(MetricEncoder<'a>);

impl<'a> Metric<'a> {
    fn new(
        encoder: &'a mut DescriptorEncoder<'_>,
        name: &'a str,
        unit: Option<&'a Unit>,
        kind: MetricType,
        help: &str,
    ) -> Result<Self, fmt::Error> {
        encoder.encode_descriptor(name, help, unit, kind).map(Self)
    }

    fn gauge(&mut self, labels: &[(&str, &str)], value: f64) -> Written {
        match labels {
            [] => self.0.encode_gauge(&value),
            labels => self.0.encode_family(&labels)?.encode_gauge(&value),
        }
    }

    fn counter(&mut self, labels: &[(&str, &str)], value: f64) -> Written {
        self.0.encode_family(&labels)?.encode_counter::<NoLabelSet, _, f64>(&value, None)
    }

    fn histogram(&mut self, labels: &[(&str, &str)], histogram: &Histogram) -> Written {
        let buckets: Vec<(f64, u64)> = histogram.buckets().collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let sum = histogram.sum().as_secs_f64();
        self.0.encode_family(&labels)?.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }
}

#[expect(clippy::cast_precision_loss, reason = "samples are floating-point numbers in Prometheus, too")]
fn number(count: u64) -> f64 {
    count as f64
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Written {
        self.build(&mut encoder)?;
        self.leadership(&mut encoder)?;
        self.store(&mut encoder)?;
        self.instances(&mut encoder)?;
        self.usage(&mut encoder)
    }
}

impl Scrape {
    fn build(&self, encoder: &mut DescriptorEncoder<'_>) -> Written {
        let help = "Version and node of this host";
        let labels = [("version", env!("CARGO_PKG_VERSION")), ("node", &self.node)];
        Metric::new(encoder, "baton_build_info", None, MetricType::Gauge, help)?.gauge(&labels, 1.0)?;
        let help = "Labels of this node";
        let mut metric = Metric::new(encoder, "baton_node_label_info", None, MetricType::Gauge, help)?;
        for (label, value) in &self.labels {
            metric.gauge(&[("label", label), ("value", value)], 1.0)?;
        }
        let help = "1 once this node is ready to take over all of its elections";
        let is_ready = self.elections.iter().all(|one| one.tracker.is_ready());
        Metric::new(encoder, "baton_ready", None, MetricType::Gauge, help)?.gauge(&[], f64::from(u8::from(is_ready)))
    }

    fn leadership(&self, encoder: &mut DescriptorEncoder<'_>) -> Written {
        let seconds = Some(&Unit::Seconds);
        self.gauges(encoder, "baton_leader", None, "1 if this node leads", |one| one.leads.is_some().into())?;
        let help = "1 if this node leads, under the name that client-go uses";
        let mut metric = Metric::new(encoder, "leader_election_master_status", None, MetricType::Gauge, help)?;
        for one in &self.elections {
            metric.gauge(&[("name", one.tracker.election.as_str())], one.leads.is_some().into())?;
        }
        let help = "1 while steering keeps this node from leading";
        self.gauges(encoder, "baton_ineligible", None, help, |one| one.view.command.is_some().into())?;
        let help = "1 while this node has a link to the leader";
        self.gauges(encoder, "baton_link", None, help, |one| one.links.link.is_some().into())?;
        let help = "Number of nodes that have a link to this node";
        self.gauges(encoder, "baton_link_listeners", None, help, |one| one.links.listeners.into())?;
        let help = "Hints received over links";
        self.counters(encoder, "baton_link_hints", None, help, |one| number(one.links.hints))?;
        self.gauges(encoder, "baton_term", None, "Highest term seen", |one| number(one.view.term))?;
        let help = "Length of the lease";
        self.gauges(encoder, "baton_lease", seconds, help, |one| one.tracker.lease.as_secs_f64())?;
        let help = "Time to the deadline; 0 if this node does not lead";
        let left = |one: &Election| one.leads.unwrap_or_default().as_secs_f64();
        self.gauges(encoder, "baton_lease_remaining", seconds, help, left)?;
        let help = "Leader changes that this node has seen";
        let mut metric = Metric::new(encoder, "baton_transitions", None, MetricType::Counter, help)?;
        for one in &self.elections {
            for reason in Transition::ALL {
                let count = one.tracker.counts.transitions(*reason);
                metric.counter(&[one.label(), ("reason", reason.word())], number(count))?;
            }
        }
        let help = "Time during which this node saw no leader";
        self.counters(encoder, "baton_leaderless", seconds, help, |one| one.vacant.as_secs_f64())?;
        let help = "Due time of the next scheduled run, also of a run that is under way or missed";
        self.times(encoder, "baton_next_run_timestamp", help, |progress| next_run(progress, wall()))?;
        let help = "Due time of the last scheduled run that was completed, on any node";
        self.times(encoder, "baton_last_success_timestamp", help, |progress| Some(progress.completed))?;
        let help = "Digest of the module that this node would run";
        let mut metric = Metric::new(encoder, "baton_module_info", None, MetricType::Gauge, help)?;
        for one in &self.elections {
            if let Some(digest) = &one.view.module {
                metric.gauge(&[one.label(), ("digest", &digest.to_string())], 1.0)?;
            }
        }
        Ok(())
    }

    fn store(&self, encoder: &mut DescriptorEncoder<'_>) -> Written {
        let help = "Duration of successful renewals";
        self.histograms(encoder, "baton_renewal_duration", help, |one| &one.tracker.counts.renewals)?;
        let help = "Store requests for the lease and the record, by operation and result";
        let mut metric = Metric::new(encoder, "baton_store_requests", None, MetricType::Counter, help)?;
        for one in &self.elections {
            for what in StoreOp::ALL {
                for how in StoreResult::ALL {
                    let labels = [one.label(), ("operation", what.word()), ("result", how.word())];
                    metric.counter(&labels, number(one.tracker.counts.requests(*what, *how)))?;
                }
            }
        }
        Ok(())
    }

    fn instances(&self, encoder: &mut DescriptorEncoder<'_>) -> Written {
        let help = "Instances started on this node";
        self.counters(encoder, "baton_instance_starts", None, help, |one| number(one.tracker.counts.starts()))?;
        let help = "Instances that ended on this node, by outcome";
        let mut metric = Metric::new(encoder, "baton_instance_ends", None, MetricType::Counter, help)?;
        for one in &self.elections {
            for outcome in Ended::ALL {
                let count = one.tracker.counts.ends(*outcome);
                metric.counter(&[one.label(), ("outcome", outcome.word())], number(count))?;
            }
        }
        let help = "Failures of the coordinator in a row, on all nodes; 0 if this node does not lead";
        self.gauges(encoder, "baton_consecutive_failures", None, help, |one| one.view.failures.into())?;
        let help = "Time of the last progress report of the instance";
        let mut metric =
            Metric::new(encoder, "baton_last_progress_timestamp", Some(&Unit::Seconds), MetricType::Gauge, help)?;
        for one in &self.elections {
            if let Some(since) = one.in_use.as_ref().and_then(|in_use| in_use.since_progress_ms) {
                let at = wall().saturating_sub(Duration::from_millis(since));
                metric.gauge(&[one.label()], at.as_secs_f64())?;
            }
        }
        let help = "Time from the kill of an instance until its exit";
        self.histograms(encoder, "baton_kill_duration", help, |one| &one.tracker.counts.kills)?;
        let help = "Time without an instance during a swap";
        self.histograms(encoder, "baton_swap_gap", help, |one| &one.tracker.counts.swaps)?;
        let help = "Effects of instances that the gate allowed or refused";
        let mut metric = Metric::new(encoder, "baton_effects", None, MetricType::Counter, help)?;
        for one in &self.elections {
            for effect in EffectKind::ALL {
                let labels = |result| [one.label(), ("kind", effect.name()), ("result", result)];
                metric.counter(&labels("passed"), number(one.effects.passed(effect)))?;
                metric.counter(&labels("refused"), number(one.effects.refused(effect)))?;
            }
        }
        let help = "Lines of output that were dropped";
        let lost = |one: &Election| number(one.tracker.counts.lines_dropped());
        self.counters(encoder, "baton_output_lines_dropped", None, help, lost)
    }

    fn usage(&self, encoder: &mut DescriptorEncoder<'_>) -> Written {
        let bytes = Some(&Unit::Bytes);
        let running = || self.elections.iter().filter_map(|one| Some((one, one.in_use.as_ref()?)));
        let help = "Memory used by the instance";
        let mut metric = Metric::new(encoder, "baton_guest_memory", bytes, MetricType::Gauge, help)?;
        for (one, in_use) in running() {
            metric.gauge(&[one.label()], number(in_use.memory.used))?;
        }
        let help = "Memory limit of the instance";
        let mut metric = Metric::new(encoder, "baton_guest_memory_limit", bytes, MetricType::Gauge, help)?;
        for (one, in_use) in running() {
            metric.gauge(&[one.label()], number(in_use.memory.limit))?;
        }
        let limits: [(&str, Limit); 5] = [
            ("table_elements", |in_use| in_use.table_elements),
            ("instances", |in_use| in_use.instances),
            ("handles", |in_use| in_use.handles),
            ("files", |in_use| in_use.files),
            ("requests", |in_use| in_use.requests),
        ];
        let help = "Peak usage by the instance of each other limited resource";
        let mut metric = Metric::new(encoder, "baton_guest_usage", None, MetricType::Gauge, help)?;
        for (one, in_use) in running() {
            for (limit, share) in limits {
                metric.gauge(&[one.label(), ("limit", limit)], number(share(in_use).used))?;
            }
            metric.gauge(&[one.label(), ("limit", "kept_bytes")], number(in_use.kept))?;
        }
        let help = "Limit of the instance for each other resource";
        let mut metric = Metric::new(encoder, "baton_guest_limit", None, MetricType::Gauge, help)?;
        for (one, in_use) in running() {
            for (limit, share) in limits {
                metric.gauge(&[one.label(), ("limit", limit)], number(share(in_use).limit))?;
            }
        }
        let help = "CPU time of the instance's process; starts at 0 for each instance";
        let mut metric = Metric::new(encoder, "baton_guest_cpu", Some(&Unit::Seconds), MetricType::Counter, help)?;
        for (one, in_use) in running() {
            metric.counter(&[one.label()], Duration::from_millis(in_use.process.cpu_ms).as_secs_f64())?;
        }
        Ok(())
    }

    fn gauges<'a>(
        &'a self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        unit: Option<&Unit>,
        help: &str,
        value: impl Fn(&'a Election) -> f64,
    ) -> Written {
        let mut metric = Metric::new(encoder, name, unit, MetricType::Gauge, help)?;
        self.elections.iter().try_for_each(|one| metric.gauge(&[one.label()], value(one)))
    }

    fn counters<'a>(
        &'a self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        unit: Option<&Unit>,
        help: &str,
        value: impl Fn(&'a Election) -> f64,
    ) -> Written {
        let mut metric = Metric::new(encoder, name, unit, MetricType::Counter, help)?;
        self.elections.iter().try_for_each(|one| metric.counter(&[one.label()], value(one)))
    }

    /// Writes a time for each election with a schedule, in seconds since the Unix epoch.
    fn times(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        time: impl Fn(&Progress) -> Option<Duration>,
    ) -> Written {
        let mut metric = Metric::new(encoder, name, Some(&Unit::Seconds), MetricType::Gauge, help)?;
        for one in &self.elections {
            if let Some(time) = one.view.scheduled().and_then(&time) {
                metric.gauge(&[one.label()], time.as_secs_f64())?;
            }
        }
        Ok(())
    }

    fn histograms<'a>(
        &'a self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        histogram: impl Fn(&'a Election) -> &'a Histogram,
    ) -> Written {
        let mut metric = Metric::new(encoder, name, Some(&Unit::Seconds), MetricType::Histogram, help)?;
        self.elections.iter().try_for_each(|one| metric.histogram(&[one.label()], histogram(one)))
    }
}

impl Election {
    fn label(&self) -> (&str, &str) {
        ("election", self.tracker.election.as_str())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use std::collections::BTreeMap;

    use super::*;

    fn page() -> String {
        open_metrics(&Watched::of_nothing()).unwrap()
    }

    /// Returns each metric with the labels of its samples, without the labels `election` and `le`. Metrics of instances
    /// have no samples in this test.
    fn described(page: &str) -> BTreeMap<String, Vec<String>> {
        let mut all = BTreeMap::new();
        for line in page.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            if let ["#", "TYPE", name, kind] = words[..] {
                let name = if kind == "counter" { format!("{name}_total") } else { name.to_owned() };
                all.insert(name, Vec::new());
            } else if let Some((name, rest)) = line.split_once('{') {
                let labels =
                    rest.split(',').filter_map(|label| label.split_once('=')).map(|(label, _)| label.to_owned());
                let labels = labels.filter(|label| label != "election" && label != "le").collect();
                let of_histogram = ["_sum", "_count", "_bucket"].iter().find_map(|end| name.strip_suffix(end));
                all.insert(of_histogram.unwrap_or(name).to_owned(), labels);
            }
        }
        all
    }

    #[test]
    fn docs_list_every_metric_with_its_labels() {
        let docs = include_str!("../../../docs/monitoring.md");
        let (_, table) = docs.split_once("| metric | labels | means |\n|---|---|---|\n").unwrap();
        let of_instances = [("baton_guest_usage", "limit"), ("baton_guest_limit", "limit")];
        let mut described = described(&page());
        for (name, label) in of_instances {
            described.insert(name.to_owned(), vec![label.to_owned()]);
        }
        let mut documented = BTreeMap::new();
        for row in table.lines().take_while(|line| line.starts_with('|')) {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            let words = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
            documented.insert(words(cells[1]).remove(0), words(cells[2]));
        }
        assert_eq!(described, documented);
        for words in [
            StoreOp::ALL.iter().map(|what| what.word()).collect::<Vec<_>>(),
            StoreResult::ALL.iter().map(|how| how.word()).collect(),
            Transition::ALL.iter().map(|reason| reason.word()).collect(),
            Ended::ALL.iter().map(|outcome| outcome.word()).collect(),
            EffectKind::ALL.iter().map(|effect| effect.name()).collect(),
        ] {
            for word in words {
                assert!(table.contains(&format!("`{word}`")), "{word}");
            }
        }
    }

    #[test]
    fn older_format_describes_counters_by_name_of_samples() {
        let (new, old) = (page(), as_prometheus(&page()));
        assert!(new.contains("# TYPE baton_transitions counter\n") && new.ends_with("# EOF\n"));
        assert!(old.contains("# TYPE baton_transitions_total counter\nbaton_transitions_total{"), "{old}");
        assert!(old.contains("# HELP baton_leaderless_seconds_total Time during which this node saw no leader\n"));
        assert!(!old.contains("# UNIT") && !old.contains("# EOF"));
        let samples = |page: &str| page.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(samples(&new), samples(&old));
        assert!(old.contains("_bucket{le=\"+Inf\",election=\"job\"} 0\n"), "{old}");
    }
}
