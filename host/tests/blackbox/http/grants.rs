//! What is granted, what is refused, and what is said of it.

use crate::fleet::Fleet;
use crate::guests::asks_over_http;
use crate::http::server::{Reply, Server};
use crate::http::{events, fleet, launch, said};
use crate::node::{baton, finish};
use crate::scenarios;

scenarios! {
    on_sqlite: [
        a_redirect_to_a_host_that_is_not_granted_is_refused,
    ],
}

#[test]
fn without_a_grant_it_runs_and_the_line_that_the_log_shows_allows_it() {
    let fleet = fleet();
    let server = Server::start(|_| Reply::ok("granted"));
    let url = format!("{}/x", server.url());
    let mut node = launch(&fleet, "alpha", "get", &url).start();
    let lines = said(&fleet, &node);
    let flag = format!("--allow-http {}", server.url());
    let why = format!("the coordinator was not granted requests to {}: use {flag} to allow it", server.url());
    assert!(lines[0].contains(&why), "{lines:?}");
    assert!(server.requests().is_empty());
    let told = events(&fleet, "request_refused");
    let [told] = &told[..] else { panic!("{told:?}") };
    assert_eq!((told.text("origin"), told.text("flag")), (&*server.url(), &*flag));
    assert_eq!(told.text("setting"), format!("allow-http = [\"{}\"]", server.url()));
    node.terminate();

    std::fs::write(fleet.home.path().join("baton.toml"), told.text("setting")).unwrap();
    let node = launch(&fleet, "beta", "get", &url).start();
    let lines = said(&fleet, &node);
    assert_eq!(lines[0], format!("{url}: 200 granted"));
}

#[test]
fn check_says_what_must_be_granted_and_that_it_runs_without() {
    let home = tempfile::tempdir().unwrap();
    let check = |json: bool| {
        let mut command = baton(home.path());
        command.arg("check").arg(asks_over_http()).args(json.then_some("--output=json"));
        finish(command)
    };
    let text = check(false);
    assert_eq!(text.code, Some(0), "{text:?}");
    let line = text.stdout.lines().find(|line| line.contains("wasi:http/outgoing-handler")).unwrap();
    assert!(line.contains("--allow-http URL"), "{line}");
    let json = check(true).json();
    let import = json["imports"]
        .as_array()
        .unwrap()
        .iter()
        .find(|import| import["name"].as_str().is_some_and(|name| name.starts_with("wasi:http/outgoing-handler")));
    assert_eq!((&import.unwrap()["granted"], &json["runs"]), (&false.into(), &true.into()), "{json}");
}

#[test]
fn a_path_is_granted_with_what_is_under_it() {
    let fleet = fleet();
    let server = Server::start(|_| Reply::ok(""));
    let base = server.url();
    let paths = ["/v1", "/v1/x?y=/../", "/v10", "/v1/../x", "/v1/%2e%2e/x", "/v1/%c0%ae%c0%ae/x", "/v1/x%00", "/"];
    let urls: Vec<String> = paths.iter().map(|path| format!("{base}{path}")).collect();
    let node = launch(&fleet, "alpha", "get", &urls.join(" ")).flag("--allow-http", format!("{base}/v1/")).start();
    let lines = said(&fleet, &node);
    assert!(lines[..2].iter().all(|line| line.contains(": 200")), "{lines:?}");
    assert!(lines[2].contains(&format!("not granted requests to {base}/v10:")), "{lines:?}");
    assert!(lines[3..7].iter().all(|line| line.contains("outside the grant")), "{lines:?}");
    assert!(lines[7].contains("not granted"), "{lines:?}");
    let asked: Vec<String> = server.requests().iter().map(|request| request.path().to_owned()).collect();
    assert_eq!(asked, ["/v1", "/v1/x?y=/../"]);
    let told = events(&fleet, "request_refused");
    let [told] = &told[..] else { panic!("told of more than once: {told:?}") };
    assert_eq!(told.text("setting"), format!("allow-http = [\"{base}/v1\", \"{base}/v10\"]"));
}

fn a_redirect_to_a_host_that_is_not_granted_is_refused(fleet: Fleet) {
    let elsewhere = Server::start(|_| Reply::ok("secrets"));
    let target = elsewhere.url();
    let away = format!("302 Found\r\nLocation: {target}/secrets");
    let server = Server::start(move |_| Reply::Answer(away.clone(), String::new()));
    let node = launch(&fleet, "alpha", "follow", &server.url()).flag("--allow-http", server.url()).start();
    let lines = said(&fleet, &node);
    assert_eq!(lines[0], format!("redirected to {target}/secrets"));
    assert!(lines[1].contains("not arrived: ") && lines[1].contains("not granted"), "{lines:?}");
    assert!(elsewhere.requests().is_empty(), "the host follows nothing, and neither may the guest");
    assert_eq!(events(&fleet, "request_refused")[0].text("origin"), target);

    drop(node);
    let both = format!("{} {target}", server.url());
    let node = launch(&fleet, "beta", "follow", &server.url()).env("BATON_ALLOW_HTTP", &both).start();
    assert!(said(&fleet, &node).contains(&"arrived: 200 secrets".to_owned()));
}

