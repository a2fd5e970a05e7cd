//! The web page at the admin address, tested in a real browser with real hosts. The page shows the current leader, and
//! its buttons steer the election. A coordinator's output cannot inject markup into the page.

use std::cell::RefCell;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::endpoint::Endpoint;
use crate::fleet::{ELECTION, Fleet};
use crate::guests::Guest;
use crate::node::{Node, until};
use crate::patience::Patience;
use crate::skipped::skipped;
use crate::store::Store;

/// Environment variable with the path at which to save a screenshot of the page, relative to the repository.
const PICTURE: &str = "BATON_PAGE_PICTURE";

const TOKEN: &str = "0123456789abcdef";

/// A browser that a driver process controls. Dropping this value ends both.
struct Browser {
    process: Child,
    commands: RefCell<ChildStdin>,
    answers: Receiver<String>,
    _profile: TempDir,
}

impl Browser {
    /// Reports the test as skipped and returns `None` if there is no Chromium.
    fn start() -> Option<Self> {
        let root = baton_test_support::repository();
        let core = root.join(".cache/browser/node_modules/playwright-core");
        if !core.exists() {
            let script = root.join("host/tests/browser.sh");
            let installed = Command::new(&script).arg("install").status();
            assert!(core.exists(), "{} install: {installed:?}", script.display());
        }
        let has_chromium =
            Command::new("chromium").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        if !has_chromium.is_ok_and(|status| status.success()) {
            skipped("there is no Chromium (Debian: apt-get install chromium)");
            return None;
        }
        let chromium = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
            .map(|folder| folder.join("chromium"))
            .find(|program| program.exists())?;
        let profile = tempfile::tempdir().expect("a folder");
        let mut process = Command::new("node")
            .arg(root.join("host/tests/blackbox/page/driver.mjs"))
            .args([&core, &chromium, &profile.path().to_owned()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("Node.js starts");
        let commands = RefCell::new(process.stdin.take().expect("piped"));
        let stdout = BufReader::new(process.stdout.take().expect("piped"));
        let (answer, answers) = mpsc::channel();
        // The thread ends when the driver ends, so nothing needs to join it.
        std::thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| answer.send(line)));
        Some(Self { process, commands, answers, _profile: profile })
    }

    fn try_run(&self, command: &Value) -> Result<Value, String> {
        writeln!(self.commands.borrow_mut(), "{command}").expect("a running driver");
        let line = Patience::poll(Duration::from_millis(1), || self.answers.try_recv().ok());
        let line = line.unwrap_or_else(|_| panic!("{command}: the browser does not answer"));
        let answer: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{command}: {line:?}"));
        match answer["failed"].as_str() {
            Some(why) => Err(why.to_owned()),
            None => Ok(answer["did"].clone()),
        }
    }

    fn run(&self, command: &Value) -> Value {
        self.try_run(command).unwrap_or_else(|why| panic!("{command}: {why}"))
    }

    fn open(&self, node: &Node) -> Page<'_> {
        let page = Page { browser: self, name: node.name.clone() };
        let url = format!("http://{}/", Endpoint::of(node).0);
        // On a busy machine, a browser that has just started may fail to open a page.
        until("the page to open", || self.try_run(&json!({"do": "open", "page": page.name, "url": url})));
        page
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        // The browser exits when its pipe to the driver closes.
    }
}

struct Page<'a> {
    browser: &'a Browser,
    name: String,
}

