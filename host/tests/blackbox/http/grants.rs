//! Grants for HTTP requests, refused requests, and the events about both.

use crate::fleet::Fleet;
use crate::guests::asks_over_http;
use crate::http::server::{Reply, Server};
use crate::http::{events, fleet, launch, results};
use crate::node::{baton, finish};
use crate::scenarios;

scenarios! {
    on_sqlite: [
        redirect_to_ungranted_host_is_refused,
    ],
}

#[test]
fn ungranted_request_is_allowed_by_the_logged_setting() {
    let fleet = fleet();
    let server = Server::start(|_| Reply::ok("granted"));
    let url = format!("{}/x", server.url());
    let mut node = launch(&fleet, "alpha", "get", &url).start();
    let lines = results(&fleet, &node);
    let flag = format!("--allow-http {}", server.url());
    let why = format!("the coordinator was not granted requests to {}: use {flag} to allow it", server.url());
    assert!(lines[0].contains(&why), "{lines:?}");
    assert!(server.requests().is_empty());
    let refusals = events(&fleet, "request_refused");
    let [refusal] = &refusals[..] else { panic!("{refusals:?}") };
    assert_eq!((refusal.text("origin"), refusal.text("flag")), (&*server.url(), &*flag));
    assert_eq!(refusal.text("setting"), format!("allow-http = [\"{}\"]", server.url()));
    node.terminate();

    std::fs::write(fleet.home.path().join("baton.toml"), refusal.text("setting")).unwrap();
    let node = launch(&fleet, "beta", "get", &url).start();
    let lines = results(&fleet, &node);
    assert_eq!(lines[0], format!("{url}: 200 granted"));
}

#[test]
fn check_reports_missing_grants_of_a_module_that_runs() {
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
fn granted_path_includes_paths_below_it() {
    let fleet = fleet();
    let server = Server::start(|_| Reply::ok(""));
    let base = server.url();
    let paths = ["/v1", "/v1/x?y=/../", "/v10", "/v1/../x", "/v1/%2e%2e/x", "/v1/%c0%ae%c0%ae/x", "/v1/x%00", "/"];
    let urls: Vec<String> = paths.iter().map(|path| format!("{base}{path}")).collect();
    let node = launch(&fleet, "alpha", "get", &urls.join(" ")).flag("--allow-http", format!("{base}/v1/")).start();
    let lines = results(&fleet, &node);
    assert!(lines[..2].iter().all(|line| line.contains(": 200")), "{lines:?}");
    assert!(lines[2].contains(&format!("not granted requests to {base}/v10:")), "{lines:?}");
    assert!(lines[3..7].iter().all(|line| line.contains("outside the grant")), "{lines:?}");
    assert!(lines[7].contains("not granted"), "{lines:?}");
    let asked: Vec<String> = server.requests().iter().map(|request| request.path().to_owned()).collect();
    assert_eq!(asked, ["/v1", "/v1/x?y=/../"]);
    let refusals = events(&fleet, "request_refused");
    let [refusal] = &refusals[..] else { panic!("not one event: {refusals:?}") };
    assert_eq!(refusal.text("setting"), format!("allow-http = [\"{base}/v1\", \"{base}/v10\"]"));
}

fn redirect_to_ungranted_host_is_refused(fleet: Fleet) {
    let elsewhere = Server::start(|_| Reply::ok("secrets"));
    let target = elsewhere.url();
    let away = format!("302 Found\r\nLocation: {target}/secrets");
    let server = Server::start(move |_| Reply::Answer(away.clone(), String::new()));
    let node = launch(&fleet, "alpha", "follow", &server.url()).flag("--allow-http", server.url()).start();
    let lines = results(&fleet, &node);
    assert_eq!(lines[0], format!("redirected to {target}/secrets"));
    assert!(lines[1].contains("not arrived: ") && lines[1].contains("not granted"), "{lines:?}");
    assert!(elsewhere.requests().is_empty(), "the host follows no redirect, and the guest may not either");
    assert_eq!(events(&fleet, "request_refused")[0].text("origin"), target);

    drop(node);
    let both = format!("{} {target}", server.url());
    let node = launch(&fleet, "beta", "follow", &server.url()).env("BATON_ALLOW_HTTP", &both).start();
    assert!(results(&fleet, &node).contains(&"arrived: 200 secrets".to_owned()));
}

#[test]
fn logged_flag_can_be_pasted_into_a_shell() {
    let fleet = fleet();
    let server = Server::start(|_| Reply::ok("granted"));
    let base = server.url();
    let path = "/v2/x';touch$IFS'ran';'/$(touch$IFS'ran')";
    let url = format!("{base}{path}");
    let mut node = launch(&fleet, "alpha", "get", &format!("{url}?token=hunter2"))
        .flag("--allow-http", format!("{base}/v1"))
        .start();
    let lines = results(&fleet, &node);
    assert!(lines[0].contains("not granted"), "{lines:?}");
    let refusal = events(&fleet, "request_refused").remove(0);
    assert!(!refusal.raw.contains("hunter2"), "a query may contain a token: {refusal:?}");
    node.terminate();
    // Pastes the suggested flag into a shell command, as an operator would.
    let folder = tempfile::tempdir().unwrap();
    let pasted = format!("printf '%s\\n' {}", refusal.text("flag"));
    let run = std::process::Command::new("sh").args(["-c", &pasted]).current_dir(folder.path()).output().unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "{pasted} ran something");
    let words = String::from_utf8(run.stdout).unwrap();
    let words: Vec<&str> = words.lines().collect();
    assert_eq!(words, ["--allow-http", &format!("{base}/v1"), "--allow-http", &url]);

    let node = launch(&fleet, "beta", "get", &url).flag("--allow-http", words[3]).start();
    assert!(results(&fleet, &node)[0].ends_with("200 granted"));
}

