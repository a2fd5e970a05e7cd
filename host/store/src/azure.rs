//! The store for fleets: a container of an Azure storage account, with several blobs per election.
//!
//! `ELECTION/lease` holds only a lease and, as its metadata, the record. Only this module uses the crate
//! `azure_storage_blobs`. Notes on the code:
//!
//! - Lease operations leave the ETag unchanged, so the ETag can serve as the record's version.
//! - The crate's own retries are turned off, since they can outlast a lease. The elector decides what to retry.
//! - The lease id in a renewal's answer must be checked: the emulator renews an expired lease for any id.

mod access;
mod answers;
mod identity;
mod names;
mod objects;
mod operator;
mod recall;
mod record;
mod tokens;
pub(crate) mod untrusted;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use azure_core::prelude::IfMatchCondition;
use azure_core::request_options::{LeaseDuration, LeaseId as AzureLeaseId, ProposedLeaseId};
use azure_core::{Etag, RetryOptions, TransportOptions};
use azure_storage_blobs::blob::Blob;
use azure_storage_blobs::prelude::{BlobClient, ClientBuilder, ContainerClient};
use baton_election::{ElectionName, LeaseId, LeaseState, Op, Reply, Snapshot, StoreError, Version};
use futures::StreamExt;
use reqwest::redirect::Policy;

use super::{LeaseStore, check_length};
use access::{AccountAccess, ShownCredentials};
pub use access::{CredentialError, OWN_CONNECTION_STRING};
pub use answers::MAY_NOT;
use answers::{RequestKind, code, error_chain, store_error};
use names::Names;
use tokens::{KeptToken, TokenWatch};

pub use super::url::AZURE_LEASE_RANGE as LEASE_RANGE;

/// The error message if the answer to a renewal contains another lease id, as can happen with the emulator. The lease
/// is then lost.
const RENEWED_ANOTHERS: &str = "the store renewed another client's lease";

const LEASE_BLOB: &str = "/lease";

/// The content of the lease's blob. It must not be empty, because ranges of an empty blob cannot be requested.
const CONTENT: &str = "The lease of an election of Baton. Its record is the metadata. Do not delete it.\n";

const CONNECT_WITHIN: Duration = Duration::from_secs(2);

/// Timeout for each request, except for requests that transfer a module. The supervisor gives up on lease requests
/// earlier.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Duration after which an unfinished DNS lookup is reported as the reason for a timeout.
const SLOW_STEP: Duration = Duration::from_millis(500);

/// A store in a blob container of an Azure storage account.
pub struct AzureStore {
    container: ContainerClient,
    /// A client without a request timeout, for transferring modules: `transfer` sets a timeout that depends on the
    /// size.
    transfers: ContainerClient,
    name: String,
    credentials: ShownCredentials,
    token: Option<Arc<KeptToken>>,
}

impl AzureStore {
    /// Opens a container, with the endpoint and credentials from the environment. Does not send a request yet.
    ///
    /// # Errors
    /// [`CredentialError`] if the environment has no usable credentials.
    pub fn open(account: &str, container: &str) -> Result<Self, CredentialError> {
        Self::connect(AccountAccess::of_account(account, &access::of_process)?, container)
    }

    /// Opens a container of the local emulator, with its well-known key unless the environment provides another key.
    ///
    /// # Errors
    /// [`CredentialError`] if the environment's credentials cannot be used.
    pub fn emulator(address: &str, container: &str) -> Result<Self, CredentialError> {
        Self::connect(AccountAccess::of_emulator(address, &access::of_process)?, container)
    }

    fn connect(access: AccountAccess, container: &str) -> Result<Self, CredentialError> {
        // Ignore the environment's proxy settings: the lease must not depend on a proxy.
        let http = || {
            reqwest::Client::builder()
                .connect_timeout(CONNECT_WITHIN)
                .no_proxy()
                .redirect(Policy::none())
                .dns_resolver(Arc::new(Names))
        };
        let client = |http: reqwest::ClientBuilder| {
            let http = http
                .build()
                .map_err(|error| CredentialError::new(format!("an HTTP client cannot be created: {error}")))?;
            let http = TokenWatch::new(http, access.token.clone());
            Ok(ClientBuilder::with_location(access.location.clone(), access.credentials.clone())
                .retry(RetryOptions::none())
                .transport(TransportOptions::new(Arc::new(http)))
                .container_client(container))
        };
        Ok(Self {
            container: client(http().timeout(ANSWER_WITHIN))?,
            transfers: client(http())?,
            name: container.to_owned(),
            credentials: access.shown,
            token: access.token,
        })
    }

