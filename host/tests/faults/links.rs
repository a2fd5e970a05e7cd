//! The connections between the nodes. If the nodes are connected by the network, a proxy in front of each node can make
//! its connections fail.

use std::net::{Ipv4Addr, SocketAddr};

use crate::plan::Trouble;
use crate::proxy::{Mode, Proxy};
use crate::store::{Done, Store};

pub enum Links {
    /// Sockets in the store's folder.
    Sockets,
    /// The network. Each node listens on an address of its own, but advertises the address of its proxy.
    Network(Vec<(SocketAddr, Proxy)>),
}

impl Links {
    pub fn on(store: &Store, nodes: usize) -> Self {
        match store {
            Store::Sqlite(_) => Self::Sockets,
            Store::Azurite(_) => Self::Network((0..nodes).map(|node| network(node as u8)).collect()),
        }
    }

    pub fn flags(&self, node: usize) -> Vec<(&'static str, String)> {
        match self {
            Self::Sockets => Vec::new(),
            Self::Network(all) => {
                let (listens, proxy) = &all[node];
                vec![("--peer", listens.to_string()), ("--peer-advertise", proxy.address().to_string())]
            }
        }
    }

    /// Makes the connections to a node fail until [`Self::heal`].
    ///
    /// # Errors
    /// If the nodes have no proxies.
    pub fn trouble(&self, node: usize, trouble: Trouble) -> Done {
        match self {
            Self::Sockets => Err("the nodes reach each other by sockets".to_owned()),
            Self::Network(all) => {
                all[node].1.set(trouble.into());
                Ok(())
            }
        }
    }

    pub fn heal(&self, node: usize) {
        if let Self::Network(all) = self {
            all[node].1.set(Mode::Pass);
        }
    }
}

/// Returns the address on which a node listens, and its proxy. The address stays the same when the node restarts, and
/// no other run of this test uses it.
fn network(node: u8) -> (SocketAddr, Proxy) {
    let [.., high, low] = std::process::id().to_be_bytes();
    let listens = SocketAddr::from((Ipv4Addr::new(127, 1 + high % 254, low, 1 + node), 7072));
    (listens, Proxy::start(listens))
}