impl Page<'_> {
    fn command(&self, name: &str, arguments: Value) -> Value {
        let mut command = json!({"do": name, "page": self.name});
        command.as_object_mut().expect("an object").extend(arguments.as_object().expect("an object").clone());
        command
    }

    fn text(&self, at: &str) -> String {
        self.browser.run(&self.command("text", json!({"at": at}))).as_str().unwrap_or_default().to_owned()
    }

    fn is_shown(&self, at: &str) -> bool {
        self.browser.run(&self.command("is_shown", json!({"at": at}))) == true
    }

    fn count(&self, at: &str) -> u64 {
        self.browser.run(&self.command("count", json!({"at": at}))).as_u64().expect("a number")
    }

    fn wait(&self, at: &str, test: impl Fn(&str) -> bool) -> String {
        until(&format!("{at} on the page of {} to change", self.name), || {
            let text = self.text(at);
            if test(&text) { Ok(text) } else { Err((text, self.console())) }
        })
    }

    /// Waits until an attribute passes the test. `at` is a selector, and the attribute belongs to its first match.
    fn wait_for(&self, at: &str, name: &str, test: impl Fn(&str) -> bool) -> String {
        until(&format!("{name} of {at} on the page of {} to change", self.name), || {
            let found = self.browser.try_run(&self.command("attribute", json!({"at": at, "name": name})))?;
            let text = found.as_str().unwrap_or_default().to_owned();
            if test(&text) { Ok(text) } else { Err(text) }
        })
    }

    fn click(&self, at: &str) {
        self.browser.run(&self.command("click", json!({"at": at})));
    }

    fn fill(&self, at: &str, value: &str) {
        self.browser.run(&self.command("fill", json!({"at": at, "value": value})));
    }

    fn press(&self, key: &str) {
        self.browser.run(&self.command("press", json!({"key": key})));
    }

    fn console(&self) -> Value {
        self.browser.run(&self.command("console", json!({})))
    }

    fn enter_token(&self) {
        self.click("#unlock");
        self.fill("#ask-token", TOKEN);
        self.click("#ask-go");
    }
}

fn launch(fleet: &Fleet, name: &str) -> Node {
    fleet.launch_with(name, &[("--admin-token-file", &token(fleet))]).start()
}

fn token(fleet: &Fleet) -> String {
    let token = fleet.home.path().join("token");
    std::fs::write(&token, TOKEN).expect("written");
    token.display().to_string()
}

#[test]
fn page_shows_each_change_of_the_leader() {
    let fleet = Fleet::new(Store::sqlite());
    let Some(browser) = Browser::start() else { return };
    // Pushes the module to the store: if it came from a file, the screenshot would show a path on this machine.
    let module = fleet.home.path().join("beats.wasm");
    std::fs::write(&module, Guest::Beats.build(1)).expect("written");
    let pushed = fleet.command(&["push", module.to_str().expect("a path"), ELECTION]);
    assert_eq!(pushed.code, Some(0), "{pushed:?}");
    let token = token(&fleet);
    let launch = |name| {
        let flags = [("--admin-token-file", token.as_str()), ("--label", "zone=west"), ("--priority", "70")];
        fleet.launch_from(name, format!("store://{ELECTION}"), &flags).start()
    };
    let alpha = launch("alpha");
    let term = fleet.beat_above(0).term;
    let (beta, gamma) = (launch("beta"), launch("gamma"));
    let pages = [browser.open(&alpha), browser.open(&beta), browser.open(&gamma)];
    for page in &pages {
        page.wait("#detail-leader", |leader| leader == "alpha");
        let since = page.wait("#detail-since", |since| since.starts_with("leads since "));
        // A node that joined during the term knows only that the term began before some time. Its page then shows
        // `before` and that time.
        let time = since["leads since ".len()..].trim_start_matches("before ");
        let time: Vec<char> = time.chars().take(19).collect();
        let shape: String = time.iter().map(|one| if one.is_ascii_digit() { '0' } else { *one }).collect();
        assert_eq!(shape, "0000-00-00 00:00:00", "{since}");
        page.wait("#live-text", |live| live == "live");
        page.wait("#nodes", |nodes| ["alpha", "beta", "gamma"].iter().all(|name| nodes.contains(name)));
        page.wait("#nodes tr:has-text('gamma')", |row| row.contains("zone=west") && row.contains("70"));
        assert_eq!(page.is_shown("#deadline"), page.name == "alpha", "only the leader knows its deadline");
        assert_eq!(page.is_shown("#elsewhere"), page.name != "alpha");
    }
    let [of_alpha, of_beta, of_gamma] = &pages;
    of_alpha.wait("#usage", |usage| usage.contains("memory"));
    of_alpha.wait("#events", |events| events.contains("elected"));
    let link = of_beta.command("attribute", json!({"at": "#elsewhere a", "name": "href"}));
    let link = until("the link", || browser.try_run(&link));
    assert_eq!(link, format!("http://{}/", Endpoint::of(&alpha).0));

    // For users without a mouse, the first press of Tab must focus the link that skips to the election.
    of_alpha.press("Tab");
    let focused = browser.run(&of_alpha.command("focused", json!({})));
    assert_eq!(focused, "Skip to the election");
    let themes = ["dark", "light", "auto"];
    for _ in themes {
        of_alpha.click("#theme");
    }

    alpha.signal(Signal::KILL);
    let next = fleet.beat_above(term);
    let others = [of_beta, of_gamma];
    for page in others {
        page.wait("#detail-leader", |leader| leader == next.from);
        page.wait("#events", |events| events.contains(&format!("term {}", next.term)));
    }
    let leads = others.iter().find(|page| page.name == next.from).expect("one of them");
    until("the deadline", || if leads.is_shown("#deadline") { Ok(()) } else { Err(leads.console()) });
    of_alpha.wait("#live-text", |live| live == "stale");
    assert!(of_alpha.text("#banner").contains("has not answered"), "{}", of_alpha.text("#banner"));
    // The timeline shows the term of the killed node, the time without a leader, and the current term. The reason why a
    // term ended may contain the coordinator's output, so the page shows the reason only to a user with the token.
    leads.enter_token();
    let [died, runs] = ["bad", "open"].map(|end| format!("#timeline button[data-end=\"{end}\"]"));
    let why = leads.wait_for(&died, "aria-label", |label| label.contains("was not heard from again"));
    assert!(why.starts_with(&format!("Term {term} on alpha · ")), "{why}");
    assert!(why.ends_with(&format!(", reported by {}", next.from)), "{why}");
    let last = format!("Term {} on {} · ", next.term, next.from);
    let label =
        leads.wait_for(&runs, "aria-label", |label| label.contains("no leader for") && label.ends_with("running"));
    assert!(label.starts_with(&last), "{label}");
    leads.wait_for("#timeline li.gap", "title", |title| title.starts_with("no leader for"));
    leads.wait("#detail-failure", |failure| failure.starts_with(&format!("term {term} on alpha failed: ")));
    assert!(leads.count("#axis li") > 1 && leads.text("#legend-nodes").contains(&next.from), "an axis and a legend");
    assert_eq!((leads.count("#timeline button"), leads.count("#terms tr")), (2, 2));
    assert!(leads.text("#term-text").starts_with(&last), "the caption describes the newest term first");
    leads.click(&died);
    leads.wait("#term-text", |text| text == why);
    leads.click("#history-panel summary");
    let row = leads.wait("#terms tr:last-child", |row| row.contains("was not heard from again"));
    assert!(row.contains("alpha"), "{row}");
    for page in others {
        assert_eq!(page.console(), json!([]), "{}", page.name);
    }
    // If `BATON_PAGE_PICTURE` is set, the test also takes the screenshot for the README.
    if let Some(file) = std::env::var_os(PICTURE) {
        leads.click("#history-panel summary");
        leads.wait("#logs", |lines| lines.contains("beat"));
        let file = baton_test_support::repository().join(file);
        let picture = json!({"file": file, "width": 1280, "height": 860});
        browser.run(&leads.command("picture", picture));
    }
    fleet.check_promises();
}

