#![allow(clippy::unwrap_used, reason = "a test may panic")]
use baton_base::address::kind;

use super::*;

fn grants(texts: &[&str]) -> Grants {
    Grants::new(texts.iter().map(|text| text.parse().unwrap()).collect())
}

fn allows(grants: &Grants, url: &str) -> bool {
    let uri: http::Uri = url.parse().unwrap();
    Origin::of(&uri).is_some_and(|origin| grants.reach(&origin, uri.path()).is_some())
}

#[test]
fn grant_is_displayed_in_its_normal_form() {
    for (text, shown) in [
        ("https://api.example.com", "https://api.example.com"),
        ("HTTPS://API.Example.com:443/", "https://api.example.com"),
        ("http://api.example.com:443", "http://api.example.com:443"),
        ("https://api.example.com/v1/", "https://api.example.com/v1"),
        ("https://*.Example.com:8443/a/b", "https://*.example.com:8443/a/b"),
        ("http://0x7f.1:81", "http://127.0.0.1:81"),
        ("http://[::0001]:81", "http://[::1]:81"),
        ("https://bücher.example", "https://xn--bcher-kva.example"),
        ("http://worker:8080/jobs#private", "http://worker:8080/jobs#private"),
    ] {
        assert_eq!(text.parse::<Grant>().unwrap().to_string(), shown);
    }
}

#[test]
fn invalid_grant_error_says_why_and_hides_secrets() {
    for (text, why) in [
        ("", "there is no scheme"),
        ("api.example.com", "there is no scheme"),
        ("ftp://api.example.com", "https or http"),
        ("https://", "empty host"),
        ("https://:443", "empty host"),
        ("https://a b.com", "invalid international domain name"),
        ("https://example.com:65536", "invalid port"),
        ("https://example.com?x=1", "a query cannot be granted"),
        ("https://example.com/v1/../v2", "must not contain `.`"),
        ("https://example.com/v1/%2E%2e/v2", "must not contain `.`"),
        ("https://example.com/v1%00", "must not contain `.`"),
        ("https://example.com/%c0%ae", "must not contain `.`"),
        ("https://example.com/#v1", "only `private`"),
        ("https://a.example,https://b.example", "must not contain '"),
        ("https://a.example,", "must not contain ','"),
        ("https://*", "only stand for subdomains"),
        ("https://*.com", "at least two parts"),
        ("https://*.10.0.0.1", "at least two parts"),
        ("https://api*.example.com", "only stand for subdomains"),
        ("https://*.*.example.com", "only stand for subdomains"),
    ] {
        let error = text.parse::<Grant>().unwrap_err().to_string();
        let shown = text.replace("?x=1", "?…");
        assert!(error.contains(why) && error.contains(&format!("{shown:?}")), "{text}: {error}");
    }
    for (text, why) in [
        ("https://me:secret@example.com", "the user and password"),
        ("ftp://me:secret@example.com", "https or http"),
        ("me:secret@example.com/x", "there is no scheme"),
        ("https://example.com/x?token=secret", "https://example.com/x?…"),
        ("example.com?token=secret", "there is no scheme"),
        ("https://*.com/x?sig=secret#private", "a query cannot be granted"),
    ] {
        let error = text.parse::<Grant>().unwrap_err().to_string();
        assert!(error.contains(why) && !error.contains("secret"), "{error}");
    }
}

#[test]
fn grant_covers_only_its_scheme_host_and_port() {
    let grants = grants(&["https://api.example.com"]);
    for url in ["https://api.example.com/", "https://API.example.COM:443/x?y", "https://api.example.com/../x"] {
        assert!(allows(&grants, url), "{url}");
    }
    for url in [
        "http://api.example.com/",
        "https://api.example.com:444/",
        "https://example.com/",
        "https://x.api.example.com/",
        "https://api.example.com.evil.com/",
        "https://api.example.com.:443/",
        "https://api.example.com@evil.com/",
        "https://evil.com@api.example.com/",
        "https://:@api.example.com/",
    ] {
        assert!(!allows(&grants, url), "{url}");
    }
}

#[test]
fn wildcard_covers_only_subdomains() {
    let grants = grants(&["https://*.example.com"]);
    for url in ["https://a.example.com/", "https://a.b.Example.com/"] {
        assert!(allows(&grants, url), "{url}");
    }
    for url in ["https://example.com/", "https://.example.com/", "https://aexample.com/", "https://a.example.com.co/"] {
        assert!(!allows(&grants, url), "{url}");
    }
}

#[test]
fn grant_covers_only_its_path_and_those_under_it() {
    let grants = grants(&["https://example.com/v1"]);
    for path in ["/v1", "/v1?x=..", "/v1/", "/v1/x", "/v1/a.b/..c", "/v1//x", "/v1/%20"] {
        assert!(allows(&grants, &format!("https://example.com{path}")), "{path}");
    }
    for path in [
        "/",
        "/v10",
        "/V1",
        "/v",
        "/v2/v1",
        "//v1",
        "/v1/..",
        "/v1/../x",
        "/v1/./x",
        "/v1/x/../../y",
        "/v1/%2e%2e/x",
        "/v1/.%2E/x",
        "/v1/..%2fx",
        "/v1/x%2f..%2f..%2fy",
        "/v1/..%5cx",
        "/v1/%252e%252e/x",
        "/v1/..;/x",
        "/v1/..;a=b/x",
        "/v1%2f..",
        "/v1%2f../x",
        "/v1/x%00",
        "/v1/..%00/x",
        "/v1/%c0%ae%c0%ae/x",
        "/v1/%e0%80%ae./x",
    ] {
        assert!(!allows(&grants, &format!("https://example.com{path}")), "{path}");
    }
}

