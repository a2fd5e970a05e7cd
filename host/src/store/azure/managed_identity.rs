//! Tokens of a managed identity, from the endpoint that the machine or the service offers to what runs
//! on it. By hand, because `azure_identity` 0.21 knows only the identity that the system assigned.
//!
//! The protocol: <https://learn.microsoft.com/entra/identity/managed-identities-azure-resources/how-to-use-vm-token>
//! and, for App Service and Container Apps,
//! <https://learn.microsoft.com/azure/app-service/overview-managed-identity#rest-endpoint-reference>.

use azure_core::auth::AccessToken;
use azure_core::error::{Error, ErrorKind};
use serde::Deserialize;
use time::OffsetDateTime;
use url::Url;

/// Where to ask, and as whom.
#[derive(Debug)]
pub(super) struct ManagedIdentity {
    endpoint: String,
    api_version: &'static str,
    /// A header that a forged request could not have.
    header: (&'static str, String),
    /// Which of the machine's identities: `AZURE_CLIENT_ID`, else the one that the system assigned.
    client_id: Option<String>,
}

#[derive(Deserialize)]
struct Answer {
    access_token: String,
    /// Seconds since the Unix epoch; some services write it as a number.
    expires_on: serde_json::Value,
}

impl ManagedIdentity {
    /// As the variables say, by `var`: App Service's endpoint if there is one, else the virtual machine's.
    pub fn from_environment(var: impl Fn(&str) -> Option<String>) -> Self {
        let client_id = var("AZURE_CLIENT_ID");
        if let Some(endpoint) = var("IDENTITY_ENDPOINT") {
            let secret = var("IDENTITY_HEADER").unwrap_or_default();
            return Self { endpoint, api_version: "2019-08-01", header: ("X-IDENTITY-HEADER", secret), client_id };
        }
        let host = var("AZURE_POD_IDENTITY_AUTHORITY_HOST").unwrap_or("http://169.254.169.254".to_owned());
        Self {
            endpoint: format!("{}/metadata/identity/oauth2/token", host.trim_end_matches('/')),
            api_version: "2018-02-01",
            header: ("Metadata", "true".to_owned()),
            client_id,
        }
    }

    /// A token for the first of `scopes`.
    pub async fn token(&self, scopes: &[String]) -> Result<AccessToken, Error> {
        let scope = scopes.first().map(String::as_str).unwrap_or_default();
        let resource = scope.strip_suffix("/.default").unwrap_or(scope);
        let mut url = Url::parse(&self.endpoint).map_err(failed)?;
        url.query_pairs_mut().append_pair("api-version", self.api_version).append_pair("resource", resource);
        if let Some(client_id) = &self.client_id {
            url.query_pairs_mut().append_pair("client_id", client_id);
        }
        // The endpoint is next door: no proxy leads to it, and it redirects nobody.
        let client = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .timeout(super::credentials::SOURCE_WITHIN)
            .build()
            .map_err(failed)?;
        let answer = client.get(url).header(self.header.0, &self.header.1).send().await.map_err(failed)?;
        let status = answer.status();
        let body = answer.bytes().await.map_err(failed)?;
        if !status.is_success() {
            let said = String::from_utf8_lossy(&body);
            let said: String = said.chars().filter(|c| !c.is_control()).take(300).collect();
            let problem = match &self.client_id {
                Some(id) => format!("no token for the identity {id} of AZURE_CLIENT_ID ({status}): {said}"),
                None => format!("no token ({status}): {said}"),
            };
            return Err(Error::message(ErrorKind::Credential, problem));
        }
        let answer: Answer = serde_json::from_slice(&body).map_err(failed)?;
        let expires_on = match &answer.expires_on {
            serde_json::Value::String(text) => text.parse().ok(),
            number => number.as_i64(),
        };
        let expires_on = expires_on.and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok());
        let expires_on = expires_on.ok_or_else(|| Error::message(ErrorKind::Credential, "a token without an end"))?;
        Ok(AccessToken::new(answer.access_token, expires_on))
    }
}

fn failed(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(ErrorKind::Credential, error)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// Asks an endpoint on loopback that gives this answer; returns the request's head, too.
    async fn asked(variables: &[(&str, &str)], answer: &str) -> (String, Result<AccessToken, Error>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let identity = ManagedIdentity::from_environment(|name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.replace("HOST", &address))
        });
        let serve = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            stream.write_all(answer.as_bytes()).await.unwrap();
            String::from_utf8(head).unwrap()
        };
        let scopes = ["https://storage.azure.com/.default".to_owned()];
        tokio::join!(serve, identity.token(&scopes))
    }

    fn ok(body: &str) -> String {
        format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
    }

    #[tokio::test]
    async fn a_virtual_machine_is_asked_for_the_identity_that_is_named() {
        let body = r#"{"access_token":"t0ken","expires_on":"4102444800","token_type":"Bearer"}"#;
        let variables = [("AZURE_POD_IDENTITY_AUTHORITY_HOST", "HOST/"), ("AZURE_CLIENT_ID", "a-b")];
        let (head, token) = asked(&variables, &ok(body)).await;
        let line = "GET /metadata/identity/oauth2/token?api-version=2018-02-01&resource=https%3A%2F%2Fstorage.azure.com\
                    &client_id=a-b HTTP/1.1\r\n";
        assert!(head.starts_with(line) && head.contains("metadata: true\r\n"), "{head}");
        let token = token.unwrap();
        assert_eq!((token.token.secret(), token.expires_on.unix_timestamp()), ("t0ken", 4_102_444_800));
    }

    #[tokio::test]
    async fn a_service_is_asked_with_its_secret() {
        let variables = [("IDENTITY_ENDPOINT", "HOST/msi/token"), ("IDENTITY_HEADER", "s3cr3t")];
        let (head, token) = asked(&variables, &ok(r#"{"access_token":"t","expires_on":4102444800}"#)).await;
        assert!(
            head.starts_with("GET /msi/token?api-version=2019-08-01&resource=https%3A%2F%2Fstorage.azure.com HTTP")
        );
        assert!(head.contains("x-identity-header: s3cr3t\r\n"), "{head}");
        assert_eq!(token.unwrap().token.secret(), "t");
    }

    #[tokio::test]
    async fn a_refusal_says_which_identity_and_why() {
        let variables = [("AZURE_POD_IDENTITY_AUTHORITY_HOST", "HOST"), ("AZURE_CLIENT_ID", "a-b")];
        let refusal = "HTTP/1.1 400 Bad Request\r\ncontent-length: 18\r\n\r\nIdentity not found";
        let error = asked(&variables, refusal).await.1.unwrap_err().to_string();
        assert_eq!(error, "no token for the identity a-b of AZURE_CLIENT_ID (400 Bad Request): Identity not found");
        for body in ["{}", "[]", r#"{"access_token":"t","expires_on":"never"}"#] {
            assert!(asked(&variables, &ok(body)).await.1.is_err(), "{body}");
        }
    }
}