/// The page fits the width of a phone, a laptop and a wall screen. In both color schemes, its text has a contrast of at
/// least 4.5 to 1 (WCAG 2.2, 1.4.3).
#[test]
fn page_fits_phones_and_large_screens_in_light_and_dark() {
    let fleet = Fleet::new(Store::sqlite()).with(Guest::Logs);
    let Some(browser) = Browser::start() else { return };
    let long = "a-node-whose-name-is-longer-than-a-phone-is-wide-0123456789";
    let node = launch(&fleet, long);
    node.after(0, "started");
    let page = browser.open(&node);
    page.enter_token();
    page.wait("#logs li:last-child", |line| line.contains("beat"));
    page.wait("#nodes", |nodes| nodes.contains(long));
    let evaluate = |script: &str| browser.run(&page.command("evaluate", json!({ "script": script })));
    let mut behind = Vec::new();
    for scheme in ["light", "dark"] {
        for (width, height) in [(320, 640), (1280, 800), (3840, 2160)] {
            browser.run(&page.command("view", json!({ "width": width, "height": height, "scheme": scheme })));
            let wide = evaluate("document.documentElement.scrollWidth").as_u64().expect("a width");
            assert!(wide <= width, "{wide} of {width} pixels in {scheme}");
            assert!(page.is_shown("#detail-leader") && page.is_shown("#live-text"), "{width} in {scheme}");
        }
        let faint = evaluate(CONTRASTS);
        assert_eq!(faint, json!([]), "in {scheme}");
        behind.push(evaluate("getComputedStyle(document.documentElement).backgroundColor"));
    }
    assert_ne!(behind[0], behind[1], "the dark background equals the light one");
    assert_eq!(page.console(), json!([]));
    fleet.check_promises();
}

