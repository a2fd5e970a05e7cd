//! The processes that hold a lock on a database, for messages to operators.

use std::fmt;
use std::path::Path;

use rustix::fs::{Dev, major, minor, stat};

/// The range of bytes that SQLite locks: one byte (PENDING) for a writer that waits for readers, one (RESERVED) for a
/// writer, and 510 (SHARED) for readers. <https://sqlite.org/fileformat.html#the_lock_byte_page>
const LOCKED: std::ops::RangeInclusive<u64> = 0x4000_0000..=0x4000_01ff;

/// Maximum number of processes named in a message.
const MOST: usize = 4;

#[derive(Clone, PartialEq, Eq, Debug)]
struct Holder {
    pid: u32,
    writes: bool,
}

/// Describes the other processes that hold a lock on the database at this path, for example `process 42 (baton) writes
/// to it`. Returns `None` if the kernel lists no such process. The kernel does not list processes in other containers.
pub(super) fn described(path: &Path) -> Option<String> {
    let found = stat(path).ok()?;
    let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    let mut holders = holders(&locks, found.st_dev, found.st_ino);
    holders.retain(|holder| holder.pid != std::process::id());
    let named: Vec<String> = holders.iter().take(MOST).map(ToString::to_string).collect();
    (!named.is_empty()).then(|| named.join(", and "))
}

/// Parses `/proc/locks`. Each line has a number, `POSIX` or `OFDLCK`, `ADVISORY`, `READ` or `WRITE`, a process id (-1
/// for none), the file as `MAJOR:MINOR:INODE`, and the first and the last locked byte (`EOF` for the end of the file).
/// If the process is still waiting for the lock, `->` follows the number.
fn holders(locks: &str, device: Dev, inode: u64) -> Vec<Holder> {
    let file = format!("{:02x}:{:02x}:{inode}", major(device), minor(device));
    let mut found: Vec<Holder> = Vec::new();
    for line in locks.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, "POSIX" | "OFDLCK", _, kind, pid, of, first, last] = fields[..] else { continue };
        let last = if last == "EOF" { Ok(u64::MAX) } else { last.parse() };
        let (Ok(pid), Ok(first), Ok(last)) = (pid.parse(), first.parse::<u64>(), last) else { continue };
        if of != file || first > *LOCKED.end() || last < *LOCKED.start() {
            continue;
        }
        match found.iter_mut().find(|holder| holder.pid == pid) {
            Some(holder) => holder.writes |= kind == "WRITE",
            None => found.push(Holder { pid, writes: kind == "WRITE" }),
        }
    }
    // Put a writer first, because the other processes are waiting for it.
    found.sort_by_key(|holder| !holder.writes);
    found
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid, writes } = self;
        let of = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        // The state is the field after the process name, which is in parentheses and may contain any characters.
        let stat = of("stat");
        let state = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next());
        let state = if matches!(state, Some("T" | "t")) { ", which is stopped," } else { "" };
        let name: String = of("comm").trim_end().chars().filter(|c| !c.is_control()).collect();
        let does = if *writes { "writes to it" } else { "reads it" };
        write!(f, "process {pid} ({name}){state} {does}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_of_sqlite_locks_are_found_writers_first() {
        let locks = "1: POSIX  ADVISORY  READ 41 fd:01:77 1073741826 1073742335\n\
                     2: POSIX  ADVISORY  WRITE 42 fd:01:77 1073741825 1073741825\n\
                     2: -> POSIX  ADVISORY  WRITE 43 fd:01:77 1073741825 1073741825\n\
                     3: POSIX  ADVISORY  READ 42 fd:01:77 1073741826 1073742335\n\
                     4: POSIX  ADVISORY  WRITE 44 fd:01:78 1073741825 1073741825\n\
                     5: OFDLCK ADVISORY  READ -1 fd:01:77 1073741826 1073742335\n\
                     6: FLOCK  ADVISORY  WRITE 45 fd:01:77 0 EOF\n\
                     7: POSIX  ADVISORY  WRITE 46 fd:01:77 0 0\n\
                     8: POSIX  ADVISORY  READ 47 fd:01:77 0 EOF\n\
                     9: POSIX  ADVISORY  WRITE 48 fd:01:77 1073742336 EOF\n\
                     what is no line\n";
        let found = holders(locks, rustix::fs::makedev(0xfd, 1), 77);
        let found: Vec<_> = found.iter().map(|holder| (holder.pid, holder.writes)).collect();
        assert_eq!(found, [(42, true), (41, false), (47, false)]);
    }
}