const HOSTS: &str = "127.0.0.1 localhost worker.test mapped.test\n169.254.169.254 meta.test\n";

#[test]
fn granted_name_reaches_loopback_only_if_marked_private() {
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
    let lines = results(&fleet, &node);
    let private = format!("{}#private", url("worker.test"));
    assert!(lines[0].contains("worker.test resolves to 127.0.0.1") && lines[0].contains(&private), "{lines:?}");
    assert!(lines[1].ends_with("200 inside") && lines[2].ends_with("200 inside"), "{lines:?}");
    let metadata = "meta.test resolves to 169.254.169.254, which its grant does not allow: no flag allows it";
    assert!(lines[3].contains(metadata), "{lines:?}");
    assert!(lines[4].ends_with("200 inside"), "2130706433 is another spelling of 127.0.0.1: {lines:?}");
    let refusals = events(&fleet, "request_refused");
    assert!(refusals[0].text("setting").contains(&format!("{private:?}")), "{refusals:?}");
    assert!(refusals[1].fields.get("setting").is_none(), "{refusals:?}");
    drop(node);

    let node =
        launch(&fleet, "beta", "get", &url("worker.test")).flag("--allow-http", &private).with_mounts(&mount).start();
    assert!(results(&fleet, &node)[0].ends_with("200 inside"));
}

/// An attacker may own a granted name, and point it at a public address of the host's own machine, or at the address of
/// a neighbor on an IPv6 link. The host must refuse requests to both, unless the grant ends with `#private`. An
/// interface can have secondary IPv4 addresses in addition to its primary one, so the test tries both kinds.
#[test]
fn granted_name_does_not_reach_public_address_of_own_machine() {
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
    // No process listens on this port.
    let urls = NAMES.map(|(name, _)| format!("http://{name}:9090"));
    let start = |node: &str, suffix: &str| {
        let launch = launch(&fleet, node, "get", &urls.join(" "));
        let launch = urls.iter().fold(launch, |launch, url| launch.flag("--allow-http", format!("{url}{suffix}")));
        launch.with_network(&setup).start()
    };
    let node = start("alpha", "");
    let lines = results(&fleet, &node);
    for (line, ((name, address), url)) in lines.iter().zip(NAMES.iter().zip(&urls)) {
        assert!(line.contains(&format!("{name} resolves to {address}")), "{lines:?}");
        assert!(line.contains(&format!("{url}#private")), "{lines:?}");
    }
    drop(node);
    let node = start("beta", "#private");
    let lines = results(&fleet, &node);
    assert!(lines.len() >= NAMES.len() && lines.iter().all(|line| !line.contains("resolves to")), "{lines:?}");
}

#[test]
fn proxy_variables_are_ignored() {
    let fleet = fleet();
    let proxy = Server::start(|_| Reply::ok("from the proxy"));
    let server = Server::start(|_| Reply::ok("direct"));
    let node = launch(&fleet, "alpha", "get", &server.url())
        .flag("--allow-http", server.url())
        .env("HTTP_PROXY", &proxy.url())
        .env("http_proxy", &proxy.url())
        .env("ALL_PROXY", &proxy.url())
        .start();
    assert!(results(&fleet, &node)[0].ends_with("200 direct"));
    assert!(proxy.requests().is_empty());
}
