//! What a node sends to a collector of OpenTelemetry, and what a collector cannot do to it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value::AsDouble;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;

use crate::endpoint::{Endpoint, sample};
use crate::fleet::{ELECTION, Fleet};
use crate::guests::Guest;
use crate::http::server::{Reply, Request, Server};
use crate::http::{events, launch};
use crate::node::{Launch, Node, until};
use crate::scenarios;
use crate::store::Store;

scenarios! {
    on_sqlite: [
        what_is_done_in_an_election_is_traced,
        a_collector_that_hangs_or_refuses_delays_nothing,
    ],
}

/// A host that sends to this collector, soon after each thing that it does.
fn sending(launch: Launch, collector: &Server) -> Launch {
    launch
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url())
        .env("OTEL_EXPORTER_OTLP_HEADERS", "api-key=of%20mine")
        .env("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test,service.name=other")
        .env("OTEL_SERVICE_NAME", "leaders")
        .env("OTEL_BSP_SCHEDULE_DELAY", "50")
        .env("OTEL_METRIC_EXPORT_INTERVAL", "100")
}

fn taking() -> Server {
    Server::start(|_| Reply::ok(""))
}

/// Attributes by their names, numbers in words.
fn said(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let word = |one: &KeyValue| match one.value.clone().and_then(|value| value.value) {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        other => panic!("{other:?}"),
    };
    attributes.iter().map(|one| (one.key.clone(), word(one))).collect()
}

fn of_node(resource: &Option<Resource>) -> String {
    let said = said(&resource.as_ref().expect("a resource").attributes);
    assert_eq!((said["service.name"].as_str(), said["deployment.environment"].as_str()), ("leaders", "test"));
    assert_eq!(said["service.version"], env!("CARGO_PKG_VERSION"));
    assert!(!said["service.instance.id"].is_empty());
    said["baton.node"].clone()
}

/// All spans so far, each with the node that sent it.
fn spans(requests: &[Request]) -> Vec<(String, Span)> {
    let mut all = Vec::new();
    for request in requests.iter().filter(|request| request.path() == "/v1/traces") {
        assert_eq!(request.header("content-type"), ["application/x-protobuf"]);
        assert_eq!(request.header("api-key"), ["of mine"]);
        let message = ExportTraceServiceRequest::decode(&request.bytes[..]).expect("the message of spans");
        for sent in message.resource_spans {
            let node = of_node(&sent.resource);
            all.extend(sent.scope_spans.into_iter().flat_map(|scope| scope.spans).map(|span| (node.clone(), span)));
        }
    }
    all
}

/// Waits for a span of that node with that name and these attributes.
fn traced(collector: &Server, node: &str, name: &str, attributes: &[(&str, &str)]) -> (Span, BTreeSet<String>) {
    traced_with(collector, node, name, attributes, &[])
}

/// The same, and gives it with all that are parts of it, once these are among them: what is sent at a time may end in
/// between.
fn traced_with(
    collector: &Server,
    node: &str,
    name: &str,
    attributes: &[(&str, &str)],
    with: &[&str],
) -> (Span, BTreeSet<String>) {
    collector.wait(&format!("{name} of {node}"), |requests| {
        let spans = spans(requests);
        let is_it = |(from, span): &&(String, Span)| {
            let said = said(&span.attributes);
            let has = |(key, value): &(&str, &str)| said.get(*key).is_some_and(|said| said == value);
            from == node && span.name == name && attributes.iter().all(has)
        };
        let (_, span) = spans.iter().find(is_it)?;
        assert_eq!(said(&span.attributes)["baton.node"], node);
        assert!(span.start_time_unix_nano <= span.end_time_unix_nano, "{span:?}");
        let parts = spans.iter().map(|(_, part)| part).filter(|part| part.parent_span_id == span.span_id);
        assert!(parts.clone().all(|part| part.trace_id == span.trace_id));
        let parts: BTreeSet<String> = parts.map(|part| part.name.clone()).collect();
        with.iter().all(|part| parts.contains(*part)).then(|| (span.clone(), parts))
    })
}

fn names<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
    names.map(str::to_owned).into()
}

