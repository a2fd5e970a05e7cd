//! Tests of `Harness`, the simulated host that the tests of coordinators use.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failure in a test is a panic")]

use std::time::{Duration, SystemTime};

use baton_sdk::testing::Harness;
use baton_sdk::{Failure, Result, StateError, Stop, StopReason, Term};

const SECOND: Duration = Duration::from_secs(1);

fn beat(term: &Term) -> Result {
    loop {
        term.sleep(SECOND)?;
        term.progress();
    }
}

#[test]
fn a_sleep_takes_the_tests_time_and_none_of_ours() {
    let real = std::time::Instant::now();
    let test = Harness::new();
    let begin = test.now();
    test.stop_after(10_000_000 * SECOND, StopReason::Shutdown);
    test.run(|term| {
        for _ in 0..10_000 {
            term.sleep(999 * SECOND)?;
        }
        assert_eq!(term.now(), begin + 9_990_000 * SECOND);
        Ok(())
    })
    .unwrap();
    assert!(real.elapsed() < 10 * SECOND);
}

#[test]
fn a_stop_cuts_a_sleep_short_and_says_why() {
    let test = Harness::new();
    test.stop_after(90 * SECOND, StopReason::Replaced);
    let begin = test.now();
    test.run(|term| {
        let stop = term.sleep(3_600 * SECOND).unwrap_err();
        assert_eq!(term.now(), begin + 90 * SECOND);
        assert_eq!(stop.reason(), StopReason::Replaced);
        assert_eq!(stop.to_string(), "asked to stop: a newer module takes over");
        assert_eq!(stop.grace(), 5 * SECOND);
        Ok(())
    })
    .unwrap();
}

#[test]
fn loop_of_sleeps_of_zero_reaches_the_stop() {
    let test = Harness::new();
    test.stop_after(SECOND, StopReason::Shutdown);
    test.run(|term| {
        loop {
            term.sleep(Duration::ZERO)?;
        }
    })
    .unwrap();
    let test = Harness::new();
    test.stop_after(SECOND, StopReason::Shutdown);
    test.run_async(async |term| {
        loop {
            term.sleep(Duration::ZERO).await?;
        }
    })
    .unwrap();
}

#[test]
fn a_stop_that_is_returned_is_no_failure_and_counts_the_work_before_it() {
    let test = Harness::new();
    test.stop_after(601 * SECOND, StopReason::Shutdown);
    test.run(beat).unwrap();
    assert_eq!(test.progress_count(), 600);
}

#[test]
fn who_ignores_the_stop_is_killed_after_the_grace() {
    for ignores in [
        |term: &Term| -> Result {
            loop {
                let _ = term.sleep(SECOND);
            }
        },
        |term: &Term| loop {
            let _ = term.check();
        },
        |term: &Term| loop {
            let _ = term.check();
            term.state().put("k", &0)?;
        },
    ] {
        let test = Harness::new().grace(3 * SECOND);
        let begin = test.now();
        test.stop_after(SECOND, StopReason::Shutdown);
        let failure = test.run(ignores).unwrap_err();
        assert!(failure.is_kill());
        assert!(failure.to_string().contains("3s"), "{failure}");
        assert_eq!(test.now(), begin + 4 * SECOND);
    }
}

#[test]
fn who_is_never_stopped_is_told_what_the_test_lacks() {
    let failure = Harness::new().run(beat).unwrap_err();
    assert!(failure.to_string().contains("Harness::stop_after"), "{failure}");
}

#[test]
fn a_loop_of_checks_gets_to_the_stop() {
    let test = Harness::new();
    test.stop_after(SECOND, StopReason::LeaseAtRisk);
    test.run(|term| {
        loop {
            term.check()?;
        }
    })
    .unwrap();
}

