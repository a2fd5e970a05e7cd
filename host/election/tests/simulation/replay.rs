//! Replays: plans as text, with one line for each difference from a run without faults. A failing run is shrunk and
//! saved as a replay. People can read and edit a replay, and it stays valid when the plan generator changes.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use baton_election::eligibility::HIGHEST_PRIORITY;

use crate::invariants::Violation;
use crate::plan::{
    Aimed, Ask, CALM, Command, Details, Ending, Fate, Fault, HEALTHY, HostPlan, Key, Life, Links, Moment, Outage, Plan,
    SchedulePlan, Witness,
};
use crate::world::World;

/// Shrinks a failing run, and writes it to a file in `folder`. Returns instructions for repeating the run.
pub fn keep(folder: &Path, seed: u64, world: &World, violation: &Violation) -> String {
    let mut plan = Plan::from_seed(seed);
    plan.details = Details::Written { fates: world.fates.clone(), lives: world.lives.clone() };
    let plan = shrink(plan, violation);
    let Violation { rule, what } = violation;
    let path = folder.join(format!("{rule}-{seed}.txt"));
    std::fs::create_dir_all(folder).unwrap();
    if !path.exists() {
        std::fs::write(&path, format!("# {rule}: {what}\n{}", write(&plan))).unwrap();
    }
    format!(
        "seed {seed} breaks {rule}: {what}\n  see it: BATON_SIM_SEED={seed} cargo test -p baton-election --test simulation every_promise -- --nocapture\n  shrunk to {}\n",
        path.display()
    )
}

pub fn write(plan: &Plan) -> String {
    let mut text = format!("seed {}\nheal {}\n", plan.seed, length(plan.heal_at));
    if !plan.has_state {
        text += "stateless\n";
    }
    if plan.is_watched {
        text += "watched\n";
    }
    if plan.witness == Witness::Sees {
        text += "witnessed\n";
    }
    if plan.witness == Witness::Notes {
        text += "noted\n";
    }
    match plan.links {
        Links::None => {}
        Links::Work => text += "linked\n",
        Links::Lie => text += "lied-to\n",
    }
    if let Some(SchedulePlan { period, skips, is_mixed, skew }) = &plan.schedule {
        let (period, skew) = (length(*period), length(*skew));
        line(&mut text, format_args!("schedule {period} skips {skips} mixed {is_mixed} skew {skew}"));
    }
    for (number, host) in plan.hosts.iter().enumerate() {
        let HostPlan { lease, grace, pause, drift, finish, module, priority } = host;
        let (lease, grace, pause) = (length(*lease), length(*grace), length(*pause));
        line(
            &mut text,
            format_args!(
                "host {number} {lease} grace {grace} pause {pause} drift {drift} finish {finish} module {module} priority {priority}"
            ),
        );
    }
    for (at, fault) in &plan.faults {
        line(&mut text, format_args!("at {} {}", length(*at), fault_words(fault)));
    }
    for Aimed { from, host, moment, after, fault } in &plan.aimed {
        let (from, moment, after) = (length(*from), moment_words(moment), length(*after));
        line(&mut text, format_args!("from {from} as {host} {moment} after {after} {}", fault_words(fault)));
    }
    if let Details::Written { fates, lives } = &plan.details {
        for ((host, incarnation, number), fate) in fates {
            let Fate { arrives, again, answer, answer_again, doubt } = fate;
            let [arrives, again, answer, answer_again] = [arrives, again, answer, answer_again].map(maybe);
            line(
                &mut text,
                format_args!(
                    "request {host} {incarnation} {number} arrives {arrives} again {again} answer {answer} answer-again {answer_again} doubt {doubt}"
                ),
            );
        }
        for ((host, incarnation, number), life) in lives {
            let ends = word_of(&ENDINGS, &life.ends);
            let [runs, stops, begins] = [life.runs, life.stops, life.begins].map(|one| maybe(&one));
            let (gone, dying) = (length(life.gone), maybe(&life.dying));
            line(
                &mut text,
                format_args!(
                    "instance {host} {incarnation} {number} runs {runs} ends {ends} stops {stops} gone {gone} lands {} words {} begins {begins} dying {dying}",
                    length(life.lands),
                    length(life.words)
                ),
            );
        }
    }
    text
}

