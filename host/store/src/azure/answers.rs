//! Classifies Azure Storage's errors by what they mean for the request.

use std::time::Duration;

use azure_core::error::{Error, ErrorKind};
use azure_core::headers::{DATE, ERROR_CODE, HeaderName};
use azure_core::{Response, StatusCode};
use baton_election::StoreError;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc2822;

use super::access::{ShownCredentials, of_process};

/// Start of the error message for credentials that lack rights.
pub const MAY_NOT: &str = "the credentials may not use the container";

/// Azure Storage sets this header in all of its own answers, including errors.
/// <https://learn.microsoft.com/rest/api/storageservices/common-rest-api-error-codes>
const REQUEST_ID: HeaderName = HeaderName::from_static("x-ms-request-id");
const SERVER: HeaderName = HeaderName::from_static("server");

/// Smallest clock difference that is reported as a possible cause of a refusal. Azure tolerates 15 minutes, but if a
/// SAS has only just become valid, even a small difference matters.
const CLOCK_DIFFERS: Duration = Duration::from_secs(60);

/// Maximum length of Azure's reason for a refusal in an error message, in characters.
const LONGEST_REASON: usize = 160;

/// Maximum length of a server's name in an error message, in characters.
const LONGEST_SERVER: usize = 40;

/// The meaning of some errors depends on the kind of the request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RequestKind {
    ToRead,
    ToCreate,
    ToAcquire,
    OfLease,
    OfContainer,
}

/// Fails if the answer does not come from Azure Storage, but from a proxy, a gateway or a captive portal. The error
/// contains only the status and the server's name: the rest of the answer may contain secrets, and may be different
/// each time.
pub(super) fn refuse_foreign(response: &Response) -> Result<(), Error> {
    if [&REQUEST_ID, &ERROR_CODE].into_iter().any(|name| response.headers().get_optional_str(name).is_some()) {
        return Ok(());
    }
    let named = response.headers().get_optional_str(&SERVER).unwrap_or_default();
    // Cut off a version or a host name, because it may differ between the servers of one gateway.
    let named = named.split(['/', '(']).next().unwrap_or_default().trim();
    let named: String = named.chars().filter(|c| c.is_ascii_graphic() || *c == ' ').take(LONGEST_SERVER).collect();
    let server = if named.is_empty() { String::new() } else { format!(" (server: {named})") };
    let status = response.status();
    let kind = ErrorKind::HttpResponse { status, error_code: None };
    Err(Error::message(
        kind,
        format!(
            "HTTP {} from something that is not Azure Storage{server}: check for a proxy between here and the store",
            u16::from(status)
        ),
    ))
}

/// Converts an answer with status 401 or 403 to an error. The message contains the store's reason, and the clock
/// difference if that may be the cause. The message omits everything that differs from answer to answer, because Baton
/// would report a changed message again.
pub(super) async fn refusal(response: Response) -> Error {
    let (status, headers, body) = response.deconstruct();
    let body = body.collect().await.unwrap_or_default();
    let body = String::from_utf8_lossy(&body);
    let code = headers.get_optional_string(&ERROR_CODE).or_else(|| element(&body, "Code").map(str::to_owned));
    let reason = reason(&body);
    let offset = headers.get_optional_str(&DATE).and_then(|date| clock_offset(date, OffsetDateTime::now_utc()));
    let text = [reason, offset].into_iter().flatten().collect::<Vec<_>>().join("; ");
    Error::message(ErrorKind::HttpResponse { status, error_code: code }, text)
}

fn element<'a>(body: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = body.split_once(&format!("<{name}>"))?;
    rest.split('<').next()
}

/// Returns the reason in the body of a refusal. Cuts the reason off before the first part that is secret or differs
/// from answer to answer.
fn reason(body: &str) -> Option<String> {
    let detail = element(body, "AuthenticationErrorDetail")?;
    let detail = detail.split(['\'', '"', '&', '[', '\n']).next().unwrap_or_default();
    let shown: String = detail.chars().filter(|c| !c.is_control()).take(LONGEST_REASON).collect();
    let shown = shown.trim_end_matches([' ', ':', '.']).trim_end_matches(" Start").trim_end_matches([' ', ':']);
    (!shown.is_empty()).then(|| shown.to_owned())
}

