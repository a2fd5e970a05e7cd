//! Finds the user whose process accepted a connection on loopback. After a host has exited, any user may take over the
//! host's port. So Baton sends a token only if the process belongs to a trusted user.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

/// The kernel's tables of TCP connections (proc_pid_net(5)).
const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];

/// Interval between reads of the tables. After `TRIES` reads without a match, the peer is assumed to be on another
/// machine.
const POLL: Duration = Duration::from_millis(10);
const TRIES: u32 = 100;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// The connection is in the backlog: no process has accepted it yet.
    Unaccepted,
    OwnedBy(u32),
}

/// Returns the user whose process accepts the connection. Returns `None` if that process is not on this machine.
pub(super) async fn user_behind(stream: &TcpStream) -> io::Result<Option<u32>> {
    let (theirs, ours) = (canonical(stream.peer_addr()?), canonical(stream.local_addr()?));
    let mut unknown = 0;
    while unknown < TRIES {
        match spawn_blocking(move || look(theirs, ours)).await?? {
            Some(End::OwnedBy(user)) => return Ok(Some(user)),
            Some(End::Unaccepted) => {}
            None => unknown += 1,
        }
        sleep(POLL).await;
    }
    Ok(None)
}

/// Looks up one end of a connection: the end whose local address is `address` and whose remote address is `other`.
fn look(address: SocketAddr, other: SocketAddr) -> io::Result<Option<End>> {
    for table in TABLES {
        let file = match File::open(table) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        for line in BufReader::new(file).lines() {
            if let Some((from, to, end)) = entry(&line?)
                && (from, to) == (address, other)
            {
                return Ok(Some(end));
            }
        }
    }
    Ok(None)
}

/// Parses a line of the table. The fields are: number, local and remote address, state, queues, timer, retransmits,
/// user, timeout, inode.
fn entry(line: &str) -> Option<(SocketAddr, SocketAddr, End)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [_, from, to, _, _, _, _, user, _, inode, ..] = fields[..] else { return None };
    let end = if inode == "0" { End::Unaccepted } else { End::OwnedBy(user.parse().ok()?) };
    Some((address(from)?, address(to)?, end))
}

/// Parses an address, written as 4-byte words in hexadecimal. Each word is a native-endian number whose bytes are in
/// network order.
fn address(text: &str) -> Option<SocketAddr> {
    let (words, port) = text.split_once(':')?;
    let words = words.as_bytes().chunks(8).map(|word| {
        let word = str::from_utf8(word).ok().filter(|word| word.len() == 8)?;
        Some(u32::from_str_radix(word, 16).ok()?.to_ne_bytes())
    });
    let bytes = words.collect::<Option<Vec<_>>>()?.concat();
    let ip: IpAddr = match <[u8; 4]>::try_from(bytes.as_slice()) {
        Ok(four) => Ipv4Addr::from(four).into(),
        Err(_) => Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into(),
    };
    Some(canonical(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?)))
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use rustix::process::geteuid;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn connection_belongs_to_the_user_who_accepted_it() {
        for at in ["127.0.0.1:0", "[::]:0"] {
            let listener = TcpListener::bind(at).await.unwrap();
            let port = listener.local_addr().unwrap().port();
            let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            let (theirs, ours) = (stream.peer_addr().unwrap(), stream.local_addr().unwrap());
            assert_eq!(look(theirs, ours).unwrap(), Some(End::Unaccepted), "nobody owns it, not even root");
            let _taken = listener.accept().await.unwrap();
            assert_eq!(user_behind(&stream).await.unwrap(), Some(geteuid().as_raw()), "{at}");
        }
    }

    #[test]
    fn connection_tables_are_parsed_as_the_kernel_writes_them() {
        if cfg!(target_endian = "little") {
            let line =
                " 3: 0100007F:1B9E 0100007F:D431 01 00000000:00000000 00:00000000 00000000  1001        0 77 1 0";
            let (from, to, end) = entry(line).unwrap();
            assert_eq!((from.to_string(), to.to_string()), ("127.0.0.1:7070".into(), "127.0.0.1:54321".into()));
            assert_eq!(end, End::OwnedBy(1001));
            let line =
                "0: 0000000000000000FFFF00000100007F:1B9E 00000000000000000000000001000000:D431 01 0:0 0:0 0 0 0 0 1";
            let (from, to, end) = entry(line).unwrap();
            assert_eq!((from.to_string(), to.to_string()), ("127.0.0.1:7070".into(), "[::1]:54321".into()));
            assert_eq!(end, End::Unaccepted);
        }
        for none in ["", "sl local_address rem_address st", "0: 7F:1 7F:1 01 0 0 0 0 0 1", "0: x:1 x:1 01 0 0 0 0 0 1"]
        {
            assert_eq!(entry(none), None);
        }
    }
}
