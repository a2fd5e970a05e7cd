//! Checks how a lease ends: neither too early nor much too late. After that, the former holder must have lost its
//! rights.

use std::time::Duration;

use baton_election::{LeaseState, Op, StoreError, Time};

use super::scratch::{Answer, Held, NoVerdict, Scratch, describe, random_id};
use super::verdict::{Outcome, Verdict, broken, kept};
use baton_store::azure::RENEWED_ANOTHERS;

/// Interval between attempts to acquire a lease that should be free. Limits the precision of the measurement.
const POLL: Duration = Duration::from_millis(50);
/// If a lease ends later than this after its expiry, report a finding, because each takeover is delayed as much.
const LATE: Duration = Duration::from_secs(1);
/// Number of lease durations to wait. A lease that is still held after that counts as never ending.
const GIVE_UP_AFTER: u32 = 2;

pub(super) struct TakenOver {
    pub former: Held,
    pub new: Held,
    /// Delay between the lease's expiry, by the holder's clock, and its acquisition. `None` if this machine polled too
    /// late.
    pub free_after: Option<Duration>,
}

/// The end of a lease. `taken_over` is `None` if the lease ended too early or did not end.
pub(super) struct Ended {
    pub verdict: Verdict,
    pub is_late: bool,
    pub taken_over: Option<TakenOver>,
}

impl Ended {
    fn only(verdict: Verdict) -> Self {
        Self { verdict, is_late: false, taken_over: None }
    }
}

/// Checks that the lease lasts for its whole duration after its last renewal, the one in `held`, and then ends.
pub(super) async fn lease_length(scratch: &Scratch, held: Held) -> Ended {
    match poll_until_acquired(scratch, held).await {
        Ok(ended) => ended,
        Err(no_verdict) => Ended::only(Err(no_verdict)),
    }
}

/// Polls until another id acquires the lease. Judges an early end by the upper bound on elapsed time (`Clock::now`),
/// and a late end by the lower bound (`Clock::least`). A refusal proves that the lease was held when the attempt was
/// sent, even if the refusal arrives late.
async fn poll_until_acquired(scratch: &Scratch, held: Held) -> Result<Ended, NoVerdict> {
    let length = scratch.length;
    let ends = scratch.clock.least() + length;
    let mut polls = [length / 2, length * 4 / 5, length * 19 / 20].map(|after| held.sent + after).into_iter();
    let mut refused = Duration::ZERO;
    loop {
        if let Some(moment) = polls.next() {
            sleep_until(scratch, moment).await?;
        } else {
            scratch.sleep(POLL).await?;
        }
        let id = random_id()?;
        let polled = scratch.clock.least();
        let Answer { result, sent, answered } = scratch.acquire(id, &held.version).await?;
        match result {
            Ok(_) if answered.since(held.sent) < length * 99 / 100 => {
                let after = answered.since(held.sent);
                return Ok(Ended::only(broken(format!(
                    "another id acquired a lease of {length:?} only {after:.2?} after its last renewal was sent, while \
                     the holder could rely on it"
                ))));
            }
            Ok(_) => {
                let was_held = refused.saturating_sub(ends);
                let free_after = polled.saturating_sub(ends);
                let new = Held { id, version: held.version.clone(), sent, answered };
                let late = free_after.as_millis();
                let found =
                    format!("a lease of {length:?} is free at most {late} ms after it expired, by the holder's clock");
                let verdict = if was_held > LATE {
                    Ok(Outcome::Costs {
                        found,
                        means: "a takeover after a crash takes that much longer",
                        remedy: "no action is needed if this delay is acceptable; otherwise find out what keeps the \
                                 store busy or delays requests to it",
                    })
                } else {
                    kept(found)
                };
                // If this machine was paused between two attempts, the delay is unknown.
                let free_after = Some(free_after).filter(|_| polled.saturating_sub(refused.max(ends)) < LATE);
                return Ok(Ended {
                    verdict,
                    is_late: false,
                    taken_over: Some(TakenOver { former: held, new, free_after }),
                });
            }
            Err(StoreError::Held) if polled < ends + length * GIVE_UP_AFTER => refused = polled,
            Err(StoreError::Held) => {
                let found =
                    format!("a lease of {length:?} is still held {GIVE_UP_AFTER} lengths after it should have expired");
                return Ok(Ended { is_late: true, ..Ended::only(broken(found)) });
            }
            other => {
                let found = format!(
                    "acquiring a lease that another id holds or held failed unexpectedly: {}",
                    describe(&other)
                );
                return Ok(Ended::only(broken(found)));
            }
        }
    }
}

