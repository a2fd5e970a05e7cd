//! What takes a lease's time to find out: that it ends when it should, neither sooner nor much later, and what its former
//! holder may do then.

use std::time::Duration;

use baton_election::{LeaseState, Op, StoreError, Time};

use super::scratch::{Answer, Held, Scratch, Untold, random_id, said};
use super::verdict::{Seen, Verdict, broken, kept};
use baton_store::azure::RENEWED_ANOTHERS;

/// How often a lease is asked for that should be free: what is measured is right to that.
const LOOK: Duration = Duration::from_millis(50);
/// A lease that is free so much later than it could be makes each takeover later.
const LATE: Duration = Duration::from_secs(1);
/// For so many of its lengths a lease that should have ended is waited for.
const GIVEN_UP: u32 = 2;

/// A lease that ran out, and that another has taken.
pub(super) struct TakenOver {
    pub former: Held,
    pub new: Held,
    /// How long after it had run out, by its holder's count; none if this machine did not look in time.
    pub free_after: Option<Duration>,
}

/// What the end of a lease shows, and what follows is tried with, unless it came too soon or never.
pub(super) struct Ended {
    pub verdict: Verdict,
    /// Whether it has not come at all.
    pub is_late: bool,
    pub taken_over: Option<TakenOver>,
}

impl Ended {
    fn only(verdict: Verdict) -> Self {
        Self { verdict, is_late: false, taken_over: None }
    }
}

/// That the lease lasts for its length from the last renewal, and ends then. `held` was renewed just now, some time after
/// it was taken.
pub(super) async fn lease_length(scratch: &Scratch, held: Held) -> Ended {
    match until_taken(scratch, held).await {
        Ok(ended) => ended,
        Err(untold) => Ended::only(Err(untold)),
    }
}

/// A holder's time is judged by the clock that says the most, and the store's delay by the one that says the least: a look
/// that was refused shows that the lease was held when it was sent, whenever this machine hears of that.
async fn until_taken(scratch: &Scratch, held: Held) -> Result<Ended, Untold> {
    let length = scratch.length;
    let ends = scratch.clock.least() + length;
    let mut looks = [length / 2, length * 4 / 5, length * 19 / 20].map(|after| held.sent + after).into_iter();
    let mut refused = Duration::ZERO;
    loop {
        if let Some(look) = looks.next() {
            sleep_until(scratch, look).await?;
        } else {
            scratch.sleep(LOOK).await?;
        }
        let id = random_id()?;
        let looked = scratch.clock.least();
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
                let free_after = looked.saturating_sub(ends);
                let new = Held { id, version: held.version.clone(), sent, answered };
                let late = free_after.as_millis();
                let found =
                    format!("a lease of {length:?} is free at most {late} ms after it expired, by the holder's clock");
                let verdict = if was_held > LATE {
                    Ok(Seen::Costs {
                        found,
                        means: "a takeover after a crash takes that much longer",
                        remedy: "no action is needed if this delay is acceptable; otherwise find out what keeps the \
                                 store busy or delays requests to it",
                    })
                } else {
                    kept(found)
                };
                // Where this machine has paused in between, nothing is measured.
                let free_after = Some(free_after).filter(|_| looked.saturating_sub(refused.max(ends)) < LATE);
                return Ok(Ended {
                    verdict,
                    is_late: false,
                    taken_over: Some(TakenOver { former: held, new, free_after }),
                });
            }
            Err(StoreError::Held) if looked < ends + length * GIVEN_UP => refused = looked,
            Err(StoreError::Held) => {
                let found =
                    format!("a lease of {length:?} is still held {GIVEN_UP} lengths after it should have expired");
                return Ok(Ended { is_late: true, ..Ended::only(broken(found)) });
            }
            other => {
                let found =
                    format!("acquiring a lease that another id holds or held failed unexpectedly: {}", said(&other));
                return Ok(Ended::only(broken(found)));
            }
        }
    }
}

/// That the former holder of a lease that another has taken can do nothing more under it.
pub(super) async fn lease_taken_over(scratch: &Scratch, TakenOver { former, new, .. }: &TakenOver) -> Verdict {
    let write = Op::Write { id: former.id, version: former.version.clone(), record: scratch.record(8) };
    let mut new = new.clone();
    for op in [Op::Renew { id: former.id }, write, Op::Release { id: former.id }] {
        let what = op.to_string();
        let Answer { result, answered, .. } = scratch.ask(op).await?;
        scratch.still(&new, answered)?;
        if !matches!(result, Err(StoreError::Lost(_))) {
            return broken(format!(
                "a {what} by the former holder of an expired lease that another id holds did not fail with \"lease \
                 lost\": {}",
                said(&result)
            ));
        }
    }
    let renewed = scratch.renew(&mut new).await?;
    if renewed.is_err() {
        return broken(format!("the new holder of an expired lease cannot renew it: {}", said(&renewed)));
    }
    kept("the former holder can neither renew nor release the lease, nor write the record")
}

/// That under a lease that ran out nothing is written, and that another's id does not renew it.
pub(super) async fn lease_expired(scratch: &Scratch) -> Verdict {
    let mut held = scratch.held().await?;
    let ends = scratch.clock.least() + scratch.length;
    sleep_until(scratch, held.answered + scratch.length).await?;
    let lease = loop {
        let looked = scratch.clock.least();
        let lease = scratch.see().await?.lease;
        if lease != LeaseState::Held || looked >= ends + scratch.length * GIVEN_UP {
            break lease;
        }
        scratch.sleep(LOOK).await?;
    };
    if lease != LeaseState::Expired {
        return broken(format!("a lease of {:?} that was not renewed is {lease:?} instead of expired", scratch.length));
    }
    let written = scratch.write(held.id, &held.version, 9).await?.result;
    if !matches!(written, Err(StoreError::Lost(_))) {
        return broken(format!(
            "a write of the record under an expired lease did not fail with \"lease lost\": {}",
            said(&written)
        ));
    }
    let by_another = scratch.ask(Op::Renew { id: random_id()? }).await?.result;
    let is_of_emulator = match &by_another {
        Err(StoreError::Lost(why)) => why == RENEWED_ANOTHERS,
        other => {
            return broken(format!(
                "renewing an expired lease under an id that never held it did not fail with \"lease lost\": {}",
                said(other)
            ));
        }
    };
    // It may be, as long as nobody else has taken it.
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

async fn sleep_until(scratch: &Scratch, moment: Time) -> Result<(), Untold> {
    loop {
        match moment.since(scratch.clock.now()) {
            Duration::ZERO => return Ok(()),
            left => scratch.sleep(left).await?,
        }
    }
}
