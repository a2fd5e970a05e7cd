//! Servers whose responses the test determines.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

#[derive(Clone, Default)]
pub struct Requests(Arc<Mutex<Vec<String>>>);

impl Requests {
    pub fn add(&self, request: &str) {
        self.0.lock().unwrap().push(request.to_owned());
    }

    pub fn with(&self, part: &str) -> Vec<String> {
        self.0.lock().unwrap().iter().filter(|request| request.contains(part)).cloned().collect()
    }
}

pub fn answer(status: &str, header: &str, body: &str) -> String {
    let header = if header.is_empty() { String::new() } else { format!("{header}\r\n") };
    format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n{header}\r\n{body}", body.len())
}

/// Starts a server that runs until the test's runtime ends. It responds to each request with the result of `answer`, or
/// sends nothing if the result is `None`. Returns the server's address.
pub async fn fake(answer: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> String {
    let answer = Arc::new(answer);
    listen(move |stream| {
        let answer = Arc::clone(&answer);
        async move { serve(stream, &*answer).await }
    })
    .await
}

pub async fn noted(answer: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> (String, Requests) {
    let requests = Requests::default();
    let notes = requests.clone();
    let address = fake(move |request| {
        notes.add(request);
        answer(request)
    });
    (address.await, requests)
}

#[derive(Default)]
pub struct Flood {
    sent: AtomicU64,
    is_over: AtomicBool,
}

impl Flood {
    /// Returns `None` if the client has not hung up yet.
    pub fn over(&self) -> Option<u64> {
        self.is_over.load(Ordering::Acquire).then(|| self.sent.load(Ordering::Acquire))
    }
}

/// Answers a request for `what` with `beginning`, and then repeats `filler` endlessly. Answers all other requests with
/// `answer`.
pub async fn flooding(
    what: &'static str,
    beginning: String,
    filler: String,
    answer: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
) -> (String, Arc<Flood>) {
    let flood = Arc::new(Flood::default());
    let (flooded, answer) = (Arc::clone(&flood), Arc::new(answer));
    let address = listen(move |mut stream| {
        let (flood, answer) = (Arc::clone(&flooded), Arc::clone(&answer));
        let (beginning, filler) = (beginning.clone(), filler.clone());
        async move {
            let Some(request) = read(&mut stream).await else { return };
            if !request.contains(what) || request.starts_with("HEAD") {
                return tell(&mut stream, answer(&request)).await;
            }
            let mut next = beginning.as_bytes();
            while stream.write_all(next).await.is_ok() {
                flood.sent.fetch_add(next.len() as u64, Ordering::AcqRel);
                next = filler.as_bytes();
            }
            flood.is_over.store(true, Ordering::Release);
        }
    });
    (address.await, flood)
}

pub async fn serve(mut stream: impl AsyncRead + AsyncWrite + Unpin, answer: &(impl Fn(&str) -> Option<String> + Sync)) {
    if let Some(request) = read(&mut stream).await {
        tell(&mut stream, answer(&request)).await;
    }
}

pub async fn listen<S>(serve: impl Fn(TcpStream) -> S + Send + Sync + 'static) -> String
where
    S: Future<Output = ()> + Send,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        let serve = Arc::new(serve);
        while let Ok((stream, _)) = listener.accept().await {
            let serve = Arc::clone(&serve);
            tokio::spawn(async move { serve(stream).await });
        }
    });
    address
}

async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Option<String> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        request.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8_lossy(&request).into_owned();
    let length = head.split("\r\n").find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    stream.read_exact(&mut body).await.ok()?;
    Some(head + &String::from_utf8_lossy(&body))
}

async fn tell(stream: &mut (impl AsyncWrite + Unpin), answer: Option<String>) {
    match answer {
        // Ignore errors: the client may hang up as soon as it has read enough.
        Some(answer) => {
            let _ = stream.write_all(answer.as_bytes()).await;
            let _ = stream.shutdown().await;
        }
        None => std::future::pending().await,
    }
}
