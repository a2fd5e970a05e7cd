//! The address on which a host listens for hosts on other machines, and the address it advertises.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::str::FromStr;

use baton_base::address::without_user;
use baton_store::AnnouncedPeer;

use super::tls::{Identity, NoIdentity};

/// Maximum length of a DNS name (RFC 1035), in characters.
const LONGEST_NAME: usize = 253;

/// A host and a port, as announced to other nodes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerAddr {
    host: String,
    port: u16,
}

/// The error returned when a string is not a valid [`PeerAddr`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{text:?} is not an address that other nodes can reach: write HOST:PORT, as in web-3.example:7072 or \
     [2001:db8::3]:7072"
)]
pub struct InvalidPeerAddr {
    text: String,
}

impl FromStr for PeerAddr {
    type Err = InvalidPeerAddr;

    fn from_str(text: &str) -> Result<Self, InvalidPeerAddr> {
        let parse = || {
            let (host, port) = text.rsplit_once(':')?;
            let port: u16 = port.parse().ok().filter(|port| *port != 0 && text.is_ascii())?;
            let host = match host.strip_prefix('[') {
                Some(rest) => IpAddr::V6(rest.strip_suffix(']')?.parse::<Ipv6Addr>().ok()?).to_string(),
                None => Some(host).filter(|host| !host.contains(':'))?.to_owned(),
            };
            let is_reachable = match host.parse::<IpAddr>() {
                Ok(address) => is_of_one_machine(address),
                Err(_) => {
                    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
                    (1..=LONGEST_NAME).contains(&host.len()) && host.bytes().all(is_of_name)
                }
            };
            is_reachable.then_some(Self { host, port })
        };
        parse().ok_or_else(|| InvalidPeerAddr { text: without_user(text).chars().take(100).collect() })
    }
}

/// Returns true if the address can belong to a single machine: it is not unspecified, multicast or broadcast.
pub fn is_of_one_machine(address: IpAddr) -> bool {
    let address = address.to_canonical();
    !address.is_unspecified() && !address.is_multicast() && address != IpAddr::V4(Ipv4Addr::BROADCAST)
}

impl fmt::Display for PeerAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl PeerAddr {
    pub(super) async fn addresses(&self, most: usize) -> io::Result<Vec<SocketAddr>> {
        Ok(tokio::net::lookup_host((self.host.as_str(), self.port)).await?.take(most).collect())
    }
}

/// Settings for links with hosts on other machines.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerSettings {
    /// The address to listen on. With port 0, the system chooses a port.
    pub listen: SocketAddr,
    /// The address to announce, if it differs from `listen`.
    pub advertise: Option<PeerAddr>,
}

/// A host's listening socket and key, created before the links thread starts.
pub struct PeerListener {
    pub(super) listener: TcpListener,
    pub(super) identity: Identity,
    /// The address to which the socket is bound.
    pub address: SocketAddr,
    /// The address to announce.
    pub advertised: PeerAddr,
}

/// The error returned when a host cannot listen for connections from other machines.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// The address could not be bound.
    #[error("--peer {address}: cannot listen on this address; give another address, or off")]
    Taken {
        /// The address.
        address: SocketAddr,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// No key could be generated.
    #[error("cannot create a key for links with other machines")]
    NoKey(#[from] NoIdentity),
}

impl PeerError {
    /// Returns true if the error is due to the current state of this machine, and not to the settings.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        use io::ErrorKind::{AddrInUse, AddrNotAvailable};
        match self {
            Self::Taken { source, .. } => [AddrInUse, AddrNotAvailable].contains(&source.kind()),
            Self::NoKey(_) => true,
        }
    }
}

impl PeerSettings {
    /// Binds the address, and generates a key and a certificate for this run of the host.
    ///
    /// # Errors
    /// [`PeerError`] if the address cannot be bound or no key can be generated.
    pub fn listen(&self) -> Result<PeerListener, PeerError> {
        let bind = || {
            let listener = TcpListener::bind(self.listen)?;
            listener.set_nonblocking(true)?;
            // Accepted sockets inherit these options.
            notices_death(&listener)?;
            Ok((listener.local_addr()?, listener))
        };
        let (address, listener) = bind().map_err(|source| PeerError::Taken { address: self.listen, source })?;
        let own = PeerAddr { host: address.ip().to_string(), port: address.port() };
        let advertised = self.advertise.clone().unwrap_or(own);
        Ok(PeerListener { listener, identity: Identity::make()?, address, advertised })
    }
}

