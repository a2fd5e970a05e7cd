//! Which faults come when: all of it follows from a seed.

use std::fmt;
use std::time::Duration;

use crate::fleet::NAMES;

/// Whom a fault meets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Who {
    /// The node that leads then, or the node of this number where none leads.
    Leader(usize),
    /// The node of this number.
    Node(usize),
}

/// Some of the processes of a node: its host, and those that this has started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parts(u8);

impl Parts {
    /// The host alone.
    pub const HOST: Self = Self(1);
    /// The runners alone.
    pub const RUNNER: Self = Self(2);
    /// What carries the links alone.
    pub const LINKS: Self = Self(16);

    /// What each is called, and which bit stands for it.
    const ALL: [(u8, &'static str); 4] = [(1, "host"), (2, "runner"), (8, "template"), (16, "links")];

    /// Whether the host is one of them.
    pub fn has_host(self) -> bool {
        self.0 & 1 == 1
    }

    /// Whether the runners are.
    pub fn has_runner(self) -> bool {
        self.0 & 2 != 0
    }

    /// The others, by what they are called.
    pub fn others(self) -> impl Iterator<Item = &'static str> {
        Self::ALL.into_iter().skip(1).filter(move |(bit, _)| self.0 & bit != 0).map(|(_, name)| name)
    }
}

/// How processes end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Death {
    /// By SIGKILL, as the kernel ends what takes too much memory.
    Killed,
    /// By SIGABRT, as what finds a bug of its own.
    Aborted,
}

/// What an outside client writes as the record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// What is there.
    Same,
    /// What was there earlier.
    Older,
    /// What is there, without the node.
    WithoutNode,
    /// A record as for an election that nobody has led.
    AsNew,
    /// None.
    Nothing,
}

/// How a node's way to the store, or the others' way to it, fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// Nothing passes, and connections are cut.
    Down,
    /// Requests go nowhere.
    Hang,
    /// Requests arrive, and connections are cut before the answers.
    CutAfterRequest,
    /// Requests arrive when it ends.
    HoldRequest,
    /// Answers arrive when it ends.
    HoldAnswer,
}

/// A fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// SIGSTOP for some of a node's processes, and SIGCONT after so long.
    Stop(Who, Parts, Duration),
    /// Some of a node's processes end; if its host is one of them, it is started after so long.
    End(Who, Parts, Death, Duration),
    /// SIGTERM, and a start so long after its end.
    Terminate(Who, Duration),
    /// The lease is broken, with that period.
    Break(Duration),
    /// The lease is broken and the record is written without a lease id.
    Free(Content),
    /// An outside client breaks the lease, takes it and releases it after so long.
    Take(Duration),
    /// An outside client breaks the lease, takes it and lets it run out.
    TakeAndLeave,
    /// The record is deleted.
    Delete,
    /// A node does not reach the store as it should, for so long. On one machine that is all nodes.
    Store(Who, Trouble, Duration),
    /// Others do not reach a node as they should, for so long. On one machine what carries its links stands still.
    Links(Who, Trouble, Duration),
    /// Nobody reads what a node writes, for so long.
    Unread(Who, Duration),
    /// Another version is pushed.
    Push,
}

impl Fault {
    /// Whom it meets, if it meets a node.
    pub fn who(&self) -> Option<Who> {
        match self {
            Fault::Stop(who, ..) | Fault::End(who, ..) | Fault::Terminate(who, _) => Some(*who),
            Fault::Store(who, ..) | Fault::Links(who, ..) | Fault::Unread(who, _) => Some(*who),
            _ => None,
        }
    }

    /// What the fault is counted as.
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

/// The faults of a run that are wanted, as many whichever these are: burst after burst, without an end. Between two of
/// them somebody leads.
pub struct Plan<W> {
    rng: Rng,
    nodes: usize,
    lease: Duration,
    is_wanted: W,
}

/// At most so many faults come close together.
const BURST: u64 = 8;

impl<W: Fn(&Fault) -> bool> Plan<W> {
    /// The plan of a seed for so many nodes.
    pub fn new(seed: u64, nodes: usize, lease: Duration, is_wanted: W) -> Self {
        Self { rng: Rng::of(seed), nodes, lease, is_wanted }
    }
}

impl<W: Fn(&Fault) -> bool> Iterator for Plan<W> {
    /// Faults, each with how long after the one before it comes.
    type Item = Vec<(Duration, Fault)>;

    /// # Panics
    /// If there are no faults that are wanted.
    fn next(&mut self) -> Option<Self::Item> {
        let Self { rng, nodes, lease, is_wanted } = self;
        let count = 1 + rng.below(BURST);
        let burst = (0..count).map(|_| {
            // Some come together, as an outside client's do, some while a takeover is under way, some after it.
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

/// SplitMix64.
pub struct Rng(u64);

impl Rng {
    /// The numbers of a seed.
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

    /// A number below that one.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// A number of at most so much.
    pub fn upto(&mut self, most: f64) -> f64 {
        (self.below(1 << 20) as f64) / f64::from(1 << 20) * most
    }

    fn who(&mut self, nodes: usize) -> Who {
        let node = self.below(nodes as u64) as usize;
        if self.below(3) < 2 { Who::Leader(node) } else { Who::Node(node) }
    }

    /// Any of them, but the host alone: that has faults of its own.
    fn parts(&mut self) -> Parts {
        Parts(2 + self.below(30) as u8)
    }

    fn trouble(&mut self) -> Trouble {
        let all = [Trouble::Down, Trouble::Hang, Trouble::CutAfterRequest, Trouble::HoldRequest, Trouble::HoldAnswer];
        all[self.below(all.len() as u64) as usize]
    }

    fn fault(&mut self, nodes: usize, lease: Duration) -> Fault {
        match self.below(29) {
            // Around the deadline and the lease's end.
            0..3 => Fault::Stop(self.who(nodes), Parts::HOST, lease.mul_f64(0.7 + self.upto(0.6))),
            3..5 => Fault::Stop(self.who(nodes), Parts::HOST, lease.mul_f64(self.upto(1.6))),
            5..7 => Fault::End(self.who(nodes), Parts::HOST, Death::Killed, lease.mul_f64(self.upto(1.2))),
            7..9 => Fault::Terminate(self.who(nodes), lease.mul_f64(self.upto(0.5))),
            9..11 => Fault::Break(match self.below(3) {
                0 => Duration::ZERO,
                1 => Duration::from_secs(1),
                // A whole number, as Azure has it.
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