#[test]
fn a_kill_drops_what_runs_and_leaves_what_was_saved() {
    struct Dropped<'a>(&'a std::cell::Cell<bool>, &'a Term);
    impl Drop for Dropped<'_> {
        fn drop(&mut self) {
            // A destructor that runs while a panic unwinds may still call the host.
            let _ = self.1.sleep(SECOND);
            self.0.set(true);
        }
    }

    let dropped = std::cell::Cell::new(false);
    let test = Harness::new();
    test.kill_after(10 * SECOND);
    let failure = test.run(|term| {
        let _dropped = Dropped(&dropped, term);
        let mut steps = 0;
        loop {
            steps += 1;
            term.state().put("steps", &steps)?;
            term.sleep(SECOND)?;
        }
    });
    assert!(failure.unwrap_err().is_kill());
    assert!(dropped.get());
    assert_eq!(test.state().get("steps").unwrap(), Some(10));
}

#[test]
fn each_run_is_the_next_term_with_its_own_script() {
    let test = Harness::new().term(41).election("billing").node("web-3");
    test.stop_after(2 * SECOND, StopReason::Shutdown);
    test.run(|term| {
        assert_eq!((term.number(), term.election(), term.node()), (41, "billing".into(), "web-3".into()));
        term.progress();
        term.state().put("k", &0)?;
        // This run ends before its stop is due. The stop must not carry over to the next run.
        Ok(term.sleep(SECOND)?)
    })
    .unwrap();
    assert_eq!((test.progress_count(), test.commit_count()), (1, 1));

    let begin = test.now();
    test.stop_after(20 * SECOND, StopReason::Shutdown);
    test.run(|term| {
        assert_eq!(term.number(), 42);
        Ok(term.sleep(60 * SECOND)?)
    })
    .unwrap();
    assert_eq!(test.now(), begin + 20 * SECOND);
    assert_eq!((test.progress_count(), test.commit_count()), (0, 0));
}

#[test]
fn a_step_down_is_followed_by_the_stop() {
    let test = Harness::new();
    test.run(|term| {
        term.step_down("the disk is full");
        assert_eq!(term.sleep(SECOND).unwrap_err().reason(), StopReason::StepDown);
        Ok(())
    })
    .unwrap();
    assert_eq!(test.step_down_reason().as_deref(), Some("the disk is full"));
}

#[test]
fn failures_and_panics_come_through() {
    let test = Harness::new();
    assert!(test.run(|_| Err(Failure::fatal("no"))).unwrap_err().is_fatal());
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test.run(|_| panic!("a bug"))));
    assert_eq!(panic.unwrap_err().downcast_ref(), Some(&"a bug"));
    // After a failure and a panic, the harness can still be used.
    test.run(|_| Ok(())).unwrap();
}

#[test]
fn an_error_of_another_crate_holds_a_stop() {
    fn work(term: &Term) -> anyhow::Result<()> {
        term.sleep(SECOND)?;
        Ok(())
    }
    let test = Harness::new();
    test.stop_after(Duration::ZERO, StopReason::Shutdown);
    test.run(|term| Ok(work(term).or_else(|error| if error.is::<Stop>() { Ok(()) } else { Err(error) })?)).unwrap();
}

#[test]
fn the_clock_is_the_tests() {
    let noon = SystemTime::UNIX_EPOCH + 43_200 * SECOND;
    let test = Harness::new().clock(noon).remaining(2 * SECOND);
    test.advance(60 * SECOND);
    test.run(|term| {
        assert_eq!(term.now(), noon + 60 * SECOND);
        assert_eq!(term.remaining(), 2 * SECOND);
        // Simulate slow work: the host requests the stop before the work has finished.
        test.stop_after(SECOND, StopReason::Shutdown);
        test.advance(2 * SECOND);
        assert!(term.check().is_err());
        Ok(())
    })
    .unwrap();
}

mod state {
    use super::*;

    #[derive(serde::Serialize, serde::Deserialize, PartialEq, Debug)]
    struct Progress {
        partition: u32,
        offset: u64,
    }

