//! The host of Baton as a library, for its binary and its tests.

pub mod clock;
pub mod gate;
pub mod runtime;
pub mod store;
