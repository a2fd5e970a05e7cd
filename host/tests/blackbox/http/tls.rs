//! HTTPS, and which server certificates a host trusts.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::guests::asks_over_http;
use crate::http::{fleet, launch, results};
use crate::node::{baton, finish};

/// The path of a file in `tls/`: the certificate of the test CA, or a certificate or key for `localhost`.
fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/blackbox/http/tls").join(name)
}

/// Serves `connections` connections with one request each. The thread returns the lines of the requests.
fn serve(connections: usize) -> (u16, JoinHandle<Vec<String>>) {
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![CertificateDer::from_pem_file(file("cert.pem")).unwrap()],
            PrivateKeyDer::from_pem_file(file("key.pem")).unwrap(),
        )
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let thread = std::thread::spawn(move || {
        let mut received = Vec::new();
        for stream in listener.incoming().take(connections) {
            let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut stream = BufReader::new(StreamOwned::new(connection, stream.unwrap()));
            let mut lines = Vec::new();
            let mut line = String::new();
            while matches!(stream.read_line(&mut line), Ok(3..)) {
                lines.push(std::mem::take(&mut line).trim_end().to_owned());
            }
            if line == "\r\n" {
                received.append(&mut lines);
                let _ = stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecure");
            }
        }
        received
    });
    (port, thread)
}

#[test]
fn server_needs_a_trusted_certificate() {
    let fleet = fleet();
    let (port, server) = serve(3);
    let [name, address] = ["localhost", "127.0.0.1"].map(|host| format!("https://{host}:{port}"));
    let node = launch(&fleet, "alpha", "get", &name).flag("--allow-http", &name).start();
    let lines = results(&fleet, &node);
    assert!(lines[0].contains("the TLS connection") && lines[0].contains("UnknownIssuer"), "{lines:?}");
    drop(node);

    let node = launch(&fleet, "beta", "get", &format!("{address} {name}/x"))
        .flag("--allow-http", format!("{name} {address}"))
        .flag("--http-ca", file("ca.pem"))
        .start();
    let lines = results(&fleet, &node);
    assert!(lines[0].contains("the TLS connection") && lines[0].contains("not valid for name"), "{lines:?}");
    assert_eq!(lines[1], format!("{name}/x: 200 secure"));
    let received = server.join().unwrap();
    assert_eq!(received[0], "GET /x HTTP/1.1", "only the secure request arrives: {received:?}");
    assert!(received.contains(&"baton-node: beta".to_owned()), "{received:?}");
}

#[test]
fn invalid_ca_file_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let broken = home.path().join("broken.pem");
    std::fs::write(&broken, "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n").unwrap();
    for (file, why) in [
        (Path::new("missing.pem"), "No such file"),
        (&file("key.pem"), "contains no certificate"),
        (&broken, ""),
        // Reading this device would never end.
        (Path::new("/dev/zero"), "not a regular file"),
    ] {
        let mut command = baton(home.path());
        command.arg("run").arg(asks_over_http()).arg("--http-ca").arg(file);
        let finished = finish(command);
        assert_eq!(finished.code, Some(2), "{finished:?}");
        let names = finished.stderr.contains("--http-ca") && finished.stderr.contains(&*file.to_string_lossy());
        assert!(names && finished.stderr.contains(why), "{finished:?}");
    }
}
