//! Reads certificates and keys again on SIGHUP, while the host runs. If one of these files cannot be used, the host
//! keeps all previous certificates and keys.
//!
//! Some files need no signal. The host reads the admin endpoint's token for each request, a secret for each term, and
//! the token of a workload identity for each use. A reload only checks these files, so that mistakes are reported at
//! once. A reload also reports changed settings that take effect only at the next start.

use tokio::signal::unix::Signal;

use crate::config::{Config, ConfigError, Key};
use crate::service_manager::{Phase, Phases};
use baton_admin::{self as admin, Certificate, UnusableFile};
use baton_modules::{Trust, TrustError, TrustedKeys};
use baton_node::telemetry::{Event, Log};

#[derive(Debug, thiserror::Error)]
enum NotReloaded {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Admin(#[from] UnusableFile),
    #[error(transparent)]
    Trust(#[from] TrustError),
    #[error("the task that reads the files failed: {0}")]
    Thread(#[from] tokio::task::JoinError),
}

/// The parts of a host that a reload replaces, and the startup configuration, which a reload compares with the current
/// configuration.
#[derive(Clone)]
pub struct Reload {
    /// The configuration from the host's start.
    pub config: Config,
    /// The trusted keys for each coordinator's modules, in the order of the coordinators.
    pub trusts: Vec<Trust>,
    /// The admin endpoint's certificate.
    pub certificate: Option<Certificate>,
}

impl Reload {
    /// Reloads the files whenever a signal arrives. Reloads never overlap.
    pub async fn whenever(self, mut asked: Signal, phases: Phases, log: Log) {
        while asked.recv().await.is_some() {
            phases.are_at(Phase::Reloading);
            let this = self.clone();
            let done = tokio::task::spawn_blocking(move || this.read()).await;
            log.emit(
                None,
                match done.unwrap_or_else(|error| Err(error.into())) {
                    Ok(reloaded) => reloaded,
                    Err(error) => {
                        let error = Some(format!("{:#}", anyhow::Error::new(error)));
                        Event::Reload { read: Vec::new(), next_start: Vec::new(), error }
                    }
                },
            );
            phases.are_at(Phase::Ready);
        }
    }

    fn read(&self) -> Result<Event, NotReloaded> {
        let now = self.config.again()?;
        if let Some(file) = &self.config.admin.token_file {
            admin::token(admin::TOKEN_FILE, file)?;
        }
        let certificate = self.certificate.as_ref().map(Certificate::reload).transpose()?;
        let files = self.config.coordinators.iter().map(|coordinator| &coordinator.trust);
        let keys = files.map(|files| TrustedKeys::read(files)).collect::<Result<Vec<_>, _>>()?;
        let mut read = Vec::new();
        for (trust, keys) in self.trusts.iter().zip(keys) {
            trust.renew(keys);
        }
        if self.config.coordinators.iter().any(|coordinator| !coordinator.trust.is_empty()) {
            read.push(Key::Trust.flag());
        }
        if let (Some(certificate), Some(anew)) = (&self.certificate, certificate) {
            certificate.renew(anew);
            read.extend([Key::AdminTlsCert, Key::AdminTlsKey].map(Key::flag));
        }
        Ok(Event::Reload { read, next_start: self.config.differences(&now), error: None })
    }
}
