//! The web page for operators: a single file. The page requests the same paths as other clients, and contacts no other
//! host.
//!
//! The page itself contains no data, so every client that can reach the address may load it. Its content security
//! policy lets the browser run only the page's own script and contact only this endpoint. Text from nodes can never
//! become markup in the page.

use std::sync::LazyLock;

use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use baton_store::Digest;
use bytes::Bytes;

const SKELETON: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");

/// Isolates the page from pages that it opens and from pages that open it.
const OPENER: HeaderName = HeaderName::from_static("cross-origin-opener-policy");

static PAGE: LazyLock<(Bytes, HeaderValue)> = LazyLock::new(|| {
    let page = SKELETON
        .replace("<style></style>", &format!("<style>{STYLE}</style>"))
        .replace("<script></script>", &format!("<script>{SCRIPT}</script>"));
    let hash = |text: &str| STANDARD.encode(Digest::of(text.as_bytes()).as_bytes());
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; img-src data:; base-uri \
         'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
        hash(SCRIPT),
        hash(STYLE)
    );
    // This cannot fail, because the policy contains only printable ASCII characters.
    let policy = HeaderValue::from_str(&policy).unwrap_or(HeaderValue::from_static("default-src 'none'"));
    (page.into(), policy)
});

pub(super) async fn page() -> Response {
    let (page, policy) = &*PAGE;
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
        (CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (CONTENT_SECURITY_POLICY, policy.clone()),
        (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
        (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (OPENER, HeaderValue::from_static("same-origin")),
    ];
    (headers, page.clone()).into_response()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;

    #[test]
    fn page_is_complete_and_requests_no_other_host() {
        let page = std::str::from_utf8(&PAGE.0).unwrap();
        assert!(page.contains(STYLE) && page.contains(SCRIPT));
        // A second end tag would end the script early, and the script's hash would no longer match.
        assert_eq!((page.matches("</script").count(), page.matches("</style").count()), (1, 1));
        let others = page.split("http").skip(1).filter(|rest| rest.starts_with("://") || rest.starts_with("s://"));
        let others: Vec<&str> = others.map(|rest| rest.split('\'').next().unwrap_or_default()).collect();
        assert_eq!(others, ["://www.w3.org/2000/svg"], "the name of an XML namespace, which browsers do not request");
        for way in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "setHTML", "srcdoc"] {
            assert!(!page.contains(way), "{way} makes markup of text");
        }
    }

    #[test]
    fn policy_allows_only_this_script_and_style() {
        let policy = PAGE.1.to_str().unwrap();
        assert_eq!(policy.matches("sha256-").count(), 2, "{policy}");
        assert!(policy.starts_with("default-src 'none'; ") && !policy.contains("unsafe"), "{policy}");
        assert!(policy.contains("require-trusted-types-for 'script'"), "{policy}");
    }
}
