//! When something arrived, as the kernel says.
//!
//! A thread that reads may be late, so its own clock shows nothing about order. The kernel stamps what comes on a
//! socket with `SO_TIMESTAMPNS` (`CLOCK_REALTIME`, one for all sockets), and does so within the very system call of
//! the sender: over loopback that call carries the segment to the receiving end itself, and with a Unix socket it
//! puts the message into the receiver's queue. So the stamps are in the order in which the writes happened, whatever
//! waits for a processor afterwards.
//!
//! What could spoil that is kept away. Several segments that are read at once share the last one's stamp: a sender
//! waits for the answer before it writes again. A segment waits where there is no room or Nagle's rule holds it: one
//! small request at a time meets neither. Loopback loses nothing, so nothing is sent again later. And the stamps' clock
//! must not be set: [`Clock::watch`] looks.

use std::io::{self, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::node;

/// Nanoseconds since the Unix epoch.
pub type Nanos = u64;

/// A listener on loopback; what arrives on its connections is stamped.
///
/// The kernel begins to stamp a little after the first socket of the machine has asked for it, and until then says
/// when something was read. So this returns when it is seen to stamp.
pub fn listener() -> TcpListener {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    // Its connections inherit that.
    set(&listener, libc::SO_TIMESTAMPNS, 1);
    let address = listener.local_addr().expect("a bound address");
    node::until("the kernel to stamp what arrives", || {
        let mut sends = TcpStream::connect(address)?;
        let (reads, _) = listener.accept()?;
        sends.write_all(b"?")?;
        let sent = now();
        std::thread::sleep(Duration::from_millis(1));
        match receive(&reads, &mut [0])? {
            Some((_, at)) if at <= sent => Ok(()),
            other => Err(io::Error::other(format!("sent before {sent}, and arrived {other:?}"))),
        }
    });
    listener
}

/// Two ends of a connection that keeps messages apart: what one writes into it in one call, the other reads in one
/// call, with the moment of the write. The first end reads.
pub fn message_pipe() -> (OwnedFd, OwnedFd) {
    let mut ends = [0; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: `ends` has room for the two descriptors that the call writes, and outlives it.
    let made = unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) };
    assert_eq!(made, 0, "{}", io::Error::last_os_error());
    // SAFETY: both have just been opened by the call, and nobody else owns them.
    let [reads, writes] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
    set(&reads, libc::SO_TIMESTAMPNS, 1);
    // As much room as the system gives, so that the writer does not wait for the reader.
    set(&writes, libc::SO_SNDBUF, 4 << 20);
    (reads, writes)
}

/// Reads what has arrived, and when; nothing at the end.
///
/// # Errors
/// What the system says; a stamp that is missing is one too.
pub fn receive(socket: &impl AsRawFd, bytes: &mut [u8]) -> io::Result<Option<(usize, Nanos)>> {
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // Aligned as a control message must be.
    let mut control = [0_u64; 16];
    // SAFETY: all of its fields are numbers and pointers, for which zero is a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    let length = loop {
        // SAFETY: `message` points to `part` and `control`, which point to or are memory of this call's caller and
        // of this function, with the lengths that they have.
        let length = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, 0) };
        match usize::try_from(length) {
            Ok(0) => return Ok(None),
            Ok(length) => break length,
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    };
    if message.msg_flags & libc::MSG_TRUNC != 0 {
        return Err(io::Error::other("a message was longer than what it is read into"));
    }
    match stamp(&message) {
        Some(at) => Ok(Some((length, at))),
        None => Err(io::Error::other("the kernel does not say when that arrived: SO_TIMESTAMPNS is needed")),
    }
}

/// The stamp among what came with a message.
fn stamp(message: &libc::msghdr) -> Option<Nanos> {
    // SAFETY: the kernel has filled `message`, whose control memory lives and is as long as it says.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !header.is_null() {
        // SAFETY: not null, so it is a whole header inside of the control memory.
        let (level, kind) = unsafe { ((*header).cmsg_level, (*header).cmsg_type) };
        if (level, kind) == (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) {
            // SAFETY: messages of this kind carry a `timespec`; it need not be aligned.
            let time = unsafe { libc::CMSG_DATA(header).cast::<libc::timespec>().read_unaligned() };
            let (seconds, rest) = (u64::try_from(time.tv_sec).ok()?, u64::try_from(time.tv_nsec).ok()?);
            return Some(seconds * 1_000_000_000 + rest);
        }
        // SAFETY: as above, and `header` is the one before.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
    None
}

fn set(socket: &impl AsRawFd, option: libc::c_int, value: libc::c_int) {
    let length = size_of_val(&value) as libc::socklen_t;
    let value = (&raw const value).cast();
    // SAFETY: `value` points to a number of that length, which outlives the call.
    let done = unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, value, length) };
    assert_eq!(done, 0, "{}", io::Error::last_os_error());
}

/// Now, by the clock of the stamps.
pub fn now() -> Nanos {
    read(ClockId::Realtime).try_into().expect("a time after 1970")
}

/// The clock of the stamps beside one that nobody can set.
pub struct Clock {
    offset: i128,
}

impl Clock {
    /// As it is now.
    pub fn new() -> Self {
        Self { offset: Self::offset() }
    }

    /// Whether nobody has set it since: both clocks are slewed alike.
    ///
    /// # Errors
    /// By how much it was set.
    pub fn watch(&self) -> Result<(), String> {
        let moved = Self::offset() - self.offset;
        if moved.abs() < 5_000_000 {
            return Ok(());
        }
        Err(format!(
            "the machine's clock was set by {} ms: the stamps cannot be compared, run it again",
            moved / 1_000_000
        ))
    }

    fn offset() -> i128 {
        // The shortest of some looks: between the two readings this thread may have lost its processor.
        let look = || {
            let before = read(ClockId::Monotonic);
            let real = read(ClockId::Realtime);
            let after = read(ClockId::Monotonic);
            (after - before, real - before)
        };
        std::iter::repeat_with(look).take(5).min().expect("some looks").1
    }
}

fn read(clock: ClockId) -> i128 {
    let time = clock_gettime(clock);
    i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two senders write one after the other, and what they write is read in the other order and late.
    #[test]
    fn stamps_are_in_the_order_of_the_writes_and_not_of_the_reads() {
        let listener = listener();
        let connect = || {
            let sends = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            (sends, listener.accept().unwrap().0)
        };
        let ((mut one, reads_one), (mut other, reads_other)) = (connect(), connect());
        let (reads_line, line) = message_pipe();
        let mut line = std::fs::File::from(line);
        let begin = now();
        one.write_all(b"first").unwrap();
        line.write_all(b"second").unwrap();
        other.write_all(b"third").unwrap();
        let end = now();
        // The length of the wait is the point: it must not be seen.
        std::thread::sleep(Duration::from_millis(50));
        let mut bytes = [0; 16];
        let third = receive(&reads_other, &mut bytes).unwrap().unwrap();
        let second = receive(&reads_line, &mut bytes).unwrap().unwrap();
        let first = receive(&reads_one, &mut bytes).unwrap().unwrap();
        assert_eq!((first.0, second.0, third.0), (5, 6, 5));
        let stamps = [begin, first.1, second.1, third.1, end];
        assert!(stamps.is_sorted(), "{stamps:?}");
        drop((one, line));
        assert!(receive(&reads_one, &mut bytes).unwrap().is_none());
        assert!(receive(&reads_line, &mut bytes).unwrap().is_none());
    }
}
