//! A node of Baton: everything that takes part in elections, without the process around it.
//!
//! - [`node`] starts a node. A host is one node; tests run several in one process.
//! - [`supervisor`] carries out what an elector decides, and owns the instance and everything that it started.
//! - [`view`] is what a node knows about one election, as the supervisor publishes it.
//! - [`telemetry`] is the log: lines pass a bounded queue to one writer thread, which checks guests' lines again.
//! - [`steering`] is how operators control nodes: the nodes' side, and the commands' side.
//! - [`links`] carries hints between the nodes of one store, on a thread of its own.
//! - [`announcer`] tells operators and other nodes about this node.
//! - [`historian`] writes into the store what became of the terms.
//! - [`maintenance`] steps the node down before Azure freezes or reboots its machine.
//! - [`node_announcement`] shows a node as it has announced itself to the others.
//! - [`random`] draws numbers that differ even on clones of the machine.

pub mod announcer;
pub mod historian;
pub mod links;
pub mod maintenance;
pub mod node;
pub mod node_announcement;
pub mod random;
pub mod steering;
pub mod supervisor;
pub mod telemetry;
pub mod untrusted;
pub mod view;
