//! The host's side of instances.

pub(crate) mod control_groups;
pub(crate) mod instance;
pub(crate) mod instances;
pub(crate) mod launch;
pub(crate) mod policy;
pub(crate) mod process;
pub(crate) mod requests;
pub(crate) mod runners;
mod task;
pub(crate) mod templates;
