//! A real FUSE file system, served by this test on the kernel's own protocol: the store must refuse it, as it
//! does every file system on which a lock may hold on one machine only.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::JoinHandle;

use baton::store::{LeaseStore, SqliteStore};
use baton_election::{Op, Refusal};
use rustix::io::FdFlags;
use tempfile::TempDir;

use crate::suite::job;

/// A mounted folder with an empty `lease.db` in it. It ends with this value.
struct Fuse {
    folder: TempDir,
    server: Option<JoinHandle<()>>,
}

impl Fuse {
    /// None, aloud, where this process may not mount or the kernel has no FUSE.
    fn mount() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mounted = File::options().read(true).write(true).open("/dev/fuse").ok().filter(|device| {
            // The command hands it to the kernel.
            rustix::io::fcntl_setfd(device, FdFlags::empty()).unwrap();
            let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", rustix::fd::AsRawFd::as_raw_fd(device));
            let mut mount = Command::new("mount");
            mount.args(["-i", "-t", "fuse", "-o", &options, "fuse"]).arg(folder.path()).stderr(Stdio::null());
            mount.status().is_ok_and(|status| status.success())
        });
        let Some(device) = mounted else {
            // Past the capture of the test harness, which would swallow it.
            let said =
                std::io::stderr().write_all(b"SKIPPED: the FUSE file system that this test needs cannot be mounted\n");
            said.unwrap();
            return None;
        };
        rustix::io::fcntl_setfd(&device, FdFlags::CLOEXEC).unwrap();
        Some(Self { folder, server: Some(std::thread::spawn(move || serve(device))) })
    }

    fn path(&self) -> &Path {
        self.folder.path()
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

/// Answers the kernel until the folder is unmounted.
fn serve(mut device: File) {
    let mut request = vec![0; 1 << 17];
    while let Ok(length @ 40..) = device.read(&mut request) {
        let number = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap());
        let node = u64::from_ne_bytes(request[16..24].try_into().unwrap());
        let answer = match number(4) {
            LOOKUP if request[40..length].starts_with(b"lease.db\0") => {
                Ok([lasting(&[2, 0, 0, 0, 0]), attributes(2)].concat())
            }
            LOOKUP => Err(-2), // ENOENT
            GETATTR => Ok([lasting(&[0, 0]), attributes(node)].concat()),
            STATFS => Ok(vec![0; 80]),
            // Protocol 7.31, nothing special, and 4 KiB to write at most.
            INIT => Ok([7_u32, 31, 0, 0, 0, 4096, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0].map(u32::to_ne_bytes).concat()),
            FORGET | BATCH_FORGET => continue,
            _ => Err(-38), // ENOSYS
        };
        let (error, body) = answer.map_or_else(|error| (error, vec![]), |body| (0, body));
        let mut reply = (16 + u32::try_from(body.len()).unwrap()).to_ne_bytes().to_vec();
        reply.extend(i32::to_ne_bytes(error));
        reply.extend(&request[8..16]);
        reply.extend(body);
        if device.write_all(&reply).is_err() {
            break;
        }
    }
}

const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const STATFS: u32 = 17;
const INIT: u32 = 26;
const BATCH_FORGET: u32 = 42;

/// How long an answer holds: not at all.
fn lasting(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// Of the folder, which is node 1, or of the file.
fn attributes(node: u64) -> Vec<u8> {
    let mode = if node == 1 { 0o040_755_u32 } else { 0o100_644 };
    let times = [node, 0, 0, 0, 0, 0].map(u64::to_ne_bytes).concat();
    let rest = [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0].map(u32::to_ne_bytes).concat();
    [times, rest].concat()
}

#[tokio::test]
async fn a_fuse_file_system_is_refused() {
    let Some(fuse) = Fuse::mount() else { return };
    assert!(std::fs::symlink_metadata(fuse.path().join("lease.db")).unwrap().is_file(), "it is served");
    let store = SqliteStore::new(fuse.path());
    for answer in
        [store.create().await, store.request(&job(), Op::Read).await.map(drop), store.elections().await.map(drop)]
    {
        let Err(Refusal::Misconfigured(why)) = &answer else { panic!("{answer:?}") };
        for word in [fuse.path().to_str().unwrap(), "FUSE", "local disk"] {
            assert!(why.contains(word), "`{word}` is not said: {why}");
        }
    }
}
