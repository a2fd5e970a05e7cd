//! Who may cause an effect when: everything that arrives is put in the kernel's order and judged.
//!
//! An effect of a lower term that arrives after one of a higher term breaks the first promise, with one exception: a
//! process that is stopped (SIGSTOP) between the gate and its system call writes once more when it is continued, and
//! nothing in that process can know. So one write for each such stop and descriptor is let pass and counted, if it is
//! the very first that the process writes after its SIGCONT, and at once.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::time::Duration;

use crate::kernel::Nanos;

/// Where effects come out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Way {
    /// Requests over HTTP.
    Request,
    /// Lines on the host's stderr.
    Line,
}

/// Something that an instance did, as it arrived.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Effect {
    /// When, as the kernel says.
    pub at: Nanos,
    /// Which way.
    pub way: Way,
    /// The term that it carries.
    pub term: u64,
    /// The node that it comes from, by its place.
    pub node: usize,
    /// What the instance is called, which no other is, and the how manieth of its effects this is.
    pub name: String,
}

impl Effect {
    fn instance(&self) -> &str {
        self.name.split('/').next().unwrap_or_default()
    }

    /// What its instance says of itself, where it says more than its name.
    fn said(&self) -> Option<Said> {
        let mut numbers = self.name.split('/').skip(2).map(str::parse);
        let mut next = || numbers.next()?.ok();
        Some(Said { resumed: next()?, saved_in: next()?, saved: next()?, term: next()? })
    }
}

/// What an instance says of itself with each effect.
struct Said {
    /// How often had been saved when it began.
    resumed: u64,
    /// In which term that was saved last.
    saved_in: u64,
    /// How often it knows that it is saved by now.
    saved: u64,
    /// Its term, as it was told.
    term: u64,
}

/// Processes of a node that were stopped.
#[derive(Clone, Debug)]
pub struct Stop {
    /// Which.
    pub node: usize,
    /// From when on it certainly stood still.
    pub stopped: Nanos,
    /// Until when it certainly did; none as long as it does, or if it was killed.
    pub continued: Option<Nanos>,
    /// The ways on which it may have caught a write that was not let pass yet.
    catches: Vec<Way>,
}

/// How soon after its SIGCONT a write must come that was caught by a stop. Far longer than a thread waits for its
/// processor, far shorter than what could be written from a buffer after a next look at the clock.
const AT_ONCE: Duration = Duration::from_secs(2);

/// How long nobody reads what has arrived, at most, before it is judged.
const READ_BY: Duration = Duration::from_secs(2);

/// So many effects are kept to be judged again when an earlier one of a higher term is found.
const KEPT: usize = 200_000;

/// Two effects in the wrong order.
#[derive(Clone, Debug)]
struct Late {
    effect: Effect,
    /// Of a higher term, and earlier.
    after: Effect,
}

/// What arrived so far.
#[derive(Default)]
pub struct Judge {
    recent: VecDeque<Effect>,
    /// The first effect of each term.
    firsts: BTreeMap<u64, Effect>,
    /// Who has served each term: node, process and instance.
    served: BTreeMap<u64, BTreeSet<(usize, String)>>,
    /// How often had been saved when a term began, and in which term last.
    resumed: BTreeMap<u64, (u64, u64)>,
    /// How often the instance of a term knew that it was saved, where it has saved.
    saved: BTreeMap<u64, u64>,
    /// When something was written, by node and way.
    writes: HashMap<(usize, Way), VecDeque<Nanos>>,
    stops: Vec<Stop>,
    late: Vec<Late>,
    broken: Option<String>,
    latest: Option<Effect>,
    /// What is counted.
    pub count: Count,
}

/// What was seen.
#[derive(Clone, Default, Debug)]
pub struct Count {
    /// Requests that arrived.
    pub requests: u64,
    /// Lines that were written.
    pub lines: u64,
    /// Terms of which an effect arrived.
    pub terms: usize,
    /// Commits that were acknowledged, as far as an effect tells.
    pub saved: u64,
    /// Late writes that a stop had caught.
    pub caught: usize,
    /// Stops of a process that was serving a term.
    pub stops: usize,
    /// The longest time without an effect of anyone.
    pub silence: Duration,
}

impl Judge {
    /// Notes that a node's process has written something, an effect or not.
    pub fn written(&mut self, node: usize, way: Way, at: Nanos) {
        let writes = self.writes.entry((node, way)).or_default();
        writes.push_back(at);
        if writes.len() > KEPT {
            writes.pop_front();
        }
    }

