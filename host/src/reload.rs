//! What a running host reads anew when it is asked to, by SIGHUP: what is replaced while hosts run, such as certificates
//! and keys. All of it or, if anything is wrong, none.
//!
//! Some files need no asking: the token of the admin endpoint is read for each request, a secret for each term, the token
//! of a workload's identity for each of its uses. They are only looked at, so that a mistake is said at once. What cannot
//! change while the host runs is said, too.

use tokio::signal::unix::Signal;

use crate::admin::{self, Certificate, UnusableFile};
use crate::config::{Config, ConfigError, Key};
use crate::service_manager::{Phase, Phases};
use crate::telemetry::{Event, Log};
use baton_modules::{Trust, TrustError, TrustedKeys};

/// Why nothing is read anew.
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

/// What can be read anew.
#[derive(Clone)]
pub struct Reload {
    /// What the host was told at its start.
    pub config: Config,
    /// Whom its coordinators' modules must be signed by, in the order of the coordinators.
    pub trusts: Vec<Trust>,
    /// The admin endpoint's.
    pub certificate: Option<Certificate>,
}

impl Reload {
    /// Does so whenever it is asked for, one time after the other.
    pub async fn whenever(self, mut asked: Signal, phases: Phases, log: Log) {
        while asked.recv().await.is_some() {
            phases.are_at(Phase::Reloading);
            let its = self.clone();
            let done = tokio::task::spawn_blocking(move || its.read()).await;
            log.emit(
                None,
                match done.unwrap_or_else(|error| Err(error.into())) {
                    Ok(reloaded) => reloaded,
                    Err(error) => Event::ReloadFailed { error: format!("{:#}", anyhow::Error::new(error)) },
                },
            );
            phases.are_at(Phase::Ready);
        }
    }

    fn read(&self) -> Result<Event, NotReloaded> {
        // Finds the secrets, too.
        let now = self.config.again()?;
        if let Some(file) = &self.config.admin.token_file {
            admin::token(admin::TOKEN_FILE, file)?;
        }
        let certificate = self.certificate.as_ref().map(Certificate::read_anew).transpose()?;
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
        Ok(Event::Reloaded { read, next_start: self.config.differences(&now) })
    }
}
