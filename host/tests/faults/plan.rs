//! Generates the faults of a run from a seed.

use std::fmt;
use std::time::Duration;

use crate::fleet::NAMES;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Who {
    /// The current leader, or the node with this index if no node leads.
    Leader(usize),
    Node(usize),
}

/// A set of a node's processes: its host and the host's child processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parts(u8);

impl Parts {
    pub const HOST: Self = Self(1);
    pub const RUNNER: Self = Self(2);
    /// Only the processes that handle the links.
    pub const LINKS: Self = Self(16);

    const ALL: [(u8, &'static str); 4] = [(1, "host"), (2, "runner"), (8, "template"), (16, "links")];

    pub fn has_host(self) -> bool {
        self.0 & 1 == 1
    }

    pub fn has_runner(self) -> bool {
        self.0 & 2 != 0
    }

    pub fn others(self) -> impl Iterator<Item = &'static str> {
        Self::ALL.into_iter().skip(1).filter(move |(bit, _)| self.0 & bit != 0).map(|(_, name)| name)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Death {
    /// SIGKILL, as from the kernel's OOM killer.
    Killed,
    /// SIGABRT, as from a failed assertion.
    Aborted,
}

/// The record that another client writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    Same,
    Older,
    WithoutNode,
    /// A record like that of a new election.
    AsNew,
    Nothing,
}

/// A failure of one node's connections to the store, or of the other nodes' connections to that node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// The proxy closes all connections, and refuses new ones.
    Down,
    /// The proxy discards requests.
    Hang,
    /// The proxy passes requests on, but closes the connection instead of passing the answer on.
    CutAfterRequest,
    /// The proxy holds requests back until the trouble ends.
    HoldRequest,
    /// The proxy holds answers back until the trouble ends.
    HoldAnswer,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Some of a node's processes receive SIGSTOP, and SIGCONT after this time.
    Stop(Who, Parts, Duration),
    /// Some of a node's processes die. If the host is among them, the test starts it again after this time.
    End(Who, Parts, Death, Duration),
    /// A host receives SIGTERM. Once the host has exited, the test waits for this time, and then starts it again.
    Terminate(Who, Duration),
    /// Another client breaks the lease, with this break period.
    Break(Duration),
    /// Another client breaks the lease, and writes this record without a lease id.
    Free(Content),
    /// Another client breaks the lease, takes it, and releases it after this time.
    Take(Duration),
    /// Another client breaks the lease, takes it, and does not renew it, so that it expires.
    TakeAndLeave,
    Delete,
    /// A node's connection to the store fails. If the nodes share the embedded store, this affects all of them.
    Store(Who, Trouble, Duration),
    /// The connections from other nodes to a node fail. If all nodes run on one machine, the test stops the node's link
    /// process instead.
    Links(Who, Trouble, Duration),
    Unread(Who, Duration),
    Push,
}

impl Fault {
    pub fn who(&self) -> Option<Who> {
        match self {
            Fault::Stop(who, ..) | Fault::End(who, ..) | Fault::Terminate(who, _) => Some(*who),
            Fault::Store(who, ..) | Fault::Links(who, ..) | Fault::Unread(who, _) => Some(*who),
            _ => None,
        }
    }

    /// The name under which the test counts this kind of fault.
    pub fn kind(&self) -> &'static str {
        match self {
            Fault::Stop(_, Parts::HOST, _) => "stop",
            Fault::Stop(..) => "stop parts",
            Fault::End(_, Parts::HOST, ..) => "kill",
            Fault::End(..) => "end parts",
            Fault::Terminate(..) => "terminate",
            Fault::Break(..) => "break",
            Fault::Free(..) => "free by a write",
            Fault::Take(..) => "take and release",
            Fault::TakeAndLeave => "take and leave",
            Fault::Delete => "delete",
            Fault::Store(..) => "store trouble",
            Fault::Links(..) => "link trouble",
            Fault::Unread(..) => "unread",
            Fault::Push => "push",
        }
    }
}

/// An endless iterator over bursts of faults. If `is_wanted` rejects a fault, the plan generates another fault instead.
pub struct Plan<W> {
    rng: Rng,
    nodes: usize,
    lease: Duration,
    is_wanted: W,
}

const BURST: u64 = 8;

impl<W: Fn(&Fault) -> bool> Plan<W> {
    pub fn new(seed: u64, nodes: usize, lease: Duration, is_wanted: W) -> Self {
        Self { rng: Rng::of(seed), nodes, lease, is_wanted }
    }
}

impl<W: Fn(&Fault) -> bool> Iterator for Plan<W> {
    /// A burst of faults, each with its delay after the previous fault.
    type Item = Vec<(Duration, Fault)>;