fn what_is_done_in_an_election_is_traced(fleet: Fleet) {
    let collector = taking();
    let build = |n| {
        let path = fleet.home.path().join(format!("{n}.wasm"));
        std::fs::write(&path, Guest::Beats.build(n)).expect("written");
        let pushed = fleet.command(&["push", path.to_str().expect("a path"), ELECTION]);
        assert_eq!(pushed.code, Some(0), "{pushed:?}");
        pushed.stdout.split(' ').next().expect("a digest").to_owned()
    };
    let first = build(1);
    let start = |name| sending(fleet.launch_from(name, format!("store://{ELECTION}"), &[]), &collector).start();
    let mut alpha = start("alpha");
    let term = fleet.beat_above(0).term.to_string();
    let of_term = [("baton.election", ELECTION), ("baton.term", &term), ("baton.module", &first)];
    let parts = ["baton.store.acquire", "baton.store.write", "baton.start"];
    let (acquired, _) = traced_with(&collector, "alpha", "baton.acquire", &of_term, &parts);
    assert!(acquired.parent_span_id.is_empty() && acquired.status.is_none());
    traced(&collector, "alpha", "baton.renew", &[("baton.result", "ok"), of_term[0], of_term[1]]);

    let beta = start("beta");
    beta.event("to follow alpha", |event| event.name == "standby" && event.text("leader") == "alpha");
    let second = build(2);
    let of_swap = [("baton.module.previous", first.as_str()), ("baton.module", &second)];
    traced_with(&collector, "alpha", "baton.swap", &of_swap, &["baton.stop", "baton.start"]);

    let before = alpha.event("its last term", |event| event.name == "swapped").term;
    assert!(alpha.terminate().success());
    let of_end = [("baton.reason", "shutdown"), ("baton.result", "released")];
    let with = ["baton.stop", "baton.store.write", "baton.store.release"];
    let (left, mut parts) = traced_with(&collector, "alpha", "baton.hand_off", &of_end, &with);
    // What a write has come to is read where its answer does not come in time.
    parts.remove("baton.store.read");
    assert_eq!(parts, names(with));
    fleet.beat_above(before);
    let (acquired, _) = traced(&collector, "beta", "baton.acquire", &[("baton.result", "elected")]);
    // One machine has one clock, which nobody has set meanwhile. That the lease is free is there to be taken before who
    // gave it up has heard so.
    assert!(acquired.end_time_unix_nano > left.start_time_unix_nano);
    fleet.check_promises();
}

/// What a collector was last sent by a node, as lines of a scraped page: the names of metrics, and the gauges' samples.
fn sampled(requests: &[Request], node: &str) -> Option<(BTreeSet<String>, BTreeMap<String, f64>)> {
    let sent = requests.iter().rev().filter(|request| request.path() == "/v1/metrics").find_map(|request| {
        let message = ExportMetricsServiceRequest::decode(&request.bytes[..]).expect("the message of metrics");
        message.resource_metrics.into_iter().find(|sent| of_node(&sent.resource) == node)
    })?;
    let (mut names, mut gauges) = (BTreeSet::new(), BTreeMap::new());
    for metric in sent.scope_metrics.into_iter().flat_map(|scope| scope.metrics) {
        // As Prometheus names what it is sent this way.
        let unit = match metric.unit.as_str() {
            "s" => "_seconds",
            "By" => "_bytes",
            _ => "",
        };
        let total = if matches!(metric.data, Some(Data::Sum(_))) { "_total" } else { "" };
        let name = format!("{}{unit}{total}", metric.name);
        match metric.data.expect("samples") {
            Data::Gauge(gauge) => gauges.extend(gauge.data_points.into_iter().filter_map(|point| {
                let Some(AsDouble(value)) = point.value else { panic!("{point:?}") };
                let said = said(&point.attributes);
                (said.len() < 2).then(|| (format!("{name} {}", said.into_values().collect::<String>()), value))
            })),
            Data::Sum(sum) => {
                assert!(sum.is_monotonic && sum.data_points.iter().all(|one| one.start_time_unix_nano > 0))
            }
            Data::Histogram(histogram) => {
                for point in histogram.data_points {
                    assert_eq!(point.bucket_counts.len(), point.explicit_bounds.len() + 1);
                    assert_eq!(point.count, point.bucket_counts.iter().sum::<u64>());
                }
            }
            other => panic!("{other:?}"),
        }
        names.insert(name);
    }
    Some((names, gauges))
}

#[test]
fn a_collector_is_sent_the_metrics_that_are_scraped() {
    let fleet = Fleet::new(Store::sqlite());
    let collector = taking();
    let alpha = sending(fleet.launch("alpha"), &collector).start();
    fleet.beat_above(0);
    until("metrics of an instance", || {
        let page = Endpoint::of(&alpha).ask("/metrics").body;
        if page.contains("baton_guest_memory_bytes{") { Ok(()) } else { Err(page) }
    });
    // Some have their first sample later, and those without one are not sent.
    let scraped = |page: &str| -> BTreeSet<String> {
        let described = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        let names = described.map(|line| line.split(' ').next().expect("a name").to_owned());
        let starts = |name: &str| ["{", " ", "_bucket"].map(|end| format!("{name}{end}"));
        names.filter(|name| page.lines().any(|line| starts(name).iter().any(|start| line.starts_with(start)))).collect()
    };
    let (page, gauges) = until("the same metrics", || {
        let page = Endpoint::of(&alpha).ask("/metrics").body;
        let scraped = scraped(&page);
        assert!(scraped.len() > 15, "{scraped:?}");
        match sampled(&collector.requests(), "alpha") {
            Some((names, gauges)) if names == scraped => Ok((page, gauges)),
            other => Err((scraped, other)),
        }
    });
    assert_eq!(gauges[&format!("baton_leader {ELECTION}")], 1.0);
    let lease = format!("baton_lease_seconds{{election=\"{ELECTION}\"}}");
    assert_eq!(gauges[&format!("baton_lease_seconds {ELECTION}")], sample(&page, &lease));
    fleet.check_promises();
}

