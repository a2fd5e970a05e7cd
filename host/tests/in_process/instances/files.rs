//! Tests that the deadline applies to file operations.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use baton_election::End;
use baton_runtime::Folder;
use baton_runtime::Policy;
use tokio::sync::mpsc;

use super::patience::Patience;
use super::{GUARD, Lines, gone, launcher_under, module};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn file_writes_stop_at_the_deadline() {
    let (mut patience, mut time) = (Patience::default(), Duration::from_millis(500));
    loop {
        let folder = tempfile::tempdir().unwrap();
        let granted = Folder::at(folder.path().to_owned(), "/data".to_owned(), false).unwrap();
        let launcher = launcher_under(Policy { folders: vec![granted], ..Policy::default() }, "appends");
        let (sender, _lines) = mpsc::unbounded_channel();
        let module = module();
        let now = launcher.clock.now();
        let deadline = now + time;
        // The test does not kill the instance. After the deadline, the host refuses a write, and the refusal ends the
        // instance.
        let mut instance = launcher.start(&module, 1, None, deadline, now + GUARD * 10, Arc::new(Lines(sender)));
        let gone = gone(&mut instance).await;
        assert_eq!(gone.end, End::Killed);
        assert!(launcher.clock.now() >= deadline, "the instance ended before its deadline");
        let written = fs::read_to_string(folder.path().join("log")).unwrap_or_default();
        if !written.is_empty() {
            let is_whole = written.starts_with("still allowed\n") && written.ends_with("still allowed\n");
            return assert!(is_whole, "{written:?}");
        }
        // On a busy machine, the instance may be too slow to write before its deadline. If so, try a later deadline.
        assert!(patience.lasts(), "nothing is written within {time:?}");
        time *= 2;
    }
}