    /// Notes an effect, which [`Self::written`] was told of.
    pub fn effect(&mut self, effect: Effect) {
        match effect.way {
            Way::Request => self.count.requests += 1,
            Way::Line => self.count.lines += 1,
        }
        self.note_latest(&effect);
        self.note_server(&effect);
        self.note_saves(&effect);
        if self.firsts.get(&effect.term).is_none_or(|first| effect.at < first.at) {
            self.firsts.insert(effect.term, effect.clone());
            self.count.terms = self.firsts.len();
            let late = self.recent.iter().filter(|other| other.term < effect.term && other.at > effect.at);
            let late = late.map(|other| Late { effect: other.clone(), after: effect.clone() });
            // Those that came after another higher term's are known to be late already.
            let new: Vec<Late> = late.filter(|late| !self.late.iter().any(|l| l.effect == late.effect)).collect();
            self.late.extend(new);
        }
        let higher = self.firsts.range(effect.term + 1..).map(|(_, first)| first);
        if let Some(after) = higher.min_by_key(|first| first.at).filter(|first| first.at < effect.at) {
            self.late.push(Late { effect: effect.clone(), after: after.clone() });
        }
        self.recent.push_back(effect);
        if self.recent.len() > KEPT {
            self.recent.pop_front();
        }
    }

    fn note_latest(&mut self, effect: &Effect) {
        if let Some(latest) = &self.latest {
            if latest.at >= effect.at {
                return;
            }
            self.count.silence = self.count.silence.max(Duration::from_nanos(effect.at - latest.at));
        }
        self.latest = Some(effect.clone());
    }

    fn note_server(&mut self, effect: &Effect) {
        let server = (effect.node, effect.instance().to_owned());
        let servers = self.served.entry(effect.term).or_default();
        if servers.insert(server) && servers.len() > 1 {
            let first = &self.firsts[&effect.term];
            let why = format!("terms only rise: term {} is served by two: {first} and {effect}", effect.term);
            self.found(why);
        }
    }

    fn note_saves(&mut self, effect: &Effect) {
        let Some(Said { resumed, saved_in, saved, term }) = effect.said() else { return };
        if term != effect.term {
            self.found(format!("each effect carries its term: {effect} was caused in term {term}"));
        }
        if self.resumed.insert(term, (resumed, saved_in)).is_none() {
            for (before, saved) in self.saved.range(..term).map(|(term, saved)| (*term, *saved)).collect::<Vec<_>>() {
                self.check_saves((before, saved), (term, resumed, saved_in));
            }
        }
        let known = self.saved.get(&term).copied().unwrap_or(resumed);
        if saved > known {
            self.saved.insert(term, saved);
            self.count.saved = self.count.saved.max(saved);
            let after = self.resumed.range(term + 1..).map(|(term, (resumed, saved_in))| (*term, *resumed, *saved_in));
            for after in after.collect::<Vec<_>>() {
                self.check_saves((term, saved), after);
            }
        }
    }

    /// What one term was told to be saved, a later one finds, and nothing that an earlier one has saved after it.
    fn check_saves(&mut self, (term, saved): (u64, u64), (later, resumed, saved_in): (u64, u64, u64)) {
        if resumed < saved || saved_in < term {
            self.found(format!(
                "no commit is lost: term {term} was told of {saved}, and term {later} began with {resumed} of term \
                 {saved_in}"
            ));
        }
    }

    /// Notes that a promise is broken, unless one was before.
    pub fn found(&mut self, broken: String) {
        self.broken.get_or_insert(broken);
    }

    /// Judges how often is said to have been saved in the end.
    ///
    /// # Errors
    /// If a commit that was acknowledged is not there.
    pub fn judge_saved(&self, kept: u64) -> Result<(), String> {
        match self.saved.iter().max_by_key(|(_, saved)| **saved) {
            Some((term, saved)) if *saved > kept => {
                Err(format!("no commit is lost: term {term} was told of {saved}, and {kept} are there in the end"))
            }
            _ => Ok(()),
        }
    }

    /// Notes that processes of a node stand still that write on these ways.
    pub fn stopped(&mut self, node: usize, ways: Vec<Way>, at: Nanos) {
        self.count.stops += usize::from(!ways.is_empty() && self.leader_at(at) == Some(node));
        self.stops.push(Stop { node, stopped: at, continued: None, catches: ways });
    }

