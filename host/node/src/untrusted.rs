//! Every reader of untrusted bytes in this crate; see [`baton_store::untrusted`].

use baton_store::untrusted::Reader;

/// The readers of this crate.
pub const READERS: &[Reader] = &[crate::maintenance::READER, crate::links::READER];
