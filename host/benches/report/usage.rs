//! What a process uses, as the kernel counts it.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::time::Duration;

/// The kernel's unit for a process's times, the same on every architecture that Linux still runs on.
const TICKS_PER_SECOND: u64 = 100;

/// The memory that a process takes, in binary megabytes: all of it, and the share that no file of a disk backs.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// All that is resident, the binary's own pages included, and all of its files in memory.
    pub all: f64,
    /// Heap, stacks, guests and their code.
    pub anonymous: f64,
}

/// What a process takes now.
///
/// # Errors
/// If there is no such process.
pub fn memory(pid: u32) -> io::Result<Memory> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let mib = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_suffix("kB"));
        line.and_then(|kib| kib.trim().parse::<f64>().ok()).map(|kib| kib / 1024.0).ok_or(io::ErrorKind::InvalidData)
    };
    // Compiled code is in such files. Of them, pages count as resident only once they are used, and take memory from
    // the beginning.
    let files = files_in_memory(&fs::read_to_string(format!("/proc/{pid}/maps"))?);
    Ok(Memory { all: mib("VmRSS:")? - mib("RssShmem:")? + files, anonymous: mib("RssAnon:")? + files })
}

/// The size of all files in memory that a process has mapped, each once and as far as it is mapped.
fn files_in_memory(maps: &str) -> f64 {
    let mut sizes = BTreeMap::<&str, u64>::new();
    for line in maps.lines().filter(|line| line.contains(" /memfd:")) {
        // `7f0c5e000000-7f0c5e200000 r--p 00100000 00:01 1234    /memfd:name (deleted)`.
        let mut words = line.split_whitespace();
        let (range, offset, inode) = (words.next(), words.nth(1), words.nth(1));
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let length = range.and_then(|range| range.split_once('-')).and_then(|(from, to)| Some(hex(to)? - hex(from)?));
        if let (Some(length), Some(offset), Some(inode)) = (length, offset.and_then(hex), inode) {
            let size = sizes.entry(inode).or_default();
            *size = (*size).max(offset + length);
        }
    }
    sizes.values().sum::<u64>() as f64 / f64::from(1 << 20)
}

/// The processor time that a process has used, counted in two ways.
#[derive(Clone, Copy, Debug)]
pub struct Cpu {
    /// Of the whole process, in ticks.
    coarse: Duration,
    /// Of the threads that it has now, to the nanosecond.
    fine: Duration,
}

impl Cpu {
    /// What the process has used until now.
    ///
    /// # Errors
    /// If there is no such process.
    pub fn read(pid: u32) -> io::Result<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        // The second field is the name in parentheses, and may contain anything.
        let after_name = stat.rsplit(')').next().unwrap_or_default();
        let ticks: u64 = after_name.split_whitespace().skip(11).take(2).filter_map(|n| n.parse::<u64>().ok()).sum();
        let mut fine = Duration::ZERO;
        for task in fs::read_dir(format!("/proc/{pid}/task"))? {
            // A thread may end between the listing and the reading.
            let Ok(text) = fs::read_to_string(task?.path().join("schedstat")) else { continue };
            let nanos = text.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0);
            fine += Duration::from_nanos(nanos);
        }
        Ok(Self { coarse: Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND), fine })
    }

    /// The share of one core used since `earlier`, `elapsed` ago, in percent. Ticks lose what is shorter than
    /// a tick, and threads what those have used that ended meanwhile: the larger of both counts.
    pub fn share_since(&self, earlier: &Cpu, elapsed: Duration) -> f64 {
        let coarse = self.coarse.saturating_sub(earlier.coarse);
        let fine = self.fine.saturating_sub(earlier.fine);
        100.0 * coarse.max(fine).as_secs_f64() / elapsed.as_secs_f64()
    }
}