/// A script that returns the elements whose text has too little contrast with the background, at most 9. The script
/// calculates the contrast as WCAG 2.2 defines it.
const CONTRASTS: &str = "(() => {
  const parts = (color) => color.match(/[\\d.]+/g).map((part, at) => part * (color.startsWith('color(') && at < 3 ? 255 : 1));
  const light = (color) => {
    const [r, g, b] = parts(color).slice(0, 3).map((part) => part / 255)
      .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (one) => {
    for (; one; one = one.parentElement) {
      const color = getComputedStyle(one).backgroundColor;
      if ((parts(color)[3] ?? 1) === 1) return color;
    }
    return 'rgb(255, 255, 255)';
  };
  const texts = [...document.querySelectorAll('main *, header *, body > *')].filter((one) => one.checkVisibility()
    && !one.disabled && [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim()));
  return texts.map((one) => {
    const [a, b] = [light(getComputedStyle(one).color), light(behind(one))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    return [contrast, one.tagName, one.id || one.className, one.innerText];
  }).filter(([contrast]) => contrast < 4.5).map((found) => found.join(' ')).slice(0, 9);
})()";

#[test]
fn page_recovers_when_its_host_restarts() {
    let fleet = Fleet::new(Store::sqlite());
    let Some(browser) = Browser::start() else { return };
    let address = Endpoint::free().0.to_string();
    let token = token(&fleet);
    let start = || fleet.launch_with("alpha", &[("--admin-token-file", &token), ("--admin", &address)]).start();
    let mut alpha = start();
    let term = fleet.beat_above(0).term;
    let page = browser.open(&alpha);
    page.enter_token();
    page.wait("#live-text", |live| live == "live");
    page.wait("#logs", |lines| lines.contains(&format!("of term {term}")));
    assert!(alpha.terminate().success());
    page.wait("#live-text", |live| live == "stale");
    let _alpha = start();
    let next = fleet.beat_above(term).term;
    // The page must show the status, events and logs of the new host without a reload.
    page.wait("#live-text", |live| live == "live");
    page.wait("#events", |events| events.contains(&format!("term {next}")));
    page.wait("#logs", |lines| lines.contains(&format!("of term {next}")));
    until("the banner to go", || if page.is_shown("#banner") { Err(page.text("#banner")) } else { Ok(()) });
    fleet.check_promises();
}

#[test]
fn page_shows_next_scheduled_run() {
    let fleet = Fleet::new(Store::sqlite());
    let Some(browser) = Browser::start() else { return };
    let token = token(&fleet);
    let node = fleet.launch_with("alpha", &[("--admin-token-file", &token), ("--schedule", "0 0 29 2 *")]).start();
    node.after(0, "next_run");
    let page = browser.open(&node);
    page.enter_token();
    page.wait("#detail-schedule", |text| text.contains("next run") && text.contains("no run completed"));
    fleet.command(&["trigger", ELECTION]);
    page.wait("#detail-schedule", |text| text.contains("run due"));
    page.wait("#term-text", |text| text.contains("due"));
}

#[test]
fn page_shows_output_as_text_and_not_as_markup() {
    let fleet = Fleet::new(Store::sqlite()).with(Guest::TellsConfig);
    let Some(browser) = Browser::start() else { return };
    let evil = "<img src=x onerror=document.title='taken'><script>document.title='taken'</script></ol><h1>Taken</h1>";
    let node = fleet
        .launch_with("alpha", &[("--admin-token-file", &token(&fleet))])
        .flag("--config-var", format!("evil={evil}"))
        .start();
    node.after(0, "ended");
    let page = browser.open(&node);
    page.wait("#logs-note", |note| note.contains("--admin-token-file"));
    assert_eq!(page.count("#logs li"), 0, "nothing without the token");
    page.enter_token();
    let line = page.wait("#logs", |lines| lines.contains("evil="));
    assert!(line.contains("<img src=x") && line.contains("<script>"), "the line is not shown as text: {line}");
    assert_eq!((page.count("main img"), page.count("main script"), page.count("h1")), (0, 0, 1));
    let title = browser.run(&page.command("evaluate", json!({"script": "document.title"})));
    assert!(title.as_str().is_some_and(|title| title.contains("Baton")), "{title}");
    // The page requires Trusted Types, so the browser refuses to parse a string as markup.
    let refused = page.command("evaluate", json!({"script": "document.body.innerHTML = '<b>x</b>'"}));
    assert!(browser.try_run(&refused).is_err_and(|why| why.contains("TrustedHTML")));
    fleet.check_promises();
}

