//! Beats once a second and counts its beats in the state. The next term continues the count, on whichever node it runs.
//! With the setting `URL`, each beat also fetches JSON from there.

use std::time::Duration;

use baton_sdk::AsyncTerm;
use serde_json::Value;

baton_sdk::coordinator!(async run);

async fn run(term: &AsyncTerm) -> baton_sdk::Result {
    let url = std::env::var("URL").ok();
    beat(term, url.as_deref()).await
}

async fn beat(term: &AsyncTerm, url: Option<&str>) -> baton_sdk::Result {
    let state = term.state();
    let mut beats: u64 = state.get("beats")?.unwrap_or(0);
    println!("term {} continues from beat {beats}", term.number());
    // The sleep ends early, with an error, when the host asks this instance to stop.
    while term.sleep(Duration::from_secs(1)).await.is_ok() {
        beats += 1;
        let mut commit = state.commit().put("beats", &beats);
        if let Some(url) = url {
            // A stop ends the request early, too (first `?`). The second `?` is for HTTP errors.
            let answer: Value = term.until_stop(term.http().get_json(url)).await??;
            println!("{url} answers {answer}");
            commit = commit.put("answer", &answer);
        }
        commit.save()?;
        println!("beat {beats}");
        term.progress();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use baton_sdk::StopReason;
    use baton_sdk::http::Response;
    use baton_sdk::testing::Harness;

    use super::*;

    #[test]
    fn terms_continue_the_count_and_keep_the_answer() -> baton_sdk::Result {
        let test = Harness::new();
        test.answer(|_| Ok(Response::new(br#"{"stock": 7}"#.to_vec())));
        for beats in [60, 120] {
            // A minute of the test's clock, which advances at once.
            test.stop_after(Duration::from_millis(60_500), StopReason::Shutdown);
            test.run_async(async |term| beat(term, Some("http://server/stock.json")).await)?;
            assert_eq!(test.state().get("beats")?, Some(beats));
        }
        assert_eq!(test.state().get("answer")?, Some(serde_json::json!({"stock": 7})));
        Ok(())
    }
}
