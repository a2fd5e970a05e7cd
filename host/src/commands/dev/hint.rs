//! A hint for developers whose coordinator computes without ever pausing.

use std::time::Duration;

use tokio::time::sleep;

use crate::cli::say;
use baton_runtime::RunningInstances;

const SAMPLE: Duration = Duration::from_secs(1);

/// Minimum CPU time per sample, in milliseconds, for an instance to count as busy. This time is less than a whole
/// sample, because other processes also need CPU time.
const BUSY_MS: u64 = 800;

const SAMPLES: u32 = 5;

/// Prints a hint when an instance has computed for 5 s without printing anything. Prints the hint again only after the
/// instance has paused or printed something. Runs until the future is dropped.
pub(in crate::commands) async fn hint_at_busy_instances(running: RunningInstances) {
    let (mut before, mut busy) = (None, 0);
    loop {
        sleep(SAMPLE).await;
        let now = running.in_use().first().map(|(_, _, in_use)| (in_use.process, in_use.lines));
        let is_busy = |(process, lines): (baton_runtime::ProcessUse, u64)| {
            before.is_some_and(|(earlier, lines_before): (baton_runtime::ProcessUse, u64)| {
                earlier.pid == process.pid && lines_before == lines && process.cpu_ms >= earlier.cpu_ms + BUSY_MS
            })
        };
        busy = if now.is_some_and(is_busy) { busy + 1 } else { 0 };
        if busy == SAMPLES {
            say(
                "hint: the coordinator has computed for 5 s without a pause, so it cannot notice a stop request, and a \
                 swap must kill it: sleep or wait in its loop (in Rust: term.sleep)",
            );
        }
        before = now;
    }
}
