//! The page at the admin address, in a real browser, against real hosts: it shows who leads while that changes, its buttons
//! steer, and nothing that a coordinator prints becomes a part of it.

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

/// The variable with the file for a picture of the page, as seen from the repository.
const PICTURE: &str = "BATON_PAGE_PICTURE";

const TOKEN: &str = "0123456789abcdef";

/// A browser that does as it is told. It ends with this value.
struct Browser {
    process: Child,
    orders: RefCell<ChildStdin>,
    answers: Receiver<String>,
    _profile: TempDir,
}

impl Browser {
    /// Starts it. None, aloud, where there is no Chromium.
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
        let orders = RefCell::new(process.stdin.take().expect("piped"));
        let stdout = BufReader::new(process.stdout.take().expect("piped"));
        let (answer, answers) = mpsc::channel();
        // It ends with the driver: nothing waits for it.
        std::thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| answer.send(line)));
        Some(Self { process, orders, answers, _profile: profile })
    }

    /// Gives an order, and returns what came of it.
    fn tell(&self, order: &Value) -> Result<Value, String> {
        writeln!(self.orders.borrow_mut(), "{order}").expect("the driver listens");
        let line = Patience::poll(Duration::from_millis(1), || self.answers.try_recv().ok());
        let line = line.unwrap_or_else(|_| panic!("{order}: the browser does not answer"));
        let answer: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{order}: {line:?}"));
        match answer["failed"].as_str() {
            Some(why) => Err(why.to_owned()),
            None => Ok(answer["did"].clone()),
        }
    }

    /// Gives an order that must come off.
    fn must(&self, order: &Value) -> Value {
        self.tell(order).unwrap_or_else(|why| panic!("{order}: {why}"))
    }

    fn open(&self, node: &Node) -> Page<'_> {
        let page = Page { browser: self, name: node.name.clone() };
        let url = format!("http://{}/", Endpoint::of(node).0);
        // A browser that has just started, on a machine that is busy, may be late.
        until("the page to open", || self.tell(&json!({"do": "open", "page": page.name, "url": url})));
        page
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        // Its own browser ends with the pipe between the two.
    }
}

/// The page of a node.
struct Page<'a> {
    browser: &'a Browser,
    name: String,
}

impl Page<'_> {
    fn order(&self, what: &str, more: Value) -> Value {
        let mut order = json!({"do": what, "page": self.name});
        order.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        order
    }

    fn text(&self, at: &str) -> String {
        self.browser.must(&self.order("text", json!({"at": at}))).as_str().unwrap_or_default().to_owned()
    }

    fn is_shown(&self, at: &str) -> bool {
        self.browser.must(&self.order("is_shown", json!({"at": at}))) == true
    }

    fn count(&self, at: &str) -> u64 {
        self.browser.must(&self.order("count", json!({"at": at}))).as_u64().expect("a number")
    }

    /// Waits until the text there passes the test.
    fn wait(&self, at: &str, test: impl Fn(&str) -> bool) -> String {
        until(&format!("{at} on the page of {} to change", self.name), || {
            let text = self.text(at);
            if test(&text) { Ok(text) } else { Err((text, self.said())) }
        })
    }

    /// Waits until the attribute of what is there first passes the test.
    fn wait_for(&self, at: &str, name: &str, test: impl Fn(&str) -> bool) -> String {
        until(&format!("{name} of {at} on the page of {} to change", self.name), || {
            // Before it is there, it is waited for by the browser.
            let found = self.browser.tell(&self.order("attribute", json!({"at": at, "name": name})))?;
            let text = found.as_str().unwrap_or_default().to_owned();
            if test(&text) { Ok(text) } else { Err(text) }
        })
    }

    fn click(&self, at: &str) {
        self.browser.must(&self.order("click", json!({"at": at})));
    }

    fn fill(&self, at: &str, value: &str) {
        self.browser.must(&self.order("fill", json!({"at": at, "value": value})));
    }

    fn press(&self, key: &str) {
        self.browser.must(&self.order("press", json!({"key": key})));
    }

    /// What it has written into the console, and whom else it has asked.
    fn said(&self) -> Value {
        self.browser.must(&self.order("said", json!({})))
    }

    fn gives_the_token(&self) {
        self.click("#unlock");
        self.fill("#ask-token", TOKEN);
        self.click("#ask-go");
    }
}