/// Checks that the former holder of a lease can do nothing under it after another id has acquired the lease.
pub(super) async fn lease_taken_over(scratch: &Scratch, TakenOver { former, new, .. }: &TakenOver) -> Verdict {
    let write = Op::Write { id: former.id, version: former.version.clone(), record: scratch.record(8) };
    let mut new = new.clone();
    for op in [Op::Renew { id: former.id }, write, Op::Release { id: former.id }] {
        let what = op.to_string();
        let Answer { result, answered, .. } = scratch.ask(op).await?;
        scratch.ensure_held(&new, answered)?;
        if !matches!(result, Err(StoreError::Lost(_))) {
            return broken(format!(
                "a {what} by the former holder of an expired lease that another id holds did not fail with \"lease \
                 lost\": {}",
                describe(&result)
            ));
        }
    }
    let renewed = scratch.renew(&mut new).await?;
    if renewed.is_err() {
        return broken(format!("the new holder of an expired lease cannot renew it: {}", describe(&renewed)));
    }
    kept("the former holder can neither renew nor release the lease, nor write the record")
}

/// Checks that nobody can write the record under an expired lease, and that another id cannot renew the lease.
pub(super) async fn lease_expired(scratch: &Scratch) -> Verdict {
    let mut held = scratch.held().await?;
    let ends = scratch.clock.least() + scratch.length;
    sleep_until(scratch, held.answered + scratch.length).await?;
    let lease = loop {
        let polled = scratch.clock.least();
        let lease = scratch.read_object().await?.lease;
        if lease != LeaseState::Held || polled >= ends + scratch.length * GIVE_UP_AFTER {
            break lease;
        }
        scratch.sleep(POLL).await?;
    };
    if lease != LeaseState::Expired {
        return broken(format!("a lease of {:?} that was not renewed is {lease:?} instead of expired", scratch.length));
    }
    let written = scratch.write(held.id, &held.version, 9).await?.result;
    if !matches!(written, Err(StoreError::Lost(_))) {
        return broken(format!(
            "a write of the record under an expired lease did not fail with \"lease lost\": {}",
            describe(&written)
        ));
    }
    let by_another = scratch.ask(Op::Renew { id: random_id()? }).await?.result;
    let is_of_emulator = match &by_another {
        Err(StoreError::Lost(why)) => why == RENEWED_ANOTHERS,
        other => {
            return broken(format!(
                "renewing an expired lease under an id that never held it did not fail with \"lease lost\": {}",
                describe(other)
            ));
        }
    };
    // Both results are fine as long as no other id acquires the lease.
    let own = if scratch.renew(&mut held).await?.is_ok() { "can renew it" } else { "cannot renew it" };
    let found = format!(
        "the record cannot be written under an expired lease; the lease's own id {own} until another id acquires it"
    );
    if is_of_emulator {
        return kept(format!(
            "{found}. The emulator renews the lease for its last holder, whichever id asks; Baton treats that answer \
             as a lost lease"
        ));
    }
    kept(found)
}

async fn sleep_until(scratch: &Scratch, moment: Time) -> Result<(), NoVerdict> {
    loop {
        match moment.since(scratch.clock.now()) {
            Duration::ZERO => return Ok(()),
            left => scratch.sleep(left).await?,
        }
    }
}