#[test]
fn every_spelling_of_an_address_matches_its_grant() {
    let named = grants(&["http://169.254.169.254"]);
    let not = grants(&["http://2852039166.example.com"]);
    for host in ["169.254.169.254", "2852039166", "0xa9.0xfe.0xa9.0xfe", "0251.0376.0251.0376", "169.16689662"] {
        let url = format!("http://{host}/");
        assert!(allows(&named, &url) && !allows(&not, &url), "{url}");
        let origin = Origin::of(&url.parse().unwrap()).unwrap();
        assert_eq!(named.reach(&origin, "/"), Some(AddressReach::Exactly([169, 254, 169, 254].into())));
    }
}

#[test]
fn widest_matching_grant_decides_the_reach() {
    let origin = Origin::of(&"http://a.example.com".parse().unwrap()).unwrap();
    let reach = |texts: &[&str]| grants(texts).reach(&origin, "/");
    assert_eq!(reach(&["http://a.example.com"]), Some(AddressReach::Public));
    assert_eq!(reach(&["http://*.example.com#private", "http://a.example.com"]), Some(AddressReach::Private));
    assert_eq!(reach(&["http://b.example.com#private"]), None);
    let localhost = Origin::of(&"http://LOCALHOST".parse().unwrap()).unwrap();
    assert_eq!(grants(&["http://localhost"]).reach(&localhost, "/"), Some(AddressReach::Loopback));
    let asked_of_a_server = Origin::of(&"http://localhost.".parse().unwrap()).unwrap();
    assert_eq!(grants(&["http://localhost"]).reach(&asked_of_a_server, "/"), None);
    assert_eq!(grants(&["http://localhost."]).reach(&asked_of_a_server, "/"), Some(AddressReach::Public));
}

#[test]
fn proposed_grant_allows_the_refused_request() {
    let granted = grants(&["https://example.com/v1", "http://b"]);
    for (url, line, flags) in [
        (
            "https://api.example.com:8443/x/y?z",
            r#"allow-http = ["https://example.com/v1", "http://b", "https://api.example.com:8443"]"#,
            "--allow-http https://example.com/v1 --allow-http http://b --allow-http https://api.example.com:8443",
        ),
        (
            "https://example.com/v10/x?z",
            r#"allow-http = ["https://example.com/v1", "http://b", "https://example.com/v10/x"]"#,
            "--allow-http https://example.com/v1 --allow-http http://b --allow-http https://example.com/v10/x",
        ),
        (
            "https://example.com/v10/x';touch%20y;'",
            r#"allow-http = ["https://example.com/v1", "http://b", "https://example.com/v10/x';touch%20y;'"]"#,
            r"--allow-http https://example.com/v1 --allow-http http://b --allow-http 'https://example.com/v10/x'\'';touch%20y;'\'''",
        ),
    ] {
        let uri: http::Uri = url.parse().unwrap();
        let origin = Origin::of(&uri).unwrap();
        assert_eq!(granted.reach(&origin, uri.path()), None);
        let wanted = granted.wanted(&origin, uri.path()).unwrap();
        assert_eq!(granted.lines_with(&wanted), [line, flags]);
        assert!(Grants::new(vec![wanted]).reach(&origin, uri.path()).is_some());
    }
    let uri: http::Uri = "https://example.com/v1/../x".parse().unwrap();
    assert_eq!(granted.wanted(&Origin::of(&uri).unwrap(), uri.path()), None, "no path does");
    let long = format!("/{}", "x".repeat(LONGEST_PROPOSED));
    assert_eq!(granted.wanted(&Origin::of(&uri).unwrap(), &long), None, "nobody reads that");
    assert!(Origin::of(&format!("https://{}/", "x".repeat(LONGEST_HOST + 1)).parse().unwrap()).is_none());
    let b = Origin::of(&"http://b/".parse().unwrap()).unwrap();
    let private = granted.wanted_private(&b).unwrap();
    assert_eq!(granted.lines_with(&private)[0], r#"allow-http = ["https://example.com/v1", "http://b#private"]"#);
}

#[test]
fn reach_includes_only_its_kinds_of_address() {
    let reaches = |reach: AddressReach, address: &str| {
        let address: IpAddr = address.parse().unwrap();
        reach.includes(Resolved { address: (address, 80).into(), kind: kind(address) })
    };
    let [public, loopback, private, link_local] = ["8.8.8.8", "127.0.0.1", "10.1.2.3", "169.254.169.254"];
    let all = [public, loopback, private, link_local];
    for (reach, included) in [
        (AddressReach::Public, [true, false, false, false]),
        (AddressReach::Loopback, [false, true, false, false]),
        (AddressReach::Private, [true, true, true, false]),
        (AddressReach::Exactly(link_local.parse().unwrap()), [false, false, false, true]),
    ] {
        assert_eq!(all.map(|address| reaches(reach, address)), included, "{reach:?}");
    }
}
