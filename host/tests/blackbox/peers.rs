//! Links between nodes on different machines. These links work like the links within one machine. No peer can break one
//! of Baton's promises or delay a renewal, whatever certificate the peer presents.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use baton_election::ElectionName;
use baton_store::{AnnouncedPeer, Announcement, Digest, ModuleStore as _, SqliteStore};
use rustix::process::Signal;
use time::OffsetDateTime;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio_rustls::rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, ServerConfig, ServerConnection, SignatureScheme, StreamOwned,
};

use baton_test_support::server::free_port;

use crate::fleet::{ELECTION, Fleet};
use crate::http;
use crate::links::{hello, incarnation_of, keeps_leading, rarely_reads, socket, takes_over_at_hand_off};
use crate::node::{Event, Launch, Node, until};
use crate::patience::Patience;
use crate::store::Store;

/// Number of connections that the false leader closes right after it has sent its greeting.
const HANGS_UP: u32 = 6;

fn launch(fleet: &Fleet, name: &str) -> Launch {
    fleet.launch(name).arg("--links=true").flag("--peer", "127.0.0.1:0")
}

fn is_linked(node: &Node, leader: &str) {
    node.event("to hear from the leader", |event| event.is_linked() && event.text("leader") == leader);
}

fn address(node: &Node) -> SocketAddr {
    node.event("to listen", |event| event.text("purpose") == "peers").text("address").parse().expect("an address")
}

#[test]
fn remote_standby_rarely_reads_and_takes_over_at_hand_off() {
    let fleet = Fleet::new(Store::azurite());
    // Alpha advertises an address at which no node can reach it, so beta is a standby without a link to alpha.
    let mut alpha = launch(&fleet, "alpha").flag("--peer-advertise", "127.0.0.1:1").start();
    let term = fleet.beat_above(0).term;
    let mut beta = launch(&fleet, "beta").start();
    beta.event("the error", |event| event.name == "error" && event.text("error").contains("cannot reach the leader"));
    assert!(alpha.terminate().success());
    let term = beta.after(term, "elected").term;
    let gamma = launch(&fleet, "gamma").start();
    is_linked(&gamma, "beta");
    // The lease is renewed every 2.5 s. Without hints, gamma would read it about 7 times during 3 renewals.
    rarely_reads(&fleet, &gamma, &beta, 3.0, 2.0);
    takes_over_at_hand_off(&gamma, &mut beta, term);
    let is_error = |event: &&Event| event.name == "error" && event.text("error").contains("cannot reach the leader");
    let reports: Vec<String> = fleet.journal.events().iter().filter(is_error).map(|event| event.from.clone()).collect();
    assert_eq!(reports, ["beta"], "only beta reports an unreachable leader, once");
    fleet.check_promises();
}

struct Identity {
    certificate: CertificateDer<'static>,
    key: Vec<u8>,
}

impl Identity {
    fn make() -> Self {
        let key = rcgen::KeyPair::generate().expect("a key");
        let certificate = rcgen::CertificateParams::default().self_signed(&key).expect("a certificate");
        Self { certificate: certificate.der().clone(), key: key.serialize_der() }
    }

    fn key(&self) -> PrivateKeyDer<'static> {
        PrivatePkcs8KeyDer::from(self.key.clone()).into()
    }

    fn announce(&self, fleet: &Fleet, node: &str, incarnation: &str, address: SocketAddr) {
        self.announce_in(ELECTION, fleet, node, incarnation, address);
    }

    fn announce_in(&self, election: &str, fleet: &Fleet, node: &str, incarnation: &str, address: SocketAddr) {
        let certificate = Digest::of(&self.certificate).to_string();
        let peer = Some(AnnouncedPeer { address: address.to_string(), certificate });
        let announcement = Announcement { peer, ..Announcement::now(node, incarnation, "", Vec::new(), None) };
        let store = SqliteStore::new(fleet.store.folder());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let election = ElectionName::new(election).expect("a name");
        runtime.block_on(store.announce(&election, node, announcement.encode())).expect("a written announcement");
    }
}

