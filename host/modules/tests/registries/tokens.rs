//! Token servers: the credentials that they receive, and the lifetime of their tokens.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tempfile::TempDir;

use super::fake::{self, Requests, answer, noted};
use super::*;

#[tokio::test]
async fn credentials_are_sent_only_to_the_token_server() {
    let bearer = |host: &str| format!("Bearer realm=\"http://{host}/token\",service=\"us\",scope=\"repository:*:*\"");
    for challenges in [
        vec![bearer("HOST")],
        vec!["Negotiate".to_owned(), format!("Basic realm=\"a, b\", {}", bearer("HOST")), "Digest c=d".to_owned()],
        vec!["Basic realm=\"cave\"".to_owned(), bearer("HOST")],
    ] {
        let (address, asked) = closed(&challenges, |_| answer("200 OK", "", r#"{"token": "t0ken"}"#)).await;
        let (mut source, _login) = as_ali(&address);
        assert_eq!(offered(&mut source).await, unsigned(b"first"));
        let basic = format!("authorization: Basic {}", BASE64_STANDARD.encode(format!("{}:{}", USER.0, USER.1)));
        let tokens = asked.with("/token");
        assert_eq!((tokens.len(), asked.with("Basic ").len()), (1, 1), "{challenges:?}: {:?}", asked.with(""));
        let wanted = "GET /token?scope=repository%3Aacme%2Fbilling%3Apull&service=us ";
        assert!(tokens[0].starts_with(wanted) && tokens[0].contains(&basic), "{tokens:?}");
    }
}

#[tokio::test]
async fn token_is_requested_anonymously_without_credentials() {
    let (address, asked) = closed(&hub(), |_| answer("200 OK", "", r#"{"access_token": "t0ken"}"#)).await;
    let mut source = as_nobody(&address);
    assert_eq!(offered(&mut source).await, unsigned(b"first"));
    assert!(
        asked.with("/token").iter().all(|request| !request.contains("authorization")),
        "{:?}",
        asked.with("/token")
    );
}

#[tokio::test]
async fn identity_token_is_exchanged_as_docker_does() {
    let (address, asked) = closed(&hub(), |_| answer("200 OK", "", r#"{"access_token": "t0ken"}"#)).await;
    let user = BASE64_STANDARD.encode("00000000-0000-0000-0000-000000000000:");
    let (mut source, _login) = with(&address, &json!({"auth": user, "identitytoken": "ident:ty"}));
    assert_eq!(offered(&mut source).await, unsigned(b"first"));
    let tokens = asked.with("/token");
    assert!(tokens.len() == 1 && tokens[0].starts_with("POST /token HTTP"), "{tokens:?}");
    for part in [
        "grant_type=refresh_token",
        "refresh_token=ident%3Aty",
        "scope=repository%3Aacme%2Fbilling%3Apull",
        "service=us",
    ] {
        assert!(tokens[0].contains(part), "{tokens:?}");
    }
    assert!(!tokens[0].contains("authorization") && asked.with("ident").len() == 1, "{:?}", asked.with(""));

    let (address, asked) = closed(&["Basic realm=\"cave\"".to_owned()], |_| String::new()).await;
    let (mut source, _login) = with(&address, &json!({"auth": user, "identitytoken": "ident:ty"}));
    let why = unusable(&mut source).await;
    assert!(why.contains("docker login"), "{why}");
    assert_eq!(asked.with("authorization"), Vec::<String>::new(), "it is no password");
}

#[tokio::test]
async fn token_is_reused_until_it_expires() {
    let fetched = async |expires| {
        let (count, answers) = numbered(expires);
        let (address, asked) = closed(&hub(), answers).await;
        let mut source = as_nobody(&address);
        assert_eq!(offered(&mut source).await, unsigned(b"first"));
        looked(&mut source, || asked.with("HEAD ").len() >= 3).await;
        count.load(Ordering::Relaxed)
    };
    // A source waits at least 5 s between polls, so a token with a lifetime of 1 s has expired by the next poll. The
    // default lifetime is one minute.
    let (default, hour, second) =
        tokio::join!(fetched(""), fetched(r#","expires_in": 3600"#), fetched(r#","expires_in": 1"#));
    assert_eq!((default, hour), (1, 1));
    assert!(second >= 3, "{second} tokens");
}

#[tokio::test]
async fn token_is_fetched_again_when_refused() {
    let (count, answers) = numbered("");
    let good = Arc::clone(&count);
    let manifest = described(b"first");
    let uses = AtomicU32::new(0);
    let (address, asked) = noted(move |request| {
        let challenge = format!("WWW-Authenticate: Bearer realm=\"http://{}/token\"", host(request));
        let token = format!("authorization: Bearer t0ken{}\r\n", good.load(Ordering::Relaxed));
        Some(match request {
            request if request.contains("/token") => answers(request),
            // Each token works for only two requests, whatever its lifetime.
            request if !request.contains(&token) || uses.fetch_add(1, Ordering::Relaxed) % 3 == 2 => {
                answer("401 Unauthorized", &challenge, "")
            }
            request if request.contains("/blobs/") => answer("200 OK", "", "first"),
            _ => answer("200 OK", "", &manifest),
        })
    })
    .await;
    let mut source = as_nobody(&address);
    assert_eq!(offered(&mut source).await, unsigned(b"first"));
    looked(&mut source, || asked.with("HEAD ").len() >= 3).await;
    assert!(count.load(Ordering::Relaxed) >= 2, "{:?}", asked.with("/token"));
}

#[tokio::test]
async fn token_server_errors_are_explained() {
    let (elsewhere, asked) = noted(|_| Some(answer("200 OK", "", r#"{"token": "t0ken"}"#))).await;
    let moved = format!("Location: http://{elsewhere}/");
    for (answer, usable, why) in [
        (answer("200 OK", "", "{\"token\": \"bad\\nt0ken\"}"), true, "sent no token"),
        (answer("200 OK", "", "{\"token\": \"\", \"access_token\": \"\"}"), true, "sent no token"),
        (answer("200 OK", "", "{\"token\": 5}"), true, "sent no token"),
        (answer("200 OK", "", "<html>t0ken</html>"), true, "sent no token"),
        (answer("200 OK", "", &format!("{{\"token\": \"{}\"}}", "t".repeat(70_000))), true, "more than 65536 bytes"),
        (answer("307 Temporary Redirect", &moved, ""), true, "token server sent a redirect"),
        (answer("400 Bad Request", "", ""), true, "denies access to acme/billing"),
        (answer("401 Unauthorized", "", ""), true, "docker login"),
        (answer("429 Too Many Requests", "", ""), false, "often raises the limit"),
        (answer("503 Service Unavailable", "", "later"), false, "status 503 (\"later\")"),
        (String::new(), false, "cannot reach the registry"),
    ] {
        let (address, _) = closed(&hub(), move |_| answer.clone()).await;
        let (mut source, _login) = as_ali(&address);
        let error = told(&mut source).await.unwrap_err();
        let text = error.to_string();
        assert_eq!(matches!(error, SourceError::Unusable(_)), usable, "{error:?}");
        assert!(text.contains(why) && text.contains(&address) && !text.contains("t0ken"), "{why}: {text}");
        assert!(text.chars().count() < 600 && !text.contains('\n'), "{text}");
    }
    assert_eq!(asked.with(""), Vec::<String>::new());
}

#[tokio::test]
async fn endless_token_is_not_read_to_the_end() {
    let head = "HTTP/1.1 200 OK\r\n\r\n{\"token\": \"".to_owned();
    let challenge = |request: &str| {
        let challenge = format!("WWW-Authenticate: Bearer realm=\"http://{}/token\"", host(request));
        Some(answer("401 Unauthorized", &challenge, ""))
    };
    let (address, flood) = fake::flooding("/token", head, "t".repeat(64 << 10), challenge).await;
    let why = unusable(&mut as_nobody(&address)).await;
    assert!(why.contains("its token has more than 65536 bytes"), "{why}");
    let over = async {
        while flood.over().is_none() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    Patience::of_future(over).await.expect("the client hangs up");
    assert!(flood.over().is_some_and(|sent| sent < 32 << 20), "{:?}", flood.over());
}

#[tokio::test]
async fn token_is_not_requested_from_a_forbidden_address() {
    let (elsewhere, asked) = noted(|_| Some(answer("200 OK", "", r#"{"token": "t0ken"}"#))).await;
    for realm in [
        // The next two addresses also lead to this machine, but not in a form for which plain HTTP is allowed.
        format!("http://{}/token", elsewhere.replace("127.0.0.1", "0.0.0.0")),
        format!("http://{}/token", elsewhere.replace("127.0.0.1", "[::ffff:127.0.0.1]")),
        format!("http://ali:sesame@{elsewhere}/token"),
        "http://auth.example/token".to_owned(),
        "ftp://auth.example/token".to_owned(),
        "/token".to_owned(),
        String::new(),
        "http://[".to_owned(),
        format!("http://{}/token", "a".repeat(100_000)),
        format!("http://{elsewhere}/{}", "a".repeat(100_000)),
    ] {
        let challenges = [format!("Bearer realm=\"{realm}\""), "Basic realm=\"cave\"".to_owned()];
        let (address, of_registry) = closed(&challenges, |_| String::new()).await;
        let (mut source, _login) = as_ali(&address);
        let text = told(&mut source).await.unwrap_err().to_string();
        assert!(text.chars().count() < 600 && !text.contains("sesame"), "{text}");
        assert_eq!(asked.with(""), Vec::<String>::new(), "{realm:.99}");
        assert_eq!(of_registry.with("authorization"), Vec::<String>::new(), "{realm:.99}");
    }
}

#[tokio::test]
async fn credentials_are_not_sent_to_a_redirects_target() {
    let (elsewhere, asked) = noted(|_| Some(answer("200 OK", "", "first"))).await;
    let manifest = described(b"first");
    for challenge in ["Basic realm=\"cave\"", "Bearer realm=\"http://HOST/token\""] {
        let (manifest, moved) = (manifest.clone(), format!("Location: http://{elsewhere}/first"));
        let (address, of_registry) = noted(move |request| {
            let challenge = format!("WWW-Authenticate: {}", challenge.replace("HOST", &host(request)));
            Some(match request {
                request if request.contains("/token") => answer("200 OK", "", r#"{"token": "t0ken"}"#),
                request if !request.contains("authorization") => answer("401 Unauthorized", &challenge, ""),
                request if request.contains("/blobs/") => answer("307 Temporary Redirect", &moved, ""),
                _ => answer("200 OK", "", &manifest),
            })
        })
        .await;
        let (mut source, _login) = as_ali(&address);
        assert_eq!(offered(&mut source).await, unsigned(b"first"));
        assert!(!of_registry.with("authorization").is_empty(), "{challenge}");
    }
    assert_eq!((asked.with("GET /first").len(), asked.with("authorization").len()), (2, 0), "{:?}", asked.with(""));
}

/// Starts a registry that is also its own token server. Returns the registry's address, and the list of all requests.
/// In the challenges, `HOST` stands for the registry's address.
async fn closed(challenges: &[String], token: impl Fn(&str) -> String + Send + Sync + 'static) -> (String, Requests) {
    let (challenges, manifest) = (challenges.to_vec(), described(b"first"));
    noted(move |request| {
        let header = |challenge: &String| format!("WWW-Authenticate: {}", challenge.replace("HOST", &host(request)));
        let headers: Vec<String> = challenges.iter().map(header).collect();
        Some(match request {
            request if request.contains(" /token") => token(request),
            request if !request.contains("authorization: Bearer t0ken") => {
                answer("401 Unauthorized", &headers.join("\r\n"), "")
            }
            request if request.contains("/blobs/") => answer("200 OK", "", "first"),
            request if request.contains("/manifests/") => answer("200 OK", "", &manifest),
            _ => answer("200 OK", "", ""),
        })
    })
    .await
}

fn hub() -> [String; 1] {
    ["Bearer realm=\"http://HOST/token\",service=\"us\"".to_owned()]
}

/// Returns a counter of the issued tokens, and a function that responds as a token server. Each token contains its
/// number.
fn numbered(expires: &'static str) -> (Arc<AtomicU32>, impl Fn(&str) -> String + Send + Sync + 'static) {
    let count = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&count);
    let answer = move |_: &str| {
        let number = counted.fetch_add(1, Ordering::Relaxed) + 1;
        answer("200 OK", "", &format!("{{\"token\": \"t0ken{number}\"{expires}}}"))
    };
    (count, answer)
}

fn host(request: &str) -> String {
    request.split("\r\n").find_map(|line| line.strip_prefix("host: ")).unwrap_or_default().to_owned()
}

fn as_nobody(address: &str) -> OciSource {
    OciSource::new(format!("{address}/{REPOSITORY}:1").parse().unwrap(), RegistryCredentials::default())
}

fn as_ali(address: &str) -> (OciSource, TempDir) {
    with(address, &json!({"username": USER.0, "password": USER.1}))
}

/// Creates a source with two credential files. The first file does not exist, and the second contains this entry for
/// the registry. Keep the returned folder for as long as the source is used.
fn with(address: &str, entry: &Value) -> (OciSource, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let (missing, file) = (folder.path().join("config.json"), folder.path().join("auth.json"));
    std::fs::write(&file, json!({"auths": {address: entry}}).to_string()).unwrap();
    let reference = format!("{address}/{REPOSITORY}:1").parse().unwrap();
    (OciSource::new(reference, RegistryCredentials::of_files([missing, file])), folder)
}
