//! A FUSE file system that the test's own process serves. It contains one folder with one empty file. Writes to the
//! file hang until the test answers them.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::io::FdFlags;
use tempfile::TempDir;

use crate::patience::Patience;
use crate::skipped::skipped;

/// A mounted folder. Dropping this value unmounts the folder.
pub struct Fuse {
    folder: TempDir,
    writes: Receiver<HungWrite>,
    server: Option<JoinHandle<()>>,
}

/// A write that the test has not answered yet. Dropping this value answers the write. Until a write is answered, even
/// SIGKILL cannot end the process that writes.
pub struct HungWrite {
    device: File,
    request: [u8; 8],
    size: u32,
}

impl Fuse {
    /// Mounts a folder that holds `file`. If this process may not mount file systems, or the kernel lacks FUSE, reports
    /// the test as skipped and returns `None`.
    pub fn mount(file: &'static str) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        let mounted = File::options().read(true).write(true).open("/dev/fuse").ok().filter(|device| {
            // `mount` inherits the descriptor and passes it to the kernel.
            rustix::io::fcntl_setfd(device, FdFlags::empty()).expect("flags are set");
            let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", rustix::fd::AsRawFd::as_raw_fd(device));
            let mut mount = Command::new("mount");
            mount.args(["-i", "-t", "fuse", "-o", &options, "fuse"]).arg(folder.path()).stderr(Stdio::null());
            mount.status().is_ok_and(|status| status.success())
        });
        let Some(device) = mounted else {
            skipped("the FUSE file system that it needs cannot be mounted");
            return None;
        };
        rustix::io::fcntl_setfd(&device, FdFlags::CLOEXEC).expect("flags are set");
        let (hang, writes) = channel();
        let server = std::thread::spawn(move || serve(device, file, &hang));
        Some(Self { folder, writes, server: Some(server) })
    }

    /// The path of the mounted folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Waits for a write.
    pub fn hung_write(&self) -> HungWrite {
        Patience::poll(Duration::from_millis(10), || self.writes.try_recv().ok()).expect("a process writes")
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg(self.path()).status().is_ok_and(|status| status.success());
        if let Some(server) = self.server.take().filter(|_| unmounted) {
            let _ = server.join();
        }
    }
}

impl Drop for HungWrite {
    fn drop(&mut self) {
        // The answer fails only if the folder is no longer mounted.
        let _ = answer(&mut self.device, self.request, Ok([self.size, 0].map(u32::to_ne_bytes).concat()));
    }
}

/// Answers the kernel's requests until the folder is unmounted.
fn serve(mut device: File, file: &str, hang: &Sender<HungWrite>) {
    let mut bytes = vec![0; 1 << 17];
    while let Ok(length @ 40..) = device.read(&mut bytes) {
        let number = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let request: [u8; 8] = bytes[8..16].try_into().expect("eight bytes");
        let node = u64::from_ne_bytes(bytes[16..24].try_into().expect("eight bytes"));
        let name = || bytes[40..length].split(|byte| *byte == 0).next();
        let reply = match number(4) {
            // All cache lifetimes in the answer are 0, so the kernel caches neither names nor attributes.
            LOOKUP if name() == Some(file.as_bytes()) => Ok([words(&[2, 0, 0, 0, 0]), attributes(2)].concat()),
            LOOKUP => Err(-2), // ENOENT
            GETATTR | SETATTR => Ok([words(&[0, 0]), attributes(node)].concat()),
            STATFS => Ok(vec![0; 80]),
            // The answer consists of a handle and the flag FOPEN_DIRECT_IO, which keeps the kernel from caching
            // contents.
            OPEN => Ok([0_u64, 1].map(u64::to_ne_bytes).concat()),
            FLUSH | RELEASE => Ok(vec![]),
            WRITE => {
                let device = device.try_clone().expect("a descriptor");
                // If the test no longer waits for writes, `send` fails and drops the write, which answers it.
                let _ = hang.send(HungWrite { device, request, size: number(56) });
                continue;
            }
            // Protocol 7.31, no flags, and writes of at most 4 KiB.
            INIT => Ok([7_u32, 31, 0, 0, 0, 4096, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0].map(u32::to_ne_bytes).concat()),
            FORGET | INTERRUPT | BATCH_FORGET => continue,
            _ => Err(-38), // ENOSYS
        };
        if answer(&mut device, request, reply).is_err() {
            break;
        }
    }
}

fn answer(device: &mut File, request: [u8; 8], reply: Result<Vec<u8>, i32>) -> std::io::Result<()> {
    let (error, body) = reply.map_or_else(|error| (error, vec![]), |body| (0, body));
    let mut bytes = (16 + u32::try_from(body.len()).expect("a short body")).to_ne_bytes().to_vec();
    bytes.extend(error.to_ne_bytes());
    bytes.extend(request);
    bytes.extend(body);
    device.write_all(&bytes)
}

const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const SETATTR: u32 = 4;
const OPEN: u32 = 14;
const WRITE: u32 = 16;
const STATFS: u32 = 17;
const RELEASE: u32 = 18;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// The attributes of a FUSE node. Node 1 is the folder, and node 2 is the file.
fn attributes(node: u64) -> Vec<u8> {
    let mode = if node == 1 { 0o040_755_u32 } else { 0o100_644 };
    let times = [node, 0, 0, 0, 0, 0].map(u64::to_ne_bytes).concat();
    let rest = [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0].map(u32::to_ne_bytes).concat();
    [times, rest].concat()
}
