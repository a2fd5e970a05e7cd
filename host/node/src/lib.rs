//! A node of Baton: the code that takes part in elections, in a host's process or in a test.
//!
//! - [`node`] starts a node. A host is one node; tests run several in one process.
//! - [`supervisor`] carries out an elector's decisions, and owns the instance.
//! - [`view`] is what a node knows about one election, as the supervisor publishes it.
//! - [`telemetry`] is the log. Lines pass through a bounded queue to one writer thread. The thread checks the deadline
//!   of a coordinator's line again before it writes the line.
//! - [`steering`] lets operators control nodes. The module contains the nodes' side and the commands' side.
//! - [`links`] carries hints between the nodes of one store, on a separate thread.
//! - [`announcer`] tells operators and other nodes about this node.
//! - [`balance`] spreads the shards of a group evenly over its nodes.
//! - [`historian`] records the outcome of this node's terms in the store.
//! - [`maintenance`] steps the node down before Azure freezes or reboots its machine.
//! - [`node_announcement`] shows a node's announcement to operators.
//! - [`random`] draws random numbers that differ even between clones of a machine.

pub mod announcer;
pub mod balance;
pub mod historian;
pub mod links;
pub mod maintenance;
pub mod node;
pub mod node_announcement;
pub mod random;
pub mod schedule;
pub mod steering;
pub mod supervisor;
pub mod telemetry;
pub mod untrusted;
pub mod view;
