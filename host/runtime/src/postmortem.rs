//! What is kept of an instance that has ended: a core dump where it trapped, and a profile of where it spent its
//! time.
//!
//! Both are for people, and nothing waits for them: a thread of its own writes them, so that neither the
//! instance's end nor the next term depends on a disk. What of it cannot be written is said and forgotten.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read as _, Seek as _, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use baton_election::{ElectionName, Term};
use rustix::fs::Access;
use serde::{Deserialize, Serialize};
use wasmtime::component::Component;
use wasmtime::{AsContext, GuestProfiler};

use super::names::PlainNames;
use super::output::{Notice, Output};
use crate::memory::held_by;

/// Of each election, only the newest core dumps stay in their folder: as many as there are failures in a row
/// before its node steps down.
const KEPT: usize = 5;

/// What follows an election's name and the term in the name of a core dump's file.
const CORE_DUMP: &str = ".coredump";

/// While a guest computes, a profile has a sample this often.
pub(super) const SAMPLE_EVERY: Duration = Duration::from_millis(10);

/// After so many samples a profile is full: an hour of computing.
const MOST_SAMPLES: u32 = 360_000;

/// A profile that holds so much memory is full, in bytes. What it keeps of a stack depends on the guest: one that is
/// deep and never twice the same costs megabytes. Its tables have room for twice as much when they have just grown,
/// so 64 MiB are what it takes at most; as a file it is smaller.
const MOST_MEMORY: isize = 32 << 20;

/// How long the making of a core dump may take at most: this, and [`DUMPING_A_GIB`] for the memory in use. Twice
/// what it takes on a small machine.
const DUMPING: Duration = Duration::from_millis(200);
/// See [`DUMPING`].
const DUMPING_A_GIB: Duration = Duration::from_secs(16);

/// What of a coordinator's instances is kept, and where. Nothing by default.
#[derive(Clone, Default)]
pub struct Postmortem {
    core_dumps: Option<PathBuf>,
    profile: Option<PathBuf>,
    queue: Option<Arc<Queue>>,
}

impl Postmortem {
    /// Core dumps into a folder, and the profile of the last instance into a file.
    ///
    /// # Errors
    /// What is wrong with the folder or with the file's place, and what to do.
    pub fn new(
        core_dumps: Option<PathBuf>,
        profile: Option<PathBuf>,
        writer: &PostmortemWriter,
    ) -> Result<Self, PostmortemError> {
        if let Some(folder) = &core_dumps {
            check_folder(folder).map_err(|why| PostmortemError::CoreDumps { folder: folder.clone(), why })?;
        }
        if let Some(file) = &profile {
            check_file(file).map_err(|why| PostmortemError::Profile { file: file.clone(), why })?;
        }
        Ok(Self { core_dumps, profile, queue: Some(Arc::clone(&writer.queue)) })
    }

    /// Takes what an instance has left in that file. Never blocks on a disk.
    pub(super) fn keep(
        &self,
        (election, term): (&ElectionName, Term),
        Left { core_dump, profile }: Left,
        file: Option<File>,
        output: &Arc<dyn Output>,
    ) {
        let mut remains = Box::new(Remains { core_dump: None, profile: None, output: Arc::clone(output) });
        let Some(file) = file.map(Arc::new) else { return };
        let mut begin = 0;
        if let (Some(folder), Some(core_dump)) = (&self.core_dumps, core_dump) {
            let path = folder.join(format!("{election}-{term}{CORE_DUMP}"));
            match core_dump {
                Ok(length) => {
                    let bytes = Part { file: Arc::clone(&file), begin, length };
                    begin = length;
                    remains.core_dump = Some(CoreDump { path, election: election.clone(), bytes });
                }
                Err(why) => output.notice(Notice::NotSaved { what: CORE_DUMP_OF, path: &path, why: &why }),
            }
        }
        if let Some(path) = &self.profile {
            match profile {
                Some(Ok((length, full))) => {
                    remains.profile =
                        Some(KeptProfile { path: path.clone(), bytes: Part { file, begin, length }, full });
                }
                Some(Err(why)) => output.notice(Notice::NotSaved { what: PROFILE_OF, path, why: &why }),
                None => {
                    let why = "the instance was killed or did not start, so it left no profile";
                    output.notice(Notice::NotSaved { what: PROFILE_OF, path, why });
                }
            }
        }
        if let Some(queue) = &self.queue
            && let Err(remains) = queue.push(remains)
        {
            remains.give_up("the host is still writing the dump or profile of the previous instance");
        }
    }
}