#[derive(Debug)]
struct AcceptAny;

impl ServerCertVerifier for AcceptAny {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, tokio_rustls::rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, tokio_rustls::rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, tokio_rustls::rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256]
    }
}

/// The identity whose certificate the client presents, and the identity whose key the client signs with. `None` if the
/// client presents no certificate.
type Credentials<'a> = Option<(&'a Identity, &'a Identity)>;

fn connect(to: SocketAddr, credentials: Credentials<'_>) -> io::Result<impl io::Read + io::Write + use<>> {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AcceptAny));
    let config = match credentials {
        None => config.with_no_client_auth(),
        Some((of, by)) => {
            let key = ring::sign::any_supported_type(&by.key()).expect("a key");
            let shown = CertifiedKey::new(vec![of.certificate.clone()], key);
            config.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(shown)))
        }
    };
    let stream = TcpStream::connect(to)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let name = ServerName::try_from("baton").expect("a name");
    Ok(StreamOwned::new(ClientConnection::new(Arc::new(config), name).expect("a client"), stream))
}

/// Returns the host's first answer, and true if the host closes the connection afterwards. The answer is empty if the
/// host closes the connection at once.
fn answer_to(mut peer: impl io::Read + io::Write, message: &str) -> (String, bool) {
    let _ = peer.write_all(message.as_bytes());
    let _ = peer.flush();
    let mut some = [0; 1024];
    let mut next =
        || peer.read(&mut some).map_or_else(|_| String::new(), |read| String::from_utf8_lossy(&some[..read]).into());
    let first = next();
    // The host sends a linked peer a message about each renewal. So these reads wait for messages, unless the host has
    // closed the connection: then they return nothing.
    (first, (0..20).any(|_| next().is_empty()))
}