#[test]
fn what_the_log_proposes_can_be_pasted() {
    let fleet = fleet();
    let server = Server::start(|_| Reply::ok("granted"));
    let base = server.url();
    let path = "/v2/x';touch$IFS'ran';'/$(touch$IFS'ran')";
    let url = format!("{base}{path}");
    let mut node = launch(&fleet, "alpha", "get", &format!("{url}?token=hunter2"))
        .flag("--allow-http", format!("{base}/v1"))
        .start();
    let lines = said(&fleet, &node);
    assert!(lines[0].contains("not granted"), "{lines:?}");
    let told = events(&fleet, "request_refused").remove(0);
    assert!(!told.raw.contains("hunter2"), "a query may have a token in it: {told:?}");
    node.terminate();
    // As a person would: from the log into a shell, behind the command.
    let folder = tempfile::tempdir().unwrap();
    let pasted = format!("printf '%s\\n' {}", told.text("flag"));
    let run = std::process::Command::new("sh").args(["-c", &pasted]).current_dir(folder.path()).output().unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "{pasted} ran something");
    let words = String::from_utf8(run.stdout).unwrap();
    let words: Vec<&str> = words.lines().collect();
    assert_eq!(words, ["--allow-http", &format!("{base}/v1"), "--allow-http", &url]);

    let node = launch(&fleet, "beta", "get", &url).flag("--allow-http", words[3]).start();
    assert!(said(&fleet, &node)[0].ends_with("200 granted"));
}

/// The names that a test's machine knows.
const HOSTS: &str = "127.0.0.1 localhost worker.test mapped.test\n169.254.169.254 meta.test\n";

#[test]
fn a_name_does_not_lead_into_the_machine_unless_the_grant_says_so() {
    let fleet = fleet();
    let server = Server::start(|_| Reply::ok("inside"));
    let port = server.port;
    let url = |host: &str| format!("http://{host}:{port}");
    let hosts = fleet.home.path().join("hosts");
    std::fs::write(&hosts, HOSTS).unwrap();
    let mount = format!("mount --bind '{}' /etc/hosts", hosts.display());
    let all = ["worker.test", "localhost", "127.0.0.1", "meta.test", "2130706433"].map(url);
    let node = launch(&fleet, "alpha", "get", &all.join(" "))
        .flag("--allow-http", url("worker.test"))
        .flag("--allow-http", url("localhost"))
        .flag("--allow-http", url("meta.test") + "#private")
        .flag("--allow-http", url("127.0.0.1"))
        .with_mounts(&mount)
        .start();
    let lines = said(&fleet, &node);
    let private = format!("{}#private", url("worker.test"));
    assert!(lines[0].contains("worker.test resolves to 127.0.0.1") && lines[0].contains(&private), "{lines:?}");
    assert!(lines[1].ends_with("200 inside") && lines[2].ends_with("200 inside"), "{lines:?}");
    let metadata = "meta.test resolves to 169.254.169.254, which its grant does not allow: no flag allows it";
    assert!(lines[3].contains(metadata), "{lines:?}");
    assert!(lines[4].ends_with("200 inside"), "it is a spelling of the address that is granted: {lines:?}");
    let told = events(&fleet, "request_refused");
    assert!(told[0].text("setting").contains(&format!("{private:?}")), "{told:?}");
    assert!(told[1].fields.get("setting").is_none(), "{told:?}");
    drop(node);

    let node =
        launch(&fleet, "beta", "get", &url("worker.test")).flag("--allow-http", &private).with_mounts(&mount).start();
    assert!(said(&fleet, &node)[0].ends_with("200 inside"));
}

/// The owner of a name points the name at a public address of this machine, or at a neighbor's on an IPv6 link of it. An
/// interface has one primary address in an IPv4 network, and any number of secondary ones.
#[test]
fn granted_name_does_not_lead_to_public_address_of_this_machine() {
    const SETUP: &str = "ip link set lo up && ip address add 93.184.216.34/24 dev lo && \
                         ip address add 93.184.216.35/24 dev lo && \
                         ip -6 address add 2606:2800:220:1::1/64 dev lo nodad";
    const NAMES: [(&str, &str); 4] = [
        ("own.test", "93.184.216.34"),
        ("secondary.test", "93.184.216.35"),
        ("own6.test", "2606:2800:220:1::1"),
        ("neighbor.test", "2606:2800:220:1::2"),
    ];
    let fleet = fleet();
    let hosts = fleet.home.path().join("hosts");
    std::fs::write(&hosts, NAMES.map(|(name, address)| format!("{address} {name}\n")).concat()).unwrap();
    let setup = format!("{SETUP} && mount --bind '{}' /etc/hosts", hosts.display());
    // Nothing listens there.
    let urls = NAMES.map(|(name, _)| format!("http://{name}:9090"));
    let start = |node: &str, suffix: &str| {
        let launch = launch(&fleet, node, "get", &urls.join(" "));
        let launch = urls.iter().fold(launch, |launch, url| launch.flag("--allow-http", format!("{url}{suffix}")));
        launch.with_network(&setup).start()
    };
    let node = start("alpha", "");
    let lines = said(&fleet, &node);
    for (line, ((name, address), url)) in lines.iter().zip(NAMES.iter().zip(&urls)) {
        assert!(line.contains(&format!("{name} resolves to {address}")), "{lines:?}");
        assert!(line.contains(&format!("{url}#private")), "{lines:?}");
    }
    drop(node);
    let node = start("beta", "#private");
    let lines = said(&fleet, &node);
    assert!(lines.len() >= NAMES.len() && lines.iter().all(|line| !line.contains("resolves to")), "{lines:?}");
}

#[test]
fn a_proxy_of_the_environment_is_not_used() {
    let fleet = fleet();
    let proxy = Server::start(|_| Reply::ok("from the proxy"));
    let server = Server::start(|_| Reply::ok("itself"));
    let node = launch(&fleet, "alpha", "get", &server.url())
        .flag("--allow-http", server.url())
        .env("HTTP_PROXY", &proxy.url())
        .env("http_proxy", &proxy.url())
        .env("ALL_PROXY", &proxy.url())
        .start();
    assert!(said(&fleet, &node)[0].ends_with("200 itself"));
    assert!(proxy.requests().is_empty());
}