    /// Notes that it is about to go on.
    pub fn continued(&mut self, node: usize, at: Nanos) {
        if let Some(stop) = self.stops.iter_mut().rfind(|stop| stop.node == node) {
            stop.continued = Some(at);
        }
    }

    /// Whose effects arrived last, if that is not long ago.
    pub fn leader_at(&self, now: Nanos) -> Option<usize> {
        let latest = self.latest.as_ref()?;
        (now.saturating_sub(latest.at) < 1_000_000_000).then_some(latest.node)
    }

    /// The first effect of the lowest term above that one of which any has arrived.
    pub fn first_above(&self, term: u64) -> Option<&Effect> {
        self.firsts.range(term + 1..).map(|(_, first)| first).next()
    }

    /// The last effect that arrived.
    pub fn latest(&self) -> Option<&Effect> {
        self.latest.as_ref()
    }

    /// Judges what had arrived some time before `now`, so that all of it was read.
    ///
    /// # Errors
    /// The broken promise, with the two effects that show it.
    pub fn judge(&mut self, now: Nanos) -> Result<(), String> {
        if let Some(broken) = &self.broken {
            return Err(broken.clone());
        }
        let read_by = now.saturating_sub(nanos(READ_BY));
        let (due, later) = std::mem::take(&mut self.late).into_iter().partition(|late| late.effect.at <= read_by);
        self.late = later;
        for late in due {
            let Late { effect, after } = &late;
            if self.excuse(&late) {
                self.count.caught += 1;
                continue;
            }
            let by = Duration::from_nanos(effect.at - after.at);
            let stops: Vec<_> = self.stops.iter().filter(|stop| stop.node == effect.node).collect();
            return Err(format!(
                "one at a time: {effect} arrived {by:?} after {after}, and {} of its term in all that late; its \
                 process was last stopped: {:?}",
                1 + self.recent.iter().filter(|e| e.term == effect.term && e.at > after.at && *e != effect).count(),
                stops.last(),
            ));
        }
        Ok(())
    }

    /// Whether a late effect is the one that a stop may catch.
    fn excuse(&mut self, Late { effect: late, after }: &Late) -> bool {
        let empty = VecDeque::new();
        let writes = self.writes.get(&(late.node, late.way)).unwrap_or(&empty);
        let caught = |stop: &&mut Stop| {
            let Some(continued) = stop.continued else { return false };
            // What had a higher term before it when the process was stopped was late without that.
            stop.node == late.node
                && stop.stopped < after.at
                && (continued..continued + nanos(AT_ONCE)).contains(&late.at)
                && stop.catches.contains(&late.way)
                && !writes.iter().any(|at| (stop.stopped + 1..late.at).contains(at))
        };
        let Some(stop) = self.stops.iter_mut().find(caught) else { return false };
        stop.catches.retain(|way| *way != late.way);
        true
    }
}

fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = match self.way {
            Way::Request => "request",
            Way::Line => "line",
        };
        let (seconds, micros) = (self.at / 1_000_000_000, self.at / 1_000 % 1_000_000);
        write!(
            f,
            "the {way} {} of term {} on {}, {seconds}.{micros:06}",
            self.name,
            self.term,
            crate::fleet::NAMES[self.node]
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = 1_000_000_000;

    fn effect(way: Way, node: usize, term: u64, at: Nanos) -> Effect {
        Effect { at, way, term, node, name: format!("i{node}{term}/{at}") }
    }

    /// What comes of these, in the order in which they are read.
    fn judged(judge: &mut Judge, effects: &[Effect]) -> Result<usize, String> {
        for effect in effects {
            judge.written(effect.node, effect.way, effect.at);
            judge.effect(effect.clone());
        }
        judge.judge(100 * SECOND).map(|()| judge.count.caught)
    }

    use Way::{Line, Request};

    #[test]
    fn one_term_after_another_is_right_however_it_is_read() {
        let right = [effect(Request, 1, 2, 30), effect(Line, 0, 1, 10), effect(Request, 0, 1, 20)];
        assert_eq!(judged(&mut Judge::default(), &right), Ok(0));
    }

    #[test]
    fn a_lower_term_after_a_higher_one_is_wrong_however_it_is_read() {
        for way in [Request, Line] {
            let (lower, higher) = (effect(way, 0, 1, 20), effect(Request, 1, 2, 10));
            for wrong in [[lower.clone(), higher.clone()], [higher, lower]] {
                let broken = judged(&mut Judge::default(), &wrong).unwrap_err();
                assert!(broken.starts_with("one at a time"), "{broken}");
            }
        }
    }

    #[test]
    fn two_that_serve_one_term_are_found() {
        let broken = judged(&mut Judge::default(), &[effect(Request, 0, 1, 10), effect(Line, 1, 1, 20)]).unwrap_err();
        assert!(broken.starts_with("terms only rise"), "{broken}");
    }

    /// An effect of an instance that found `resumed` saved in the term `saved_in`, and knows of `saved`.
    fn with(term: u64, (resumed, saved_in): (u64, u64), saved: u64) -> Effect {
        let name = format!("i{term}/1/{resumed}/{saved_in}/{saved}/{term}");
        Effect { name, ..effect(Request, 0, term, term * 10) }
    }

    #[test]
    fn a_later_term_finds_what_an_earlier_one_was_told_to_be_saved() {
        let right =
            [with(1, (0, 0), 0), with(1, (0, 0), 2), with(2, (3, 1), 3), with(3, (3, 1), 4), with(4, (4, 3), 4)];
        assert_eq!(judged(&mut Judge::default(), &right), Ok(0));
        let told = with(1, (0, 0), 2);
        let overwritten = with(3, (5, 1), 5);
        for wrong in [
            [told.clone(), with(2, (1, 1), 1)],
            [with(2, (1, 1), 1), told],
            [with(2, (2, 1), 3), overwritten.clone()],
            [overwritten, with(2, (2, 1), 3)],
        ] {
            let broken = judged(&mut Judge::default(), &wrong).unwrap_err();
            assert!(broken.starts_with("no commit is lost"), "{broken}");
        }
        let mut judge = Judge::default();
        assert_eq!(judged(&mut judge, &[with(1, (0, 0), 2)]), Ok(0));
        assert!(judge.judge_saved(2).is_ok() && judge.judge_saved(1).is_err());
    }

    #[test]
    fn an_effect_under_anothers_term_is_found() {
        let of_another = Effect { term: 2, ..with(1, (0, 0), 0) };
        let broken = judged(&mut Judge::default(), &[of_another]).unwrap_err();
        assert!(broken.starts_with("each effect carries its term"), "{broken}");
    }

    /// Node 0 is stopped in term 1 until term 2 is served.
    fn with_a_stop() -> Judge {
        let mut judge = Judge::default();
        assert_eq!(judged(&mut judge, &[effect(Request, 0, 1, SECOND), effect(Line, 0, 1, SECOND)]), Ok(0));
        judge.stopped(0, vec![Request, Line], 2 * SECOND);
        assert_eq!(judged(&mut judge, &[effect(Request, 1, 2, 5 * SECOND)]), Ok(0));
        judge.continued(0, 9 * SECOND);
        judge
    }

    #[test]
    fn a_stop_excuses_the_first_write_on_each_way_and_counts_it() {
        let both = [effect(Request, 0, 1, 9 * SECOND + 1), effect(Line, 0, 1, 9 * SECOND + 2)];
        assert_eq!(judged(&mut with_a_stop(), &both), Ok(2));
    }

    #[test]
    fn a_stop_excuses_nothing_else() {
        // A second one, one that comes later, one after another line of the host, and one of another node.
        assert!(judged(&mut with_a_stop(), &[9, 10].map(|at| effect(Request, 0, 1, at * SECOND + 1))).is_err());
        assert!(judged(&mut with_a_stop(), &[effect(Request, 0, 1, 12 * SECOND)]).is_err());
        let mut judge = with_a_stop();
        judge.written(0, Line, 9 * SECOND + 1);
        assert!(judged(&mut judge, &[effect(Line, 0, 1, 9 * SECOND + 2)]).is_err());
        let of_another = effect(Request, 2, 1, 9 * SECOND + 1);
        assert!(judged(&mut with_a_stop(), &[of_another]).is_err());
        // One that another process has written.
        let mut judge = with_a_stop();
        judge.stops[0].catches = vec![Line];
        assert!(judged(&mut judge, &[effect(Request, 0, 1, 9 * SECOND + 1)]).is_err());
        // One that was late before the stop.
        let mut judge = with_a_stop();
        let earlier = effect(Line, 1, 2, SECOND * 3 / 2);
        assert!(judged(&mut judge, &[earlier, effect(Request, 0, 1, 9 * SECOND + 1)]).is_err());
        // One that was still stopped.
        let mut judge = with_a_stop();
        judge.stops[0].continued = None;
        assert!(judged(&mut judge, &[effect(Request, 0, 1, 9 * SECOND + 1)]).is_err());
    }
}
