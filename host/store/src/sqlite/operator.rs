//! Actions on an election that only operators perform.

use async_trait::async_trait;
use baton_election::{ElectionName, Record, StoreError, Version};

use super::database::Intent;
use super::objects::key;
use super::{SqliteStore, new_version, row};
use crate::lease::{overwrite, removable};
use crate::{OperatorStore, VersionedObject};

#[async_trait]
impl OperatorStore for SqliteStore {
    async fn overwrite(&self, election: &ElectionName, record: Record) -> Result<Version, StoreError> {
        let election = election.clone();
        self.blocking(move |shared| {
            let next = new_version()?;
            shared.leases.transact(Intent::Write, |db| {
                shared.change(db, &election, |object, elapsed| Ok(overwrite(object, record, elapsed, next)))
            })
        })
        .await
    }

    async fn remove_election(&self, election: &ElectionName) -> Result<(), StoreError> {
        let election = election.clone();
        self.blocking(move |shared| {
            // Remove the lease first: this fails if a client holds it, and then nothing else must be removed.
            shared.leases.transact(Intent::Write, |db| {
                match shared.change(db, &election, |object, elapsed| Ok(removable(object, elapsed).map(drop)))? {
                    Ok(()) => row::delete(db, &election).map(Ok),
                    Err(error) => Ok(Err(error)),
                }
            })?;
            let own = VersionedObject::ALL.into_iter().filter(|object| object.owner(&election) == election.as_str());
            own.into_iter().try_for_each(|object| {
                let (database, table) = shared.place(object);
                database.transact(Intent::Write, |db| {
                    db.execute(&format!("DELETE FROM {table} WHERE election = ?1"), [key(object, &election)])
                        .map(|_| Ok(()))
                })
            })
        })
        .await
    }
}