/// What an instance has left in the file that its runner had for that.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Left {
    /// The length of its core dump, which is the first in the file; or why there is none.
    pub(super) core_dump: Option<Result<u64, String>>,
    /// The length of its profile, which comes next, and why it is not whole; or why there is none.
    pub(super) profile: Option<Result<(u64, Option<String>), String>>,
}

/// Leaves a core dump and a profile in that file, in the runner.
pub(super) fn leave(file: Option<File>, core_dump: Option<Result<Vec<u8>, String>>, profiler: &Profiler) -> Left {
    let Some(mut file) = file else { return Left::default() };
    let core_dump = core_dump.map(|made| {
        made.and_then(|dump| file.write_all(&dump).map(|()| dump.len() as u64).map_err(|error| error.to_string()))
    });
    let begin = file.stream_position().unwrap_or(0);
    let profile = profiler.take().map(|profile| {
        let full = profile.is_full();
        let written = profile.write(&file).and_then(|()| Ok(file.stream_position()? - begin));
        written.map(|length| (length, full)).map_err(|error| error.to_string())
    });
    Left { core_dump, profile }
}

/// Why nothing could be kept.
#[derive(Debug, thiserror::Error)]
pub enum PostmortemError {
    /// The folder does not take files.
    #[error(
        "cannot write core dumps to {}: {why}; create the folder, or name another one with `--coredump`",
        .folder.display()
    )]
    CoreDumps {
        /// The folder.
        folder: PathBuf,
        /// What is wrong.
        why: io::Error,
    },
    /// The file cannot be made or replaced.
    #[error("cannot write the profile to {}: {why}; name another file with `--profile`", .file.display())]
    Profile {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        why: io::Error,
    },
}

fn check_folder(folder: &Path) -> io::Result<()> {
    if !fs::metadata(folder)?.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    Ok(rustix::fs::access(folder, Access::WRITE_OK | Access::EXEC_OK)?)
}