    /// Breaks an election's lease after `period`, for operators. A zero period breaks the lease immediately.
    ///
    /// # Errors
    /// [`StoreError::Lost`] if there is no lease.
    pub async fn break_lease(&self, election: &ElectionName, period: Duration) -> Result<(), StoreError> {
        let period = period.min(LEASE_RANGE.1);
        let request = self.blob(election).break_lease().lease_break_period(period).into_future();
        request.await.map(drop).map_err(|error| self.store_error(RequestKind::OfLease, &error))
    }

    /// Deletes the container and everything in it, even if leases are held.
    ///
    /// # Errors
    /// Any error that a request can return.
    pub async fn delete_container(&self) -> Result<(), StoreError> {
        self.container.delete().into_future().await.map_err(|error| self.store_error(RequestKind::OfContainer, &error))
    }

    fn blob(&self, election: &ElectionName) -> BlobClient {
        self.container.blob_client(format!("{election}{LEASE_BLOB}"))
    }

    async fn read(&self, election: &ElectionName) -> Result<Reply, StoreError> {
        match self.blob(election).get_properties().into_future().await {
            Ok(response) => snapshot(response.blob).map(Reply::Read),
            Err(error) if code(&error) == Some("BlobNotFound") => Ok(Reply::Read(Snapshot::Nothing)),
            Err(error) => Err(self.store_error(RequestKind::ToRead, &error)),
        }
    }

    async fn renew(&self, blob: &BlobClient, id: LeaseId, version: Option<Version>) -> Result<Reply, StoreError> {
        let renew = blob.blob_lease_client(azure_id(id)?).renew();
        let renew = match version {
            Some(version) => renew.if_match(IfMatchCondition::Match(version.0)),
            None => renew,
        };
        let response = renew.into_future().await.map_err(|error| self.store_error(RequestKind::OfLease, &error))?;
        if is_ours(&response.lease_id, id) {
            Ok(Reply::Done)
        } else {
            Err(StoreError::Lost(RENEWED_ANOTHERS.to_owned()))
        }
    }

    fn store_error(&self, asked: RequestKind, error: &azure_core::Error) -> StoreError {
        store_error(asked, &self.name, &self.credentials, error)
    }
}

#[async_trait]
impl LeaseStore for AzureStore {
    async fn request(&self, election: &ElectionName, op: Op) -> Result<Reply, StoreError> {
        let blob = self.blob(election);
        match op {
            Op::Read => self.read(election).await,
            Op::Recall => self.survey(election).await.map(|(_, recalled, _)| Reply::Recalled(recalled)),
            Op::Survey => {
                let (read, recalled, steering) = self.survey(election).await?;
                Ok(Reply::Surveyed { read, recalled, steering })
            }
            Op::Create { record } => blob
                .put_block_blob(CONTENT)
                .content_type("text/plain")
                .metadata(record::encode(&record))
                .if_match(IfMatchCondition::NotMatch("*".to_owned()))
                .into_future()
                .await
                .map(|response| Reply::Version(Version(response.etag)))
                .map_err(|error| self.store_error(RequestKind::ToCreate, &error)),
            // Ignore `instead_of`, the id of a dead holder: this store cannot detect that a holder is dead.
            Op::Acquire { id, length, version, instead_of: _ } => {
                check_length(length, LEASE_RANGE, &"an Azure store")?;
                let response = blob
                    .acquire_lease(LeaseDuration::Seconds(u8::try_from(whole_seconds(length)).unwrap_or(u8::MAX)))
                    .proposed_lease_id(ProposedLeaseId::from(azure_id(id)?))
                    .if_match(IfMatchCondition::Match(version.0))
                    .into_future()
                    .await
                    .map_err(|error| self.store_error(RequestKind::ToAcquire, &error))?;
                if is_ours(&response.lease_id, id) { Ok(Reply::Done) } else { Err(StoreError::Held) }
            }
            Op::Reclaim { from, id, version } => {
                // A change of the lease id can be repeated: a second request with the same proposed id succeeds, too.
                // The change does not extend the lease, so a renewal follows.
                blob.blob_lease_client(azure_id(from)?)
                    .change(ProposedLeaseId::from(azure_id(id)?))
                    .if_match(IfMatchCondition::Match(version.0.clone()))
                    .into_future()
                    .await
                    .map_err(|error| self.store_error(RequestKind::OfLease, &error))?;
                self.renew(&blob, id, Some(version)).await.map_err(|error| match error {
                    // The lease id has already been changed, so a refusal would be wrong. Report an unknown outcome
                    // instead.
                    StoreError::Misconfigured(reason) => StoreError::Unknown(reason),
                    error => error,
                })
            }
            Op::Renew { id } => self.renew(&blob, id, None).await,
            Op::Write { id, version, record } => blob
                .set_metadata()
                .metadata(record::encode(&record))
                .lease_id(azure_id(id)?)
                .if_match(IfMatchCondition::Match(version.0))
                .into_future()
                .await
                .map(|response| Reply::Version(Version(response.etag)))
                .map_err(|error| self.store_error(RequestKind::OfLease, &error)),
            Op::Release { id } => blob
                .blob_lease_client(azure_id(id)?)
                .release()
                .into_future()
                .await
                .map(|_| Reply::Done)
                .map_err(|error| self.store_error(RequestKind::OfLease, &error)),
        }
    }

