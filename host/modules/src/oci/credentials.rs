//! The host's credentials for registries, from the configuration files of Docker and Podman.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use docker_credential::{CredentialRetrievalError, DockerCredential, get_credential_from_reader};
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;
use tokio::time::timeout;

use crate::watch::run_blocking;
use baton_base::shell::quoted;
use baton_runtime::{FileError, read_file};

/// Maximum size of Docker's configuration file, in bytes.
const LARGEST_CONFIG: u64 = 4 << 20;
/// Timeout for a helper, which may contact a server.
const HELPER: Duration = Duration::from_secs(20);
/// Maximum size of a credential helper's output, in bytes.
const HELPER_SAYS: u64 = 64 << 10;
/// Docker Hub's host, and Docker Hub's key in the configuration file.
const DOCKER_HUB: (&str, &str) = ("index.docker.io", "https://index.docker.io/v1/");

/// The files that contain credentials for registries. The files are read again whenever a registry asks for
/// credentials.
#[derive(Clone, Debug, Default)]
pub struct RegistryCredentials {
    files: Vec<PathBuf>,
}

/// An error about credentials. It never contains the credentials themselves.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct CredentialsError(String);

impl RegistryCredentials {
    /// Uses the files of the user who runs this process: `$DOCKER_CONFIG/config.json` or `~/.docker/config.json`, then
    /// `$REGISTRY_AUTH_FILE` or `$XDG_RUNTIME_DIR/containers/auth.json`.
    #[must_use]
    pub fn of_process() -> Self {
        let folder =
            |name: &str| std::env::var_os(name).filter(|value: &OsString| !value.is_empty()).map(PathBuf::from);
        let docker = folder("DOCKER_CONFIG").or_else(|| std::env::home_dir().map(|home| home.join(".docker")));
        let podman = folder("REGISTRY_AUTH_FILE")
            .or_else(|| folder("XDG_RUNTIME_DIR").map(|folder| folder.join("containers/auth.json")));
        Self { files: docker.map(|folder| folder.join("config.json")).into_iter().chain(podman).collect() }
    }

    /// Uses these files. If several of them have credentials for a registry, the first one takes precedence.
    #[must_use]
    pub fn of_files(files: impl IntoIterator<Item = PathBuf>) -> Self {
        Self { files: files.into_iter().collect() }
    }

    /// Returns the files, in order of precedence.
    #[must_use]
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// Returns the credentials, and the file that contains them or names their helper.
    pub(super) async fn of(&self, registry: &str) -> Result<Option<(DockerCredential, PathBuf)>, CredentialsError> {
        for file in &self.files {
            let (path, registry) = (file.clone(), registry.to_owned());
            let found = tokio::task::spawn_blocking(move || in_file(&path, &registry)).await;
            let found = match found.map_err(|error| CredentialsError(error.to_string()))?? {
                InConfig::Nothing => None,
                InConfig::Known(credential) => Some(credential),
                InConfig::Helper(helper, server) => ask(&helper, &server).await?,
            };
            if let Some(credential) = found {
                return Ok(Some((credential, file.clone())));
            }
        }
        Ok(None)
    }
}

pub(super) enum InConfig {
    Nothing,
    Known(DockerCredential),
    /// The name of a credential helper, and the key to request from that helper.
    Helper(String, String),
}

fn in_file(path: &Path, registry: &str) -> Result<InConfig, CredentialsError> {
    let wrong = |what: String| CredentialsError(format!("the credentials in {} {what}", path.display()));
    match read_file(path, LARGEST_CONFIG) {
        Ok(text) => in_text(&text, registry).map_err(wrong),
        Err(FileError::Unreadable(error))
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            Ok(InConfig::Nothing)
        }
        Err(FileError::Unreadable(error)) => Err(wrong(format!("cannot be read: {error}"))),
        Err(other) => Err(wrong(format!("cannot be read: the file {other}"))),
    }
}