/// If this machine's clock differs from the store's by [`CLOCK_DIFFERS`] or more, describes the difference. `date` is
/// the time at which the store answered. The difference is rounded to minutes, so that the message stays the same for a
/// while.
fn clock_offset(date: &str, now: OffsetDateTime) -> Option<String> {
    let there = OffsetDateTime::parse(date, &Rfc2822).ok()?;
    let (ahead, by) = (now > there, (now - there).unsigned_abs());
    let word = if ahead { "ahead of" } else { "behind" };
    (by >= CLOCK_DIFFERS)
        .then(|| format!("this machine's clock is {} min {word} the store's: correct it", (by.as_secs() + 30) / 60))
}

pub(super) fn code(error: &Error) -> Option<&str> {
    match error.kind() {
        ErrorKind::HttpResponse { error_code, .. } => error_code.as_deref(),
        _ => None,
    }
}

pub(super) fn store_error(
    asked: RequestKind,
    container: &str,
    credentials: &ShownCredentials,
    error: &Error,
) -> StoreError {
    let status = match error.kind() {
        // Without credentials, the request was not sent.
        ErrorKind::Credential => return StoreError::Misconfigured(error_chain(error)),
        ErrorKind::HttpResponse { status, .. } => Some(*status),
        _ => None,
    };
    match (code(error), status) {
        (Some("AuthenticationFailed" | "InvalidAuthenticationInfo"), _) => not_accepted(credentials, error),
        (Some("AuthorizationFailure" | "AuthorizationPermissionMismatch" | "InsufficientAccountPermissions"), _) => {
            may_not(container, credentials, error)
        }
        (Some(code), Some(status)) => told(asked, container, code, status),
        (None, Some(status)) => {
            // Omit the text of the SDK's own HTTP errors: it contains all headers and the body.
            let text = if error.as_http_error().is_some() { String::new() } else { error.to_string() };
            let text = if text.is_empty() { format!("the store returned HTTP {}", u16::from(status)) } else { text };
            StoreError::Unknown(text)
        }
        _ => unanswered(&error_chain(error)),
    }
}

/// Classifies an answer by its error code. If the code is not listed here, the status decides whether the answer is a
/// refusal or the outcome is unknown.
fn told(asked: RequestKind, container: &str, code: &str, status: StatusCode) -> StoreError {
    let refused = |remedy: &str| StoreError::Misconfigured(format!("the store refuses the request ({code}): {remedy}"));
    match code {
        "LeaseAlreadyPresent" | "LeaseIsBreakingAndCannotBeAcquired" => StoreError::Held,
        "LeaseIdMismatchWithLeaseOperation" if asked == RequestKind::ToAcquire => StoreError::Held,
        // `LeaseIdMissing` means that the blob exists and is leased.
        "LeaseIdMissing" | "BlobAlreadyExists" if asked == RequestKind::ToCreate => StoreError::Conflict,
        "ConditionNotMet" | "TargetConditionNotMet" => StoreError::Conflict,
        "LeaseIdMismatchWithLeaseOperation"
        | "LeaseIdMismatchWithBlobOperation"
        | "LeaseIdMissing"
        | "LeaseLost"
        | "LeaseNotPresentWithLeaseOperation"
        | "LeaseNotPresentWithBlobOperation"
        | "LeaseIsBrokenAndCannotBeRenewed"
        | "LeaseIsBreakingAndCannotBeChanged"
        | "LeaseAlreadyBroken" => StoreError::Lost(format!("the store returned {code}")),
        "BlobNotFound" => StoreError::Lost("the record was deleted".to_owned()),
        "ContainerNotFound" if asked == RequestKind::OfLease => {
            StoreError::Lost(format!("the container {container} was deleted"))
        }
        "ContainerNotFound" => StoreError::Misconfigured(format!(
            "there is no container {container}: check `--store`, or create the container with `baton run --create` or \
             `baton push --create`"
        )),
        "AccountIsDisabled" => StoreError::Misconfigured("the storage account is disabled".to_owned()),
        "KeyBasedAuthenticationNotPermitted" => {
            refused("the account does not allow access by key: use an identity, or allow shared key access")
        }
        "AuthorizationProtocolMismatch" | "AccountRequiresHttps" => {
            refused("the account or the SAS allows only https: check the store's endpoint")
        }
        "AuthorizationSourceIPMismatch" => {
            refused("the SAS does not allow this machine's IP address: create a new one")
        }
        "AuthorizationServiceMismatch" => refused("the SAS is not for blobs (`ss=b`): create a new one"),
        "AuthorizationResourceTypeMismatch" => {
            refused("the SAS is not for service, container and object (`srt=sco`): create a new one")
        }
        "NoAuthenticationInformation" => {
            refused("the request had no credentials: set a key, a SAS or an identity, as docs/azure.md says")
        }
        "PublicAccessNotPermitted" => refused("the container is not public, and the request had no credentials"),
        "FeatureVersionMismatch" | "BlobTypeNotSupported" | "FeatureNotSupportedForAccount" => {
            refused("this kind of account does not support the request: use a general-purpose v2 account")
        }
        "ContainerDisabled" => refused("an administrator has disabled the container"),
        "ResourceNotFound" => refused("there is no such account or container: check `--store`"),
        // This is not a refusal: once the container has been deleted, it can be created again.
        "ContainerBeingDeleted" => StoreError::Unknown(format!("the container {container} is being deleted")),
        // The store has not carried out the request, but the same request may succeed later.
        "AccountBeingCreated" | "PendingCopyOperation" | "BlobBeingRehydrated" | "Md5Mismatch" | "IncompleteBody" => {
            StoreError::Unknown(format!("the store returned {code}"))
        }
        _ if is_refusal(status) => refused("find the code in Azure's list of Blob service error codes"),
        _ => StoreError::Unknown(format!("the store returned {code}")),
    }
}

