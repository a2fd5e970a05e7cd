//! Tests of registries on other machines, over TLS. All requests go through a proxy in the test, which plays the other
//! machines.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::fake::{Requests, answer, listen, noted, serve};
use baton_test_support::repository;

use super::helpers::process;
use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn each_server_receives_only_its_own_credentials() {
    let internet = Internet::start("https://auth.example/token", "https://cdn.example/first").await;
    let told = internet.pull(&[]);
    assert!(told.contains("told: Ok(Offer"), "{told}");
    let asked = &internet.asked;
    for (host, shown) in [("registry.example", "Bearer t0ken"), ("auth.example", "Basic "), ("cdn.example", "nothing")]
    {
        let requests = asked.with(&format!("{host} over TLS"));
        let shows = |request: &&String| request.contains("authorization");
        assert!(!requests.is_empty(), "{host}: {:?}", asked.with(""));
        let all = requests.iter().filter(shows).all(|request| request.contains(&format!("authorization: {shown}")));
        assert!(all, "{requests:?}");
    }
    assert_eq!(asked.with("Basic ").len(), 1, "{:?}", asked.with(""));
    assert_eq!(asked.with("in the clear"), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn redirect_from_tls_to_http_or_this_machine_is_refused() {
    let (here, asked_here) = noted(|_| Some(answer("200 OK", "", "first"))).await;
    let (auth, cdn) = ("https://auth.example/token", "https://cdn.example/first");
    for (realm, blob) in [
        ("http://auth.example/token", cdn),
        ("https://localhost/token", cdn),
        (&format!("http://{here}/token"), cdn),
        (&format!("https://{here}/token"), cdn),
        (auth, "http://cdn.example/first"),
        (auth, "https://localhost/first"),
        ("https://169.254.169.254/token", cdn),
        (auth, "https://[fd00:ec2::254]/first"),
        (auth, &format!("http://{here}/first")),
    ] {
        let internet = Internet::start(realm, blob).await;
        let told = internet.pull(&[]);
        assert!(told.contains("told: Err(Unusable(") && told.contains("must not redirect"), "{realm} {blob}: {told}");
        for elsewhere in ["in the clear", "localhost", "127.0.0.1", "169.254", "ec2"] {
            assert_eq!(internet.asked.with(elsewhere), Vec::<String>::new(), "{realm} {blob}");
        }
        let token = internet.asked.with("Basic ");
        assert_eq!(token.is_empty(), realm != auth, "{token:?}");
    }
    assert_eq!(asked_here.with(""), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn registry_is_verified_by_the_systems_authorities() {
    let internet = Internet::start("https://auth.example/token", "https://cdn.example/first").await;
    let other = repository().join("host/tests/blackbox/http/tls/ca.pem");
    let told = internet.pull(&[("SSL_CERT_FILE", other.as_os_str())]);
    assert!(told.contains("told: Err(Unreachable(") && told.contains("name its file in SSL_CERT_FILE"), "{told}");
    let told = internet.pull(&[("SSL_CERT_FILE", OsStr::new("/nowhere/ca.pem"))]);
    assert!(told.contains("cannot set up TLS") && told.contains("ca-certificates"), "{told}");
    assert_eq!(internet.asked.with("over TLS"), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn local_registry_needs_neither_proxy_nor_certificates() {
    let registry = Registry::start();
    Publisher::of(&registry).push("1", b"first").await;
    let folder = tempfile::tempdir().unwrap();
    // Nothing listens on this port.
    let nowhere = OsStr::new("http://127.0.0.1:1");
    let variables = [("HTTP_PROXY", nowhere), ("http_proxy", nowhere), ("SSL_CERT_FILE", OsStr::new("/nowhere"))];
    let told = process(folder.path(), &format!("{}/{REPOSITORY}:1", registry.address()), variables);
    assert!(told.contains("told: Ok(Offer"), "{told}");
}

/// A proxy that plays several hosts under `*.example`: a registry, its token server and its blob server.
struct Internet {
    proxy: String,
    /// The requests that the proxy received. Each entry begins with the host's name, and shows whether the request used
    /// TLS.
    asked: Requests,
}

impl Internet {
    /// `realm` is the token server that the registry names. `blob` is the URL to which it redirects requests for the
    /// blob.
    async fn start(realm: &str, blob: &str) -> Self {
        let asked = Requests::default();
        let challenge = format!("WWW-Authenticate: Bearer realm=\"{realm}\",service=\"us\"");
        let (moved, manifest) = (format!("Location: {blob}"), described(b"first"));
        let notes = asked.clone();
        let say = move |host: &str, request: &str| {
            notes.add(&format!("{host} over TLS: {request}"));
            Some(match (host, request) {
                ("registry.example", request) if !request.contains("authorization: Bearer t0ken") => {
                    answer("401 Unauthorized", &challenge, "")
                }
                ("registry.example", request) if request.contains("/blobs/") => answer("302 Found", &moved, ""),
                ("registry.example", _) => answer("200 OK", "", &manifest),
                ("auth.example", _) => answer("200 OK", "", r#"{"token": "t0ken"}"#),
                _ => answer("200 OK", "", "first"),
            })
        };
        let (acceptor, say, notes) = (acceptor(), Arc::new(say), asked.clone());
        let proxy = listen(move |stream| {
            let (acceptor, say, notes) = (acceptor.clone(), Arc::clone(&say), notes.clone());
            async move { connect(stream, &acceptor, &*say, &notes).await }
        });
        Self { proxy: proxy.await, asked }
    }

    /// Pulls a module in a separate process, with these environment variables in addition to the usual ones. Returns
    /// the process's output.
    fn pull(&self, variables: &[(&'static str, &OsStr)]) -> String {
        let folder = tempfile::tempdir().unwrap();
        let login = json!({"auths": {"registry.example": {"username": USER.0, "password": USER.1}}});
        std::fs::write(folder.path().join("config.json"), login.to_string()).unwrap();
        let (proxy, ca) = (format!("http://{}", self.proxy), file("ca.pem"));
        let usual = [
            ("HTTPS_PROXY", OsStr::new(&proxy)),
            ("HTTP_PROXY", OsStr::new(&proxy)),
            ("SSL_CERT_FILE", ca.as_os_str()),
        ];
        let variables = usual.into_iter().chain(variables.iter().copied());
        process(folder.path(), &format!("registry.example/{REPOSITORY}:1"), variables)
    }
}

/// Accepts one connection as the proxy, and then answers one request as the host to which the client connects through
/// the proxy.
async fn connect(
    mut stream: TcpStream,
    acceptor: &TlsAcceptor,
    say: &(impl Fn(&str, &str) -> Option<String> + Sync),
    notes: &Requests,
) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let Ok(byte) = stream.read_u8().await else { return };
        head.push(byte);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let Some(host) = head.strip_prefix("CONNECT ").and_then(|rest| rest.split_once(':')).map(|(host, _)| host) else {
        return notes.add(&format!("in the clear: {head}"));
    };
    if stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.is_ok()
        && let Ok(stream) = acceptor.accept(stream).await
    {
        serve(stream, &|request: &str| say(host, request)).await;
    }
}

/// Returns the path of a file in the folder `tls`. The folder contains the test CA's certificate, a certificate signed
/// by this CA, and the key of the signed certificate.
fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/registries/tls").join(name)
}

fn acceptor() -> TlsAcceptor {
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![CertificateDer::from_pem_file(file("cert.pem")).unwrap()],
            PrivateKeyDer::from_pem_file(file("key.pem")).unwrap(),
        )
        .unwrap();
    TlsAcceptor::from(Arc::new(config))
}