fn launch(fleet: &Fleet, name: &str) -> Node {
    fleet.launch_with(name, &[("--admin-token-file", &token(fleet))]).start()
}

/// The file with the token of all nodes.
fn token(fleet: &Fleet) -> String {
    let token = fleet.home.path().join("token");
    std::fs::write(&token, TOKEN).expect("written");
    token.display().to_string()
}

#[test]
fn the_page_shows_who_leads_while_that_changes() {
    let fleet = Fleet::new(Store::sqlite());
    let Some(browser) = Browser::start() else { return };
    // Published, so that the picture of the page shows no path of this machine.
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
        // A node that became a standby later knows only this.
        let time = since["leads since ".len()..].trim_start_matches("before ");
        let time: Vec<char> = time.chars().take(19).collect();
        let shape: String = time.iter().map(|one| if one.is_ascii_digit() { '0' } else { *one }).collect();
        assert_eq!(shape, "0000-00-00 00:00:00", "{since}");
        page.wait("#live-text", |live| live == "live");
        page.wait("#nodes", |nodes| ["alpha", "beta", "gamma"].iter().all(|name| nodes.contains(name)));
        page.wait("#nodes tr:has-text('gamma')", |row| row.contains("zone=west") && row.contains("70"));
        assert_eq!(page.is_shown("#deadline"), page.name == "alpha", "only the leader knows it");
        assert_eq!(page.is_shown("#elsewhere"), page.name != "alpha");
    }
    let [of_alpha, of_beta, of_gamma] = &pages;
    of_alpha.wait("#usage", |usage| usage.contains("memory"));
    of_alpha.wait("#events", |events| events.contains("elected"));
    // The others lead to it.
    let link = of_beta.order("attribute", json!({"at": "#elsewhere a", "name": "href"}));
    let link = until("the link", || browser.tell(&link));
    assert_eq!(link, format!("http://{}/", Endpoint::of(&alpha).0));

    // Nothing needs a mouse.
    of_alpha.press("Tab");
    let focused = browser.must(&of_alpha.order("focused", json!({})));
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
    until("the deadline", || if leads.is_shown("#deadline") { Ok(()) } else { Err(leads.said()) });
    // The page of the one that is gone says that it is old.
    of_alpha.wait("#live-text", |live| live == "stale");
    assert!(of_alpha.text("#banner").contains("has not answered"), "{}", of_alpha.text("#banner"));
    // The last terms: the one whose node died, the time without a leader, and the one that runs. The reason of an end may
    // be the coordinator's words, and needs the token.
    leads.gives_the_token();
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
        assert_eq!(page.said(), json!([]), "{}", page.name);
    }
    // The one in the README is taken so.
    if let Some(file) = std::env::var_os(PICTURE) {
        leads.click("#history-panel summary");
        leads.wait("#logs", |lines| lines.contains("beat"));
        let file = baton_test_support::repository().join(file);
        let picture = json!({"file": file, "width": 1280, "height": 860});
        browser.must(&leads.order("picture", picture));
    }
    fleet.check_promises();
}

