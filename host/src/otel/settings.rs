//! Where traces and metrics go: by the variables that OpenTelemetry has for that
//! (<https://opentelemetry.io/docs/specs/otel/protocol/exporter/>), so that a platform tells all of its programs alike.
//!
//! They are no settings of ours: platforms set them for programs that know more of them. What cannot be used here is
//! told, and nothing is exported then; it is never a reason not to lead.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use url::Url;

use crate::config::Environment;

/// The file of certificates of the collector's authority.
pub(super) const CERTIFICATE: &str = "OTEL_EXPORTER_OTLP_CERTIFICATE";

/// The longest variable that is read, in bytes.
const LONGEST: usize = 64 << 10;

/// Why nothing is exported.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UnusableVariable {
    #[error("{variable}: {value} is not the address of a collector, such as http://localhost:4318")]
    NoUrl { variable: String, value: String },
    #[error("{variable}: Baton does not support {value}; use http/protobuf, and the collector's port for it")]
    OtherProtocol { variable: String, value: String },
    #[error("{variable}: {value} is not a number of milliseconds, 1 or more")]
    NoTime { variable: String, value: String },
    #[error("{variable}: expected comma-separated, percent-encoded KEY=VALUE pairs")]
    NoPairs { variable: String },
    #[error("{variable}: expected UTF-8 text of at most 64 KiB")]
    NoText { variable: String },
}

/// What is exported.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    pub traces: Option<Collector>,
    pub metrics: Option<Collector>,
    /// What is said of this program.
    pub resource: BTreeMap<String, String>,
    /// How long spans wait for others to go along.
    pub traces_every: Duration,
    /// How often metrics are sent.
    pub metrics_every: Duration,
    /// Who may certify collectors, beside Mozilla's.
    pub certificate: Option<PathBuf>,
}

/// Where one of them goes.
#[derive(Clone, Debug)]
pub(crate) struct Collector {
    pub url: Url,
    pub headers: HeaderMap,
    /// How long a request may take.
    pub timeout: Duration,
}

/// What can be exported: how its variables are named, and its path.
struct Signal(&'static str, &'static str);

const TRACES: Signal = Signal("TRACES", "v1/traces");
const METRICS: Signal = Signal("METRICS", "v1/metrics");

impl Settings {
    /// What the environment says; none if nothing is to be exported.
    ///
    /// # Errors
    /// Which variable cannot be used, and what to set it to.
    pub fn of(around: &Environment) -> Result<Option<Self>, UnusableVariable> {
        let variables = Variables(around);
        if variables.text("OTEL_SDK_DISABLED")?.is_some_and(|off| off.eq_ignore_ascii_case("true")) {
            return Ok(None);
        }
        let (traces, metrics) = (variables.collector(&TRACES)?, variables.collector(&METRICS)?);
        if traces.is_none() && metrics.is_none() {
            return Ok(None);
        }
        let mut resource: BTreeMap<String, String> = variables.pairs("OTEL_RESOURCE_ATTRIBUTES")?.into_iter().collect();
        if let Some(name) = variables.text("OTEL_SERVICE_NAME")? {
            resource.insert("service.name".to_owned(), name.to_owned());
        }
        Ok(Some(Self {
            traces,
            metrics,
            resource,
            traces_every: variables.time("OTEL_BSP_SCHEDULE_DELAY", Duration::from_secs(5))?,
            metrics_every: variables.time("OTEL_METRIC_EXPORT_INTERVAL", Duration::from_secs(60))?,
            certificate: variables.text(CERTIFICATE)?.map(PathBuf::from),
        }))
    }
}

struct Variables<'a>(&'a Environment);

impl<'a> Variables<'a> {
    /// An empty one is like none.
    fn text(&self, name: &str) -> Result<Option<&'a str>, UnusableVariable> {
        let Some(value) = self.0.variable(name).filter(|value| !value.is_empty()) else { return Ok(None) };
        let text = value.to_str().filter(|text| text.len() <= LONGEST);
        text.map(|text| Some(text.trim())).ok_or_else(|| UnusableVariable::NoText { variable: name.to_owned() })
    }

    /// A variable of one signal, else the one of all; with its name.
    fn of_signal(&self, signal: &Signal, what: &str) -> Result<Option<(String, &'a str)>, UnusableVariable> {
        for name in [format!("OTEL_EXPORTER_OTLP_{}_{what}", signal.0), format!("OTEL_EXPORTER_OTLP_{what}")] {
            if let Some(text) = self.text(&name)? {
                return Ok(Some((name, text)));
            }
        }
        Ok(None)
    }

    fn collector(&self, signal: &Signal) -> Result<Option<Collector>, UnusableVariable> {
        let exporter = self.text(&format!("OTEL_{}_EXPORTER", signal.0))?;
        // Others of these are for programs that can do more.
        if exporter.is_some_and(|exporters| !exporters.split(',').any(|one| one.trim() == "otlp")) {
            return Ok(None);
        }
        let Some((variable, value)) = self.of_signal(signal, "ENDPOINT")? else { return Ok(None) };
        let no_url = || UnusableVariable::NoUrl { variable: variable.clone(), value: shown(value) };
        let mut url = Url::parse(value).map_err(|_| no_url())?;
        if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
            return Err(no_url());
        }
        if !variable.contains(signal.0) {
            let path = format!("{}/{}", url.path().trim_end_matches('/'), signal.1);
            url.set_path(&path);
        }
        match self.of_signal(signal, "PROTOCOL")? {
            Some((variable, value)) if value != "http/protobuf" => {
                return Err(UnusableVariable::OtherProtocol { variable, value: value.to_owned() });
            }
            _ => {}
        }
        let mut headers = HeaderMap::new();
        if let Some((variable, _)) = self.of_signal(signal, "HEADERS")? {
            for (name, value) in self.pairs(&variable)? {
                let (name, value) = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(&value));
                let (Ok(name), Ok(mut value)) = (name, value) else {
                    return Err(UnusableVariable::NoPairs { variable });
                };
                value.set_sensitive(true);
                headers.insert(name, value);
            }
        }
        let timeout = match self.of_signal(signal, "TIMEOUT")? {
            Some((variable, _)) => self.time(&variable, Duration::ZERO)?,
            None => Duration::from_secs(10),
        };
        Ok(Some(Collector { url, headers, timeout }))
    }

    fn time(&self, name: &str, default: Duration) -> Result<Duration, UnusableVariable> {
        let Some(value) = self.text(name)? else { return Ok(default) };
        match value.parse() {
            Ok(milliseconds @ 1_u32..) => Ok(Duration::from_millis(milliseconds.into())),
            _ => Err(UnusableVariable::NoTime { variable: name.to_owned(), value: value.to_owned() }),
        }
    }

    /// `KEY=VALUE` with commas between, percent-encoded, as in W3C's baggage.
    fn pairs(&self, name: &str) -> Result<Vec<(String, String)>, UnusableVariable> {
        let text = self.text(name)?.unwrap_or_default();
        let pairs = text.split(',').map(str::trim).filter(|pair| !pair.is_empty());
        let pair = |pair: &str| {
            let (key, value) = pair.split_once('=')?;
            let [key, value] = [key, value].map(|text| decoded(text.trim()));
            Some((key.filter(|key| !key.is_empty())?, value?))
        };
        let all: Option<Vec<_>> = pairs.map(pair).collect();
        all.ok_or_else(|| UnusableVariable::NoPairs { variable: name.to_owned() })
    }
}

