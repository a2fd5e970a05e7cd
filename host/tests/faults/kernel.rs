//! Reads from sockets with the kernel's timestamps.
//!
//! A thread may read late, so the times at which it reads say nothing about the order of the writes. With
//! `SO_TIMESTAMPNS`, the kernel stamps the data on all sockets with one clock, `CLOCK_REALTIME`, during the sender's
//! system call. Over loopback, this system call itself delivers the segment to the receiver. On a Unix socket, it
//! queues the message. The stamps are therefore in the order of the writes, however long the reader waits for a CPU.
//!
//! Four things could break this order:
//!
//! - Segments that are read together share the stamp of the last segment. To prevent this, senders wait for the answer
//!   before they write again.
//! - A segment is delayed if the receiver has no room, or by Nagle's algorithm. Neither happens to single small
//!   requests.
//! - A lost segment would be sent again, with a later stamp. But loopback loses no segments.
//! - Someone may set the clock. [`Clock::watch`] detects this.

use std::io::{self, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::node;

/// Nanoseconds since the Unix epoch.
pub type Nanos = u64;

/// Returns a loopback listener that enables timestamps on its connections.
///
/// When the first socket on a machine requests timestamps, the kernel takes a moment to enable them. Until then, a
/// stamp shows the time of the read. This function waits until the stamps show the time of the write.
pub fn listener() -> TcpListener {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    // Accepted connections inherit the option.
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

/// Creates a pipe that preserves message boundaries. The kernel stamps each message with the time of its write. Returns
/// the reading end first.
pub fn message_pipe() -> (OwnedFd, OwnedFd) {
    let mut ends = [0; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: `ends` has room for the two descriptors that the call writes, and outlives it.
    let made = unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) };
    assert_eq!(made, 0, "{}", io::Error::last_os_error());
    // SAFETY: the call has just opened both descriptors, and nothing else owns them.
    let [reads, writes] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
    set(&reads, libc::SO_TIMESTAMPNS, 1);
    // With a large buffer, the writer need not wait for the reader. If the value exceeds the kernel's limit, the kernel
    // uses the limit.
    set(&writes, libc::SO_SNDBUF, 4 << 20);
    (reads, writes)
}

/// Reads bytes and their timestamp. Returns `None` at the end of the stream.
///
/// # Errors
/// If the read fails, or if the stamp is missing.
pub fn receive(socket: &impl AsRawFd, bytes: &mut [u8]) -> io::Result<Option<(usize, Nanos)>> {
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // `u64` has the alignment that control messages need.
    let mut control = [0_u64; 16];
    // SAFETY: all fields of `msghdr` are numbers and pointers, for which zero is a valid value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    let length = loop {
        // SAFETY: `message` points to `part` and `control`, which live in this function. `part` points to `bytes`,
        // which this function has borrowed mutably. All lengths match the buffers.
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

fn stamp(message: &libc::msghdr) -> Option<Nanos> {
    // SAFETY: the kernel has filled `message`, and its control buffer is alive and has the length in `message`.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !header.is_null() {
        // SAFETY: `header` is not null, so it points to a whole header inside the control buffer.
        let (level, kind) = unsafe { ((*header).cmsg_level, (*header).cmsg_type) };
        if (level, kind) == (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) {
            // SAFETY: messages of this kind carry a `timespec`, and `read_unaligned` requires no alignment.
            let time = unsafe { libc::CMSG_DATA(header).cast::<libc::timespec>().read_unaligned() };
            let (seconds, rest) = (u64::try_from(time.tv_sec).ok()?, u64::try_from(time.tv_nsec).ok()?);
            return Some(seconds * 1_000_000_000 + rest);
        }
        // SAFETY: `message` is as above, and `header` is one of its headers.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
    None
}

fn set(socket: &impl AsRawFd, option: libc::c_int, value: libc::c_int) {
    let length = size_of_val(&value) as libc::socklen_t;
    let value = (&raw const value).cast();
    // SAFETY: `value` points to an integer of `length` bytes that outlives the call.
    let done = unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, value, length) };
    assert_eq!(done, 0, "{}", io::Error::last_os_error());
}

/// The current time, on the clock that the stamps use.
pub fn now() -> Nanos {
    read(ClockId::Realtime).try_into().expect("a time after 1970")
}

/// Detects that someone has set the clock that the stamps use, by comparing it with the monotonic clock.
pub struct Clock {
    offset: i128,
}

impl Clock {
    pub fn new() -> Self {
        Self { offset: Self::offset() }
    }

    /// Checks that the clock has not been set since [`Self::new`]. Slewing is not detected, because it affects both
    /// clocks alike.
    ///
    /// # Errors
    /// If the clock has been set. The error contains the difference.
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
        // The thread may be preempted between two readings of a clock, so use the fastest of 5 measurements.
        let measure = || {
            let before = read(ClockId::Monotonic);
            let real = read(ClockId::Realtime);
            let after = read(ClockId::Monotonic);
            (after - before, real - before)
        };
        std::iter::repeat_with(measure).take(5).min().expect("5 measurements").1
    }
}

fn read(clock: ClockId) -> i128 {
    let time = clock_gettime(clock);
    i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_have_the_order_of_the_writes() {
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
        // Read the messages late and in reverse order. This must not change their stamps.
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
