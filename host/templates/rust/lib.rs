//! Beats once a second, and counts the beats in the state: the next term goes on from there, on whichever
//! node it runs.

use std::time::Duration;

use baton_sdk::Term;

baton_sdk::coordinator!(run);

fn run(term: &Term) -> baton_sdk::Result {
    let state = term.state();
    let mut beats: u64 = state.get("beats")?.unwrap_or(0);
    println!("term {} goes on from beat {beats}", term.number());
    // The sleep ends early, with an error, once this instance is asked to stop.
    while term.sleep(Duration::from_secs(1)).is_ok() {
        beats += 1;
        state.put("beats", &beats)?;
        println!("beat {beats}");
        term.progress();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use baton_sdk::StopReason;
    use baton_sdk::testing::Harness;

    use super::*;

    #[test]
    fn a_term_goes_on_where_the_one_before_it_ended() -> baton_sdk::Result {
        let test = Harness::new();
        for beats in [60, 120] {
            // A minute of the test's time, which takes none of ours.
            test.stop_after(Duration::from_millis(60_500), StopReason::Shutdown);
            test.run(run)?;
            assert_eq!(test.state().get("beats")?, Some(beats));
        }
        Ok(())
    }
}