/// Skips lines that start with `#`, which are comments.
pub fn read(text: &str) -> Result<Plan, String> {
    let mut plan = Plan {
        seed: 0,
        hosts: Vec::new(),
        has_state: true,
        is_watched: false,
        witness: Witness::None,
        links: Links::None,
        schedule: None,
        heal_at: Duration::ZERO,
        faults: Vec::new(),
        aimed: Vec::new(),
        details: Details::Written { fates: BTreeMap::new(), lives: BTreeMap::new() },
    };
    for text_line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let mut words = Words(text_line.split_whitespace().collect());
        read_line(&mut plan, &mut words).map_err(|why| format!("{why} in the line `{text_line}`"))?;
    }
    Ok(plan)
}

/// Removes everything from the plan that is not needed to break the same rule.
pub fn shrink(mut plan: Plan, violation: &Violation) -> Plan {
    let fails = |plan: &Plan| World::new(plan.clone()).run().is_err_and(|found| found.rule == violation.rule);
    let mut chunk = 64;
    while chunk > 0 {
        let mut start = 0;
        while start < parts(&plan) {
            let smaller = without(&plan, start, chunk);
            if fails(&smaller) {
                plan = smaller;
            } else {
                start += chunk;
            }
        }
        chunk /= 4;
    }
    plan
}

fn parts(plan: &Plan) -> usize {
    let timed = plan.faults.len() + plan.aimed.len();
    let Details::Written { fates, lives } = &plan.details else { return timed };
    timed + fates.len() + lives.len()
}

fn without(plan: &Plan, start: usize, count: usize) -> Plan {
    let mut plan = plan.clone();
    let mut number = 0;
    let mut keep = || {
        number += 1;
        number <= start || number > start + count
    };
    plan.faults.retain(|_| keep());
    plan.aimed.retain(|_| keep());
    if let Details::Written { fates, lives } = &mut plan.details {
        fates.retain(|_, _| keep());
        lives.retain(|_, _| keep());
    }
    plan
}

// ---- writing and reading the words of a line ----

fn line(text: &mut String, words: std::fmt::Arguments<'_>) {
    writeln!(text, "{words}").expect("a string takes all text");
}

fn length(length: Duration) -> String {
    format!("{}ms", length.as_millis())
}

fn maybe(value: &Option<Duration>) -> String {
    value.map_or("never".to_string(), length)
}

const ENDINGS: [(&str, Ending); 5] = [
    ("done", Ending::Done),
    ("failed", Ending::Failed),
    ("crashed", Ending::Crashed),
    ("fatal", Ending::Fatal),
    ("unable", Ending::Unable),
];
const OUTAGES: [(&str, Outage); 5] = [
    ("hang", Outage::Hang),
    ("refuse", Outage::Refuse),
    ("doubt", Outage::Doubt),
    ("misconfigured", Outage::Misconfigured),
    ("unwritable", Outage::Unwritable),
];

const ASKS: [(&str, Ask); 9] = [
    ("read", Ask::Read),
    ("recall", Ask::Recall),
    ("create", Ask::Create),
    ("acquire", Ask::Acquire),
    ("renew", Ask::Renew),
    ("write", Ask::Write),
    ("release", Ask::Release),
    ("announce", Ask::Announce),
    ("claim", Ask::Claim),
];

