//! In the place of the exporter where the program is built without it: the feature `otel` is off.

use std::sync::Arc;

use crate::config::Environment;
use crate::telemetry::{Log, SpanQueue};
use crate::watched::Watched;

/// There is none.
pub(crate) enum Exports {}

/// There is none.
pub(crate) enum Exporter {}

impl Exports {
    pub(crate) fn wanted(_: &Environment) -> anyhow::Result<Option<Self>> {
        Ok(None)
    }

    pub(crate) fn spans(&self) -> Option<Arc<SpanQueue>> {
        match *self {}
    }

    pub(crate) fn start(self, _: &str, _: Arc<Watched>, _: Log) -> anyhow::Result<Exporter> {
        match self {}
    }
}

impl Exporter {
    pub(crate) fn shutdown(self) {
        match self {}
    }
}
