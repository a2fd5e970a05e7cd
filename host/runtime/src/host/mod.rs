//! The host's side of instances.

pub(crate) mod control_groups;
pub(crate) mod instance;
pub(crate) mod instances;
pub(crate) mod policy;
pub(crate) mod process;
pub(crate) mod runners;
pub(crate) mod templates;
