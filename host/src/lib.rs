//! The host of Baton as a library, for its binary and its tests.

pub mod store;
