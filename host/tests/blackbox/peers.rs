//! What nodes of different machines tell each other: that it does for them what links do on one machine, and that whoever
//! speaks there, with whatever certificate, breaks no promise and is in no renewal's way.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use baton_election::ElectionName;
use baton_store::{Announcement, Digest, ModuleStore as _, PeerWord, SqliteStore};
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
use crate::links::{goes_on, hardly_asks, hello, incarnation_of, is_told_of_the_end, socket};
use crate::node::{Event, Launch, Node, until};
use crate::patience::Patience;
use crate::store::Store;

/// So often the one that poses as the leader hangs up as soon as it is heard.
const HANGS_UP: u32 = 6;

fn launch(fleet: &Fleet, name: &str) -> Launch {
    fleet.launch(name).arg("--links=true").flag("--peer", "127.0.0.1:0")
}

fn is_linked(node: &Node, leader: &str) {
    node.event("to hear from the leader", |event| event.name == "linked" && event.text("leader") == leader);
}

/// Where a node listens for others.
fn address(node: &Node) -> SocketAddr {
    node.event("to listen", |event| event.name == "listening_for_peers").text("address").parse().expect("an address")
}

#[test]
fn across_machines_a_standby_hardly_asks_and_is_there_when_the_lease_is_given_up() {
    let fleet = Fleet::new(Store::azurite());
    // One that nobody finds is followed as without links.
    let mut alpha = launch(&fleet, "alpha").flag("--peer-advertise", "127.0.0.1:1").start();
    let term = fleet.beat_above(0).term;
    let mut beta = launch(&fleet, "beta").start();
    beta.event("to say so", |event| event.name == "error" && event.text("error").contains("cannot reach the leader"));
    assert!(alpha.terminate().success());
    let term = beta.after(term, "elected").term;
    let gamma = launch(&fleet, "gamma").start();
    is_linked(&gamma, "beta");
    // 2.5 s apart.
    hardly_asks(&fleet, &gamma, &beta, 3.0, 2.0);
    is_told_of_the_end(&gamma, &mut beta, term);
    let is_said = |event: &&Event| event.name == "error" && event.text("error").contains("cannot reach the leader");
    let said: Vec<String> = fleet.journal.events().iter().filter(is_said).map(|event| event.from.clone()).collect();
    assert_eq!(said, ["beta"], "it is said once, and of nobody who is found");
    fleet.check_promises();
}

/// A stranger's certificate and key.
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

    /// Says in the store that this is that node's, which is found there.
    fn announce(&self, fleet: &Fleet, node: &str, incarnation: &str, address: SocketAddr) {
        self.announce_in(ELECTION, fleet, node, incarnation, address);
    }

    /// The same in that election.
    fn announce_in(&self, election: &str, fleet: &Fleet, node: &str, incarnation: &str, address: SocketAddr) {
        let certificate = Digest::of(&self.certificate).to_string();
        let peer = Some(PeerWord { address: address.to_string(), certificate });
        let said = Announcement { peer, ..Announcement::now(node, incarnation, "", Vec::new(), None) };
        let store = SqliteStore::new(fleet.store.folder());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let election = ElectionName::new(election).expect("a name");
        runtime.block_on(store.announce(&election, node, said.encode())).expect("it is said");
    }
}

/// Believes everybody.
#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
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

/// Whose certificate is shown, and whose key signs, if any.
type Shown<'a> = Option<(&'a Identity, &'a Identity)>;

