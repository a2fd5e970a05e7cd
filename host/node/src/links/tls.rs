//! Mutual authentication of hosts on different machines. Each run of a host has a new key and a self-signed
//! certificate. A node announces its certificate's fingerprint in the store. Hosts check nothing else in a certificate:
//! no name, date or authority.
//!
//! A client expects one specific certificate. A server accepts any certificate. The server's host then checks that the
//! node named in the client's hello has announced that certificate. Each side must prove that it has its certificate's
//! key.

use std::fmt;
use std::sync::Arc;

use baton_store::Digest;
use tokio::net::TcpStream;
use tokio_rustls::rustls::client::Resumption;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{ring, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::NoServerSessionStorage;
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, CommonState, DigitallySignedStruct, DistinguishedName, Error, ServerConfig,
    SignatureScheme,
};
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

/// Upper bound on the size of a certificate, in bytes. A host's certificate is a few hundred bytes long.
const LONGEST_CERTIFICATE: usize = 1024;

#[derive(Clone, PartialEq, Eq)]
pub(super) struct Identity {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

/// The error returned when a host cannot generate a key.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct NoIdentity(#[from] rcgen::Error);

impl fmt::Debug for Identity {
    /// Omits the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Identity").field(&self.fingerprint()).finish()
    }
}

impl Identity {
    /// # Errors
    /// [`NoIdentity`] if no key can be generated, for example because random numbers are unavailable.
    pub(super) fn make() -> Result<Self, NoIdentity> {
        let key = rcgen::KeyPair::generate()?;
        let mut parameters = rcgen::CertificateParams::default();
        parameters.distinguished_name = rcgen::DistinguishedName::new();
        let certificate = parameters.self_signed(&key)?;
        Ok(Self { certificate: certificate.der().to_vec(), key: key.serialize_der() })
    }

    pub(super) fn fingerprint(&self) -> Digest {
        Digest::of(&self.certificate)
    }

    fn certificate(&self) -> Vec<CertificateDer<'static>> {
        vec![CertificateDer::from(self.certificate.clone())]
    }

    fn key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::from(PrivatePkcs8KeyDer::from(self.key.clone()))
    }

    /// Returns an acceptor that accepts any client certificate, provided that the client has the certificate's key.
    ///
    /// # Errors
    /// If the certificate and the key do not match.
    pub(super) fn acceptor(&self) -> Result<TlsAcceptor, Error> {
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(Arc::new(CertificateOwner { of: None }))
            .with_single_cert(self.certificate(), self.key())?;
        config.send_tls13_tickets = 0;
        config.max_early_data_size = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(TlsAcceptor::from(Arc::new(config)))
    }

    /// Returns a connector that accepts only the owner of the certificate with this fingerprint.
    ///
    /// # Errors
    /// If the certificate and the key do not match.
    pub(super) fn connector(&self, to: Digest) -> Result<TlsConnector, Error> {
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(CertificateOwner { of: Some(to) }))
            .with_client_auth_cert(self.certificate(), self.key())?;
        config.resumption = Resumption::disabled();
        config.enable_early_data = false;
        config.enable_sni = false;
        Ok(TlsConnector::from(Arc::new(config)))
    }
}

/// Accepts a TLS connection. Returns the stream and the fingerprint of the client's certificate. During the handshake,
/// the client proves that it has the certificate's key.
///
/// # Errors
/// If the connection or the handshake fails.
pub(super) async fn accept(
    acceptor: &TlsAcceptor,
    stream: TcpStream,
) -> std::io::Result<(server::TlsStream<TcpStream>, Digest)> {
    let stream = acceptor.accept(stream).await?;
    let fingerprint = peer_fingerprint(stream.get_ref().1).ok_or(std::io::ErrorKind::InvalidData)?;
    Ok((stream, fingerprint))
}

pub(super) async fn connect(
    connector: &TlsConnector,
    stream: TcpStream,
) -> std::io::Result<client::TlsStream<TcpStream>> {
    // The API requires a name, which the verifier ignores.
    let name = ServerName::IpAddress(std::net::Ipv4Addr::UNSPECIFIED.into());
    connector.connect(name, stream).await
}

fn peer_fingerprint(connection: &CommonState) -> Option<Digest> {
    connection.peer_certificates()?.first().map(|certificate| Digest::of(certificate))
}

#[derive(Debug)]
struct CertificateOwner {
    /// Fingerprint of the only certificate to accept. `None` to accept any certificate.
    of: Option<Digest>,
}

