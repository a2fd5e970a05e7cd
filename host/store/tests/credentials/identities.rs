//! Tests of tokens for Azure identities. Small servers on loopback replace the services that issue tokens, and the
//! storage account, because the real services cannot be tested here.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use super::answers;

/// Keeps every request that it receives.
struct Server {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts a server. `answer` returns the status and the body for a whole request.
    fn start(answer: impl Fn(&str) -> (&'static str, String) + Send + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let (requests, ended) = (Arc::<Mutex<Vec<String>>>::default(), Arc::<AtomicBool>::default());
        let (kept, over) = (Arc::clone(&requests), Arc::clone(&ended));
        let thread = std::thread::spawn(move || {
            for mut client in listener.incoming().map_while(Result::ok) {
                if over.load(Ordering::SeqCst) {
                    break;
                }
                let request = read(&mut client);
                let (status, body) = answer(&request);
                kept.lock().unwrap().push(request);
                let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
                // Ignore errors: the client may have given up.
                let _ = client.write_all((head + &body).as_bytes());
            }
        });
        Self { address, requests, ended, thread: Some(thread) }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn requests(&self, part: &str) -> Vec<String> {
        let requests = self.requests.lock().unwrap();
        requests.iter().filter(|request| request.lines().next().unwrap_or_default().contains(part)).cloned().collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        // Connect once, to wake the server's thread: it is waiting for a connection.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn read(client: &mut TcpStream) -> String {
    let mut request = Vec::new();
    let mut bytes = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&request).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length =
                head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
            if body.len() >= length.unwrap_or(0) {
                return text;
            }
        }
        match client.read(&mut bytes) {
            Ok(length @ 1..) => request.extend_from_slice(&bytes[..length]),
            _ => return text,
        }
    }
}

/// Answers like a storage account that accepts one token, but grants the token's owner no access.
fn of_account(request: &str, token: &str) -> (&'static str, String) {
    if request.contains(&format!("authorization: Bearer {token}\r\n")) {
        ("403 Forbidden\r\nx-ms-error-code: AuthorizationPermissionMismatch", String::new())
    } else {
        ("401 Unauthorized\r\nx-ms-error-code: InvalidAuthenticationInfo", String::new())
    }
}

fn far_future() -> i64 {
    time::OffsetDateTime::now_utc().unix_timestamp() + 86_400
}