/// Connects so.
fn connect(to: SocketAddr, shows: Shown<'_>) -> io::Result<impl io::Read + io::Write + use<>> {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody));
    let config = match shows {
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

/// The first that it is told, and whether it is cut off then: nothing where it is cut off at once, or there was no room.
fn told(mut peer: impl io::Read + io::Write, said: &str) -> (String, bool) {
    let _ = peer.write_all(said.as_bytes());
    let _ = peer.flush();
    let mut some = [0; 1024];
    let mut next =
        || peer.read(&mut some).map_or_else(|_| String::new(), |read| String::from_utf8_lossy(&some[..read]).into());
    let first = next();
    // One that is heard on is told of each renewal.
    (first, (0..20).any(|_| next().is_empty()))
}

#[test]
fn who_connects_over_the_network_is_in_nobodys_way() {
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
    // One that is announced, and so is heard, until it says what is not for it to say.
    let lie = format!("{own}{{\"leads\":{{\"term\":{},\"age_ms\":0,\"place\":0}}}}\n", u64::MAX);
    let is_cut_off = until("one that is announced to be greeted", || match as_mallory().map(|peer| told(peer, &lie)) {
        Ok((first, is_cut_off)) if first.contains("\"hello\"") => Ok(is_cut_off),
        other => Err(other),
    });
    assert!(is_cut_off, "only who leads says so");
    // Another node that says that it is of the same incarnation ends no link but its own.
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
    let hears = |peer: &mut dyn io::Read| peer.read(&mut [0; 1024]).is_ok_and(|read| read > 0);
    // What was on its way comes once, the renewals after it again and again.
    assert!((0..3).all(|_| hears(&mut first)), "its link is ended by another's");
    drop((first, second));
    let nobody: [(&str, Shown<'_>, String); 8] = [
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
    for (what, shows, said) in nobody {
        let (told, _) = connect(at, shows).map(|peer| told(peer, &said)).unwrap_or_default();
        assert_eq!(told, "", "{what}");
    }
    // Those that say nothing, or nothing of TLS, and those that flood.
    let loiterers: Vec<_> = (0..200).filter_map(|_| TcpStream::connect(at).ok()).collect();
    let is_over = Arc::new(AtomicBool::new(false));
    let floods = std::thread::spawn({
        let (is_over, flood) = (Arc::clone(&is_over), own + &"\"look\"\n".repeat(1000));
        move || {
            while !is_over.load(Ordering::Relaxed) {
                let _ = connect(at, Some((&mallory, &mallory))).map(|peer| told(peer, &flood));
                let _ = TcpStream::connect(at).and_then(|mut peer| peer.write_all(&[0x16; 1 << 16]));
            }
        }
    });
    goes_on(&fleet, &alpha, term);
    let mut patience = Patience::default();
    for mut loiterer in loiterers {
        loiterer.set_nonblocking(true).expect("a socket");
        // It is cut off.
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
    goes_on(&fleet, &alpha, term);
    is_over.store(true, Ordering::Relaxed);
    floods.join().expect("it ends");
    let status = fleet.status();
    assert_eq!((status["term"].as_u64(), status["lease"].as_str()), (Some(term), Some("held")), "{status}");
    // Whoever comes then is heard as ever, over the network where its socket is gone.
    std::fs::remove_file(socket(&fleet)).expect("it is there");
    is_linked(&launch("beta").start(), "alpha");
    fleet.check_promises();
}

/// What a coordinator may connect to can be where its host listens for others: there it is one that nobody has announced.
#[test]
fn a_coordinator_that_may_connect_there_is_no_peer() {
    let fleet = Fleet::new(Store::sqlite());
    let at = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let url = format!("https://{at}");
    let alpha = http::launch_with_lease(Duration::from_secs(60), &fleet, "alpha", "get", &format!("{url}/"));
    let alpha = alpha.flag("--allow-http", &url).arg("--links=true").flag("--peer", at.to_string()).start();
    let told = fleet.beat("what came of it", |event| event.text("line").starts_with(&url));
    assert!(told.text("line").contains("ErrorCode::"), "{told:?}");
    let beta = launch(&fleet, "beta").start();
    is_linked(&beta, "alpha");
    assert_eq!(fleet.status()["term"].as_u64(), Some(told.term));
    assert!(fleet.journal.events().iter().all(|event| event.name != "leadership_lost"), "{:?}", fleet.journal.events());
    drop(alpha);
}

/// Who can write to the store can have a standby hear it in the leader's place.
#[test]
fn who_poses_as_the_leader_in_the_store_is_read_after_and_never_believed() {
    let fleet = Fleet::new(Store::sqlite());
    // The leader listens on its socket alone, which is removed: the standby finds nobody but the liar.
    let alpha = fleet.launch("alpha").arg("--links=true").arg("--reclaim=false").start();
    let term = fleet.beat_above(0).term;
    goes_on(&fleet, &alpha, term);
    let socket = socket(&fleet);
    let incarnation = incarnation_of(&socket);
    std::fs::remove_file(&socket).expect("it is there");
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
            // Until it is told no more, by its last owner but this.
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
    until("lies to be told", || {
        // The leader replaces its announcement once a minute.
        liars.announce(&fleet, "alpha", &incarnation, lies_at);
        (count.load(Ordering::Relaxed) > 40).then_some(()).ok_or(())
    });
    is_linked(&beta, "alpha");
    let waited = waits.load(Ordering::Relaxed);
    assert!(waited > 1000, "it was called again {waited} ms after {HANGS_UP} links that did not last");
    goes_on(&fleet, &alpha, term);
    let status = fleet.status();
    assert_eq!((status["term"].as_u64(), status["lease"].as_str()), (Some(term), Some("held")), "{status}");
    // Who dies is followed all the same, in the term after, while the lies go on.
    alpha.signal(Signal::KILL);
    let next = beta.after(term, "elected").term;
    assert!(next > term && next < 1 << 40, "no lie has raised {next}");
    drop(count);
    lies.join().expect("it ends");
    fleet.check_promises();
}