/// A phone, a laptop and a wall, by day and by night: nothing is wider than the screen, and texts are told from what is
/// behind them (WCAG 2.2, 1.4.3: at least 4.5 to 1).
#[test]
fn it_fits_a_phone_and_a_wall_in_light_and_dark() {
    let fleet = Fleet::new(Store::sqlite()).with(Guest::Logs);
    let Some(browser) = Browser::start() else { return };
    let long = "a-node-whose-name-is-longer-than-a-phone-is-wide-0123456789";
    let node = launch(&fleet, long);
    node.after(0, "started");
    let page = browser.open(&node);
    page.gives_the_token();
    page.wait("#logs li:last-child", |line| line.contains("beat"));
    page.wait("#nodes", |nodes| nodes.contains(long));
    let evaluate = |script: &str| browser.must(&page.order("evaluate", json!({ "script": script })));
    let mut behind = Vec::new();
    for scheme in ["light", "dark"] {
        for (width, height) in [(320, 640), (1280, 800), (3840, 2160)] {
            browser.must(&page.order("view", json!({ "width": width, "height": height, "scheme": scheme })));
            let wide = evaluate("document.documentElement.scrollWidth").as_u64().expect("a width");
            assert!(wide <= width, "{wide} of {width} pixels in {scheme}");
            assert!(page.is_shown("#detail-leader") && page.is_shown("#live-text"), "{width} in {scheme}");
        }
        let faint = evaluate(CONTRASTS);
        assert_eq!(faint, json!([]), "in {scheme}");
        behind.push(evaluate("getComputedStyle(document.documentElement).backgroundColor"));
    }
    assert_ne!(behind[0], behind[1], "the dark is as the light");
    assert_eq!(page.said(), json!([]));
    fleet.check_promises();
}

/// The texts whose color is too near to that behind them, by the formula of WCAG 2.2 for the contrast of two colors.
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
fn it_comes_back_with_its_host() {
    let fleet = Fleet::new(Store::sqlite());
    let Some(browser) = Browser::start() else { return };
    let address = Endpoint::free().0.to_string();
    let token = token(&fleet);
    let start = || fleet.launch_with("alpha", &[("--admin-token-file", &token), ("--admin", &address)]).start();
    let mut alpha = start();
    let term = fleet.beat_above(0).term;
    let page = browser.open(&alpha);
    page.gives_the_token();
    page.wait("#live-text", |live| live == "live");
    page.wait("#logs", |lines| lines.contains(&format!("of term {term}")));
    assert!(alpha.terminate().success());
    page.wait("#live-text", |live| live == "stale");
    let _alpha = start();
    let next = fleet.beat_above(term).term;
    // Nobody has touched it: its status, events and logs are those of the next host.
    page.wait("#live-text", |live| live == "live");
    page.wait("#events", |events| events.contains(&format!("term {next}")));
    page.wait("#logs", |lines| lines.contains(&format!("of term {next}")));
    until("the banner to go", || if page.is_shown("#banner") { Err(page.text("#banner")) } else { Ok(()) });
    fleet.check_promises();
}

#[test]
fn what_a_coordinator_prints_becomes_no_part_of_the_page() {
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
    page.gives_the_token();
    let line = page.wait("#logs", |lines| lines.contains("evil="));
    assert!(line.contains("<img src=x") && line.contains("<script>"), "it is shown as it is: {line}");
    assert_eq!((page.count("main img"), page.count("main script"), page.count("h1")), (0, 0, 1));
    let title = browser.must(&page.order("evaluate", json!({"script": "document.title"})));
    assert!(title.as_str().is_some_and(|title| title.contains("Baton")), "{title}");
    // The browser itself refuses to make markup of text.
    let refused = page.order("evaluate", json!({"script": "document.body.innerHTML = '<b>x</b>'"}));
    assert!(browser.tell(&refused).is_err_and(|why| why.contains("TrustedHTML")));
    fleet.check_promises();
}