    #[test]
    fn values_are_json_or_bytes() -> Result {
        let test = Harness::new();
        let state = test.state();
        state.put("progress", &Progress { partition: 3, offset: 40 })?;
        assert_eq!(state.get_bytes("progress").unwrap(), br#"{"partition":3,"offset":40}"#);
        assert_eq!(state.get("progress")?, Some(Progress { partition: 3, offset: 40 }));
        assert_eq!(state.get::<Progress>("other")?, None);
        state.put_bytes("raw", [0xff, 0])?;
        assert_eq!(state.get_bytes("raw"), Some(vec![0xff, 0]));
        state.delete("raw")?;
        assert_eq!(state.get_bytes("raw"), None);
        Ok(())
    }

    #[test]
    fn what_is_not_as_expected_is_named_by_its_key() {
        let state = Harness::new().state();
        state.put("progress", "soon").unwrap();
        let error = state.get::<Progress>("progress").unwrap_err();
        let failure = Failure::from(error).to_string();
        assert!(failure.contains("key `progress`") && failure.contains("invalid type"), "{failure}");

        // JSON only allows strings as keys.
        let error = state.put("map", &std::collections::BTreeMap::from([((1, 2), 3)])).unwrap_err();
        assert!(matches!(&error, StateError::Encode { key, .. } if key == "map"), "{error}");
        assert_eq!(state.keys(""), ["progress"]);
    }

    #[test]
    fn a_commit_is_saved_whole_and_in_order_or_not_at_all() -> Result {
        let test = Harness::new();
        let state = test.state();
        state.commit().put("b/2", &2).put("b/1", &1).put("a", &0).delete("a").put("b/1", &11).put("c/1", &1).save()?;
        assert_eq!(state.keys("b/"), ["b/1", "b/2"]);
        assert_eq!(state.keys(""), ["b/1", "b/2", "c/1"]);
        assert_eq!(state.get("b/1")?, Some(11));
        state.delete("c/1")?;

        let error = state.commit().put("c", &1).put("", &1).save().unwrap_err();
        assert!(matches!(error, StateError::InvalidKey(_)), "{error}");
        let error = state.commit().put("c", &1).put_bytes("d", vec![0; (1 << 20) + 1]).save().unwrap_err();
        assert!(matches!(error, StateError::TooLarge(_)), "{error}");
        assert_eq!(state.keys(""), ["b/1", "b/2"]);
        Ok(())
    }

    #[test]
    fn all_values_together_have_a_limit() -> Result {
        let state = Harness::new().state();
        for key in ["a", "b", "c"] {
            state.put_bytes(key, vec![0; 1 << 20])?;
        }
        assert!(matches!(state.put_bytes("d", vec![0; 1 << 20]), Err(StateError::TooLarge(_))));
        Ok(())
    }

    #[test]
    fn a_commit_fails_when_the_test_wants_it() {
        let test = Harness::new();
        test.fail_commit(StateError::Unknown("no answer".into()));
        // Commits by the test itself do not fail. Only the next commit by the coordinator does.
        test.state().put("seed", &1).unwrap();
        test.run(|term| {
            let state = term.state();
            assert!(matches!(state.put("a", &1), Err(StateError::Unknown(_))));
            assert_eq!(state.get_bytes("a"), None);
            state.put("a", &2)?;
            Ok(())
        })
        .unwrap();
        assert_eq!(test.commit_count(), 1);
        assert_eq!(test.state().get("a").unwrap(), Some(2));
    }
}

#[cfg(feature = "async")]
mod futures {
    use baton_sdk::AsyncTerm;
    use baton_sdk::http::{Request, Response};
    use futures_lite::future;

    use super::*;

    async fn beat(term: &AsyncTerm) -> Result {
        loop {
            term.sleep(SECOND).await?;
            term.progress();
        }
    }