#[test]
fn page_shows_logs_live_and_by_level() {
    let fleet = Fleet::new(Store::sqlite()).with(Guest::Logs);
    let Some(browser) = Browser::start() else { return };
    let node = launch(&fleet, "alpha");
    node.after(0, "started");
    let page = browser.open(&node);
    page.enter_token();
    page.wait("#logs li:last-child", |line| line.contains("beat"));
    let choose = |level: &str| browser.run(&page.command("choose", json!({"at": "#level", "value": level})));
    choose("error");
    let lines = page.wait("#logs", |lines| !lines.contains("beat") && lines.contains("Level::Critical"));
    assert!(lines.contains("Level::Error") && !lines.contains("Level::Warn"), "{lines}");
    choose("warn");
    page.wait("#logs", |lines| lines.contains("Level::Warn"));
    choose("trace");
    page.wait("#logs li:last-child", |line| line.contains("beat"));
    assert_eq!(page.console(), json!([]));
    fleet.check_promises();
}

#[test]
fn buttons_of_the_page_steer() {
    let fleet = Fleet::new(Store::sqlite());
    let Some(browser) = Browser::start() else { return };
    let alpha = launch(&fleet, "alpha");
    let term = fleet.beat_above(0).term;
    let beta = launch(&fleet, "beta");
    let page = browser.open(&beta);
    page.wait("#detail-leader", |leader| leader == "alpha");
    page.wait("#nodes", |nodes| nodes.contains("beta"));
    let presses = |action: &str| {
        let button = format!("[data-action=\"{action}\"]");
        until(&format!("the button {action}"), || if page.is_shown(&button) { Ok(()) } else { Err(page.console()) });
        page.click(&button);
    };
    presses("transfer");
    browser.run(&page.command("choose", json!({"at": "#ask-node", "value": "beta"})));
    page.fill("#ask-reason", "a test of <b>buttons</b>");
    page.fill("#ask-token", "another-token-of-ours");
    page.click("#ask-go");
    let refused = until("the refusal", || {
        if page.is_shown("#ask-error") { Ok(page.text("#ask-error")) } else { Err(page.console()) }
    });
    assert!(refused.contains("token is wrong"), "{refused}");
    page.fill("#ask-token", TOKEN);
    page.click("#ask-go");
    page.wait("#detail-leader", |leader| leader == "beta");
    page.wait("#toast", |result| result.contains("beta leads"));
    fleet.beat_above(term);
    let card = "#elections .card";
    let border = json!({"script": "getComputedStyle(document.querySelector('#elections .card')).borderTopColor"});
    let border = || browser.run(&page.command("evaluate", border.clone()));
    page.wait_for(card, "data-leader", |has| has == "yes");
    let usual = border();
    presses("suspend");
    page.fill("#ask-reason", "maintenance");
    page.click("#ask-go");
    page.wait("#detail-leader", |leader| leader == "No leader");
    page.wait("#detail-since", |since| {
        since.starts_with("no leader for ") && since.contains("suspended by") && since.contains("maintenance")
    });
    page.wait_for(card, "data-cause", |cause| cause == "suspended");
    page.wait(card, |text| text.contains("no leader") && text.contains("suspended by") && text.contains("maintenance"));
    assert_ne!(border(), usual, "the card of an election without a leader is red");
    presses("resume");
    page.click("#ask-go");
    let leader = page.wait("#detail-leader", |leader| ["alpha", "beta"].contains(&leader));
    presses("step-down");
    page.fill("#ask-seconds", "5");
    page.click("#ask-go");
    page.wait("#detail-leader", |next| ["alpha", "beta"].contains(&next) && next != leader);
    presses("rollback");
    page.click("#ask-go");
    page.wait("#ask-error", |why| why.contains("no module was pushed"));
    page.press("Escape");
    // The console must contain only the browser's own messages about refused requests.
    let lines = page.console();
    let lines: Vec<&str> = lines.as_array().expect("a list").iter().filter_map(Value::as_str).collect();
    assert!(lines.iter().all(|line| line.contains("(Unauthorized)") || line.contains("(Conflict)")), "{lines:?}");
    assert_eq!(page.count("main b:has-text('buttons')"), 0);
    drop(alpha);
    fleet.check_promises();
}