fn not_accepted(credentials: &ShownCredentials, error: &Error) -> StoreError {
    let reason = shown_reason(error);
    let remedy = credentials.expired(OffsetDateTime::now_utc()).unwrap_or_else(|| {
        "check that the credentials are complete and for this account, and check this machine's clock".to_owned()
    });
    StoreError::Misconfigured(format!("the store does not accept {credentials} ({reason}): {remedy}"))
}

fn may_not(container: &str, credentials: &ShownCredentials, error: &Error) -> StoreError {
    let reason = shown_reason(error);
    let remedy = "check the key or the rights, and the account's network rules; an identity needs the role Storage Blob Data \
                  Contributor, and new roles take effect after some minutes";
    let lacks = credentials.lacks().map(|lacks| format!("{lacks}; otherwise ")).unwrap_or_default();
    StoreError::Misconfigured(format!("{MAY_NOT} {container} ({reason}; {credentials}): {lacks}{remedy}"))
}

fn shown_reason(error: &Error) -> String {
    let code = code(error).unwrap_or("no code");
    // Omit the text of the SDK's own HTTP errors: it contains all headers and the body.
    let text = if error.as_http_error().is_some() { String::new() } else { error.to_string() };
    if text.is_empty() { code.to_owned() } else { format!("{code}: {text}") }
}

/// True if the status means that the store has not carried out the request and would refuse it again.
fn is_refusal(status: StatusCode) -> bool {
    let passes = [StatusCode::RequestTimeout, StatusCode::TooManyRequests, StatusCode::PreconditionFailed];
    (400..500).contains(&u16::from(status)) && !passes.contains(&status)
}

/// Environment variables that name a proxy for other programs. Baton does not use a proxy here, because the lease must
/// not depend on one.
const PROXIES: [&str; 4] = ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];

fn unanswered(text: &str) -> StoreError {
    if text.contains("invalid peer certificate") {
        return StoreError::Misconfigured(format!(
            "the store's certificate is not trusted ({text}): if your network's own CA signed it, add the CA to the \
             system's certificates, or name the CA's file in SSL_CERT_FILE"
        ));
    }
    if text.contains("dns error") {
        return StoreError::Misconfigured(format!(
            "the storage account's name does not resolve: check `--store` and this machine's DNS ({text})"
        ));
    }
    let proxy = PROXIES.into_iter().find(|name| text.contains("onnect") && of_process(name).is_some());
    let hint = proxy.map(|name| format!("; Baton does not use the proxy in {name} for the store")).unwrap_or_default();
    StoreError::Unknown(format!("{text}{hint}"))
}

