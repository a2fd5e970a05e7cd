//! What is between the nodes: of one machine nothing, and across machines a proxy in front of each.

use std::net::{Ipv4Addr, SocketAddr};

use crate::plan::Trouble;
use crate::proxy::{Mode, Proxy};
use crate::store::{Done, Store};

/// How the nodes reach each other.
pub enum Links {
    /// By sockets in the store's folder.
    Sockets,
    /// Over the network: where each listens, and the proxy by which others find it.
    Network(Vec<(SocketAddr, Proxy)>),
}

impl Links {
    /// As nodes on that store do.
    pub fn on(store: &Store, nodes: usize) -> Self {
        match store {
            Store::Sqlite(_) => Self::Sockets,
            Store::Azurite(_) => Self::Network((0..nodes).map(|node| network(node as u8)).collect()),
        }
    }

    /// What a node is told of them.
    pub fn flags(&self, node: usize) -> Vec<(&'static str, String)> {
        match self {
            Self::Sockets => Vec::new(),
            Self::Network(all) => {
                let (listens, proxy) = &all[node];
                vec![("--peer", listens.to_string()), ("--peer-advertise", proxy.address().to_string())]
            }
        }
    }

    /// Lets the way to a node fail, until [`Self::heal`].
    ///
    /// # Errors
    /// If there is nothing between the nodes.
    pub fn trouble(&self, node: usize, trouble: Trouble) -> Done {
        match self {
            Self::Sockets => Err("the nodes reach each other by sockets".to_owned()),
            Self::Network(all) => {
                all[node].1.set(trouble.into());
                Ok(())
            }
        }
    }

    /// Ends a node's trouble.
    pub fn heal(&self, node: usize) {
        if let Self::Network(all) = self {
            all[node].1.set(Mode::Pass);
        }
    }
}

/// A node that is started again listens where it did before, and other runs of these tests listen elsewhere.
fn network(node: u8) -> (SocketAddr, Proxy) {
    let [.., high, low] = std::process::id().to_be_bytes();
    let listens = SocketAddr::from((Ipv4Addr::new(127, 1 + high % 254, low, 1 + node), 7072));
    (listens, Proxy::start(listens))
}