#[test]
fn logs_come_live_and_by_level() {
    let fleet = Fleet::new(Store::sqlite()).with(Guest::Logs);
    let Some(browser) = Browser::start() else { return };
    let node = launch(&fleet, "alpha");
    node.after(0, "started");
    let page = browser.open(&node);
    page.gives_the_token();
    page.wait("#logs li:last-child", |line| line.contains("beat"));
    let choose = |level: &str| browser.must(&page.order("choose", json!({"at": "#level", "value": level})));
    // However many lines have come since: what is asked for is found among them.
    choose("error");
    let lines = page.wait("#logs", |lines| !lines.contains("beat") && lines.contains("Level::Critical"));
    assert!(lines.contains("Level::Error") && !lines.contains("Level::Warn"), "{lines}");
    choose("warn");
    page.wait("#logs", |lines| lines.contains("Level::Warn"));
    choose("trace");
    page.wait("#logs li:last-child", |line| line.contains("beat"));
    assert_eq!(page.said(), json!([]));
    fleet.check_promises();
}

/// Each asks for the token and a reason, and says what came of it.
#[test]
fn its_buttons_steer() {
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
        until(&format!("the button {action}"), || if page.is_shown(&button) { Ok(()) } else { Err(page.said()) });
        page.click(&button);
    };
    presses("transfer");
    browser.must(&page.order("choose", json!({"at": "#ask-node", "value": "beta"})));
    page.fill("#ask-reason", "a test of <b>buttons</b>");
    page.fill("#ask-token", "another-token-of-ours");
    page.click("#ask-go");
    let refused =
        until(
            "the refusal",
            || {
                if page.is_shown("#ask-error") { Ok(page.text("#ask-error")) } else { Err(page.said()) }
            },
        );
    assert!(refused.contains("token is wrong"), "{refused}");
    page.fill("#ask-token", TOKEN);
    page.click("#ask-go");
    page.wait("#detail-leader", |leader| leader == "beta");
    page.wait("#toast", |told| told.contains("beta leads"));
    fleet.beat_above(term);
    // The token is known now.
    let card = "#elections .card";
    let border = json!({"script": "getComputedStyle(document.querySelector('#elections .card')).borderTopColor"});
    let border = || browser.must(&page.order("evaluate", border.clone()));
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
    // Only what the browser itself says of a call that is refused.
    let said = page.said();
    let said: Vec<&str> = said.as_array().expect("a list").iter().filter_map(Value::as_str).collect();
    assert!(said.iter().all(|line| line.contains("(Unauthorized)") || line.contains("(Conflict)")), "{said:?}");
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
    // The node's token changes: the page forgets the old one, and says so.
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
    page.gives_the_token();
    page.wait("#unlock", |text| text == "Forget the token");
    let button = "[data-action=\"rollback\"]";
    until("the button", || if page.is_shown(button) { Ok(()) } else { Err(page.said()) });
    page.click(button);
    let script =
        "[...document.querySelectorAll('#ask-digest option')].map((one) => [one.value, one.disabled, one.text])";
    let options = until("the versions", || {
        let options = browser.must(&page.order("evaluate", json!({ "script": script })));
        if options.as_array().is_some_and(|options| options.len() == 3) { Ok(options) } else { Err(options) }
    });
    // The default, which names the version that it stands for, then the versions with the newest first.
    let digits = |digest: &str| digest.trim_start_matches("sha256:")[..12].to_owned();
    let text = |at: usize| options[at][2].as_str().unwrap_or_default();
    assert_eq!((&options[0][0], &options[0][1]), (&json!(""), &json!(false)), "{options}");
    assert!(text(0).contains(&digits(old)), "{options}");
    assert_eq!((&options[1][0], &options[1][1]), (&json!(new), &json!(true)), "{options}");
    assert!(text(1).contains(&digits(new)) && text(1).contains("current"), "{options}");
    assert_eq!((&options[2][0], &options[2][1]), (&json!(old), &json!(false)), "{options}");
    browser.must(&page.order("choose", json!({"at": "#ask-digest", "value": old})));
    page.click("#ask-go");
    page.wait("#toast", |result| result.contains(old) && result.contains("is current"));
    assert_eq!(page.said(), json!([]));
    fleet.check_promises();
}