    async fn break_now(&self, election: &ElectionName) -> Result<(), StoreError> {
        self.break_lease(election, Duration::ZERO).await
    }

    async fn elections(&self) -> Result<Vec<ElectionName>, StoreError> {
        let mut elections = Vec::new();
        let mut pages = self.container.list_blobs().into_stream();
        while let Some(page) = pages.next().await {
            let page = page.map_err(|error| self.store_error(RequestKind::OfContainer, &error))?;
            elections.extend(
                page.blobs
                    .blobs()
                    .filter_map(|blob| blob.name.strip_suffix(LEASE_BLOB))
                    .filter_map(|name| ElectionName::new(name).ok()),
            );
        }
        elections.sort();
        Ok(elections)
    }

    async fn create(&self) -> Result<(), StoreError> {
        match self.container.create().into_future().await {
            Ok(()) => Ok(()),
            Err(error) if code(&error) == Some("ContainerAlreadyExists") => Ok(()),
            Err(error) => Err(self.store_error(RequestKind::OfContainer, &error)),
        }
    }

    fn lease_range(&self) -> (Duration, Duration) {
        LEASE_RANGE
    }

    fn slow_step(&self) -> Option<String> {
        if self.token.as_ref().is_some_and(|token| token.is_awaited()) {
            return Some("the identity endpoint has not sent a token yet".to_owned());
        }
        Names.slow(SLOW_STEP).map(|name| format!("the DNS lookup of {name} has not finished yet"))
    }
}

fn snapshot(blob: Blob) -> Result<Snapshot, StoreError> {
    let record = record::decode(blob.metadata.unwrap_or_default()).map_err(StoreError::Misconfigured)?;
    let properties = blob.properties;
    let infinite = properties.lease_duration.is_some_and(|length| length.to_string() == "infinite");
    let lease = match properties.lease_state.map(|state| state.to_string()).as_deref() {
        Some("leased") if infinite => LeaseState::HeldForever,
        Some("leased") => LeaseState::Held,
        Some("expired") => LeaseState::Expired,
        Some("breaking") => LeaseState::Breaking,
        Some("broken") => LeaseState::Broken,
        Some("available") | None => LeaseState::Free,
        Some(other) => return Err(StoreError::Unknown(format!("the lease is in an unknown state, `{other}`"))),
    };
    Ok(Snapshot::Object { lease, version: version(&properties.etag), record })
}

/// Converts an ETag to a version. Listings omit the ETag's quotation marks.
fn version(etag: &Etag) -> Version {
    let etag = etag.to_string();
    Version(if etag.ends_with('"') { etag } else { format!("\"{etag}\"") })
}

fn azure_id(id: LeaseId) -> Result<AzureLeaseId, StoreError> {
    id.to_string()
        .parse()
        .map_err(|error| StoreError::Misconfigured(format!("the lease id {id} is not a UUID: {error}")))
}

/// Rounds up to whole seconds, the unit that Azure uses. The store may therefore keep the lease for longer than the
/// holder assumes, which is safe.
fn whole_seconds(length: Duration) -> u64 {
    length.as_secs() + u64::from(length.subsec_nanos() > 0)
}

fn is_ours(answered: &AzureLeaseId, id: LeaseId) -> bool {
    answered.to_string() == id.to_string()
}
