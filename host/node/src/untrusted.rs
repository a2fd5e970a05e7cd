//! Every reader of untrusted bytes in this crate; see [`baton_base::untrusted`].

use baton_base::untrusted::Reader;

/// The readers of this crate.
pub const READERS: &[Reader] = &[crate::maintenance::READER, crate::links::READER];
