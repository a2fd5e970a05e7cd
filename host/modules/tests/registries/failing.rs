//! Registries that misbehave.

use super::fake::{answer, fake, flooding, noted};
use super::*;

const DIGEST: &str = "Docker-Content-Digest";

#[tokio::test]
async fn registry_errors_are_explained() {
    let (body, sha512) = ("<html>hello</html>", format!("{DIGEST}: sha512:{}", "0".repeat(128)));
    for (answer, reachable, why) in [
        (answer("403 Forbidden", "", "no"), true, "denies access to acme/billing without credentials"),
        (answer("429 Too Many Requests", "Retry-After: 9", ""), false, "docker login"),
        (answer("500 Internal Server Error", "", "a b\n  c"), false, "status 500 (\"a b c\")"),
        (answer("503 Service Unavailable", "", ""), false, "status 503 for"),
        (answer("418 Teapot", "", &"é".repeat(5000)), true, "é…\") for"),
        (answer("200 OK", &sha512, ""), true, "not a SHA-256"),
        (answer("200 OK", &format!("{DIGEST}: nonsense"), ""), true, "reports `nonsense` as the digest"),
        (answer("200 OK", "", body), true, "its manifest is invalid"),
        (answer("307 Temporary Redirect", "Location: /v2/", ""), false, "too many redirects"),
        ("SSH-2.0-OpenSSH_9.2\r\n".to_owned(), false, "cannot reach the registry"),
        (String::new(), false, "cannot reach the registry"),
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
async fn manifest_is_refused_when_its_digest_is_not_the_tags() {
    let named = Digest::of(b"another");
    let address = fake(move |request| {
        let header = format!("{DIGEST}: {named}");
        let is_head = request.starts_with("HEAD");
        Some(answer("200 OK", if is_head { &header } else { "" }, &described(b"first")))
    })
    .await;
    let why = unusable(&mut at(&address)).await;
    assert!(why.contains("is damaged") && why.contains(&named.to_string()), "{why}");
}

#[tokio::test]
async fn silent_registry_is_given_up_after_10_seconds() {
    let address = fake(|_| None).await;
    let why = unreachable(&mut at(&address)).await;
    assert!(why.contains(&address) && why.contains("did not respond within 10s"), "{why}");
}

#[tokio::test]
async fn module_is_reported_when_it_takes_long_to_pull() {
    let manifest = described(b"first");
    let address = fake(move |head| match head {
        head if head.contains("/blobs/") => None,
        head if head.contains("/manifests/") => Some(answer("200 OK", "", &manifest)),
        _ => Some(answer("200 OK", "", "")),
    })
    .await;
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let mut source = at(&address).telling(move |module| tell.send(module).unwrap());
    tokio::select! {
        came = source.next() => panic!("{came:?}"),
        module = told.recv() => assert_eq!(module, Some(Digest::of(b"first"))),
    }
}

#[tokio::test]
async fn pull_is_retried_when_the_module_is_cut_off() {
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
async fn endless_response_is_not_read_to_the_end() {
    // Upper bound on the bytes that the server has sent and the client has not read yet.
    const UNDER_WAY: u64 = 32 << 20;
    let filler = "x".repeat(64 << 10);
    let head = |head: &str| format!("HTTP/1.1 {head}\r\n\r\n");
    let chunked = (head("200 OK\r\nTransfer-Encoding: chunked"), format!("{:x}\r\n{filler}\r\n", filler.len()));
    let short = head("200 OK\r\nContent-Length: 999999999999");
    for (what, beginning, filler, most, why) in [
        ("/manifests/", chunked.0, &chunked.1, 4 << 20, "its manifest has more than 4194304 bytes"),
        ("/manifests/", short, &filler, 4 << 20, "its manifest has more than 4194304 bytes"),
        ("/manifests/", head("200 OK"), &filler, 4 << 20, "its manifest has more than 4194304 bytes"),
        ("/manifests/", head("500 Oh"), &filler, 64 << 10, "failed with status 500 (\"xxx"),
        ("/manifests/", head("418 Teapot"), &filler, 64 << 10, "is it a registry?"),
        (
            "/manifests/",
            "HTTP/1.1 200 OK\r\n".to_owned(),
            &"X: y\r\n".repeat(999),
            1 << 20,
            "cannot reach the registry",
        ),
        ("/blobs/", head("200 OK"), &filler, 5, "is damaged"),
        ("/blobs/", head("403 Forbidden"), &filler, 64 << 10, "denies access"),
    ] {
        let (address, flood) = flooding(what, beginning, filler.clone(), open("first")).await;
        let error = told(&mut at(&address)).await.unwrap_err().to_string();
        assert!(error.contains(why) && error.contains(&address), "{why}: {error}");
        let over = async {
            loop {
                match flood.over() {
                    Some(sent) => return sent,
                    None => tokio::time::sleep(Duration::from_millis(10)).await,
                }
            }
        };
        let sent = Patience::of_future(over).await.expect("the client hangs up");
        assert!(sent < most + UNDER_WAY, "{sent} bytes of {what}, of which {most} are wanted");
    }
}

#[tokio::test]
async fn redirect_to_another_server_is_allowed_for_modules_only() {
    let (elsewhere, asked) = noted(open("first")).await;
    for (what, place, good) in [
        ("/blobs/", format!("http://{elsewhere}/blobs/first"), true),
        ("/manifests/", format!("http://{elsewhere}/manifests/1"), false),
        // The next two addresses also lead to this machine, but not in a form for which plain HTTP is allowed.
        ("/blobs/", format!("http://{}/blobs/first", elsewhere.replace("127.0.0.1", "0.0.0.0")), false),
        ("/blobs/", format!("http://{}/blobs/first", elsewhere.replace("127.0.0.1", "[::ffff:127.0.0.1]")), false),
        ("/blobs/", format!("http://ali:sesame@{elsewhere}/blobs/first"), false),
        ("/blobs/", "file:///etc/passwd".to_owned(), false),
        ("/blobs/", format!("https://{}/", "a".repeat(100_000)), false),
        ("/blobs/", "http://[".to_owned(), false),
        ("/manifests/", "/manifests/moved".to_owned(), true),
    ] {
        let as_ever = open("first");
        let redirect = answer("307 Temporary Redirect", &format!("Location: {place}"), "");
        let address = fake(move |request| {
            let is_there = request.contains("moved");
            if request.contains(what) && !is_there { Some(redirect.clone()) } else { as_ever(request) }
        });
        let before = asked.with("").len();
        let offered = told(&mut at(&address.await)).await;
        assert_eq!(offered.is_ok(), good, "{what} at {place:.99}: {offered:?}");
        if let Err(error) = offered {
            let text = error.to_string();
            assert!(text.chars().count() < 600 && !text.contains("sesame") && !text.contains("passwd"), "{text}");
            assert_eq!(asked.with("").len(), before, "nobody is asked there");
        }
    }
}

#[tokio::test]
async fn endless_redirects_are_given_up() {
    let as_ever = open("first");
    let (address, asked) = noted(move |request| {
        let again = || answer("302 Found", "Location: again", "");
        if request.contains("/blobs/") { Some(again()) } else { as_ever(request) }
    })
    .await;
    let why = unreachable(&mut at(&address)).await;
    assert!(why.contains("too many redirects"), "{why}");
    assert!(asked.with("/blobs/").len() <= 6, "{:?}", asked.with("/blobs/"));
}

#[tokio::test]
async fn error_does_not_reveal_the_target_of_a_redirect() {
    let manifest = described(b"first");
    let address = fake(move |head| {
        // Nothing listens on this port.
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

fn open(module: &'static str) -> impl Fn(&str) -> Option<String> + Send + Sync + 'static {
    move |request| {
        Some(match request {
            request if request.contains("/blobs/") => answer("200 OK", "", module),
            request if request.contains("/manifests/") => answer("200 OK", "", &described(module.as_bytes())),
            _ => answer("200 OK", "", ""),
        })
    }
}

fn at(address: &str) -> OciSource {
    OciSource::new(format!("{address}/{REPOSITORY}:1").parse().unwrap(), RegistryCredentials::default())
}
