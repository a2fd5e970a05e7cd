//! Measures HTTP requests from an instance, compared with requests from native clients on the same runtime.
//!
//! All clients use the same server on loopback, each over one persistent connection. All clients send the same headers,
//! except for three headers that only a host adds.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::Instant;

use baton_runtime::{Grants, HttpPolicy};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use wasmtime::ensure;
use wasmtime_wasi_http::io::TokioIo;

use crate::baseline::milliseconds;
use crate::instances::{Baton, runners};
use crate::samples::Samples;
use crate::table::{Bar, Row, Unit};

/// Each client sends [`REQUESTS`] requests in each round.
pub struct Effort {
    pub rounds: usize,
}

/// Number of requests that each client sends in a round. The number is so large that the slow first requests of a
/// process hardly matter.
const REQUESTS: usize = 2000;

pub async fn measure(module: &Path, effort: &Effort) -> wasmtime::Result<Vec<Row>> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    // The server's threads are not joined. They end with this process.
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || serve(stream));
        }
    });
    let url = format!("http://{address}");
    let mut baton = Baton::new(module)?;
    baton.launcher.runners = runners(HttpPolicy::new(Grants::new(vec![url.parse()?]), 64, None)?)?;
    let (mut bare, mut native, mut gated) = (Samples::default(), Samples::default(), Samples::default());
    for _ in 0..effort.rounds {
        bare.extend(asked_by_hyper(address).await?);
        native.extend(asked_by_reqwest(address).await?);
        gated.extend(asked_by_a_guest(&baton, &url).await?);
    }
    let beside = native.median();
    Ok(vec![
        Row::new("a request by bare hyper, natively", Unit::Ms, bare),
        Row::new("a request by reqwest, natively", Unit::Ms, native),
        Row::new("a gated request from an instance", Unit::Ms, gated).bar(Bar::Ratio(1.2)).beside("reqwest", beside),
    ])
}

/// Responds to every request with a short body. The requests have no bodies.
fn serve(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut lines = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    while lines.read_line(&mut line)? > 0 {
        if line == "\r\n" {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello")?;
        }
        line.clear();
    }
    Ok(())
}

async fn asked_by_reqwest(address: SocketAddr) -> wasmtime::Result<Vec<f64>> {
    let client = reqwest::Client::builder().no_proxy().tcp_nodelay(true).build()?;
    let url = format!("http://{address}/");
    // Send the requests on a thread of the runtime, as a native program would.
    let asking = tokio::spawn(async move {
        let mut took = Vec::with_capacity(REQUESTS);
        for _ in 0..REQUESTS {
            let begin = Instant::now();
            let response = client.get(&url).send().await?;
            ensure!(response.status() == 200, "{response:?}");
            let body = response.bytes().await?;
            ensure!(body.len() == 5, "{body:?}");
            took.push(milliseconds(begin.elapsed()));
        }
        Ok(took)
    });
    asking.await?
}

/// Sends requests with hyper, which implements only the HTTP protocol. No client can be expected to take less time than
/// hyper.
async fn asked_by_hyper(address: SocketAddr) -> wasmtime::Result<Vec<f64>> {
    let stream = tokio::net::TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let driver = tokio::spawn(connection);
    let asking = tokio::spawn(async move {
        let mut took = Vec::with_capacity(REQUESTS);
        for _ in 0..REQUESTS {
            let begin = Instant::now();
            let request = http::Request::get("/").header("host", address.to_string()).body(Empty::<Bytes>::new())?;
            sender.ready().await?;
            let response = sender.send_request(request).await?;
            ensure!(response.status() == 200, "{response:?}");
            let body = response.into_body().collect().await?.to_bytes();
            ensure!(body.len() == 5, "{body:?}");
            took.push(milliseconds(begin.elapsed()));
        }
        Ok(took)
    });
    let took = asking.await?;
    driver.await??;
    took
}

async fn asked_by_a_guest(baton: &Baton, url: &str) -> wasmtime::Result<Vec<f64>> {
    let lines = baton.lines(&[("BEHAVIOUR", "measure"), ("URL", url), ("REQUESTS", &REQUESTS.to_string())]).await?;
    let nanoseconds = lines.iter().flat_map(|line| line.split(' ')).filter_map(|word| word.parse::<f64>().ok());
    let took: Vec<f64> = nanoseconds.map(|nanoseconds| nanoseconds / 1e6).collect();
    ensure!(took.len() == REQUESTS, "the guest measured {} requests", took.len());
    Ok(took)
}
