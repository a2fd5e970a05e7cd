//! `wasi:io/poll`: lets a guest wait for an event, or test whether it has occurred.
//!
//! Wraps wasmtime's implementation, so that polls also drive the runtime if a guest polls in a loop without ever
//! waiting. Otherwise the guest's timers would never fire.

use wasmtime::component::{HasData, Linker, Resource, ResourceTable};
use wasmtime_wasi::p2::DynPollable;
use wasmtime_wasi::p2::bindings::io::poll::{self, Host, HostPollable};

use crate::runner::PollTracker;
use crate::runner::guest::Guest;

pub(crate) fn link(linker: &mut Linker<Guest>) -> wasmtime::Result<()> {
    poll::add_to_linker::<Guest, Polls<'static>>(linker, |guest| Polls {
        table: guest.held.table(),
        looks: &mut guest.looks,
    })
}

struct Polls<'a> {
    table: &'a mut ResourceTable,
    looks: &'a mut PollTracker,
}

impl HasData for Polls<'static> {
    type Data<'a> = Polls<'a>;
}

impl Host for Polls<'_> {
    async fn poll(&mut self, pollables: Vec<Resource<DynPollable>>) -> wasmtime::Result<Vec<u32>> {
        self.looks.look().await;
        self.table.poll(pollables).await
    }
}

impl HostPollable for Polls<'_> {
    async fn ready(&mut self, pollable: Resource<DynPollable>) -> wasmtime::Result<bool> {
        self.looks.look().await;
        self.table.ready(pollable).await
    }

    async fn block(&mut self, pollable: Resource<DynPollable>) -> wasmtime::Result<()> {
        self.table.block(pollable).await
    }

    fn drop(&mut self, pollable: Resource<DynPollable>) -> wasmtime::Result<()> {
        HostPollable::drop(self.table, pollable)
    }
}
