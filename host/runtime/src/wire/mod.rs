//! The code that the host and its runners share.

pub(crate) mod limits;
pub(crate) mod output;
pub(crate) mod page;
pub(crate) mod protocol;
pub(crate) mod shared;
