//! Every reader of untrusted bytes in this program; see [`baton_base::untrusted`].

use baton_base::untrusted::Reader;

/// Returns the readers of all crates.
pub fn readers() -> impl Iterator<Item = &'static Reader> {
    let areas = [
        baton_store::READERS,
        baton_modules::READERS,
        baton_runtime::READERS,
        baton_node::untrusted::READERS,
        crate::config::READERS,
    ];
    let own = [&crate::commands::STATUS, &crate::commands::SENT_EVENTS];
    areas.into_iter().flatten().chain(own)
}
