//! Tries every interleaving of the actions, breadth first.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use stateright::{Checker as _, HasDiscoveries, Model, Property};

use crate::actions::Action;
use crate::starts::Start;
use crate::state::{State, World};

/// Maximum number of states whose actions are tried. These states and their successors take about 5 GB of memory.
const MOST: usize = 10_000_000;

pub struct Election {
    start: World,
    effort: Arc<Effort>,
}

#[derive(Clone, Copy)]
pub enum Bound {
    Time(Duration),
    /// Stops once the actions of this many states have been tried. Every run tries the same states.
    States(usize),
}

struct Effort {
    ends: Option<Instant>,
    most: usize,
    /// Number of states whose actions the checker has requested.
    tried: AtomicUsize,
    /// The depth of the shallowest state whose actions were not tried because the limit was reached.
    untried: AtomicUsize,
    /// True once the search is over. The checker then requests actions only to replay the paths that it has found.
    is_over: AtomicBool,
}

impl Effort {
    fn is_exhausted(&self) -> bool {
        let tried = self.tried.fetch_add(1, Ordering::Relaxed);
        !self.is_over.load(Ordering::Relaxed)
            && (tried >= self.most || self.ends.is_some_and(|ends| Instant::now() >= ends))
    }
}

pub struct Found {
    pub states: usize,
    /// The number of actions up to which the checker tried every interleaving; `None` if the checker tried all
    /// interleavings.
    pub depth: Option<usize>,
    pub led_again: bool,
    /// The broken promise, and the actions that lead to it.
    pub broken: Option<(&'static str, Vec<String>)>,
}

impl Model for Election {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State { depth: 0, world: self.start.clone() }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if self.effort.is_exhausted() {
            let _least = self.effort.untried.fetch_min(state.depth, Ordering::Relaxed);
            return;
        }
        state.world.actions(actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        Some(State { depth: state.depth + 1, world: state.world.after(action) })
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(KEPT, |_, state: &State| state.world.broken.is_none()),
            // Without a new term, no promise could be broken, and the check would prove nothing.
            Property::sometimes(LED_AGAIN, |model, state: &State| state.world.started > model.start.started),
        ]
    }
}

const KEPT: &str = "every promise is kept";
const LED_AGAIN: &str = "a term begins";

/// Tries all actions from `start`, until `bound` is reached or a promise is broken.
pub fn check(start: &Start, bound: Bound) -> Found {
    let mut world = (start.world)();
    world.left = start.faults;
    let (ends, most) = match bound {
        Bound::Time(length) => (Some(Instant::now() + length), MOST),
        Bound::States(states) => (None, states),
    };
    let effort = Arc::new(Effort {
        ends,
        most,
        tried: AtomicUsize::new(0),
        untried: AtomicUsize::new(usize::MAX),
        is_over: AtomicBool::new(false),
    });
    let model = Election { start: world, effort: effort.clone() };
    // With several threads, the search would not be strictly breadth-first.
    let checker = model.checker().threads(1).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    effort.is_over.store(true, Ordering::Relaxed);
    let broken = checker.discovery(KEPT).map(|path| {
        let what = path.last_state().world.broken.unwrap_or_default();
        (what, path.into_actions().iter().map(|action| format!("{action:?}")).collect())
    });
    let depth = effort.untried.load(Ordering::Relaxed);
    Found {
        states: checker.unique_state_count(),
        depth: (depth < usize::MAX).then_some(depth),
        led_again: checker.discovery(LED_AGAIN).is_some(),
        broken,
    }
}
