//! Who answers on this machine's loopback. All users share it, and the port of a host that is gone is free for any of them:
//! so a token goes there only once it is known whose process has taken the connection.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

/// What the system knows of connections (proc_pid_net(5)).
const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];

/// How often it is asked, and how long where it knows nothing of a connection: then it ends on another machine.
const LOOK: Duration = Duration::from_millis(10);
const LOOKS: u32 = 100;

/// One end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// The system has it, and no process has taken it yet: it is nobody's.
    Waits,
    /// It is of a process of that user.
    Of(u32),
}

/// The user whose process has the other end of a connection within this machine; none where that end is not known here.
/// Waits until a process has taken it.
pub(super) async fn user_behind(stream: &TcpStream) -> io::Result<Option<u32>> {
    let (theirs, ours) = (canonical(stream.peer_addr()?), canonical(stream.local_addr()?));
    let mut unknown = 0;
    while unknown < LOOKS {
        match spawn_blocking(move || look(theirs, ours)).await?? {
            Some(End::Of(user)) => return Ok(Some(user)),
            Some(End::Waits) => {}
            None => unknown += 1,
        }
        sleep(LOOK).await;
    }
    Ok(None)
}

/// The end of a connection that has that address.
fn look(address: SocketAddr, other: SocketAddr) -> io::Result<Option<End>> {
    for table in TABLES {
        let file = match File::open(table) {
            Ok(file) => file,
            // A machine without IPv6.
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

/// A line: its number, from where, to where, the state, two queues, a timer, tries, the user, a time, and the inode.
fn entry(line: &str) -> Option<(SocketAddr, SocketAddr, End)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [_, from, to, _, _, _, _, user, _, inode, ..] = fields[..] else { return None };
    let end = if inode == "0" { End::Waits } else { End::Of(user.parse().ok()?) };
    Some((address(from)?, address(to)?, end))
}

/// Words of four bytes in hexadecimal, each as the machine reads a number that has its bytes in the network's order.
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

/// One that speaks IPv4 in a socket of IPv6 is known by the former's address.
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
    async fn a_connection_is_of_the_user_who_has_taken_it() {
        for at in ["127.0.0.1:0", "[::]:0"] {
            let listener = TcpListener::bind(at).await.unwrap();
            let port = listener.local_addr().unwrap().port();
            let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            let (theirs, ours) = (stream.peer_addr().unwrap(), stream.local_addr().unwrap());
            assert_eq!(look(theirs, ours).unwrap(), Some(End::Waits), "it is nobody's, and not root's");
            let _taken = listener.accept().await.unwrap();
            assert_eq!(user_behind(&stream).await.unwrap(), Some(geteuid().as_raw()), "{at}");
        }
    }

    #[test]
    fn lines_are_read_as_the_kernel_writes_them() {
        if cfg!(target_endian = "little") {
            let line =
                " 3: 0100007F:1B9E 0100007F:D431 01 00000000:00000000 00:00000000 00000000  1001        0 77 1 0";
            let (from, to, end) = entry(line).unwrap();
            assert_eq!((from.to_string(), to.to_string()), ("127.0.0.1:7070".into(), "127.0.0.1:54321".into()));
            assert_eq!(end, End::Of(1001));
            let line =
                "0: 0000000000000000FFFF00000100007F:1B9E 00000000000000000000000001000000:D431 01 0:0 0:0 0 0 0 0 1";
            let (from, to, end) = entry(line).unwrap();
            assert_eq!((from.to_string(), to.to_string()), ("127.0.0.1:7070".into(), "[::1]:54321".into()));
            assert_eq!(end, End::Waits);
        }
        for none in ["", "sl local_address rem_address st", "0: 7F:1 7F:1 01 0 0 0 0 0 1", "0: x:1 x:1 01 0 0 0 0 0 1"]
        {
            assert_eq!(entry(none), None);
        }
    }
}