    #[test]
    fn sleeps_take_the_tests_time_and_end_with_the_stop() {
        let test = Harness::new();
        test.stop_after(601 * SECOND, StopReason::Shutdown);
        test.run_async(beat).unwrap();
        assert_eq!(test.progress_count(), 600);
    }

    #[test]
    fn the_first_of_several_things_wins() {
        let test = Harness::new();
        test.stop_after(10 * SECOND, StopReason::Shutdown);
        let begin = test.now();
        test.run_async(async |term| {
            let slow = async {
                term.sleep(5 * SECOND).await?;
                Ok::<_, Stop>("slow")
            };
            let quick = async {
                term.sleep(2 * SECOND).await?;
                Ok("quick")
            };
            assert_eq!(future::or(slow, quick).await?, "quick");
            assert_eq!(term.now(), begin + 2 * SECOND);

            // The two sleeps run concurrently, so this takes three seconds, not five.
            let (a, b) = future::zip(term.sleep(3 * SECOND), term.sleep(2 * SECOND)).await;
            a?;
            b?;
            assert_eq!(term.now(), begin + 5 * SECOND);

            let stop = term.until_stop(future::pending::<()>()).await.unwrap_err();
            assert_eq!(stop.reason(), StopReason::Shutdown);
            assert!(term.until_stop(future::ready(())).await.is_ok(), "what is there already is not lost");
            term.stopped().await;
            Ok(())
        })
        .unwrap();
    }

    #[test]
    fn who_ignores_the_stop_or_waits_for_nothing_is_killed() {
        let test = Harness::new();
        test.stop_after(SECOND, StopReason::Shutdown);
        let failure = test.run_async(async |term| {
            loop {
                let _ = term.sleep(SECOND).await;
            }
        });
        assert!(failure.unwrap_err().is_kill());
        let failure = test.run_async(async |_| future::pending().await).unwrap_err();
        assert!(failure.to_string().contains("Harness::stop_after"), "{failure}");
    }

    #[test]
    fn a_kill_ends_a_future_where_it_waits() {
        let test = Harness::new();
        test.kill_after(90 * SECOND);
        let failure = test.run_async(async |term| {
            loop {
                term.sleep(60 * SECOND).await?;
                term.state().put("minutes", &1)?;
            }
        });
        assert!(failure.unwrap_err().is_kill());
        assert_eq!(test.state().get("minutes").unwrap(), Some(1));
    }

    #[test]
    fn the_test_answers_requests() {
        let test = Harness::new();
        let unanswered = test.run_async(async |term| {
            term.http().send(Request::get("http://worker/").body(())?).await?;
            Ok(())
        });
        assert!(unanswered.unwrap_err().to_string().contains("Harness::answer"));

        test.answer(|request| {
            assert_eq!((request.method().as_str(), request.uri().path()), ("POST", "/jobs"));
            Ok(Response::builder().status(202).body([b"got ", request.body().as_slice()].concat())?)
        });
        let begin = test.now();
        test.latency(3 * SECOND);
        test.run_async(async |term| {
            let request = Request::post("http://worker/jobs").body("job 7")?;
            let mut response = term.http().first_byte_timeout(SECOND).send(request).await?;
            assert_eq!(response.status(), 202);
            assert_eq!(response.body_mut().str_contents().await?, "got job 7");
            assert_eq!(term.now(), begin + 3 * SECOND);
            Ok(())
        })
        .unwrap();
    }

    #[test]
    fn a_request_that_hangs_is_cut_off_by_the_stop() {
        let test = Harness::new();
        test.answer(|_| panic!("it is not reached"));
        test.latency(3_600 * SECOND);
        test.stop_after(SECOND, StopReason::LeaseAtRisk);
        let begin = test.now();
        test.run_async(async |term| {
            term.until_stop(term.http().send(Request::get("http://worker/").body(())?)).await??;
            panic!("it is cut off")
        })
        .unwrap();
        assert_eq!(test.now(), begin + SECOND);
    }
}
