//! A registry's challenge, from the header `WWW-Authenticate` (RFC 7235). The parser is stricter than the RFC: it
//! accepts only one space after a scheme, and no `token68` value. No registered scheme uses `token68` in a challenge.

use http_auth::ChallengeRef;
use http_auth::parser::ChallengeParser;
use reqwest::header::{HeaderMap, WWW_AUTHENTICATE};

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Challenge {
    Basic,
    Bearer {
        realm: String,
        /// The registry's name at the token server.
        service: Option<String>,
    },
}

impl Challenge {
    /// Returns the challenge that this client supports, if any. Prefers a token to a password.
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        let texts = headers.get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok());
        // After a syntax error, ignore the rest of that header.
        let challenges = texts.flat_map(|text| ChallengeParser::new(text).map_while(Result::ok));
        let known: Vec<Self> = challenges.filter_map(Self::known).collect();
        known.iter().find(|challenge| **challenge != Self::Basic).or(known.first()).cloned()
    }

    fn known(challenge: ChallengeRef<'_>) -> Option<Self> {
        if challenge.scheme.eq_ignore_ascii_case("basic") {
            return Some(Self::Basic);
        }
        let parameter = |wanted: &str| {
            let (_, value) = challenge.params.iter().rfind(|(name, _)| name.eq_ignore_ascii_case(wanted))?;
            Some(value.to_unescaped())
        };
        let realm = parameter("realm").filter(|_| challenge.scheme.eq_ignore_ascii_case("bearer"))?;
        Some(Self::Bearer { realm, service: parameter("service") })
    }
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderValue;

    use super::*;

    fn of(texts: &[&str]) -> Option<Challenge> {
        let values = texts.iter().filter_map(|text| HeaderValue::from_bytes(text.as_bytes()).ok());
        Challenge::of(&values.map(|value| (WWW_AUTHENTICATE, value)).collect())
    }

    fn bearer(realm: &str, service: Option<&str>) -> Option<Challenge> {
        Some(Challenge::Bearer { realm: realm.to_owned(), service: service.map(str::to_owned) })
    }

    #[test]
    fn a_challenge_is_found_among_others() {
        let hub = r#"Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:a:pull,push""#;
        let wanted = bearer("https://auth.docker.io/token", Some("registry.docker.io"));
        assert_eq!(of(&[hub]), wanted);
        assert_eq!(of(&[r#"Basic realm="cave""#, hub]), wanted, "in several headers");
        assert_eq!(
            of(&[&format!(r#"Negotiate, Digest nonce="YWJj==", Basic realm="a, Bearer b=c", {hub}"#)]),
            wanted,
            "in one"
        );
        assert_eq!(of(&[&format!(r#"{hub}, Basic realm="cave""#)]), wanted, "and before others");
        assert_eq!(of(&[r#"Negotiate, Basic realm="cave""#, "Digest a=b"]), Some(Challenge::Basic));
        assert_eq!(of(&["basic"]), Some(Challenge::Basic));
        assert_eq!(of(&["Negotiate", "Digest realm=\"cave\"", ""]), None);
    }

    #[test]
    fn parameters_are_parsed_in_every_notation() {
        assert_eq!(of(&[r#"BEARER Realm = "a\"b\\c" ,, SERVICE=d"#]), bearer(r#"a"b\c"#, Some("d")));
        assert_eq!(of(&["bearer realm=a"]), bearer("a", None));
        assert_eq!(of(&[r#"Bearer error="x", realm="""#]), bearer("", None));
    }

    #[test]
    fn malformed_header_is_not_a_challenge() {
        for text in [
            "Bearer",
            "Bearer service=a",
            "Bearer realm",
            "Bearer realm=",
            r#"Bearer realm="a"#,
            r#"Bearer realm="a\"#,
            r#""""#,
            "=,=,=",
            "Bearer realm=\"\u{e9}\"",
            ", ,,",
            "(Bearer realm=a)",
        ] {
            assert_eq!(of(&[text]), None, "{text}");
        }
        assert_eq!(of(&[&format!("Bearer {}", "a=\"".repeat(100_000))]), None, "and takes no time");
    }
}