fn check_file(file: &Path) -> io::Result<()> {
    match fs::metadata(file) {
        Ok(metadata) if !metadata.is_file() => return Err(io::Error::other("not a regular file")),
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    check_folder(folder)
}

/// How long making a core dump of an instance with so much memory may take.
pub(super) fn time_to_dump(memory: u64) -> Duration {
    let millis = u128::from(memory) * DUMPING_A_GIB.as_millis() / (1 << 30);
    DUMPING + Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
}

/// Samples where an instance is, while it computes. Clones share it.
#[derive(Clone)]
pub(super) struct Profiler(Arc<Mutex<Option<Profile>>>);

struct Profile {
    profiler: GuestProfiler,
    samples: u32,
    /// How much memory it holds, in bytes.
    held: isize,
}

impl Profile {
    /// Why it takes no more samples, if it does not.
    fn is_full(&self) -> Option<String> {
        let Self { samples, held, .. } = self;
        let full = if *held >= MOST_MEMORY {
            format!("the profile needs more than {} MiB of memory", MOST_MEMORY >> 20)
        } else if *samples >= MOST_SAMPLES {
            "the host takes no more samples".to_owned()
        } else {
            return None;
        };
        let seconds = (SAMPLE_EVERY * *samples).as_secs();
        Some(format!("the profile ends after {samples} samples, {seconds} s of computing: {full}"))
    }
}

impl Profile {
    fn write(self, file: &File) -> io::Result<()> {
        let mut file = BufWriter::new(file);
        let mut plain = PlainNames::in_json(&mut file);
        self.profiler.finish(&mut plain).map_err(io::Error::other)?;
        plain.end()?;
        file.flush()
    }
}

impl Profiler {
    /// Of an instance, if that `is_wanted`.
    pub(super) fn of(is_wanted: bool, election: &str, term: Term, component: &Component) -> Self {
        let begin = || {
            let name = format!("{election}, term {term}");
            let (profiler, held) = held_by(|| {
                // It fails only under a debugger, which this engine has none of.
                GuestProfiler::new_component(component.engine(), &name, SAMPLE_EVERY, component.clone(), []).ok()
            });
            Some(Profile { profiler: profiler?, samples: 0, held })
        };
        Self(Arc::new(Mutex::new(is_wanted.then(begin).flatten())))
    }

    /// Takes a sample, from within the instance's epoch callback.
    pub(super) fn sample(&self, store: impl AsContext) {
        if let Some(profile) = self.lock().as_mut().filter(|profile| profile.is_full().is_none()) {
            profile.samples += 1;
            let ((), held) = held_by(|| profile.profiler.sample(store, SAMPLE_EVERY));
            profile.held += held;
        }
    }

    fn take(&self) -> Option<Profile> {
        self.lock().take()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Profile>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What an instance left.
struct Remains {
    core_dump: Option<CoreDump>,
    profile: Option<KeptProfile>,
    output: Arc<dyn Output>,
}

struct CoreDump {
    path: PathBuf,
    election: ElectionName,
    bytes: Part,
}

struct KeptProfile {
    path: PathBuf,
    bytes: Part,
    /// Why it is not whole, if it is not.
    full: Option<String>,
}

/// A part of what a runner has left.
struct Part {
    file: Arc<File>,
    begin: u64,
    length: u64,
}

impl Part {
    /// Copies it. That it is shorter than its runner says is an error.
    fn copy_to(&self, to: &mut File) -> io::Result<()> {
        let mut from = &*self.file;
        from.seek(SeekFrom::Start(self.begin))?;
        match io::copy(&mut from.take(self.length), to)? {
            copied if copied == self.length => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// How people are told of one.
const CORE_DUMP_OF: &str = "core dump";
const PROFILE_OF: &str = "profile";
const REST_OF: &str = "rest of the profile";

impl Remains {
    fn is_empty(&self) -> bool {
        self.core_dump.is_none() && self.profile.is_none()
    }

    fn write(self) {
        let Self { core_dump, profile, output } = self;
        let tell = |what, path: &Path, written: io::Result<()>| match written {
            Ok(()) => output.notice(Notice::Saved { what, path }),
            Err(error) => output.notice(Notice::NotSaved { what, path, why: &error.to_string() }),
        };
        if let Some(CoreDump { path, election, bytes }) = core_dump {
            let written = replace(&path, |file| bytes.copy_to(file));
            tell(CORE_DUMP_OF, &path, written.and_then(|()| forget_oldest(&path, &election)));
        }
        if let Some(KeptProfile { path, bytes, full }) = profile {
            let written = replace(&path, |file| bytes.copy_to(file));
            if let (Ok(()), Some(why)) = (&written, &full) {
                output.notice(Notice::NotSaved { what: REST_OF, path: &path, why });
            }
            tell(PROFILE_OF, &path, written);
        }
    }

    fn give_up(&self, why: &str) {
        if let Some(CoreDump { path, .. }) = &self.core_dump {
            self.output.notice(Notice::NotSaved { what: CORE_DUMP_OF, path, why });
        }
        if let Some(KeptProfile { path, .. }) = &self.profile {
            self.output.notice(Notice::NotSaved { what: PROFILE_OF, path, why });
        }
    }
}

/// Writes a file whole, or leaves what was there. Only its owner may read it: memory holds secrets. So it is a
/// new file, since another user who may write to the folder could have put a file there, or a link.
fn replace(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".part");
    // Most often there is none. What cannot be removed is told of by the opening.
    let _ = fs::remove_file(&unfinished);
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&unfinished)
        .and_then(|mut file| write(&mut file))
        .and_then(|()| fs::rename(&unfinished, path));
    if written.is_err() {
        // Half of it is of no use and takes the room that is missing. It may not even be there.
        let _ = fs::remove_file(&unfinished);
    }
    written
}

/// Removes an election's oldest core dumps from the folder of `newest`.
fn forget_oldest(newest: &Path, election: &ElectionName) -> io::Result<()> {
    let Some(folder) = newest.parent() else { return Ok(()) };
    let mut dumps = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let rest = name.to_str().and_then(|name| name.strip_prefix(election.as_str()));
        let term = rest.and_then(|rest| rest.strip_prefix('-')?.strip_suffix(CORE_DUMP)?.parse::<Term>().ok());
        // By their age: a store that was made anew counts its terms from 1 again.
        if let (Some(term), Ok(modified)) = (term, entry.metadata().and_then(|metadata| metadata.modified())) {
            dumps.push((modified, term, entry.path()));
        }
    }
    dumps.sort_unstable();
    let oldest = dumps.len().saturating_sub(KEPT);
    dumps.iter().take(oldest).try_for_each(|(.., path)| fs::remove_file(path))
}

/// The thread that writes what is kept, and its owner.
pub struct PostmortemWriter {
    queue: Arc<Queue>,
    /// None once it was shut down.
    thread: Option<JoinHandle<()>>,
}

impl PostmortemWriter {
    /// Starts the thread, which sleeps until there is something to write.
    ///
    /// # Errors
    /// What the system says where it has no thread to give.
    pub fn start() -> io::Result<Self> {
        let queue = Arc::new(Queue::default());
        let its = Arc::clone(&queue);
        let thread = std::thread::Builder::new().name("postmortem".into()).spawn(move || {
            while let Some(remains) = its.next() {
                remains.write();
            }
            its.lock().ended = true;
            its.changed.notify_all();
        })?;
        Ok(Self { queue, thread: Some(thread) })
    }

    /// Writes what there is and ends the thread. Gives up after `longest` where a disk hangs: the thread is then
    /// left behind by the process. Says whether all was written. Blocks.
    pub fn shutdown(mut self, longest: Duration) -> bool {
        self.queue.close();
        let waited = self.queue.changed.wait_timeout_while(self.queue.lock(), longest, |state| !state.ended);
        let ended = waited.unwrap_or_else(PoisonError::into_inner).0.ended;
        let thread = self.thread.take();
        ended && thread.is_none_or(|thread| thread.join().is_ok())
    }
}

impl Drop for PostmortemWriter {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.queue.close();
            // Without a shutdown no instance ever ran, and there is nothing to write.
            let _ = thread.join();
        }
    }
}

/// Holds what one instance left, so that a slow disk costs no more memory than that.
#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    next: Option<Box<Remains>>,
    closed: bool,
    ended: bool,
}

