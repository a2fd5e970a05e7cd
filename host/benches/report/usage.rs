//! Resource usage of a host's processes, according to the kernel.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::time::Duration;

use crate::node::children_of;

/// Memory of a host and of all processes that it has started, in MiB: the total, and the part that is not backed by a
/// file on disk. Shared memory counts once.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// All resident memory, including the binary's own pages, and all in-memory files.
    pub all: f64,
    /// Heap, stacks, and guests with their code.
    pub anonymous: f64,
}

pub fn memory(pid: u32) -> io::Result<Memory> {
    let mut anonymous = 0.0;
    let (mut in_memory, mut on_disk) = (BTreeMap::new(), BTreeMap::new());
    for pid in family(pid) {
        let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
        // Use the proportional set size (PSS): a runner and its template share a lot of memory with each other, but
        // none with other processes.
        anonymous += kib(&rollup, "Pss_Anon:").ok_or(io::ErrorKind::InvalidData)?;
        note_files(&fs::read_to_string(format!("/proc/{pid}/smaps"))?, &mut in_memory, &mut on_disk);
    }
    // Count all pages of the in-memory files, which contain the compiled code. The pages occupy memory from the start.
    // The kernel, however, counts a page as resident only after a process has used it.
    let in_memory = in_memory.values().sum::<u64>() as f64 / 1024.0;
    let on_disk: f64 = on_disk.values().sum();
    Ok(Memory { all: (anonymous + in_memory + on_disk) / 1024.0, anonymous: (anonymous + in_memory) / 1024.0 })
}

fn family(pid: u32) -> impl Iterator<Item = u32> {
    std::iter::once(pid).chain(children_of(pid).into_iter().filter_map(|pid| pid.try_into().ok()))
}

/// Returns the first value with this name, in KiB.
fn kib(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_suffix("kB"));
    line?.trim().parse().ok()
}

/// Records the files that a process has mapped: for in-memory files, the mapped length in bytes by inode; for files on
/// a disk, the resident size in KiB by inode and offset.
fn note_files(smaps: &str, in_memory: &mut BTreeMap<String, u64>, on_disk: &mut BTreeMap<(String, u64), f64>) {
    let mut place = None;
    for line in smaps.lines() {
        // `7f0c5e000000-7f0c5e200000 r--p 00100000 00:01 1234 /memfd:name (deleted)` is the first line of a mapping.
        // One line for each size follows.
        let words: Vec<&str> = line.split_whitespace().collect();
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        if let [range, _, offset, _, inode, name @ ..] = &words[..]
            && let Some((from, to)) = range.split_once('-').and_then(|(from, to)| Some((hex(from)?, hex(to)?)))
            && let Some(offset) = hex(offset)
        {
            place = (*inode != "0").then(|| ((*inode).to_owned(), offset));
            if name.first().is_some_and(|name| name.starts_with("/memfd:")) {
                let size = in_memory.entry((*inode).to_owned()).or_default();
                *size = (*size).max(offset + to - from);
                place = None;
            }
        } else if let (["Rss:", size, "kB"], Some(place)) = (&words[..], &place) {
            // Use only the value of the process that has touched the largest part of this file. This counts a few
            // private pages twice: here, and as anonymous memory.
            let most = on_disk.entry(place.clone()).or_default();
            *most = f64::max(*most, size.parse().unwrap_or(0.0));
        }
    }
}

/// CPU time of a host and of the processes that it has started, to the nanosecond.
#[derive(Clone, Copy, Debug)]
pub struct Cpu(Duration);

impl Cpu {
    /// Reads the CPU time used so far, including the CPU time of threads that have exited.
    pub fn read(pid: u32) -> io::Result<Self> {
        family(pid).try_fold(Duration::ZERO, |all, pid| Ok(all + used_by(pid)?)).map(Self)
    }

    /// CPU use since the reading `earlier`, which was taken `elapsed` ago, in percent of one core.
    pub fn share_since(&self, earlier: &Cpu, elapsed: Duration) -> f64 {
        100.0 * self.0.saturating_sub(earlier.0).as_secs_f64() / elapsed.as_secs_f64()
    }
}

/// Reads the CPU time of a process from its CPU clock, because the ticks in `/proc` are too coarse.
fn used_by(pid: u32) -> io::Result<Duration> {
    let pid = pid.try_into().map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut clock = 0;
    // SAFETY: the call only writes to `clock`, which has the right type for a clock id and outlives the call.
    let error = unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error));
    }
    let mut used = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call only writes to `used`, a valid `timespec` that outlives the call.
    if unsafe { libc::clock_gettime(clock, &raw mut used) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Duration::new(used.tv_sec.unsigned_abs(), u32::try_from(used.tv_nsec).unwrap_or_default()))
}
