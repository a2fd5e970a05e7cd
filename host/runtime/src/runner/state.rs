//! The runner's side of `baton:host/state`. A read uses the state in the runner's memory. A commit is a request to the
//! host.

use crate::runner::LocalState;
use crate::runner::guest::{Guest, state_contract as contract};
use crate::wire::limits::EffectKind;
use crate::wire::protocol::{Change, NotCommitted};

impl contract::Host for Guest {
    fn get(&mut self, key: String) -> wasmtime::Result<Option<Vec<u8>>> {
        Ok(state(self)?.entries.get(&key).map(|value| value.to_vec()))
    }

    fn keys(&mut self, prefix: String) -> wasmtime::Result<Vec<String>> {
        Ok(state(self)?.keys(&prefix).map(str::to_owned).collect())
    }

    async fn commit(&mut self, changes: Vec<contract::Change>) -> wasmtime::Result<Result<(), contract::Error>> {
        let changes = changes.into_iter().map(|change| match change {
            contract::Change::Put((key, value)) => Change::Put(key, value.into()),
            contract::Change::Delete(key) => Change::Delete(key),
        });
        let committed = state(self)?.commit(changes.collect()).await;
        self.term.tally.count_effect(EffectKind::Commit, committed.is_ok());
        Ok(committed.map_err(|error| match error {
            NotCommitted::InvalidKey(why) => contract::Error::InvalidKey(why),
            NotCommitted::TooLarge(why) => contract::Error::TooLarge(why),
            NotCommitted::Refused(why) => contract::Error::Refused(why),
            NotCommitted::Unavailable(why) => contract::Error::Unavailable(why),
            NotCommitted::Unknown(why) => contract::Error::Unknown(why),
        }))
    }
}

fn state(guest: &mut Guest) -> wasmtime::Result<&mut LocalState> {
    let unclaimed = || wasmtime::format_err!("the host did not claim the state before the instance started");
    guest.state.as_mut().ok_or_else(unclaimed)
}
