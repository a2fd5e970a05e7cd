//! Registries that answer as no registry should.

use std::sync::Arc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;

const DIGEST: &str = "Docker-Content-Digest";

#[tokio::test]
async fn whatever_a_registry_answers_is_said_in_words() {
    let (body, sha512) = ("<html>hello</html>", format!("{DIGEST}: sha512:{}", "0".repeat(128)));
    for (answer, reachable, why) in [
        (answer("403 Forbidden", "", "no"), true, "does not give acme/billing to one without credentials"),
        (answer("429 Too Many Requests", "Retry-After: 9", ""), false, "docker login"),
        (answer("500 Internal Server Error", "", "a b\n  c"), false, "status 500 (\"a b c\")"),
        (answer("503 Service Unavailable", "", ""), false, "status 503 when asked for"),
        (answer("418 Teapot", "", &"é".repeat(5000)), true, "é…\") when asked for"),
        (answer("200 OK", &sha512, ""), true, "no SHA-256"),
        (answer("200 OK", &format!("{DIGEST}: nonsense"), ""), true, "`nonsense`, which is no SHA-256"),
        (answer("200 OK", "", body), true, "its manifest cannot be understood"),
        (answer("307 Temporary Redirect", "Location: /v2/", ""), false, "too many redirects"),
        ("SSH-2.0-OpenSSH_9.2\r\n".to_owned(), false, "cannot be asked for"),
        (String::new(), false, "cannot be asked for"),
    ] {
        let address = fake(move |_| Some(answer.clone())).await;
        let error = told(&mut at(&address)).await.unwrap_err();
        let text = error.to_string();
        assert_eq!(matches!(error, SourceError::Unusable(_)), reachable, "{error:?}");
        assert!(text.contains(why) && text.contains(&address), "{why}: {text}");
        assert!(text.chars().count() < 600 && !text.contains('\n'), "{text}");
    }
}

#[tokio::test]
async fn a_registry_that_says_nothing_is_left() {
    let address = fake(|_| None).await;
    let why = unreachable(&mut at(&address)).await;
    assert!(why.contains(&address) && why.contains("does not answer within 15s"), "{why}");
}

#[tokio::test]
async fn a_module_that_is_cut_off_is_asked_for_again() {
    let manifest = described(b"first");
    let tries = std::sync::atomic::AtomicU32::new(0);
    let address = fake(move |head| {
        let cut = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfi";
        let is_first = head.contains("/blobs/") && tries.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0;
        Some(match head {
            _ if is_first => cut.to_owned(),
            head if head.contains("/blobs/") => answer("200 OK", "", "first"),
            head if head.contains("/manifests/") => answer("200 OK", "", &manifest),
            _ => answer("200 OK", "", ""),
        })
    })
    .await;
    let mut source = at(&address);
    unreachable(&mut source).await;
    assert_eq!(offered(&mut source).await, unsigned(b"first"));
}

#[tokio::test]
async fn where_a_module_is_redirected_to_is_not_told() {
    let manifest = described(b"first");
    let address = fake(move |head| {
        // Nobody listens there.
        let elsewhere = "Location: http://127.0.0.1:1/blob?sig=c2VjcmV0";
        Some(match head {
            head if head.contains("/blobs/") => answer("307 Temporary Redirect", elsewhere, ""),
            head if head.contains("/manifests/") => answer("200 OK", "", &manifest),
            _ => answer("200 OK", "", ""),
        })
    })
    .await;
    let why = unreachable(&mut at(&address)).await;
    assert!(why.contains("refused") && !why.contains("c2VjcmV0"), "{why}");
}

#[tokio::test]
async fn a_token_is_fetched_with_the_credentials_and_nothing_else_is() {
    for (token, good) in [("t0ken", true), ("bad\\nt0ken", false)] {
        let manifest = described(b"first");
        let address = fake(move |head| {
            let host = head.split("\r\n").find_map(|line| line.strip_prefix("host: ")).unwrap_or_default();
            let challenge = format!("WWW-Authenticate: Bearer realm=\"http://{host}/token\",service=\"us\"");
            let basic = format!("authorization: Basic {}", BASE64_STANDARD.encode("ali:open sesame"));
            Some(match head {
                head if head.starts_with("GET /token?scope=repository%3Aacme%2Fbilling%3Apull") => match head {
                    head if head.contains(&basic) => answer("200 OK", "", &format!("{{\"token\": \"{token}\"}}")),
                    _ => answer("401 Unauthorized", "", ""),
                },
                head if !head.contains("authorization: Bearer t0ken") => answer("401 Unauthorized", &challenge, ""),
                head if head.contains("/blobs/") => answer("200 OK", "", "first"),
                _ => answer("200 OK", "", &manifest),
            })
        })
        .await;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("auth.json");
        let login = json!({"auths": {&address: {"username": USER.0, "password": USER.1}}});
        std::fs::write(&file, login.to_string()).unwrap();
        let missing = folder.path().join("config.json");
        let reference = format!("{address}/{REPOSITORY}:1").parse().unwrap();
        let mut source = OciSource::new(reference, RegistryCredentials::of_files([missing, file]));
        if good {
            assert_eq!(offered(&mut source).await, unsigned(b"first"));
        } else {
            let why = unusable(&mut source).await;
            assert!(why.contains("cannot be understood") && !why.contains("t0ken"), "{why}");
        }
    }
}

/// The manifest of a module.
fn described(module: &[u8]) -> String {
    let layer = json!({"mediaType": "application/wasm", "digest": Digest::of(module), "size": module.len()});
    manifest(&[layer]).to_string()
}

fn at(address: &str) -> OciSource {
    OciSource::new(format!("{address}/{REPOSITORY}:1").parse().unwrap(), RegistryCredentials::default())
}

fn answer(status: &str, header: &str, body: &str) -> String {
    let header = if header.is_empty() { String::new() } else { format!("{header}\r\n") };
    format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n{header}\r\n{body}", body.len())
}

/// A server that answers each request's head so, or not at all, until the test's runtime ends. Returns its address.
async fn fake(answer: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let answer = Arc::new(answer);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let answer = Arc::clone(&answer);
            tokio::spawn(async move { serve(stream, &*answer).await });
        }
    });
    address
}

async fn serve(mut stream: TcpStream, answer: &(impl Fn(&str) -> Option<String> + Sync)) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return,
        }
    }
    match answer(&String::from_utf8_lossy(&head)) {
        // Whoever has enough of it hangs up, which is no fault of the test's.
        Some(answer) => drop(stream.write_all(answer.as_bytes()).await),
        None => std::future::pending().await,
    }
}
