//! Every reader of untrusted bytes in this crate; see [`baton_base::untrusted`].

use baton_base::untrusted::Reader;

/// This crate's parsers of untrusted bytes, for the fuzz tests.
pub const READERS: &[Reader] = &[crate::maintenance::READER, crate::links::READER];