#[test]
fn network_peers_disturb_no_node() {
    let fleet = Fleet::new(Store::sqlite());
    let launch = |name: &str| launch(&fleet, name);
    let alpha = launch("alpha").start();
    let term = fleet.beat_above(0).term;
    let (at, to) = (address(&alpha), incarnation_of(&socket(&fleet)));
    let [mallory, thief, namesake, visitor] = [(); 4].map(|()| Identity::make());
    mallory.announce(&fleet, "mallory", "ee", at);
    namesake.announce(&fleet, "namesake", "ee", at);
    visitor.announce_in("another", &fleet, "visitor", "ee", at);
    let own = hello(ELECTION, &to, "mallory", "ee");
    let as_mallory = || connect(at, Some((&mallory, &mallory)));
    // The host greets an announced peer, and hangs up when this peer claims to lead.
    let lie = format!("{own}{{\"leads\":{{\"term\":{},\"age_ms\":0,\"place\":0}}}}\n", u64::MAX);
    let is_cut_off = until("a greeting", || match as_mallory().map(|peer| answer_to(peer, &lie)) {
        Ok((first, is_cut_off)) if first.contains("\"hello\"") => Ok(is_cut_off),
        other => Err(other),
    });
    assert!(is_cut_off, "only the leader may send `leads`");
    // A node that claims another node's incarnation must not be able to end that node's link.
    let greeted = |by: &Identity, hello: &str| {
        until("to be greeted", || {
            let mut peer = connect(at, Some((by, by)))?;
            peer.write_all(hello.as_bytes())?;
            peer.flush()?;
            let read = peer.read(&mut [0; 1024])?;
            if read > 0 { Ok(peer) } else { Err(io::Error::from(io::ErrorKind::UnexpectedEof)) }
        })
    };
    let mut first = greeted(&mallory, &own);
    let second = greeted(&namesake, &hello(ELECTION, &to, "namesake", "ee"));
    let receives = |peer: &mut dyn io::Read| peer.read(&mut [0; 1024]).is_ok_and(|read| read > 0);
    // The host may have sent the first message before the other node's hello arrived. The later messages report
    // renewals, so they show that the link still exists.
    assert!((0..3).all(|_| receives(&mut first)), "another node's hello ended the link");
    drop((first, second));
    let refused: [(&str, Credentials<'_>, String); 8] = [
        (
            "one that is announced in another election",
            Some((&visitor, &visitor)),
            hello(ELECTION, &to, "visitor", "ee"),
        ),
        ("no certificate", None, own.clone()),
        ("one that nobody has announced", Some((&thief, &thief)), hello(ELECTION, &to, "thief", "ff")),
        ("another's hello, recorded", Some((&thief, &thief)), own.clone()),
        ("another's certificate without its key", Some((&mallory, &thief)), own.clone()),
        ("another's name", Some((&mallory, &mallory)), hello(ELECTION, &to, "alpha", &to)),
        ("another election", Some((&mallory, &mallory)), hello("another", &to, "mallory", "ee")),
        ("another incarnation", Some((&mallory, &mallory)), hello(ELECTION, "ee", "mallory", "ee")),
    ];
    for (what, credentials, message) in refused {
        let (answer, _) = connect(at, credentials).map(|peer| answer_to(peer, &message)).unwrap_or_default();
        assert_eq!(answer, "", "{what}");
    }
    // Three more kinds of peers: some stay silent, some do not speak TLS, and some flood the host.
    let loiterers: Vec<_> = (0..200).filter_map(|_| TcpStream::connect(at).ok()).collect();
    let is_over = Arc::new(AtomicBool::new(false));
    let floods = std::thread::spawn({
        let (is_over, flood) = (Arc::clone(&is_over), own + &"\"look\"\n".repeat(1000));
        move || {
            while !is_over.load(Ordering::Relaxed) {
                let _ = connect(at, Some((&mallory, &mallory))).map(|peer| answer_to(peer, &flood));
                let _ = TcpStream::connect(at).and_then(|mut peer| peer.write_all(&[0x16; 1 << 16]));
            }
        }
    });
    keeps_leading(&fleet, &alpha, term);
    let mut patience = Patience::default();
    for mut loiterer in loiterers {
        loiterer.set_nonblocking(true).expect("a socket");
        while patience.lasts() {
            match loiterer.read(&mut [0]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                _ => {
                    patience.renew();
                    break;
                }
            }
        }
    }
    keeps_leading(&fleet, &alpha, term);
    is_over.store(true, Ordering::Relaxed);
    floods.join().expect("no panic");
    let status = fleet.status();
    assert_eq!((status["term"].as_u64(), status["lease"].as_str()), (Some(term), Some("held")), "{status}");
    // A node that starts afterwards must get a link. The test removes the leader's local socket, so the link must use
    // the network.
    std::fs::remove_file(socket(&fleet)).expect("the socket");
    is_linked(&launch("beta").start(), "alpha");
    fleet.check_promises();
}

/// A coordinator may be allowed to connect to the address at which its host listens for peers. The host treats the
/// coordinator like any peer that has no announcement.
#[test]
fn coordinator_that_connects_to_the_peer_port_is_refused() {
    let fleet = Fleet::new(Store::sqlite());
    let at = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let url = format!("https://{at}");
    let alpha = http::launch_with_lease(Duration::from_secs(60), &fleet, "alpha", "get", &format!("{url}/"));
    let alpha = alpha.flag("--allow-http", &url).arg("--links=true").flag("--peer", at.to_string()).start();
    let result = fleet.beat("the request's result", |event| event.text("line").starts_with(&url));
    assert!(result.text("line").contains("ErrorCode::"), "{result:?}");
    let beta = launch(&fleet, "beta").start();
    is_linked(&beta, "alpha");
    assert_eq!(fleet.status()["term"].as_u64(), Some(result.term));
    assert!(fleet.journal.events().iter().all(|event| event.name != "leadership_lost"), "{:?}", fleet.journal.events());
    drop(alpha);
}

/// A client with write access to the store can announce itself as the leader, and a standby then connects to that
/// client. The client must not be able to cause more than additional reads of the store.
#[test]
fn false_leader_in_the_store_causes_reads_and_no_takeover() {
    let fleet = Fleet::new(Store::sqlite());
    // The leader listens only on its local socket, and the test removes that socket. So the standby can connect only to
    // the false leader, `liar`.
    let alpha = fleet.launch("alpha").arg("--links=true").arg("--reclaim=false").start();
    let term = fleet.beat_above(0).term;
    keeps_leading(&fleet, &alpha, term);
    let socket = socket(&fleet);
    let incarnation = incarnation_of(&socket);
    std::fs::remove_file(&socket).expect("the socket");
    let (liar, liars) = (TcpListener::bind("127.0.0.1:0").expect("an address"), Identity::make());
    let lies_at = liar.local_addr().expect("an address");
    liars.announce(&fleet, "alpha", &incarnation, lies_at);
    liar.set_nonblocking(true).expect("a socket");
    let (count, waits) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let lies = std::thread::spawn({
        let (count, waited, incarnation) = (Arc::clone(&count), Arc::clone(&waits), incarnation.clone());
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![liars.certificate.clone()], liars.key())
            .expect("a certificate");
        move || {
            let config = Arc::new(config);
            let (mut calls, mut last) = (0, OffsetDateTime::now_utc());
            // The thread ends when the test drops its own reference to `count`.
            while Arc::strong_count(&count) > 1 {
                std::thread::sleep(Duration::from_millis(10));
                let Ok((victim, _)) = liar.accept() else { continue };
                victim.set_nonblocking(false).expect("a socket");
                victim.set_read_timeout(Some(Duration::from_secs(30))).expect("a socket");
                let mut victim = StreamOwned::new(ServerConnection::new(Arc::clone(&config)).expect("TLS"), victim);
                let mut lie = hello(ELECTION, "ee", "alpha", &incarnation);
                calls += 1;
                let before = std::mem::replace(&mut last, OffsetDateTime::now_utc());
                if calls <= HANGS_UP {
                    let _ = victim.write_all(lie.as_bytes()).and_then(|()| victim.flush());
                    let _ = victim.sock.shutdown(Shutdown::Write);
                    while victim.sock.read(&mut [0; 1024]).is_ok_and(|read| read > 0) {}
                    continue;
                }
                waited.fetch_max((last - before).whole_milliseconds().unsigned_abs() as u64, Ordering::Relaxed);
                while Arc::strong_count(&count) > 1 && victim.write_all(lie.as_bytes()).is_ok() {
                    let number = count.fetch_add(1, Ordering::Relaxed);
                    lie = match number % 3 {
                        0 => format!("{{\"leads\":{{\"term\":{},\"age_ms\":0,\"place\":0}}}}\n", (number + 1) << 40),
                        1 => "{\"gives-up\":{\"place\":0}}\n".to_owned(),
                        _ => "\"look\"\n".to_owned(),
                    };
                    std::thread::sleep(Duration::from_millis(60));
                }
            }
        }
    });
    let beta = launch(&fleet, "beta").arg("--reclaim=false").start();
    until("40 lies", || {
        // The leader overwrites the liar's announcement once a minute, so the liar keeps announcing itself.
        liars.announce(&fleet, "alpha", &incarnation, lies_at);
        (count.load(Ordering::Relaxed) > 40).then_some(()).ok_or(())
    });
    is_linked(&beta, "alpha");
    let waited = waits.load(Ordering::Relaxed);
    assert!(waited > 1000, "beta connected again {waited} ms after {HANGS_UP} links that did not last");
    keeps_leading(&fleet, &alpha, term);
    let status = fleet.status();
    assert_eq!((status["term"].as_u64(), status["lease"].as_str()), (Some(term), Some("held")), "{status}");
    // When alpha dies, beta must still take over. The false reports of high terms must not have raised beta's term.
    alpha.signal(Signal::KILL);
    let next = beta.after(term, "elected").term;
    assert!(next > term && next < 1 << 40, "no lie has raised {next}");
    drop(count);
    lies.join().expect("no panic");
    fleet.check_promises();
}
