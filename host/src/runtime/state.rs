//! The host's side of `baton:host/state`: reads from memory, commits by the term's claim.

use super::guest::{Guest, state_contract as contract};
use crate::state::{Change, Claim, CommitError};

impl contract::Host for Guest {
    fn get(&mut self, key: String) -> wasmtime::Result<Option<Vec<u8>>> {
        Ok(claim(self)?.get(&key).map(|value| value.to_vec()))
    }

    fn keys(&mut self, prefix: String) -> wasmtime::Result<Vec<String>> {
        Ok(claim(self)?.keys(&prefix).map(str::to_owned).collect())
    }

    async fn commit(&mut self, changes: Vec<contract::Change>) -> wasmtime::Result<Result<(), contract::Error>> {
        let changes = changes.into_iter().map(|change| match change {
            contract::Change::Put((key, value)) => Change::Put(key, value.into()),
            contract::Change::Delete(key) => Change::Delete(key),
        });
        let committed = claim(self)?.commit(changes.collect()).await;
        let Err(error) = committed else { return Ok(Ok(())) };
        let why = error.to_string();
        Ok(Err(match error {
            CommitError::InvalidKey(_) => contract::Error::InvalidKey(why),
            CommitError::TooLarge(_) => contract::Error::TooLarge(why),
            CommitError::Refused => contract::Error::Refused(why),
            CommitError::Unavailable(_) => contract::Error::Unavailable(why),
            CommitError::Unknown => contract::Error::Unknown(why),
            // Nothing that it does can count any more.
            CommitError::Superseded(_) => return Err(wasmtime::Error::new(error)),
        }))
    }
}

fn claim(guest: &mut Guest) -> wasmtime::Result<&mut Claim> {
    guest.state.as_mut().ok_or_else(|| wasmtime::format_err!("the state was not claimed before the instance began"))
}
