//! Monitors one service by sending a request to it every second. While the service is down, the state holds the term in
//! which the outage began.
//!
//! The coordinator is async, so it can wait for the response, a timer and the stop at the same time. `URL` is the URL
//! of the service, which `--allow-http` must permit.

use std::time::Duration;

use baton_sdk::http::{Request, StatusCode};
use baton_sdk::{AsyncTerm, Failure};
use futures_lite::future;

baton_sdk::coordinator!(async run);

async fn run(term: &AsyncTerm) -> baton_sdk::Result {
    let url = std::env::var("URL").map_err(|_| Failure::fatal("URL is not set: --env URL=http://127.0.0.1:8080/"))?;
    watch(term, &url).await
}

async fn watch(term: &AsyncTerm, url: &str) -> baton_sdk::Result {
    let state = term.state();
    loop {
        let up = is_up(term, url).await?;
        match (up, state.get::<u64>("down-in-term")?) {
            (true, Some(_)) => state.delete("down-in-term")?,
            (false, None) => state.put("down-in-term", &term.number())?,
            _ => {}
        }
        println!("{url} is {}", if up { "up" } else { "down" });
        term.progress();
        term.sleep(Duration::from_secs(1)).await?;
    }
}

async fn is_up(term: &AsyncTerm, url: &str) -> Result<bool, Failure> {
    let answer = async {
        let request = Request::get(url).body(())?;
        match term.http().send(request).await {
            Ok(response) => Ok(response.status() == StatusCode::OK),
            Err(error) => {
                println!("{url}: {error:#}");
                Ok(false)
            }
        }
    };
    // If the host asks this instance to stop, `sleep` returns a `Stop` as an error. The coordinator then returns the
    // `Stop`, and the host does not count it as a failure.
    let too_late = async {
        term.sleep(Duration::from_secs(10)).await?;
        Ok(false)
    };
    future::or(answer, too_late).await
}

#[cfg(test)]
mod tests {
    use baton_sdk::StopReason;
    use baton_sdk::http::Response;
    use baton_sdk::testing::Harness;

    use super::*;

    #[test]
    fn an_outage_is_kept_until_it_is_over() -> baton_sdk::Result {
        let test = Harness::new().term(7);
        let mut asked = 0;
        test.answer(move |_| {
            asked += 1;
            Ok(Response::builder().status(if asked == 3 { 200 } else { 503 }).body(Vec::new())?)
        });
        for down_in_term in [Some(7), None, Some(9)] {
            test.stop_after(
                Duration::from_millis(if down_in_term.is_none() { 500 } else { 1_500 }),
                StopReason::Shutdown,
            );
            test.run_async(async |term| watch(term, "http://service/").await)?;
            assert_eq!(test.state().get("down-in-term")?, down_in_term);
        }
        Ok(())
    }

    #[test]
    fn no_answer_in_ten_seconds_is_an_outage() -> baton_sdk::Result {
        let test = Harness::new();
        test.answer(|_| Ok(Response::new(Vec::new())));
        test.latency(Duration::from_secs(11));
        test.stop_after(Duration::from_millis(10_500), StopReason::Shutdown);
        test.run_async(async |term| watch(term, "http://service/").await)?;
        assert_eq!(test.state().get("down-in-term")?, Some(1));
        Ok(())
    }

    #[test]
    fn a_stop_says_nothing_about_the_service() -> baton_sdk::Result {
        let test = Harness::new();
        test.answer(|_| Ok(Response::new(Vec::new())));
        test.latency(Duration::from_secs(3));
        test.stop_after(Duration::from_millis(500), StopReason::Shutdown);
        test.run_async(async |term| watch(term, "http://service/").await)?;
        assert_eq!(test.state().get::<u64>("down-in-term")?, None);
        Ok(())
    }
}