/// A text without percent-encoding; none if it is none then.
fn decoded(text: &str) -> Option<String> {
    // What a form has for a space is here itself.
    let text = text.replace('+', "%2B").replace('&', "%26").replace('=', "%3D");
    let whole = url::form_urlencoded::parse(text.as_bytes()).next().map_or(String::new(), |(key, _)| key.into_owned());
    (!whole.contains('\u{fffd}')).then_some(whole)
}

/// An address without what may be a secret in it.
fn shown(value: &str) -> String {
    let rest = value.rsplit_once('@').map_or(value, |(_, rest)| rest);
    rest.split(['?', '#']).next().unwrap_or_default().chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use std::path::Path;

    use super::*;

    fn settings(variables: &[(&str, &str)]) -> Result<Option<Settings>, String> {
        Settings::of(&Environment::made_up(variables, Path::new("/"))).map_err(|error| error.to_string())
    }

    const ENDPOINT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318/prefix/");

    #[test]
    fn nothing_is_exported_unless_a_collector_is_named() {
        for variables in [
            &[][..],
            &[("OTEL_SERVICE_NAME", "x"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")],
            &[("OTEL_EXPORTER_OTLP_ENDPOINT", "")],
            &[ENDPOINT, ("OTEL_SDK_DISABLED", "TRUE")],
            &[ENDPOINT, ("OTEL_TRACES_EXPORTER", "none"), ("OTEL_METRICS_EXPORTER", "prometheus")],
        ] {
            assert!(settings(variables).unwrap().is_none(), "{variables:?}");
        }
    }

    #[test]
    fn each_signal_may_have_variables_of_its_own() {
        let all = settings(&[
            ENDPOINT,
            ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "https://other/exactly"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20b%2Bc+d, x=1=2"),
            ("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "250"),
            ("OTEL_RESOURCE_ATTRIBUTES", "service.name=one,deployment.environment=prod"),
            ("OTEL_SERVICE_NAME", "two"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "1500"),
        ]);
        let all = all.unwrap().unwrap();
        let (traces, metrics) = (all.traces.unwrap(), all.metrics.unwrap());
        assert_eq!(traces.url.as_str(), "http://collector:4318/prefix/v1/traces");
        assert_eq!(metrics.url.as_str(), "https://other/exactly");
        assert_eq!([&traces.headers["api-key"], &traces.headers["x"]], ["a b+c+d", "1=2"]);
        let second = Duration::from_secs(1);
        assert_eq!((traces.timeout, metrics.timeout), (10 * second, second / 4));
        assert_eq!((all.traces_every, all.metrics_every), (5 * second, second * 3 / 2));
        let resource: Vec<_> = all.resource.iter().map(|(key, value)| format!("{key}={value}")).collect();
        assert_eq!(resource, ["deployment.environment=prod", "service.name=two"]);
    }

    #[test]
    fn what_cannot_be_used_is_told_without_secrets() {
        for (variable, value, said) in [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318", "is not the address"),
            (
                "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
                "grpc://user:secret@collector?secret",
                "collector is not the address",
            ),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "does not support grpc"),
            ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "http/json", "does not support http/json"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "secret", "KEY=VALUE"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a\nb=secret", "KEY=VALUE"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a=secret%ff", "KEY=VALUE"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "0", "is not a number of milliseconds"),
            ("OTEL_BSP_SCHEDULE_DELAY", "5s", "is not a number of milliseconds"),
            ("OTEL_RESOURCE_ATTRIBUTES", "=x", "KEY=VALUE"),
        ] {
            let given = [ENDPOINT, (variable, value)];
            let error = settings(&given).unwrap_err();
            assert!(error.starts_with(variable) && error.contains(said), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
        let long = "x".repeat(LONGEST + 1);
        assert!(settings(&[("OTEL_EXPORTER_OTLP_ENDPOINT", &long)]).unwrap_err().contains("64 KiB"));
    }
}
