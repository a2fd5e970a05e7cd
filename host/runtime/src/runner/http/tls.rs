//! TLS, and the CA certificates that are used to verify servers.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::{FileError, read_file};

/// Maximum size of a certificate file (bytes). All certificates of a typical system together take less than 1 MiB.
const LARGEST_PEM: u64 = 16 << 20;

/// An error in the CA certificates or in the setup of TLS.
#[derive(Debug, thiserror::Error)]
pub enum CaError {
    /// The file cannot be read, or contains no valid certificates.
    #[error("cannot read certificates from {path}: {why}; `--http-ca` needs PEM certificates")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The TLS library cannot be set up.
    #[error("cannot set up TLS: {0}")]
    Tls(#[from] tokio_rustls::rustls::Error),
}

/// Reads the certificates in a PEM file, as DER.
///
/// # Errors
/// [`CaError::Unreadable`] if the file cannot be read, or contains no certificate or an invalid one.
pub(super) fn certificates(path: &Path) -> Result<Vec<Vec<u8>>, CaError> {
    let unreadable = |why: String| CaError::Unreadable { path: path.to_owned(), why };
    let pem = read_file(path, LARGEST_PEM).map_err(|error| match error {
        FileError::Unreadable(error) => unreadable(error.to_string()),
        other => unreadable(format!("the file {other}")),
    })?;
    let mut found = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| unreadable(error.to_string()))?;
        RootCertStore::empty().add(certificate.clone()).map_err(|error| unreadable(error.to_string()))?;
        found.push(certificate.to_vec());
    }
    if found.is_empty() {
        return Err(unreadable("the file contains no certificate".to_owned()));
    }
    Ok(found)
}

/// Creates a TLS connector that trusts Mozilla's roots and these certificates.
pub(super) fn connector(certificates: &[Vec<u8>]) -> Result<TlsConnector, CaError> {
    let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    for certificate in certificates {
        roots.add(CertificateDer::from(certificate.clone()))?;
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}