impl PeerListener {
    /// Returns the address and the certificate to announce.
    #[must_use]
    pub fn announced(&self) -> AnnouncedPeer {
        AnnouncedPeer { address: self.advertised.to_string(), certificate: self.identity.fingerprint().to_string() }
    }
}

/// Sets socket options so that the kernel detects a dead peer within 10 s and sends each line immediately.
pub(super) fn notices_death(socket: impl std::os::fd::AsFd) -> io::Result<()> {
    use rustix::net::sockopt;
    use std::time::Duration;
    const IDLE: Duration = Duration::from_secs(3);
    const BETWEEN: Duration = Duration::from_secs(1);
    const GIVEN_UP_AFTER: Duration = Duration::from_secs(8);
    sockopt::set_tcp_nodelay(&socket, true)?;
    sockopt::set_socket_keepalive(&socket, true)?;
    sockopt::set_tcp_keepidle(&socket, IDLE)?;
    sockopt::set_tcp_keepintvl(&socket, BETWEEN)?;
    sockopt::set_tcp_user_timeout(&socket, u32::try_from(GIVEN_UP_AFTER.as_millis()).unwrap_or(u32::MAX))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;

    #[test]
    fn place_is_a_reachable_host_and_a_port() {
        for text in ["web-3.example:7072", "10.0.0.3:1", "[2001:db8::3]:65535", "web_3:7072"] {
            assert_eq!(text.parse::<PeerAddr>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "web-3",
            "web-3:",
            "web-3:0",
            "web-3:65536",
            ":7072",
            "0.0.0.0:7072",
            "[::]:7072",
            "[::ffff:0.0.0.0]:7072",
            "224.0.0.1:7072",
            "255.255.255.255:7072",
            "::1:7072",
            "[web]:1",
            "a b:1",
            "a/b:1",
            "ä:1",
        ] {
            assert!(text.parse::<PeerAddr>().is_err(), "{text}");
        }
        let long = format!("{}:1", "a".repeat(LONGEST_NAME + 1));
        assert!(long.parse::<PeerAddr>().unwrap_err().to_string().len() < 300);
    }

    /// The test accepts a connection, because the host sets these options only on its listening socket. Accepted
    /// sockets inherit them.
    #[test]
    fn accepted_socket_detects_a_dead_peer_within_10_s() {
        use rustix::net::sockopt;
        let settings = PeerSettings { listen: "127.0.0.1:0".parse().unwrap(), advertise: None };
        let listening = settings.listen().unwrap();
        let _other = std::net::TcpStream::connect(listening.address).unwrap();
        listening.listener.set_nonblocking(false).unwrap();
        let (link, _) = listening.listener.accept().unwrap();
        assert!(sockopt::socket_keepalive(&link).unwrap() && sockopt::tcp_nodelay(&link).unwrap());
        let idle = sockopt::tcp_keepidle(&link).unwrap() + sockopt::tcp_keepintvl(&link).unwrap();
        let unanswered = u64::from(sockopt::tcp_user_timeout(&link).unwrap());
        assert!(idle.as_secs() <= 10 && (1..10_000).contains(&unanswered), "{idle:?} {unanswered}");
    }

    #[test]
    fn host_announces_its_own_address_unless_another_is_set() {
        let settings = PeerSettings { listen: "127.0.0.1:0".parse().unwrap(), advertise: None };
        let listening = settings.listen().unwrap();
        assert_eq!(listening.announced().address, listening.address.to_string());
        let named: PeerAddr = "web-3.example:7072".parse().unwrap();
        let advertise = Some(named.clone());
        assert_eq!(PeerSettings { advertise, ..settings }.listen().unwrap().advertised, named);
        let again = PeerSettings { listen: listening.address, advertise: None }.listen();
        assert!(again.err().unwrap().to_string().starts_with("--peer 127.0.0.1:"));
    }
}