/// Answers like the endpoint at which a machine gets tokens for its identities.
fn of_machine(request: &str) -> (&'static str, String) {
    let token = match request.lines().next().unwrap_or_default() {
        line if line.contains("client_id=assigned") => "of-the-assigned",
        line if line.contains("client_id=") => return ("400 Bad Request", r#"{"error":"invalid_request"}"#.to_owned()),
        _ => "of-the-system",
    };
    let expires_on = far_future();
    let resource = "https://storage.azure.com";
    let body = format!(
        r#"{{"access_token":"{token}","expires_on":"{expires_on}","resource":"{resource}","token_type":"Bearer"}}"#
    );
    ("200 OK", body)
}

/// Sends requests to an account that accepts `token`, from a process with these environment variables.
fn ask(token: &'static str, variables: &[(&str, &str)]) -> (String, Server) {
    let account = Server::start(move |request| of_account(request, token));
    let endpoint = format!("{}/contoso", account.url());
    let variables = [&[("AZURE_STORAGE_SERVICE_ENDPOINT", endpoint.as_str())], variables].concat();
    (answers("azure://contoso/leases", &variables), account)
}

/// Asserts that the account accepted the token: without the right token, its answer would be different.
#[track_caller]
fn assert_known(told: &str) {
    assert!(
        told.contains("AuthorizationPermissionMismatch") && told.contains("Storage Blob Data Contributor"),
        "{told}"
    );
}

#[test]
fn machine_identity_is_requested_by_its_client_id() {
    let machine = Server::start(of_machine);
    let endpoint = format!("{}/", machine.url());
    // The store must not use the proxy in the environment to reach the machine's own endpoint.
    let proxy = Server::start(|_| ("502 Bad Gateway", String::new()));
    let at = ("AZURE_POD_IDENTITY_AUTHORITY_HOST", endpoint.as_str());
    let proxied = [("HTTP_PROXY", proxy.url()), ("http_proxy", proxy.url())];
    let proxied = proxied.each_ref().map(|(name, url)| (*name, url.as_str()));

    let (told, account) = ask("of-the-assigned", &[at, ("AZURE_CLIENT_ID", "assigned"), proxied[0], proxied[1]]);
    assert_known(&told);
    assert!(!account.requests("/contoso/leases/").is_empty());
    let asked = machine.requests("GET /metadata/identity/oauth2/token?");
    // The store uses one token for all requests.
    let [one] = &asked[..] else { panic!("{asked:?}") };
    assert!(one.contains("resource=https%3A%2F%2Fstorage.azure.com&client_id=assigned"), "{one}");
    assert!(one.contains("metadata: true\r\n"), "{one}");
    assert!(!told.contains("of-the-assigned"), "a token is never shown: {told}");

    let (told, _) = ask("of-the-system", &[at, ("AZURE_CLIENT_ID", "")]);
    assert_known(&told);

    let (told, account) = ask("-", &[at, ("AZURE_CLIENT_ID", "unknown")]);
    assert!(told.contains("Misconfigured") && told.contains("unknown (from AZURE_CLIENT_ID)"), "{told}");
    assert!(told.contains("not been assigned"), "{told}");
    assert!(account.requests("/").is_empty(), "without a token the account is not asked");
    assert!(proxy.requests("").is_empty());
}

#[test]
fn token_is_discarded_when_the_store_refuses_it() {
    // The machine's endpoint issues a new token for each request. All of them are valid for a day.
    let given = AtomicUsize::new(0);
    let machine = Server::start(move |_| {
        let (number, expires_on) = (given.fetch_add(1, Ordering::SeqCst) + 1, far_future());
        let body = format!(
            r#"{{"access_token":"token-{number}","expires_on":"{expires_on}","resource":"r","token_type":"Bearer"}}"#
        );
        ("200 OK", body)
    });
    let endpoint = format!("{}/", machine.url());
    // The account refuses the first token at the store's first request.
    let (told, account) = ask("token-2", &[("AZURE_POD_IDENTITY_AUTHORITY_HOST", endpoint.as_str())]);
    assert!(told.contains("InvalidAuthenticationInfo"), "{told}");
    assert_known(&told);
    let asked = account.requests("");
    let refused = asked.iter().filter(|request| request.contains("Bearer token-1\r\n")).count();
    assert_eq!(refused, 1, "it was shown again: {asked:?}");
    assert!(asked.len() > 2 && asked[1..].iter().all(|request| request.contains("Bearer token-2\r\n")), "{asked:?}");
    // A request that is forbidden does not make the store fetch a new token.
    assert_eq!(machine.requests("").len(), 2);
}

#[test]
fn service_identity_is_requested_by_its_client_id() {
    let service = Server::start(of_machine);
    let endpoint = format!("{}/msi/token", service.url());
    let at = [("IDENTITY_ENDPOINT", endpoint.as_str()), ("IDENTITY_HEADER", "header-of-it")];
    let (told, _) = ask("of-the-assigned", &[at[0], at[1], ("AZURE_CLIENT_ID", "assigned")]);
    assert_known(&told);
    let asked = service.requests("GET /msi/token?");
    assert!(
        asked[0].contains("client_id=assigned") && asked[0].contains("x-identity-header: header-of-it"),
        "{asked:?}"
    );
    let (told, _) = ask("of-the-system", &at);
    assert_known(&told);
}

#[test]
fn workload_sends_its_own_token_to_the_named_authority() {
    let authority = Server::start(|request| {
        let genuine = ["client_id=app", "client_assertion=of-the-cluster", "grant_type=client_credentials"];
        if request.starts_with("POST /tenant/oauth2/v2.0/token ") && genuine.iter().all(|part| request.contains(part)) {
            let token =
                r#"{"token_type":"Bearer","expires_in":86400,"ext_expires_in":86400,"access_token":"of-the-app"}"#;
            ("200 OK", token.to_owned())
        } else {
            ("401 Unauthorized", r#"{"error":"invalid_client"}"#.to_owned())
        }
    });
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "of-the-cluster").unwrap();
    let url = format!("{}/", authority.url());
    let workload = [
        ("AZURE_FEDERATED_TOKEN_FILE", file.path().to_str().unwrap()),
        ("AZURE_CLIENT_ID", "app"),
        ("AZURE_TENANT_ID", "tenant"),
        ("AZURE_AUTHORITY_HOST", url.as_str()),
    ];
    let (told, _) = ask("of-the-app", &workload);
    assert_known(&told);

    std::fs::write(file.path(), "of-somebody").unwrap();
    let (told, _) = ask("-", &workload);
    assert!(told.contains("Misconfigured") && told.contains("workload identity: "), "{told}");
    assert!(!told.contains("of-somebody"), "{told}");

    let (told, _) =
        ask("-", &[workload[0], workload[1], workload[2], ("AZURE_AUTHORITY_HOST", "http://login.contoso.com")]);
    assert!(told.contains("AZURE_AUTHORITY_HOST is not an https:// address"), "{told}");
}