/// Finds a registry's entry in the text of a configuration file. Checks the entries in the same order as Docker. An
/// error describes the problem with the text.
pub(super) fn in_text(text: &[u8], registry: &str) -> Result<InConfig, String> {
    // The parser's message might quote a secret.
    let mut config: Map<String, Value> =
        serde_json::from_slice(text).map_err(|error| format!("are not a JSON object: see line {}", error.line()))?;
    let server = if registry == DOCKER_HUB.0 { DOCKER_HUB.1 } else { registry };
    // Remove the helpers, because the crate `docker_credential` would run them without a timeout. This module runs the
    // helpers itself.
    let helpers = config.remove("credHelpers").unwrap_or_default();
    let store = config.remove("credsStore").unwrap_or_default();
    let named = |helper: &Value| helper.as_str().filter(|name| !name.is_empty()).map(str::to_owned);
    if let Some(helper) = named(&helpers[server]) {
        return Ok(InConfig::Helper(helper, server.to_owned()));
    }
    match get_credential_from_reader(Value::Object(config).to_string().as_bytes(), registry) {
        Ok(credential) => Ok(InConfig::Known(credential)),
        Err(CredentialRetrievalError::NoCredentialConfigured) => Ok(match named(&store) {
            Some(store) => InConfig::Helper(store, server.to_owned()),
            None => InConfig::Nothing,
        }),
        Err(_) => Err(format!("have an invalid entry for {registry}: `docker login` replaces it")),
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct HelpersAnswer {
    username: String,
    secret: String,
}

/// Runs a helper, which returns its credentials for the server. Returns `None` if the helper has none.
async fn ask(helper: &str, server: &str) -> Result<Option<DockerCredential>, CredentialsError> {
    let program = format!("docker-credential-{helper}");
    let command = format!("echo {} | {} get", quoted(server), quoted(&program));
    let wrong = |what: &str| CredentialsError(format!("{program} {what}: try `{command}`"));
    let (success, said) = timeout(HELPER, run(&program, server))
        .await
        .map_err(|_| wrong(&format!("did not respond within {HELPER:?}")))?
        .map_err(|error| wrong(&format!("cannot be run ({error})")))?;
    if !success {
        // In Docker's helper protocol, this message means that the helper has no credentials.
        let none = said.starts_with(b"credentials not found");
        return if none { Ok(None) } else { Err(wrong(&format!("returned no credentials for {server}"))) };
    }
    helpers(&said).map(Some).ok_or_else(|| wrong("returned an invalid response"))
}

/// Parses a helper's response. Returns `None` if the response is invalid.
pub(super) fn helpers(answer: &[u8]) -> Option<DockerCredential> {
    let HelpersAnswer { username, secret } = serde_json::from_slice(answer).ok()?;
    Some(match username.as_str() {
        "<token>" => DockerCredential::IdentityToken(secret),
        _ => DockerCredential::UsernamePassword(username, secret),
    })
}

async fn run(program: &str, server: &str) -> io::Result<(bool, Vec<u8>)> {
    let mut command = Command::new(program);
    command.arg("get").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
    // Spawning blocks until the helper's program is loaded, possibly from a slow file system.
    let mut child = run_blocking(move || command.spawn()).await?;
    if let Some(mut stdin) = child.stdin.take() {
        // Ignore the error: a helper may exit without reading its input.
        let _ = stdin.write_all(server.as_bytes()).await;
    }
    let mut said = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        stdout.take(HELPER_SAYS).read_to_end(&mut said).await?;
    }
    Ok((child.wait().await?.success(), said))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn credentials_are_found_under_dockers_names() -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("config.json");
        let config = json!({
            "auths": {
                "https://index.docker.io/v1/": {"auth": "YWxpOm9wZW4gc2VzYW1l"},
                "cave.azurecr.io": {"auth": "MDAwMDAwMDAtMDAwMC0wMDAwLTAwMDAtMDAwMDAwMDAwMDAwOg==", "identitytoken": "t0ken"},
                "half.example": {"auth": "YWxp"},
            },
            "credHelpers": {"helped.example": "no-such-helper"},
        });
        std::fs::write(&file, config.to_string())?;
        let credentials = RegistryCredentials::of_files([folder.path().join("missing.json"), file.clone()]);

        let found = |credential| Some((credential, file.clone()));
        let ali = DockerCredential::UsernamePassword("ali".to_owned(), "open sesame".to_owned());
        assert_eq!(credentials.of("index.docker.io").await?, found(ali));
        let token = DockerCredential::IdentityToken("t0ken".to_owned());
        assert_eq!(credentials.of("cave.azurecr.io").await?, found(token), "as `az acr login` leaves it");
        assert_eq!(credentials.of("elsewhere.example").await?, None);
        let endless = RegistryCredentials::of_files(["/dev/zero".into()]).of("half.example").await;
        assert!(endless.is_err_and(|error| error.to_string().contains("not a regular file")));
        for (registry, why) in [("half.example", "`docker login` replaces it"), ("helped.example", "cannot be run")] {
            let error = credentials.of(registry).await.map_err(|error| error.to_string());
            assert!(error.as_ref().is_err_and(|error| error.contains(why)), "{error:?}");
        }
        Ok(())
    }
}