fn a_collector_that_hangs_or_refuses_delays_nothing(fleet: Fleet) {
    let (hangs, refuses) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(true)));
    let collector = Server::start({
        let (hangs, refuses) = (Arc::clone(&hangs), Arc::clone(&refuses));
        move |_| match (hangs.load(Ordering::Acquire), refuses.load(Ordering::Acquire)) {
            (true, _) => Reply::Hang,
            (_, true) => Reply::Answer("503 Service Unavailable".to_owned(), "x".repeat(1 << 20)),
            _ => Reply::ok(""),
        }
    });
    // A busy machine costs neither the lease nor the grace.
    let launch = fleet.launch_with("alpha", &[("--lease", "60s"), ("--grace", "20s")]);
    let mut alpha = sending(launch, &collector).env("OTEL_EXPORTER_OTLP_TIMEOUT", "5000").start();
    let first = fleet.beat_above(0).term;
    let unreachable = alpha.event("its trouble", |event| event.name == "collector_unreachable");
    assert!(unreachable.text("collector").starts_with(&collector.url()), "{unreachable:?}");
    assert_eq!(unreachable.term, 0);
    // What it could not send before it sends now, the start of the first term too.
    hangs.store(false, Ordering::Release);
    let so_far = collector.requests().len();
    collector.wait("refusals", |requests| (requests.len() > so_far + 4).then_some(()));
    refuses.store(false, Ordering::Release);
    traced(&collector, "alpha", "baton.acquire", &[("baton.term", &first.to_string())]);
    alpha.event("its recovery", |event| event.name == "collector_recovered" && event.text("what") == "traces");

    // Now the last it says is never answered.
    hangs.store(true, Ordering::Release);
    assert!(alpha.terminate().success());
    for name in ["leadership_lost", "killed"] {
        assert!(events(&fleet, name).is_empty(), "{name}: {:?}", fleet.journal.events());
    }
    assert_eq!(events(&fleet, "released").len(), 1);
    fleet.check_promises();
}

/// The names of a process's threads.
fn threads(node: &Node) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", node.pid())).expect("its threads");
    tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok()).collect()
}

#[test]
fn only_where_a_collector_is_named_there_is_a_thread_for_it() {
    let fleet = Fleet::new(Store::sqlite());
    let alpha = fleet.launch("alpha").env("OTEL_SERVICE_NAME", "leaders").start();
    fleet.beat_above(0);
    let collector = taking();
    let beta = sending(fleet.launch("beta"), &collector).start();
    // What cannot be used is told, and is no reason not to take part.
    let gamma = fleet
        .launch("gamma")
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url())
        .env("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
        .start();
    let error = gamma.event("its error", |event| event.name == "error");
    assert!(error.text("error").contains("OTEL_EXPORTER_OTLP_PROTOCOL: Baton does not support grpc"), "{error:?}");
    for (node, exports) in [(&alpha, false), (&beta, true), (&gamma, false)] {
        node.event("to take part", |event| event.name == "standby");
        assert_eq!(threads(node).iter().any(|name| name == "otlp\n"), exports, "{}", node.name);
    }
    fleet.check_promises();
}

#[test]
fn a_guests_request_and_what_its_server_does_are_one_trace() {
    let fleet = Fleet::new(Store::sqlite());
    let (collector, server) = (taking(), Server::start(|_| Reply::Answer("404 Not Found".to_owned(), String::new())));
    let url = format!("{}/secret?of=mine", server.url());
    let asks = |name: &str| launch(&fleet, name, "get", &url).flag("--allow-http", server.url());
    let mut alpha = sending(asks("alpha"), &collector).start();
    let request = server.wait("the request", |requests| requests.first().cloned());
    let [traceparent] = request.header("traceparent")[..] else { panic!("{request:?}") };
    let port = server.port.to_string();
    let (span, _) = traced(&collector, "alpha", "GET", &[("server.address", "127.0.0.1"), ("server.port", &port)]);
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(traceparent, format!("00-{}-{}-01", hex(&span.trace_id), hex(&span.span_id)));
    let told = said(&span.attributes);
    assert_eq!((told["http.response.status_code"].as_str(), told["error.type"].as_str()), ("404", "404"));
    assert_eq!(told["baton.term"], request.term().to_string());
    assert!(!told.values().any(|value| value.contains("secret")), "{told:?}");
    assert!(alpha.terminate().success());

    // Nobody has asked for traces here.
    let _beta = asks("beta").start();
    let request = server.wait("another request", |requests| requests.get(1).cloned());
    assert!(request.header("traceparent").is_empty(), "{request:?}");
}