fn word_of<T: PartialEq>(names: &[(&'static str, T)], wanted: &T) -> &'static str {
    names.iter().find(|(_, one)| one == wanted).map_or("", |(word, _)| word)
}

fn moment_words(moment: &Moment) -> String {
    match moment {
        Moment::Asks(ask) => format!("asks {}", word_of(&ASKS, ask)),
        Moment::Extends => "extends".to_string(),
        Moment::Starts => "starts".to_string(),
        Moment::Stops => "stops".to_string(),
        Moment::Kills => "kills".to_string(),
    }
}

fn fault_words(fault: &Fault) -> String {
    match fault {
        Fault::Crash { host, down } => format!("crash {host} down {}", length(*down)),
        Fault::Freeze { host, length: frozen } => format!("freeze {host} for {}", length(*frozen)),
        Fault::SupervisorStops { host, length: stopped } => format!("supervisor-stops {host} for {}", length(*stopped)),
        Fault::WatchdogStops { host, length: stopped } => format!("watchdog-stops {host} for {}", length(*stopped)),
        Fault::Slew { host, ppm, length: slewed } => format!("slew {host} by {ppm} for {}", length(*slewed)),
        Fault::Jump { host, by } => format!("jump {host} by {}", length(*by)),
        Fault::Outage { host, length: long, kind, of } => {
            let host = host.map_or("all".to_string(), |host| host.to_string());
            let of = of.map_or(String::new(), |ask| format!(" of {}", word_of(&ASKS, &ask)));
            format!("outage {host} for {} {}{of}", length(*long), word_of(&OUTAGES, kind))
        }
        Fault::Command(Command::Suspend) => "suspend".to_string(),
        Fault::Command(Command::Resume) => "resume".to_string(),
        Fault::Command(Command::StepDown { host, length: long }) => {
            format!("command-step-down {host} for {}", length(*long))
        }
        Fault::Command(Command::Transfer { to, by_operator }) => format!("transfer {to} by-operator {by_operator}"),
        Fault::Maintain { host, length: long } => format!("maintain {host} for {}", length(*long)),
        Fault::LetsOthersAsk { host, length: long } => format!("lets-others-ask {host} for {}", length(*long)),
        Fault::Break { period } => format!("break period {}", length(*period)),
        Fault::Delete => "delete".to_string(),
        Fault::Plant => "plant".to_string(),
        Fault::Rewrite { back } => format!("rewrite back {back}"),
        Fault::Seize => "seize".to_string(),
        Fault::StartAgain => "start-again".to_string(),
        Fault::Restore { ahead } => format!("restore ahead {ahead}"),
        Fault::Outside { length: long } => format!("outside for {}", maybe(long)),
        Fault::OutsideReturns => "outside-returns".to_string(),
        Fault::Publish { host, module, fallback } => {
            let [module, fallback] =
                [module, fallback].map(|one| one.map_or("none".to_string(), |one| one.to_string()));
            format!("publish {host} module {module} fallback {fallback}")
        }
        Fault::Stall { host } => format!("stall {host}"),
        Fault::StepDown { host } => format!("step-down {host}"),
        Fault::Shutdown { host, down } => format!("shutdown {host} down {}", length(*down)),
        Fault::SkipGrace { host } => format!("skip-grace {host}"),
    }
}

struct Words<'a>(std::collections::VecDeque<&'a str>);

impl Words<'_> {
    fn next<T: FromStr>(&mut self) -> Result<T, String> {
        let word = self.0.pop_front().ok_or("a word is missing")?;
        word.parse().map_err(|_| format!("`{word}` is not understood"))
    }

    fn labelled<T>(&mut self, label: &str, value: impl Fn(&mut Self) -> Result<T, String>) -> Result<T, String> {
        let word: String = self.next()?;
        if word == label { value(self) } else { Err(format!("`{word}` stands where `{label}` should")) }
    }

    fn optional<T>(
        &mut self,
        label: &str,
        value: impl Fn(&mut Self) -> Result<T, String>,
    ) -> Result<Option<T>, String> {
        if self.0.is_empty() { Ok(None) } else { self.labelled(label, value).map(Some) }
    }

    fn maybe(&mut self) -> Result<Option<Duration>, String> {
        let word: String = self.next()?;
        if word == "never" {
            return Ok(None);
        }
        let number = word.strip_suffix("ms").and_then(|number| number.parse().ok());
        number.map(Duration::from_millis).map(Some).ok_or(format!("`{word}` is not a length"))
    }

    fn module(&mut self) -> Result<Option<u64>, String> {
        let word: String = self.next()?;
        if word == "none" {
            return Ok(None);
        }
        word.parse().map(Some).map_err(|_| format!("`{word}` is no module"))
    }

    fn length(&mut self) -> Result<Duration, String> {
        self.maybe()?.ok_or("a length is missing".to_string())
    }

    fn key(&mut self) -> Result<Key, String> {
        Ok((self.next()?, self.next()?, self.next()?))
    }

    fn one_of<T: Copy>(&mut self, names: &[(&str, T)]) -> Result<T, String> {
        let word: String = self.next()?;
        names.iter().find(|(name, _)| *name == word).map(|(_, one)| *one).ok_or(format!("`{word}` is not known"))
    }
}

fn read_line(plan: &mut Plan, words: &mut Words<'_>) -> Result<(), String> {
    let kind: String = words.next()?;
    let Details::Written { fates, lives } = &mut plan.details else { return Ok(()) };
    match kind.as_str() {
        "seed" => plan.seed = words.next()?,
        "heal" => plan.heal_at = words.length()?,
        "stateless" => plan.has_state = false,
        "watched" => plan.is_watched = true,
        "witnessed" => plan.witness = Witness::Sees,
        "noted" => plan.witness = Witness::Notes,
        "linked" => plan.links = Links::Work,
        "lied-to" => plan.links = Links::Lie,
        "schedule" => {
            plan.schedule = Some(SchedulePlan {
                period: words.length()?,
                skips: words.labelled("skips", Words::next)?,
                is_mixed: words.labelled("mixed", Words::next)?,
                skew: words.labelled("skew", Words::length)?,
            });
        }
        "host" => {
            let _number: usize = words.next()?;
            plan.hosts.push(HostPlan {
                lease: words.length()?,
                grace: words.labelled("grace", Words::length)?,
                pause: words.labelled("pause", Words::length)?,
                drift: words.labelled("drift", Words::next)?,
                finish: words.labelled("finish", Words::next)?,
                module: words.labelled("module", Words::next)?,
                priority: words.optional("priority", Words::next)?.unwrap_or(HIGHEST_PRIORITY),
            });
        }
        "at" => {
            let at = words.length()?;
            plan.faults.push((at, read_fault(words)?));
        }
        "from" => plan.aimed.push(Aimed {
            from: words.length()?,
            host: words.labelled("as", Words::next)?,
            moment: read_moment(words)?,
            after: words.labelled("after", Words::length)?,
            fault: read_fault(words)?,
        }),
        "request" => {
            let key = words.key()?;
            let fate = Fate {
                arrives: words.labelled("arrives", Words::maybe)?,
                again: words.labelled("again", Words::maybe)?,
                answer: words.labelled("answer", Words::maybe)?,
                answer_again: words.labelled("answer-again", Words::maybe)?,
                doubt: words.labelled("doubt", Words::next)?,
            };
            fates.insert(key, fate);
        }
        "instance" => {
            let key = words.key()?;
            let life = Life {
                runs: words.labelled("runs", Words::maybe)?,
                ends: words.labelled("ends", |words| words.one_of(&ENDINGS))?,
                stops: words.labelled("stops", Words::maybe)?,
                gone: words.labelled("gone", Words::length)?,
                lands: words.optional("lands", Words::length)?.unwrap_or_default(),
                words: words.optional("words", Words::length)?.unwrap_or_default(),
                begins: words.optional("begins", Words::maybe)?.unwrap_or(HEALTHY.begins),
                dying: words.optional("dying", Words::maybe)?.flatten(),
            };
            lives.insert(key, life);
        }
        _ => return Err(format!("`{kind}` is not known")),
    }
    Ok(())
}

fn read_moment(words: &mut Words<'_>) -> Result<Moment, String> {
    let word: String = words.next()?;
    Ok(match word.as_str() {
        "asks" => Moment::Asks(words.one_of(&ASKS)?),
        "extends" => Moment::Extends,
        "starts" => Moment::Starts,
        "stops" => Moment::Stops,
        "kills" => Moment::Kills,
        _ => return Err(format!("`{word}` is not known")),
    })
}

fn read_fault(words: &mut Words<'_>) -> Result<Fault, String> {
    let kind: String = words.next()?;
    Ok(match kind.as_str() {
        "crash" => Fault::Crash { host: words.next()?, down: words.labelled("down", Words::length)? },
        "freeze" => Fault::Freeze { host: words.next()?, length: words.labelled("for", Words::length)? },
        "supervisor-stops" => {
            Fault::SupervisorStops { host: words.next()?, length: words.labelled("for", Words::length)? }
        }
        "watchdog-stops" => Fault::WatchdogStops { host: words.next()?, length: words.labelled("for", Words::length)? },
        "slew" => Fault::Slew {
            host: words.next()?,
            ppm: words.labelled("by", Words::next)?,
            length: words.labelled("for", Words::length)?,
        },
        "jump" => Fault::Jump { host: words.next()?, by: words.labelled("by", Words::length)? },
        "outage" => {
            let host: String = words.next()?;
            Fault::Outage {
                host: if host == "all" { None } else { Some(host.parse().map_err(|_| "no such host")?) },
                length: words.labelled("for", Words::length)?,
                kind: words.one_of(&OUTAGES)?,
                of: words.optional("of", |words| words.one_of(&ASKS))?,
            }
        }
        "suspend" => Fault::Command(Command::Suspend),
        "resume" => Fault::Command(Command::Resume),
        "command-step-down" => {
            Fault::Command(Command::StepDown { host: words.next()?, length: words.labelled("for", Words::length)? })
        }
        "transfer" => Fault::Command(Command::Transfer {
            to: words.next()?,
            by_operator: words.labelled("by-operator", Words::next)?,
        }),
        "maintain" => Fault::Maintain { host: words.next()?, length: words.labelled("for", Words::length)? },
        "lets-others-ask" => {
            Fault::LetsOthersAsk { host: words.next()?, length: words.labelled("for", Words::length)? }
        }
        "break" => Fault::Break { period: words.labelled("period", Words::length)? },
        "delete" => Fault::Delete,
        "plant" => Fault::Plant,
        "rewrite" => Fault::Rewrite { back: words.labelled("back", Words::next)? },
        "seize" => Fault::Seize,
        "start-again" => Fault::StartAgain,
        "restore" => Fault::Restore { ahead: words.labelled("ahead", Words::next)? },
        "outside" => Fault::Outside { length: words.labelled("for", Words::maybe)? },
        "outside-returns" => Fault::OutsideReturns,
        "publish" => Fault::Publish {
            host: words.next()?,
            module: words.labelled("module", Words::module)?,
            fallback: words.labelled("fallback", Words::module)?,
        },
        "stall" => Fault::Stall { host: words.next()? },
        "step-down" => Fault::StepDown { host: words.next()? },
        "shutdown" => Fault::Shutdown { host: words.next()?, down: words.labelled("down", Words::length)? },
        "skip-grace" => Fault::SkipGrace { host: words.next()? },
        _ => return Err(format!("`{kind}` is not known")),
    })
}

#[test]
fn plan_survives_writing_and_reading() {
    for seed in 0..100 {
        let mut plan = Plan::from_seed(seed);
        let keys = (0..20).map(|number| (0, 1, number));
        let fates = keys
            .clone()
            .map(|key| (key, plan.fate(key, Ask::Renew, false)))
            .filter(|(_, fate)| *fate != CALM)
            .collect();
        let lives = keys.map(|key| (key, plan.life(key, false))).filter(|(_, life)| *life != HEALTHY).collect();
        plan.details = Details::Written { fates, lives };
        assert_eq!(read(&write(&plan)), Ok(plan));
    }
}