impl CertificateOwner {
    fn expects(&self, certificate: &[u8], more: &[CertificateDer<'_>]) -> Result<(), Error> {
        if certificate.len() > LONGEST_CERTIFICATE || !more.is_empty() {
            return Err(CertificateError::BadEncoding.into());
        }
        match self.of {
            Some(expected) if expected != Digest::of(certificate) => {
                Err(CertificateError::ApplicationVerificationFailure.into())
            }
            _ => Ok(()),
        }
    }

    /// Verifies that the peer has signed the message with its certificate's key. Without this check, anyone could
    /// present another node's certificate.
    fn has_key(
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = ring::default_provider().signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, &algorithms)
    }

    /// Contains the only scheme that hosts' keys use.
    fn schemes() -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256]
    }
}

impl ServerCertVerifier for CertificateOwner {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        more: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.expects(certificate, more).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(CertificateError::BadSignature.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Self::has_key(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        Self::schemes()
    }
}

impl ClientCertVerifier for CertificateOwner {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        more: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.expects(certificate, more).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(CertificateError::BadSignature.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Self::has_key(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        Self::schemes()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio_rustls::rustls::client::ResolvesClientCert;
    use tokio_rustls::rustls::sign::{CertifiedKey, SingleCertAndKey};
    use tokio_rustls::rustls::version::TLS12;

    use super::*;

    /// Connects a client to a server. Returns the client's fingerprint as seen by the server, and true if the client
    /// accepts the server.
    async fn meet(acceptor: TlsAcceptor, connector: TlsConnector) -> (Option<Digest>, bool) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connects = async {
            let mut stream = connect(&connector, TcpStream::connect(listener.local_addr().unwrap()).await?).await?;
            // A client that the server rejects gets the error only when it reads.
            stream.read_u8().await
        };
        let accepts = async {
            let (mut stream, who) = accept(&acceptor, listener.accept().await?.0).await?;
            stream.write_u8(1).await?;
            stream.flush().await?;
            Ok::<_, std::io::Error>(who)
        };
        let (accepted, connected) = tokio::join!(accepts, connects);
        (accepted.ok(), connected.is_ok())
    }

    #[tokio::test]
    async fn peers_verify_the_certificates_of_each_other() {
        let [called, caller, other] = [(); 3].map(|()| Identity::make().unwrap());
        let connector = caller.connector(called.fingerprint()).unwrap();
        assert_eq!(meet(called.acceptor().unwrap(), connector.clone()).await, (Some(caller.fingerprint()), true));
        assert_eq!(
            meet(other.acceptor().unwrap(), connector).await,
            (None, false),
            "the server has another certificate"
        );
        let mut nobody = (**caller.connector(called.fingerprint()).unwrap().config()).clone();
        nobody.client_auth_cert_resolver = Arc::new(NoCertificate);
        assert_eq!(meet(called.acceptor().unwrap(), Arc::new(nobody).into()).await, (None, false));
    }

    /// The thief presents the certificate of another node, which is public. The thief has only its own key, and not the
    /// other node's key.
    #[tokio::test]
    async fn stolen_certificate_is_refused_without_its_key() {
        let [called, caller, thief] = [(); 3].map(|()| Identity::make().unwrap());
        let stolen = |victim: &Identity| {
            let key = ring::sign::any_supported_type(&thief.key()).unwrap();
            Arc::new(SingleCertAndKey::from(CertifiedKey::new(victim.certificate(), key)))
        };
        let (acceptor, connector) = (called.acceptor().unwrap(), caller.connector(called.fingerprint()).unwrap());
        let mut poses_as_caller = (**connector.config()).clone();
        poses_as_caller.client_auth_cert_resolver = stolen(&caller);
        assert_eq!(meet(acceptor.clone(), Arc::new(poses_as_caller).into()).await, (None, false));
        let mut poses_as_called = (**acceptor.config()).clone();
        poses_as_called.cert_resolver = stolen(&called);
        assert_eq!(meet(Arc::new(poses_as_called).into(), connector).await, (None, false));
    }

    #[tokio::test]
    async fn tls_1_2_is_refused() {
        let called = Identity::make().unwrap();
        let older = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&TLS12])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(CertificateOwner { of: None }))
            .with_client_auth_cert(called.certificate(), called.key())
            .unwrap();
        assert_eq!(meet(called.acceptor().unwrap(), Arc::new(older).into()).await, (None, false));
    }

    #[derive(Debug)]
    struct NoCertificate;

    impl ResolvesClientCert for NoCertificate {
        fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
            None
        }

        fn has_certs(&self) -> bool {
            false
        }
    }
}
