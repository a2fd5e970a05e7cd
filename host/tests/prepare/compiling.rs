//! Compiling, which happens in a process of its own.

use std::time::Duration;

use baton::modules::PrepareError;
use baton::runtime::{Engine, Kind};

use super::modules::{command, slow};
use super::{offer, preparer};

#[tokio::test]
async fn an_offer_becomes_a_module() {
    let prepared = preparer().prepare(&offer(command(1))).await.unwrap();
    assert_eq!(prepared.module.kind(), Kind::Command);
    assert!(!prepared.cached);
    assert_eq!(prepared.module.size(), command(1).len() as u64);
}

#[tokio::test]
async fn code_for_core_dumps_fits_an_engine_that_dumps() {
    let mut preparer = preparer();
    preparer.engine = Engine::start_with(true).unwrap();
    preparer.prepare(&offer(command(1))).await.unwrap();
}

#[tokio::test]
async fn what_takes_too_long_is_given_up() {
    let mut preparer = preparer();
    preparer.compile_timeout = Duration::from_millis(500);

    let refused = preparer.prepare(&offer(slow(100_000))).await.err().unwrap();
    assert!(matches!(refused, PrepareError::TooSlow(_)), "{refused}");
}
