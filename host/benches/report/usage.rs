//! What a process uses, as the kernel counts it.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::time::Duration;

use crate::node::children_of;

/// The kernel's unit for a process's times, the same on every architecture that Linux still runs on.
const TICKS_PER_SECOND: u64 = 100;

/// The memory that a host takes with all processes that it has started, in binary megabytes: all of it, and the share that
/// no file of a disk backs. What several of them share counts once.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// All that is resident, the binary's own pages included, and all files in memory.
    pub all: f64,
    /// Heap, stacks, guests and their code.
    pub anonymous: f64,
}

/// What a host takes now.
///
/// # Errors
/// If there is no such process.
pub fn memory(pid: u32) -> io::Result<Memory> {
    let mut anonymous = 0.0;
    let (mut in_memory, mut on_disk) = (BTreeMap::new(), BTreeMap::new());
    for pid in family(pid) {
        let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
        // The process's share: a runner and its template have much memory in common, and with no other process.
        anonymous += kib(&rollup, "Pss_Anon:").ok_or(io::ErrorKind::InvalidData)?;
        note_files(&fs::read_to_string(format!("/proc/{pid}/smaps"))?, &mut in_memory, &mut on_disk);
    }
    // Compiled code is in files in memory. Of them, pages count as resident only once they are used, and take memory from
    // the beginning.
    let in_memory = in_memory.values().sum::<u64>() as f64 / 1024.0;
    let on_disk: f64 = on_disk.values().sum();
    Ok(Memory { all: (anonymous + in_memory + on_disk) / 1024.0, anonymous: (anonymous + in_memory) / 1024.0 })
}

/// A process and those that it has started.
fn family(pid: u32) -> impl Iterator<Item = u32> {
    std::iter::once(pid).chain(children_of(pid).into_iter().filter_map(|pid| pid.try_into().ok()))
}

/// The first number of kibibytes that has this name.
fn kib(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_suffix("kB"));
    line?.trim().parse().ok()
}

/// Notes the files that a process has mapped: how long those in memory are as far as they are mapped, by their inodes, in
/// bytes; and how much of those on a disk is resident, by their inodes and places, in kibibytes.
fn note_files(smaps: &str, in_memory: &mut BTreeMap<String, u64>, on_disk: &mut BTreeMap<(String, u64), f64>) {
    let mut place = None;
    for line in smaps.lines() {
        // `7f0c5e000000-7f0c5e200000 r--p 00100000 00:01 1234    /memfd:name (deleted)`, then a line for each size.
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
            // The process that has touched more of this file has touched what the others have, and a little that is
            // private counts twice.
            let most = on_disk.entry(place.clone()).or_default();
            *most = f64::max(*most, size.parse().unwrap_or(0.0));
        }
    }
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
    /// What a host and the processes that it has started have used until now.
    ///
    /// # Errors
    /// If there is no such process.
    pub fn read(pid: u32) -> io::Result<Self> {
        family(pid).try_fold(Self { coarse: Duration::ZERO, fine: Duration::ZERO }, |all, pid| {
            let one = Self::of(pid)?;
            Ok(Self { coarse: all.coarse + one.coarse, fine: all.fine + one.fine })
        })
    }

    fn of(pid: u32) -> io::Result<Self> {
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
