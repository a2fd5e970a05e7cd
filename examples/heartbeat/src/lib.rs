//! A coordinator that shows that it is alive. At each beat, it prints one line with its term.
//!
//! `HEARTBEAT_MS` sets the interval between two beats in milliseconds; the default is 1000.

use std::time::Duration;

use baton_sdk::Term;

baton_sdk::coordinator!(run);

fn run(term: &Term) -> baton_sdk::Result {
    let every = match std::env::var("HEARTBEAT_MS") {
        Ok(text) => text.parse()?,
        Err(_) => 1_000,
    };
    beat(term, Duration::from_millis(every), |line| println!("{line}"))
}

fn beat(term: &Term, every: Duration, mut say: impl FnMut(String)) -> baton_sdk::Result {
    let mut beat = 0_u64;
    loop {
        beat += 1;
        say(format!("beat {beat} of term {} on {}", term.number(), term.node()));
        term.progress();
        if let Err(stop) = term.sleep(every) {
            say(format!("{stop}; the last beat was {beat}"));
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use baton_sdk::StopReason;
    use baton_sdk::testing::Harness;

    use super::*;

    #[test]
    fn heartbeat_beats_until_the_stop() -> baton_sdk::Result {
        let test = Harness::new().term(3).node("web-1");
        test.stop_after(Duration::from_millis(600_500), StopReason::Shutdown);
        let mut said = Vec::new();
        test.run(|term| beat(term, Duration::from_secs(1), |line| said.push(line)))?;
        assert_eq!(test.progress_count(), 601);
        assert_eq!(said.first().map(String::as_str), Some("beat 1 of term 3 on web-1"));
        assert_eq!(
            said.last().map(String::as_str),
            Some("asked to stop: the host is shutting down; the last beat was 601")
        );
        Ok(())
    }
}