#[test]
fn wrong_token_is_reported_before_the_dialog_closes() {
    let fleet = Fleet::new(Store::sqlite());
    let Some(browser) = Browser::start() else { return };
    let alpha = launch(&fleet, "alpha");
    fleet.beat_above(0);
    let page = browser.open(&alpha);
    page.wait("#live-text", |live| live == "live");
    page.click("#unlock");
    page.fill("#ask-token", "another-token-of-ours");
    page.click("#ask-go");
    page.wait("#ask-error", |error| error.contains("token is wrong"));
    assert!(page.is_shown("#ask"), "the dialog stays open");
    assert_eq!(page.text("#unlock"), "Token…");
    page.fill("#ask-token", TOKEN);
    page.click("#ask-go");
    page.wait("#unlock", |text| text == "Forget the token");
    page.wait("#logs", |lines| lines.contains("beat"));
    assert!(!page.is_shown("#ask") && !page.is_shown("#banner"), "the token is accepted");
    // If the node's token changes, the page forgets the old token and reports that the token is wrong.
    std::fs::write(fleet.home.path().join("token"), "a-token-that-is-newer").expect("written");
    page.wait("#banner", |banner| banner.contains("token is wrong"));
    page.wait("#unlock", |text| text == "Token…");
    fleet.check_promises();
}

#[test]
fn rollback_lists_versions_to_choose_from() {
    let fleet = Fleet::new(Store::sqlite());
    let Some(browser) = Browser::start() else { return };
    for n in [1, 2] {
        let module = fleet.home.path().join(format!("beats-{n}.wasm"));
        std::fs::write(&module, Guest::Beats.build(n)).expect("written");
        let pushed = fleet.command(&["push", module.to_str().expect("a path"), ELECTION]);
        assert_eq!(pushed.code, Some(0), "{pushed:?}");
    }
    let listed = fleet.command(&["modules", ELECTION, "--output=json"]).json();
    let listed = listed.as_array().expect("an array");
    let digests: Vec<&str> = listed.iter().filter_map(|row| row["digest"].as_str()).collect();
    let &[new, old] = digests.as_slice() else { panic!("{listed:?}") };
    let token = token(&fleet);
    let flags = [("--admin-token-file", token.as_str())];
    let alpha = fleet.launch_from("alpha", format!("store://{ELECTION}"), &flags).start();
    fleet.beat_above(0);
    let page = browser.open(&alpha);
    page.enter_token();
    page.wait("#unlock", |text| text == "Forget the token");
    let button = "[data-action=\"rollback\"]";
    until("the button", || if page.is_shown(button) { Ok(()) } else { Err(page.console()) });
    page.click(button);
    let script =
        "[...document.querySelectorAll('#ask-digest option')].map((one) => [one.value, one.disabled, one.text])";
    let options = until("the versions", || {
        let options = browser.run(&page.command("evaluate", json!({ "script": script })));
        if options.as_array().is_some_and(|options| options.len() == 3) { Ok(options) } else { Err(options) }
    });
    // The first option is the default. Its text names the version that a rollback restores by default. The other
    // options are the versions, newest first.
    let digits = |digest: &str| digest.trim_start_matches("sha256:")[..12].to_owned();
    let text = |at: usize| options[at][2].as_str().unwrap_or_default();
    assert_eq!((&options[0][0], &options[0][1]), (&json!(""), &json!(false)), "{options}");
    assert!(text(0).contains(&digits(old)), "{options}");
    assert_eq!((&options[1][0], &options[1][1]), (&json!(new), &json!(true)), "{options}");
    assert!(text(1).contains(&digits(new)) && text(1).contains("current"), "{options}");
    assert_eq!((&options[2][0], &options[2][1]), (&json!(old), &json!(false)), "{options}");
    browser.run(&page.command("choose", json!({"at": "#ask-digest", "value": old})));
    page.click("#ask-go");
    page.wait("#toast", |result| result.contains(old) && result.contains("is now the current version"));
    assert_eq!(page.console(), json!([]));
    fleet.check_promises();
}
