//! The messages of OTLP (<https://opentelemetry.io/docs/specs/otlp/>), made of what the host knows already.
//!
//! It counts for itself, by atomic numbers and with buckets of its own, and a span is made once it is over. So all that
//! is needed are the protocol's types, and nothing of OpenTelemetry's SDK, which would count everything once more.

use std::collections::BTreeMap;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, ResourceMetrics,
    ScopeMetrics, Sum, metric::Data, number_data_point,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{self as otlp, ResourceSpans, ScopeSpans, SpanFlags};

use crate::admin::metrics::{Family, Sample, Sampled};
use crate::telemetry::{Span, Value, Waiting};

/// This program, for all that it sends: what the environment says of it, and who it is.
pub(super) fn resource(given: &BTreeMap<String, String>, node: &str, incarnation: &str) -> Resource {
    let mut all = BTreeMap::from(
        [
            ("service.name", "baton"),
            ("service.version", env!("CARGO_PKG_VERSION")),
            ("service.instance.id", incarnation),
            ("baton.node", node),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned())),
    );
    all.extend(given.clone());
    let attributes = all.iter().map(|(key, value)| text(key, value)).collect();
    Resource { attributes, ..Resource::default() }
}

/// Spans that are over.
pub(super) fn traces(resource: Resource, spans: &[Waiting], node: &str) -> ExportTraceServiceRequest {
    let spans = spans.iter().map(|one| span(one, node)).collect();
    let scope_spans = vec![ScopeSpans { scope: Some(scope()), spans, ..ScopeSpans::default() }];
    let resource = Some(resource);
    ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans { resource, scope_spans, ..ResourceSpans::default() }],
    }
}

fn span(Waiting { election, span, .. }: &Waiting, node: &str) -> otlp::Span {
    let Span { place, parent, name, is_request, begin, end, term, module, attributes, error } = span;
    let mut all = vec![text("baton.election", election.as_str()), text("baton.node", node)];
    all.extend(term.map(|term| number("baton.term", i64::try_from(term).unwrap_or(i64::MAX))));
    all.extend(module.as_ref().map(|module| text("baton.module", module)));
    all.extend(attributes.iter().map(|(key, value)| match value {
        Value::Text(said) => text(key, said),
        Value::Number(said) => number(key, *said),
    }));
    let status = error.as_ref().map(|error| otlp::Status { message: error.clone(), code: StatusCode::Error.into() });
    otlp::Span {
        trace_id: place.trace.to_vec(),
        span_id: place.span.to_vec(),
        parent_span_id: parent.map_or_else(Vec::new, |parent| parent.to_vec()),
        name: name.clone(),
        kind: if *is_request { SpanKind::Client } else { SpanKind::Internal }.into(),
        // Sampled, as a server is told in `traceparent`.
        flags: 1 | SpanFlags::ContextHasIsRemoteMask as u32,
        start_time_unix_nano: nanoseconds(*begin),
        end_time_unix_nano: nanoseconds(*end),
        attributes: all,
        status,
        ..otlp::Span::default()
    }
}

/// All metrics as they are now; what is counted is counted since the host began.
pub(super) fn metrics(
    resource: Resource,
    families: Vec<Family>,
    began: Duration,
    now: Duration,
) -> ExportMetricsServiceRequest {
    let (began, now) = (nanoseconds(began), nanoseconds(now));
    let metrics = families.into_iter().filter_map(|family| metric(family, began, now)).collect();
    let scope_metrics = vec![ScopeMetrics { scope: Some(scope()), metrics, ..ScopeMetrics::default() }];
    let resource = Some(resource);
    ExportMetricsServiceRequest {
        resource_metrics: vec![ResourceMetrics { resource, scope_metrics, ..ResourceMetrics::default() }],
    }
}

/// None if it has no samples, such as those of instances where none runs.
fn metric(Family { name, help, unit, samples }: Family, began: u64, now: u64) -> Option<Metric> {
    let (mut gauges, mut counters, mut histograms) = (Vec::new(), Vec::new(), Vec::new());
    for Sample { labels, value } in samples {
        let attributes: Vec<KeyValue> = labels.iter().map(|(key, value)| text(key, value)).collect();
        let point = |value, start_time_unix_nano| NumberDataPoint {
            attributes: attributes.clone(),
            start_time_unix_nano,
            time_unix_nano: now,
            value: Some(number_data_point::Value::AsDouble(value)),
            ..NumberDataPoint::default()
        };
        match value {
            Sampled::Gauge(value) => gauges.push(point(value, 0)),
            Sampled::Counter(value) => counters.push(point(value, began)),
            Sampled::Histogram { buckets, sum } => histograms.push(HistogramDataPoint {
                attributes,
                start_time_unix_nano: began,
                time_unix_nano: now,
                count: buckets.iter().map(|(_, count)| count).sum(),
                sum: Some(sum),
                bucket_counts: buckets.iter().map(|(_, count)| *count).collect(),
                // The last bucket has none.
                explicit_bounds: buckets.iter().map(|(bound, _)| *bound).filter(|bound| bound.is_finite()).collect(),
                ..HistogramDataPoint::default()
            }),
        }
    }
    let temporality = AggregationTemporality::Cumulative.into();
    let data = match (gauges.is_empty(), counters.is_empty(), histograms.is_empty()) {
        (false, ..) => Data::Gauge(Gauge { data_points: gauges }),
        (_, false, _) => {
            let (aggregation_temporality, is_monotonic) = (temporality, true);
            Data::Sum(Sum { data_points: counters, aggregation_temporality, is_monotonic })
        }
        (.., false) => Data::Histogram(Histogram { data_points: histograms, aggregation_temporality: temporality }),
        _ => return None,
    };
    // As <https://ucum.org> writes them.
    let unit = match unit {
        Some("bytes") => "By",
        Some(_) => "s",
        None => "",
    };
    Some(Metric { name, description: help, unit: unit.to_owned(), data: Some(data), ..Metric::default() })
}

fn scope() -> InstrumentationScope {
    let version = env!("CARGO_PKG_VERSION").to_owned();
    InstrumentationScope { name: "baton".to_owned(), version, ..InstrumentationScope::default() }
}

fn text(key: &str, value: &str) -> KeyValue {
    attribute(key, any_value::Value::StringValue(value.to_owned()))
}

fn number(key: &str, value: i64) -> KeyValue {
    attribute(key, any_value::Value::IntValue(value))
}

fn attribute(key: &str, value: any_value::Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}

fn nanoseconds(since_epoch: Duration) -> u64 {
    u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX)
}
