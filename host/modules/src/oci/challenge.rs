//! How a registry wants to be shown who asks: its header `WWW-Authenticate`.

use reqwest::header::{HeaderMap, WWW_AUTHENTICATE};

/// What a registry wants to be shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Challenge {
    /// The user's name and password.
    Basic,
    /// A token, which is to be had elsewhere.
    Bearer {
        /// The URL of the token server.
        realm: String,
        /// What the registry is called there.
        service: Option<String>,
    },
}

impl Challenge {
    /// The best of those in the headers: a token rather than a password. None if none is known.
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        let texts = headers.get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok());
        let known: Vec<Self> = texts.flat_map(|text| Rest(text).challenges()).collect();
        known.iter().find(|challenge| **challenge != Self::Basic).or(known.first()).cloned()
    }

    fn known(scheme: &str, parameters: Vec<(&str, String)>) -> Option<Self> {
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Self::Basic);
        }
        let (mut realm, mut service) = (None, None);
        for (name, value) in parameters {
            match name.to_ascii_lowercase().as_str() {
                "realm" => realm = Some(value),
                "service" => service = Some(value),
                _ => {}
            }
        }
        let realm = realm.filter(|_| scheme.eq_ignore_ascii_case("bearer"))?;
        Some(Self::Bearer { realm, service })
    }
}

/// What is left of a header: challenges between commas, each a scheme, and its parameters between commas, too.
struct Rest<'a>(&'a str);

impl<'a> Rest<'a> {
    fn challenges(mut self) -> Vec<Challenge> {
        let mut found = Vec::new();
        loop {
            self.skip(|letter| is_space(letter) || letter == ',');
            let scheme = self.take(is_token);
            if scheme.is_empty() {
                // This is the end, or nobody knows what it is.
                return found;
            }
            found.extend(Challenge::known(scheme, self.parameters()));
        }
    }

    fn parameters(&mut self) -> Vec<(&'a str, String)> {
        let mut found = Vec::new();
        loop {
            self.skip(is_space);
            let before = self.0;
            match self.parameter() {
                Some(parameter) => found.push(parameter),
                None => {
                    // After the first place this is the next challenge, and in it what schemes have that are not ours.
                    self.0 = before;
                    if found.is_empty() {
                        self.take(|letter| !is_space(letter) && letter != ',');
                    }
                    return found;
                }
            }
            self.skip(is_space);
            if !self.0.starts_with(',') {
                return found;
            }
            self.skip(|letter| is_space(letter) || letter == ',');
        }
    }

    fn parameter(&mut self) -> Option<(&'a str, String)> {
        let name = self.take(is_token);
        self.skip(is_space);
        self.0 = self.0.strip_prefix('=').filter(|_| !name.is_empty())?;
        self.skip(is_space);
        if let Some(quoted) = self.0.strip_prefix('"') {
            self.0 = quoted;
            return Some((name, self.quoted()?));
        }
        let value = self.take(is_token);
        (!value.is_empty()).then(|| (name, value.to_owned()))
    }

    /// What stands before the closing quote; none if there is none.
    fn quoted(&mut self) -> Option<String> {
        let mut value = String::new();
        let mut letters = self.0.chars();
        loop {
            match letters.next()? {
                '"' => break,
                '\\' => value.push(letters.next()?),
                letter => value.push(letter),
            }
        }
        self.0 = letters.as_str();
        Some(value)
    }

    fn skip(&mut self, what: impl Fn(char) -> bool) {
        self.0 = self.0.trim_start_matches(what);
    }

    fn take(&mut self, what: impl Fn(char) -> bool) -> &'a str {
        let rest = self.0.trim_start_matches(what);
        let taken = &self.0[..self.0.len() - rest.len()];
        self.0 = rest;
        taken
    }
}

fn is_space(letter: char) -> bool {
    letter == ' ' || letter == '\t'
}

fn is_token(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(letter)
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
            of(&[&format!(r#"Negotiate, Digest YWJj==, Basic realm="a, Bearer b=c", {hub}"#)]),
            wanted,
            "in one"
        );
        assert_eq!(of(&[&format!(r#"{hub}, Basic realm="cave""#)]), wanted, "and before others");
        assert_eq!(of(&[r#"Negotiate, Basic realm="cave""#, "Digest a=b"]), Some(Challenge::Basic));
        assert_eq!(of(&["basic"]), Some(Challenge::Basic));
        assert_eq!(of(&["Negotiate", "Digest realm=\"cave\"", ""]), None);
    }

    #[test]
    fn parameters_are_written_in_many_ways() {
        assert_eq!(of(&[r#"BEARER  Realm = "a\"b\\c" ,, SERVICE=d"#]), bearer(r#"a"b\c"#, Some("d")));
        assert_eq!(of(&["bearer realm=a"]), bearer("a", None));
        assert_eq!(of(&[r#"Bearer error="x", realm="""#]), bearer("", None));
    }

    #[test]
    fn nonsense_is_no_challenge() {
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