    /// # Panics
    /// If no fault passes `is_wanted`.
    fn next(&mut self) -> Option<Self::Item> {
        let Self { rng, nodes, lease, is_wanted } = self;
        let count = 1 + rng.below(BURST);
        let burst = (0..count).map(|_| {
            // Some faults come soon after the previous fault, some during the takeover that the previous fault causes,
            // and some after this takeover.
            let after = match rng.below(10) {
                0..4 => lease.mul_f64(rng.upto(0.1)),
                4..8 => lease.mul_f64(0.1 + rng.upto(1.0)),
                _ => lease.mul_f64(1.0 + rng.upto(1.5)),
            };
            let fault = (0..10_000).map(|_| rng.fault(*nodes, *lease)).find(&mut *is_wanted);
            (after, fault.expect("a fault of that kind"))
        });
        Some(burst.collect())
    }
}

/// A random number generator: SplitMix64.
pub struct Rng(u64);

impl Rng {
    pub fn of(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub fn upto(&mut self, most: f64) -> f64 {
        (self.below(1 << 20) as f64) / f64::from(1 << 20) * most
    }

    fn who(&mut self, nodes: usize) -> Who {
        let node = self.below(nodes as u64) as usize;
        if self.below(3) < 2 { Who::Leader(node) } else { Who::Node(node) }
    }

    /// Returns any set except [`Parts::HOST`], for which there are separate faults.
    fn parts(&mut self) -> Parts {
        Parts(2 + self.below(30) as u8)
    }

    fn trouble(&mut self) -> Trouble {
        let all = [Trouble::Down, Trouble::Hang, Trouble::CutAfterRequest, Trouble::HoldRequest, Trouble::HoldAnswer];
        all[self.below(all.len() as u64) as usize]
    }

    fn fault(&mut self, nodes: usize, lease: Duration) -> Fault {
        match self.below(29) {
            // This stop ends close to the lease's deadline or its expiry.
            0..3 => Fault::Stop(self.who(nodes), Parts::HOST, lease.mul_f64(0.7 + self.upto(0.6))),
            3..5 => Fault::Stop(self.who(nodes), Parts::HOST, lease.mul_f64(self.upto(1.6))),
            5..7 => Fault::End(self.who(nodes), Parts::HOST, Death::Killed, lease.mul_f64(self.upto(1.2))),
            7..9 => Fault::Terminate(self.who(nodes), lease.mul_f64(self.upto(0.5))),
            9..11 => Fault::Break(match self.below(3) {
                0 => Duration::ZERO,
                1 => Duration::from_secs(1),
                // Azure only accepts whole seconds.
                _ => Duration::from_secs(lease.as_secs() / 2),
            }),
            11..13 => Fault::Free(match self.below(6) {
                0..2 => Content::Same,
                2 => Content::Older,
                3 => Content::WithoutNode,
                4 => Content::AsNew,
                _ => Content::Nothing,
            }),
            13 => Fault::Take(Duration::ZERO),
            14 => match self.below(2) {
                0 => Fault::Take(lease.mul_f64(self.upto(0.5))),
                _ => Fault::TakeAndLeave,
            },
            15 => Fault::Delete,
            16..18 => Fault::Stop(self.who(nodes), self.parts(), lease.mul_f64(self.upto(1.6))),
            18..20 => {
                let death = if self.below(2) == 0 { Death::Killed } else { Death::Aborted };
                Fault::End(self.who(nodes), self.parts(), death, lease.mul_f64(self.upto(1.2)))
            }
            20..22 => Fault::Push,
            22..24 => Fault::Store(self.who(nodes), self.trouble(), lease.mul_f64(self.upto(1.2))),
            24..27 => Fault::Links(self.who(nodes), self.trouble(), lease.mul_f64(self.upto(1.2))),
            _ => Fault::Unread(self.who(nodes), lease.mul_f64(self.upto(1.2))),
        }
    }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Who::Leader(node) => write!(f, "the leader, or {}", NAMES[*node]),
            Who::Node(node) => f.write_str(NAMES[*node]),
        }
    }
}

impl fmt::Display for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = Self::ALL.into_iter().filter(|(bit, _)| self.0 & bit != 0).map(|(_, name)| name).collect();
        f.write_str(&names.join(" and "))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Stop(who, parts, length) => write!(f, "stop {parts} ({who}) for {length:.1?}"),
            Fault::End(who, parts, death, length) => {
                write!(f, "{parts} {death:?} ({who}), a host starts after {length:.1?}")
            }
            Fault::Terminate(who, length) => write!(f, "terminate ({who}), start after {length:.1?}"),
            Fault::Break(period) => write!(f, "break the lease, period {period:?}"),
            Fault::Free(content) => write!(f, "break the lease and write: {content:?}"),
            Fault::Take(length) => write!(f, "break the lease, take it, release it after {length:.1?}"),
            Fault::TakeAndLeave => write!(f, "break the lease, take it, let it run out"),
            Fault::Delete => write!(f, "delete the record"),
            Fault::Push => write!(f, "push another version"),
            Fault::Store(who, trouble, length) => write!(f, "store ({who}): {trouble:?} for {length:.1?}"),
            Fault::Links(who, trouble, length) => write!(f, "links ({who}): {trouble:?} for {length:.1?}"),
            Fault::Unread(who, length) => write!(f, "nobody reads ({who}) for {length:.1?}"),
        }
    }
}