/// Returns the text of an error and its causes. Omits the queries of URLs, because they may contain a SAS.
pub(super) fn error_chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    let words = text.split_whitespace().map(|word| match word.split_once('?') {
        Some((url, query)) if url.contains("://") => {
            format!("{url}{}", &query[query.trim_end_matches([')', ':', ',']).len()..])
        }
        _ => word.to_owned(),
    });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;

    fn of(code: Option<&str>, status: StatusCode) -> StoreError {
        let kind = ErrorKind::HttpResponse { status, error_code: code.map(str::to_owned) };
        store_error(RequestKind::OfLease, "leases", &ShownCredentials::default(), &Error::message(kind, "cut"))
    }

    #[test]
    fn reason_omits_text_that_differs_each_time() {
        for (detail, shown) in [
            (
                "Signature not valid in the specified time frame: Start [Fri, 27 Nov 2026 07:00:00 GMT] - Expiry [..]",
                Some("Signature not valid in the specified time frame"),
            ),
            ("Request date header too old: 'Fri, 27 Nov 2026 09:22:00 GMT'", Some("Request date header too old")),
            ("The MAC signature found is &apos;c2VjcmV0&apos;", Some("The MAC signature found is")),
            ("Issuer validation failed. Issuer did not match.", Some("Issuer validation failed. Issuer did not match")),
            ("", None),
        ] {
            let body = format!("<Error><AuthenticationErrorDetail>{detail}</AuthenticationErrorDetail></Error>");
            assert_eq!(reason(&body).as_deref(), shown, "{detail}");
        }
        assert_eq!(reason("<html>"), None);
        assert_eq!(element("<Error><Code>AuthenticationFailed</Code></Error>", "Code"), Some("AuthenticationFailed"));
    }

    #[test]
    fn clock_offset_is_shown_from_one_minute_on() {
        let now = OffsetDateTime::from_unix_timestamp(1_795_770_000).unwrap();
        let at = |seconds: i64| clock_offset(&(now + time::Duration::seconds(seconds)).format(&Rfc2822).unwrap(), now);
        assert_eq!((at(0), at(59), at(-59), at(3599)), (None, None, None, at(3601)));
        assert!(at(-22 * 60).unwrap().contains("22 min ahead of"));
        assert!(at(22 * 60).unwrap().contains("22 min behind"));
        assert_eq!(clock_offset("no date", now), None);
    }

    #[test]
    fn busy_server_codes_are_unknown_and_never_lost() {
        for (code, status) in [
            (Some("ServerBusy"), StatusCode::ServiceUnavailable),
            (Some("InternalError"), StatusCode::InternalServerError),
            (Some("OperationTimedOut"), StatusCode::InternalServerError),
            (Some("TooManyRequests"), StatusCode::TooManyRequests),
            (Some("ContainerBeingDeleted"), StatusCode::Conflict),
            (Some("AccountBeingCreated"), StatusCode::Conflict),
            (Some("IncompleteBody"), StatusCode::BadRequest),
            (None, StatusCode::BadGateway),
            (None, StatusCode::Forbidden),
        ] {
            assert!(matches!(of(code, status), StoreError::Unknown(_)), "{code:?}");
        }
    }

    #[test]
    fn answer_without_code_is_unknown_whatever_its_text() {
        for text in ["HTTP 502 from something that is not Azure Storage (server: dns error)", ""] {
            let kind = ErrorKind::HttpResponse { status: StatusCode::BadGateway, error_code: None };
            let error =
                store_error(RequestKind::OfLease, "leases", &ShownCredentials::default(), &Error::message(kind, text));
            let StoreError::Unknown(shown) = error else { panic!("{error:?}") };
            assert!(shown.contains("502"), "{shown}");
        }
    }

    #[test]
    fn permanent_refusal_is_misconfigured_even_if_unlisted() {
        for (code, status) in [
            ("KeyBasedAuthenticationNotPermitted", StatusCode::Forbidden),
            ("AuthorizationProtocolMismatch", StatusCode::Forbidden),
            ("AuthorizationSourceIPMismatch", StatusCode::Forbidden),
            ("AuthorizationServiceMismatch", StatusCode::Forbidden),
            ("AuthorizationResourceTypeMismatch", StatusCode::Forbidden),
            ("NoAuthenticationInformation", StatusCode::Unauthorized),
            ("ResourceNotFound", StatusCode::NotFound),
            ("PublicAccessNotPermitted", StatusCode::Conflict),
            ("AccountRequiresHttps", StatusCode::BadRequest),
            ("FeatureVersionMismatch", StatusCode::Conflict),
            ("BlobTypeNotSupported", StatusCode::BadRequest),
            ("ContainerDisabled", StatusCode::Forbidden),
            ("ACodeOfTomorrow", StatusCode::BadRequest),
        ] {
            assert!(matches!(of(Some(code), status), StoreError::Misconfigured(_)), "{code}");
        }
    }

    #[test]
    fn error_chain_hides_the_sas() {
        let told_of = |text: &'static str| error_chain(&Error::message(ErrorKind::Io, text));
        assert_eq!(told_of("cannot send to https://a.b/c?sv=1&sig=secret now"), "cannot send to https://a.b/c now");
        assert_eq!(told_of("cannot send (https://a.b/c?sig=s:ecret): cut"), "cannot send (https://a.b/c): cut");
    }
}
