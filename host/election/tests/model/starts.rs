//! The states from which the model starts. Interesting states are so many actions away from a fleet's first start that
//! the checker does not reach them. Most starts are therefore scripts that lead to a moment at which a bug was once
//! found. The checker tries every interleaving from there.

use std::sync::Arc;
use std::time::Duration;

use baton_election::{LeaseState, Plan, Snapshot};

use crate::actions::{Action, SHORTLY, version};
use crate::state::{Faults, Node, World, name};
use crate::store::Store;

pub struct Start {
    pub name: &'static str,
    pub world: fn() -> World,
    pub faults: Faults,
}

const NONE: Faults = Faults { network: 0, machine: 0, outsider: 0, operator: 0, guest: 0, links: 0 };

pub const STARTS: &[Start] = &[
    Start {
        name: "two nodes, and nobody has ever led",
        world: || fleet(2),
        faults: Faults { network: 1, machine: 1, ..NONE },
    },
    Start {
        name: "three nodes, and nobody has ever led",
        world: || fleet(3),
        faults: Faults { network: 1, outsider: 1, ..NONE },
    },
    Start {
        name: "one of two leads, and outsiders meddle",
        world: || led(2),
        faults: Faults { network: 1, outsider: 2, ..NONE },
    },
    Start {
        name: "one of three leads, and outsiders meddle",
        world: || led(3),
        faults: Faults { outsider: 2, ..NONE },
    },
    Start {
        name: "one of two leads, and machines fail",
        world: || led(2),
        faults: Faults { network: 1, machine: 1, outsider: 1, ..NONE },
    },
    Start {
        name: "one of two leads, and its guest misbehaves",
        world: || led(2),
        faults: Faults { network: 1, machine: 1, guest: 1, ..NONE },
    },
    Start {
        name: "one of two leads, and is steered",
        world: || led(2),
        faults: Faults { network: 1, operator: 1, guest: 1, ..NONE },
    },
    Start {
        name: "a term is claimed ahead, and its host was paused until shortly before the lease ends",
        world: claimed_ahead,
        faults: Faults { network: 1, outsider: 1, guest: 1, ..NONE },
    },
    Start {
        name: "one of two leads, and its end is seen",
        world: || World { sees_deaths: true, ..led(2) },
        faults: Faults { network: 1, machine: 2, outsider: 1, ..NONE },
    },
    Start {
        name: "one waits a broken lease out, and its end is seen",
        world: || World { sees_deaths: true, ..settling() },
        faults: Faults { network: 1, machine: 2, ..NONE },
    },
    Start {
        name: "one of two of a machine leads, and whoever is there goes on with its lease",
        world: || noted(led(2)),
        faults: Faults { network: 1, machine: 2, outsider: 1, ..NONE },
    },
    Start {
        name: "one of two of a machine waits a broken lease out",
        world: || noted(settling()),
        faults: Faults { network: 1, machine: 2, ..NONE },
    },
    Start {
        name: "one of two leads, and is lied about",
        world: || led(2),
        faults: Faults { network: 1, machine: 1, links: 2, ..NONE },
    },
    Start {
        name: "the leader has released the lease, and is lied about",
        world: released,
        faults: Faults { network: 1, machine: 1, links: 2, ..NONE },
    },
    Start {
        name: "one waits a broken lease out",
        world: settling,
        faults: Faults { network: 1, machine: 1, outsider: 1, ..NONE },
    },
    Start {
        name: "the leader has released the lease",
        world: released,
        faults: Faults { network: 1, machine: 1, outsider: 1, ..NONE },
    },
];

/// A fleet whose processes have just started, with an empty store.
fn fleet(nodes: usize) -> World {
    let plan = Plan { module: Some(version(0)), ..Plan::default() };
    let node =
        || Arc::new(Node { incarnation: 0, plan: plan.clone(), process: None, orphan: None, has_finished: false });
    let mut world = World {
        now: Duration::from_secs(1),
        store: Store::default(),
        nodes: (0..nodes).map(|_| node()).collect(),
        flights: Vec::new(),
        written: Vec::new(),
        told: Vec::new(),
        announced: vec![0; nodes],
        started: 0,
        left: Faults::default(),
        sees_deaths: false,
        keeps_notes: false,
        broken: None,
    };
    for place in 0..nodes {
        world = world.after(Action::Begin(place));
    }
    world
}

/// A fleet in which the first node leads, and the other nodes have read its record.
fn led(nodes: usize) -> World {
    let mut world = fleet(nodes);
    for place in 1..nodes {
        world = world.with(|left| left.machine += 1).after(Action::Pause(place));
    }
    world = world.until(|world| serves(world, 0));
    for place in 1..nodes {
        world = world.after(Action::Resume(place));
    }
    let all_know = |world: &World| {
        let knows = |node: &Arc<Node>| node.process.as_ref().is_some_and(|process| process.elector.written_term() == 1);
        world.nodes.iter().all(knows) && world.announced.iter().all(|term| *term == 1)
    };
    world.until(all_know)
}

/// Term 2 is written while the instance of term 1 is stopping. The host is then paused until shortly before its lease
/// ends.
fn claimed_ahead() -> World {
    let mut world = led(2).with(|left| left.operator += 1).after(Action::Publish(0));
    world = world.until(|world| world.store.record().is_some_and(|record| record.term == 2));
    world = world.with(|left| left.machine += 1).after(Action::Pause(0));
    world = world.until(|world| world.store.lease_end().is_some_and(|end| end - world.now <= SHORTLY));
    world.after(Action::Resume(0))
}

/// The second node has acquired the broken lease, and waits until the first node's instance must have ended.
fn settling() -> World {
    let mut world = led(2).with(|left| left.outsider += 1).after(Action::Break);
    world = world.with(|left| left.machine += 1).after(Action::Pause(0));
    let is_settling = |world: &World| {
        matches!(
            world.snapshot(),
            Snapshot::Object { lease: LeaseState::Held, record: Some(record), .. } if record.node.is_none()
        )
    };
    world.until(is_settling).after(Action::Resume(0))
}

/// The first node has released the lease and shut down, but the second node does not know that yet.
fn released() -> World {
    let mut world = led(2).with(|left| left.machine += 1).after(Action::Pause(1));
    world = world.with(|left| left.operator += 1).after(Action::Shutdown(0));
    let is_free = |world: &World| matches!(world.snapshot(), Snapshot::Object { lease: LeaseState::Free, .. });
    world.until(is_free).after(Action::Resume(1))
}

/// All nodes run on one machine, and each keeps a note of the lease that it holds.
fn noted(mut world: World) -> World {
    world.keeps_notes = true;
    for (place, node) in world.nodes.iter().enumerate() {
        if let Some(id) = node.process.as_ref().and_then(|process| process.leases.last()) {
            world.store.notes.ids.insert(name(place, node.incarnation), vec![*id]);
        }
    }
    world
}

fn serves(world: &World, place: usize) -> bool {
    world.nodes[place].process.as_ref().is_some_and(|process| process.instance.is_some())
}

impl World {
    fn with(mut self, change: impl FnOnce(&mut Faults)) -> Self {
        change(&mut self.left);
        self
    }

    /// Takes actions without faults until `is_reached` returns true.
    fn until(mut self, is_reached: impl Fn(&Self) -> bool) -> Self {
        for _ in 0..10_000 {
            if is_reached(&self) {
                return self;
            }
            let mut actions = Vec::new();
            self.actions(&mut actions);
            self = self.after(actions[0]);
        }
        panic!("a start of the model is never reached: {self:#?}");
    }
}
