//! Checks the order of effects by the kernel's timestamps.
//!
//! No effect of a lower term may arrive after an effect of a higher term. There is one exception: if SIGSTOP stops a
//! process between its gate check and the system call, the process still makes that call when it is continued. Nothing
//! in the process can prevent this. The judge therefore accepts and counts one late write per stop and channel. This
//! write must be the first one after the SIGCONT, and must follow within [`AT_ONCE`].

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::time::Duration;

use crate::kernel::Nanos;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Channel {
    Request,
    /// Lines on the host's stderr.
    Line,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Effect {
    /// The time of arrival, as stamped by the kernel.
    pub at: Nanos,
    pub way: Channel,
    pub term: u64,
    /// The index in [`crate::fleet::NAMES`] of the node that caused the effect.
    pub node: usize,
    /// The instance's unique name and the effect's number, separated by `/`. The numbers in [`Claims`] may follow.
    pub name: String,
}

impl Effect {
    fn instance(&self) -> &str {
        self.name.split('/').next().unwrap_or_default()
    }

    fn claims(&self) -> Option<Claims> {
        let mut numbers = self.name.split('/').skip(2).map(str::parse);
        let mut next = || numbers.next()?.ok();
        Some(Claims { resumed: next()?, saved_in: next()?, saved: next()?, term: next()? })
    }
}

/// The numbers that a coordinator sends with each effect, so that the judge can detect lost commits.
struct Claims {
    /// The number of saves that the state contained when the instance started.
    resumed: u64,
    /// The term in which the last of these saves was made.
    saved_in: u64,
    /// The number of acknowledged saves so far.
    saved: u64,
    term: u64,
}

/// A period in which processes of a node were stopped.
#[derive(Clone, Debug)]
pub struct Stop {
    pub node: usize,
    /// A time at which all of these processes had already stopped.
    pub stopped: Nanos,
    /// A time just before SIGCONT was sent. `None` if the processes are still stopped, or were killed.
    pub continued: Option<Nanos>,
    /// The channels on which the stop may have interrupted a write. Once the judge has excused a late write on a
    /// channel, it removes the channel.
    catches: Vec<Channel>,
}

/// The longest accepted time between SIGCONT and the interrupted write. It is far longer than a thread waits for a CPU,
/// but short enough to detect a host that writes buffered output without checking the gate again.
const AT_ONCE: Duration = Duration::from_secs(2);

/// The longest delay between the arrival of an effect and the time at which the test reads it. Effects are judged after
/// this delay.
const READ_BY: Duration = Duration::from_secs(2);

/// The number of recent effects to keep. The test may read effects out of order. If it reads the first effect of a
/// higher term late, the judge searches the kept effects for effects of lower terms that arrived after it.
const KEPT: usize = 200_000;

/// An effect that came after an effect of a higher term.
#[derive(Clone, Debug)]
struct Late {
    effect: Effect,
    after: Effect,
}

#[derive(Default)]
pub struct Judge {
    recent: VecDeque<Effect>,
    firsts: BTreeMap<u64, Effect>,
    /// The nodes and instances that have served each term.
    served: BTreeMap<u64, BTreeSet<(usize, String)>>,
    /// [`Claims::resumed`] and [`Claims::saved_in`] of each term.
    resumed: BTreeMap<u64, (u64, u64)>,
    /// The highest [`Claims::saved`] of each term in which an instance has saved.
    saved: BTreeMap<u64, u64>,
    writes: HashMap<(usize, Channel), VecDeque<Nanos>>,
    stops: Vec<Stop>,
    late: Vec<Late>,
    broken: Option<String>,
    latest: Option<Effect>,
    pub count: Count,
}

#[derive(Clone, Default, Debug)]
pub struct Count {
    pub requests: u64,
    pub lines: u64,
    pub terms: usize,
    /// The highest number of acknowledged commits that an effect has claimed.
    pub saved: u64,
    /// The number of late writes that the judge has accepted because of a stop.
    pub caught: usize,
    /// The number of stops that interrupted a leader.
    pub stops: usize,
    /// The longest time without an effect.
    pub silence: Duration,
}

impl Judge {
    /// Records a write by one of a node's processes, even if the write is not an effect.
    pub fn written(&mut self, node: usize, way: Channel, at: Nanos) {
        let writes = self.writes.entry((node, way)).or_default();
        writes.push_back(at);
        if writes.len() > KEPT {
            writes.pop_front();
        }
    }

    /// Records an effect. The caller must pass its write to [`Self::written`] first.
    pub fn effect(&mut self, effect: Effect) {
        match effect.way {
            Channel::Request => self.count.requests += 1,
            Channel::Line => self.count.lines += 1,
        }
        self.note_latest(&effect);
        self.note_server(&effect);
        self.note_saves(&effect);
        if self.firsts.get(&effect.term).is_none_or(|first| effect.at < first.at) {
            self.firsts.insert(effect.term, effect.clone());
            self.count.terms = self.firsts.len();
            let late = self.recent.iter().filter(|other| other.term < effect.term && other.at > effect.at);
            let late = late.map(|other| Late { effect: other.clone(), after: effect.clone() });
            // Skip effects that are already recorded as late because of another higher term.
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
        let Some(Claims { resumed, saved_in, saved, term }) = effect.claims() else { return };
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

    /// Checks that the term `later` began with a state that contained at least `saved` saves, the last of them made in
    /// `term` or a later term.
    fn check_saves(&mut self, (term, saved): (u64, u64), (later, resumed, saved_in): (u64, u64, u64)) {
        if resumed < saved || saved_in < term {
            self.found(format!(
                "no commit is lost: term {term} was told of {saved}, and term {later} began with {resumed} of term \
                 {saved_in}"
            ));
        }
    }

    /// Records that a promise was broken. Keeps only the first broken promise.
    pub fn found(&mut self, broken: String) {
        self.broken.get_or_insert(broken);
    }

    /// Checks `kept`, the number of saves in the store after the run.
    ///
    /// # Errors
    /// If an acknowledged commit is missing.
    pub fn judge_saved(&self, kept: u64) -> Result<(), String> {
        match self.saved.iter().max_by_key(|(_, saved)| **saved) {
            Some((term, saved)) if *saved > kept => {
                Err(format!("no commit is lost: term {term} was told of {saved}, and {kept} are there in the end"))
            }
            _ => Ok(()),
        }
    }

    /// Records that some processes of a node have stopped. `ways` are the channels to which these processes write.
    pub fn stopped(&mut self, node: usize, ways: Vec<Channel>, at: Nanos) {
        self.count.stops += usize::from(!ways.is_empty() && self.leader_at(at) == Some(node));
        self.stops.push(Stop { node, stopped: at, continued: None, catches: ways });
    }

    /// Records that the stopped processes of a node are about to continue.
    pub fn continued(&mut self, node: usize, at: Nanos) {
        if let Some(stop) = self.stops.iter_mut().rfind(|stop| stop.node == node) {
            stop.continued = Some(at);
        }
    }

    /// The node that caused the last effect, if this effect arrived within the last second.
    pub fn leader_at(&self, now: Nanos) -> Option<usize> {
        let latest = self.latest.as_ref()?;
        (now.saturating_sub(latest.at) < 1_000_000_000).then_some(latest.node)
    }

    /// The first effect of the lowest term above `term` that has effects.
    pub fn first_above(&self, term: u64) -> Option<&Effect> {
        self.firsts.range(term + 1..).map(|(_, first)| first).next()
    }

    pub fn latest(&self) -> Option<&Effect> {
        self.latest.as_ref()
    }

    /// Judges the effects that arrived more than [`READ_BY`] before `now`. By then, the test has read all effects that
    /// arrived earlier, too.
    ///
    /// # Errors
    /// If a promise was broken. The error describes the effects that show it.
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

    /// Returns true if the effect is late because a stop interrupted its write. Each stop excuses one effect per
    /// channel.
    fn excuse(&mut self, Late { effect: late, after }: &Late) -> bool {
        let empty = VecDeque::new();
        let writes = self.writes.get(&(late.node, late.way)).unwrap_or(&empty);
        let caught = |stop: &&mut Stop| {
            let Some(continued) = stop.continued else { return false };
            // If the effect of the higher term arrived before the stop, the write was already late when the stop began,
            // so the stop is no excuse.
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
            Channel::Request => "request",
            Channel::Line => "line",
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

    fn effect(way: Channel, node: usize, term: u64, at: Nanos) -> Effect {
        Effect { at, way, term, node, name: format!("i{node}{term}/{at}") }
    }

    /// Records the effects in the given order, as if the test had read them in this order, and judges them. Returns the
    /// number of excused effects.
    fn judged(judge: &mut Judge, effects: &[Effect]) -> Result<usize, String> {
        for effect in effects {
            judge.written(effect.node, effect.way, effect.at);
            judge.effect(effect.clone());
        }
        judge.judge(100 * SECOND).map(|()| judge.count.caught)
    }

    use Channel::{Line, Request};

    #[test]
    fn terms_in_order_pass_in_any_reading_order() {
        let right = [effect(Request, 1, 2, 30), effect(Line, 0, 1, 10), effect(Request, 0, 1, 20)];
        assert_eq!(judged(&mut Judge::default(), &right), Ok(0));
    }

    #[test]
    fn lower_term_after_higher_fails_in_any_reading_order() {
        for way in [Request, Line] {
            let (lower, higher) = (effect(way, 0, 1, 20), effect(Request, 1, 2, 10));
            for wrong in [[lower.clone(), higher.clone()], [higher, lower]] {
                let broken = judged(&mut Judge::default(), &wrong).unwrap_err();
                assert!(broken.starts_with("one at a time"), "{broken}");
            }
        }
    }

    #[test]
    fn two_instances_of_one_term_fail() {
        let broken = judged(&mut Judge::default(), &[effect(Request, 0, 1, 10), effect(Line, 1, 1, 20)]).unwrap_err();
        assert!(broken.starts_with("terms only rise"), "{broken}");
    }

    fn with_claims(term: u64, (resumed, saved_in): (u64, u64), saved: u64) -> Effect {
        let name = format!("i{term}/1/{resumed}/{saved_in}/{saved}/{term}");
        Effect { name, ..effect(Request, 0, term, term * 10) }
    }

    #[test]
    fn later_term_must_find_acknowledged_saves() {
        let right = [
            with_claims(1, (0, 0), 0),
            with_claims(1, (0, 0), 2),
            with_claims(2, (3, 1), 3),
            with_claims(3, (3, 1), 4),
            with_claims(4, (4, 3), 4),
        ];
        assert_eq!(judged(&mut Judge::default(), &right), Ok(0));
        let acknowledged = with_claims(1, (0, 0), 2);
        let overwritten = with_claims(3, (5, 1), 5);
        for wrong in [
            [acknowledged.clone(), with_claims(2, (1, 1), 1)],
            [with_claims(2, (1, 1), 1), acknowledged],
            [with_claims(2, (2, 1), 3), overwritten.clone()],
            [overwritten, with_claims(2, (2, 1), 3)],
        ] {
            let broken = judged(&mut Judge::default(), &wrong).unwrap_err();
            assert!(broken.starts_with("no commit is lost"), "{broken}");
        }
        let mut judge = Judge::default();
        assert_eq!(judged(&mut judge, &[with_claims(1, (0, 0), 2)]), Ok(0));
        assert!(judge.judge_saved(2).is_ok() && judge.judge_saved(1).is_err());
    }

    #[test]
    fn effect_that_carries_another_term_fails() {
        let with_wrong_term = Effect { term: 2, ..with_claims(1, (0, 0), 0) };
        let broken = judged(&mut Judge::default(), &[with_wrong_term]).unwrap_err();
        assert!(broken.starts_with("each effect carries its term"), "{broken}");
    }

    /// A judge that has recorded a stop of node 0. The stop began in term 1 and ended after an effect of term 2.
    fn with_stop() -> Judge {
        let mut judge = Judge::default();
        assert_eq!(judged(&mut judge, &[effect(Request, 0, 1, SECOND), effect(Line, 0, 1, SECOND)]), Ok(0));
        judge.stopped(0, vec![Request, Line], 2 * SECOND);
        assert_eq!(judged(&mut judge, &[effect(Request, 1, 2, 5 * SECOND)]), Ok(0));
        judge.continued(0, 9 * SECOND);
        judge
    }

    #[test]
    fn stop_excuses_first_write_of_each_channel() {
        let both = [effect(Request, 0, 1, 9 * SECOND + 1), effect(Line, 0, 1, 9 * SECOND + 2)];
        assert_eq!(judged(&mut with_stop(), &both), Ok(2));
    }

    #[test]
    fn stop_excuses_no_other_write() {
        // A second write on a channel, a write more than [`AT_ONCE`] after the SIGCONT, a line after another line of
        // the same host, and a write by another node.
        assert!(judged(&mut with_stop(), &[9, 10].map(|at| effect(Request, 0, 1, at * SECOND + 1))).is_err());
        assert!(judged(&mut with_stop(), &[effect(Request, 0, 1, 12 * SECOND)]).is_err());
        let mut judge = with_stop();
        judge.written(0, Line, 9 * SECOND + 1);
        assert!(judged(&mut judge, &[effect(Line, 0, 1, 9 * SECOND + 2)]).is_err());
        let by_another_node = effect(Request, 2, 1, 9 * SECOND + 1);
        assert!(judged(&mut with_stop(), &[by_another_node]).is_err());
        // A write on a channel that no stopped process writes to.
        let mut judge = with_stop();
        judge.stops[0].catches = vec![Line];
        assert!(judged(&mut judge, &[effect(Request, 0, 1, 9 * SECOND + 1)]).is_err());
        // A write that was already late when the stop began.
        let mut judge = with_stop();
        let earlier = effect(Line, 1, 2, SECOND * 3 / 2);
        assert!(judged(&mut judge, &[earlier, effect(Request, 0, 1, 9 * SECOND + 1)]).is_err());
        // A write by processes that are still stopped.
        let mut judge = with_stop();
        judge.stops[0].continued = None;
        assert!(judged(&mut judge, &[effect(Request, 0, 1, 9 * SECOND + 1)]).is_err());
    }
}
