//! Tests of the history of terms that nodes record.

use baton_store::{History, PastTerm, VersionedObject, read_history};

use super::*;

impl Fleet {
    pub(super) async fn past_term(&self, term: Term, test: impl Fn(&PastTerm) -> bool) -> PastTerm {
        let waits = async {
            loop {
                let history = read_history(&self.store, &self.elections[0]).await.ok().flatten().unwrap_or_default();
                if let Some(found) = history.terms.into_iter().find(|one| one.term == term && test(one)) {
                    return found;
                }
                sleep(POLL).await;
            }
        };
        timeout(PATIENCE, waits).await.unwrap_or_else(|_| panic!("term {term} is not recorded"))
    }

    async fn write_history(&self, content: &'static [u8]) {
        let (object, election) = (VersionedObject::History, &self.elections[0]);
        let Reading::Found(version, _) = self.store.read(object, election, None).await.unwrap() else {
            panic!("there is no history")
        };
        self.store.write(object, election, Some(&version), Bytes::from_static(content)).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn term_of_crashed_leader_is_closed_by_successor() {
    let fleet = Fleet::new(&["fleet"]).await;
    let alpha = fleet.start("alpha");
    let crashed = fleet.leads(&alpha).await;
    fleet.past_term(crashed, |_| true).await;
    let beta = fleet.start("beta");
    fleet.is_ready(&beta).await;
    let crashed_at = fleet.clock.now();
    alpha.crash();
    let next = fleet.leads(&beta).await;
    let leaderless = fleet.clock.now().since(crashed_at);
    let closed = fleet.past_term(crashed, |one| one.closed_by.is_some()).await;
    assert_eq!((closed.node.as_str(), closed.closed_by.as_deref(), closed.outcome), ("alpha", Some("beta"), None));
    let after = fleet.past_term(next, |one| one.leaderless_ms.is_some()).await;
    assert_eq!((closed.ended.as_ref(), &after.ended), (Some(&after.begun), &None));
    assert!(after.leaderless_ms.unwrap() <= u64::try_from(leaderless.as_millis()).unwrap());
    // When a leader hands off, it records the end of its term and the reason.
    let gamma = fleet.start("gamma");
    fleet.is_ready(&gamma).await;
    beta.end().await;
    fleet.leads(&gamma).await;
    let handed_off = fleet.past_term(next, |one| one.ended.is_some()).await;
    assert_eq!(handed_off.closed_by, None);
    assert!(handed_off.reason.as_ref().is_some_and(|reason| reason.starts_with("shutdown")), "{handed_off:?}");
}

#[tokio::test(start_paused = true)]
async fn term_ended_by_outage_is_recorded_afterwards() {
    let fleet = Fleet::new(&["fleet"]).await;
    let alpha = fleet.start("alpha");
    let lost = fleet.leads(&alpha).await;
    fleet.past_term(lost, |_| true).await;
    alpha.network.cut(true);
    alpha.event("leadership_lost", |_| true).await;
    alpha.network.cut(false);
    let recorded = fleet.past_term(lost, |one| one.ended.is_some()).await;
    assert!(recorded.reason.as_ref().is_some_and(|reason| reason.starts_with("lease-at-risk")), "{recorded:?}");
    assert_eq!(recorded.closed_by, None);
}

#[tokio::test(start_paused = true)]
async fn damaged_history_is_replaced_and_newer_format_is_kept() {
    const NEWER: &[u8] = b"{\"format\":2,\"pages\":[]}";
    let fleet = Fleet::new(&["fleet"]).await;
    let alpha = fleet.start("alpha");
    let first = fleet.leads(&alpha).await;
    fleet.past_term(first, |_| true).await;
    let errors = || {
        let is_error = |event: &Value| event["error"].as_str().is_some_and(|error| error.contains("history"));
        alpha.logged("error").iter().filter(|event| is_error(event)).count()
    };
    fleet.write_history(b"{\"format\":1,\"terms\":7}").await;
    fleet.instances.end(first, End::Done);
    let second = fleet.leads(&alpha).await;
    fleet.past_term(second, |_| true).await;
    assert_eq!(errors(), 1);
    fleet.write_history(NEWER).await;
    fleet.instances.end(second, End::Done);
    until("the second error", || (errors() == 2).then_some(())).await;
    sleep(Duration::from_secs(600)).await;
    let Reading::Found(_, kept) = fleet.store.read(VersionedObject::History, &fleet.elections[0], None).await.unwrap()
    else {
        panic!("there is no history")
    };
    assert_eq!((&kept[..], History::decode(&kept).is_err(), errors()), (NEWER, true, 2));
}