impl Queue {
    fn push(&self, remains: Box<Remains>) -> Result<(), Box<Remains>> {
        if remains.is_empty() {
            return Ok(());
        }
        let mut state = self.lock();
        if state.closed || state.next.is_some() {
            return Err(remains);
        }
        state.next = Some(remains);
        self.changed.notify_all();
        Ok(())
    }

    fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    fn next(&self) -> Option<Box<Remains>> {
        let nothing = |state: &mut State| state.next.is_none() && !state.closed;
        let waited = self.changed.wait_while(self.lock(), nothing);
        waited.unwrap_or_else(PoisonError::into_inner).next.take()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn what_others_have_put_in_the_way_gets_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let [path, part, others] =
            ["job-1.coredump", "job-1.coredump.part", "others"].map(|name| folder.path().join(name));
        fs::write(&others, "theirs").unwrap();
        for is_link in [true, false] {
            if is_link {
                symlink(&others, &part).unwrap();
            } else {
                fs::write(&part, "longer than what is written").unwrap();
                fs::set_permissions(&part, fs::Permissions::from_mode(0o666)).unwrap();
            }
            replace(&path, |file| file.write_all(b"memory")).unwrap();
            assert_eq!(fs::read(&others).unwrap(), b"theirs");
            assert_eq!(fs::read(&path).unwrap(), b"memory");
            let found = fs::symlink_metadata(&path).unwrap();
            assert!(found.is_file());
            assert_eq!(found.permissions().mode() & 0o777, 0o600, "only its owner may read it");
        }
    }

    /// Where a disk hangs, nobody is told that something was written.
    struct Hangs {
        begun: mpsc::Sender<()>,
        go_on: Mutex<mpsc::Receiver<()>>,
        not_saved: Mutex<Vec<String>>,
    }

    impl Output for Hangs {
        fn notice(&self, notice: Notice<'_>) {
            match notice {
                Notice::Saved { .. } => {
                    let _ = self.begun.send(());
                    // Ends with the sender, too.
                    let _ = self.go_on.lock().unwrap().recv();
                }
                Notice::NotSaved { why, .. } => self.not_saved.lock().unwrap().push(why.to_owned()),
                _ => {}
            }
        }
    }

    #[test]
    fn a_disk_that_hangs_holds_up_neither_the_next_term_nor_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let writer = PostmortemWriter::start().unwrap();
        let postmortem = Postmortem::new(Some(folder.path().to_owned()), None, &writer).unwrap();
        let election = ElectionName::new("job").unwrap();
        let ((begun, has_begun), (goes_on, go_on)) = (mpsc::channel(), mpsc::channel());
        let hangs = Arc::new(Hangs { begun, go_on: Mutex::new(go_on), not_saved: Mutex::default() });
        let output: Arc<dyn Output> = Arc::<Hangs>::clone(&hangs);
        let keep = |term| {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(b"memory").unwrap();
            let left = Left { core_dump: Some(Ok(6)), profile: None };
            postmortem.keep((&election, term), left, Some(file), &output);
        };
        keep(1);
        has_begun.recv().unwrap();
        keep(2);
        assert!(hangs.not_saved.lock().unwrap().is_empty(), "one is being written, one waits");
        keep(3);
        assert!(hangs.not_saved.lock().unwrap()[0].contains("still writing"));
        assert!(!writer.shutdown(Duration::from_millis(10)), "it says that not all was written");
        drop(goes_on);
    }
}
