//! Tests of credential helpers. The environment variables decide which helper is found, and they apply to a whole
//! process. Each test therefore pulls its module in a separate process.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use super::*;

const REFERENCE: &str = "BATON_TEST_REFERENCE";

/// Pulls a module in a separate process, with this configuration, and with this script as the helper
/// `docker-credential-cave`. Returns the process's output.
fn answer(registry: &Registry, helper: &str, config: &Value) -> String {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("docker-credential-cave");
    std::fs::write(&program, format!("#!/bin/sh\n{helper}\n")).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths([folder.path().into()].into_iter().chain(std::env::split_paths(&path))).unwrap();
    process(folder.path(), &format!("{}/{REPOSITORY}:1", registry.address()), [("PATH", path.as_os_str())])
}

/// Pulls a module in a separate process, because environment variables apply to a whole process. `config` is the folder
/// with Docker's configuration. Returns the process's output.
pub fn process<'a>(
    config: &Path,
    reference: &str,
    variables: impl IntoIterator<Item = (&'static str, &'a OsStr)>,
) -> String {
    let out = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "--nocapture", "helpers::as_a_process_of_its_own"])
        .env_clear()
        .envs(variables)
        .env("DOCKER_CONFIG", config)
        .env(REFERENCE, reference)
        .output()
        .unwrap();
    String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr)
}

#[tokio::test]
#[ignore = "run by the tests beside it, as a process of its own"]
async fn as_a_process_of_its_own() {
    let reference = std::env::var(REFERENCE).expect("it is run by other tests only").parse().unwrap();
    let mut source = OciSource::new(reference, RegistryCredentials::of_process());
    println!("told: {:?}", told(&mut source).await);
}

#[tokio::test]
async fn credential_helper_is_asked_and_may_fail() {
    let registry = Registry::start_closed();
    Publisher::of(&registry).push("1", b"first").await;
    let server = registry.address().to_string();
    let store = json!({"auths": {&server: {}}, "credsStore": "cave"});
    let says = format!(r#"echo '{{"ServerURL": "", "Username": "{}", "Secret": "{}"}}'"#, USER.0, USER.1);
    let knows = format!("[ \"$1\" = get ] && [ \"$(cat)\" = {server} ] && {says}");
    let asked = |helper: &str, config: &Value| answer(&registry, helper, config);

    let good = asked(&knows, &store);
    assert!(good.contains("told: Ok(Offer"), "{good}");
    let good = asked(&knows, &json!({"credHelpers": {&server: "cave"}, "credsStore": "missing"}));
    assert!(good.contains("told: Ok(Offer"), "{good}");

    let none = asked("echo 'credentials not found in native keychain'; exit 1", &store);
    assert!(none.contains("without credentials"), "{none}");
    for (helper, why) in [
        ("echo hush; exit 1", "returned no credentials for"),
        ("echo '{\"Username\": \"hush\"}'", "returned an invalid response"),
        ("yes hush", "returned no credentials for"),
        ("exec sleep 600", "did not respond within"),
    ] {
        let wrong = asked(helper, &store);
        assert!(wrong.contains("docker-credential-cave") && wrong.contains(why), "{helper}: {wrong}");
        assert!(!wrong.contains("hush"), "{wrong}");
    }
    let missing = asked("", &json!({"credsStore": "missing"}));
    assert!(missing.contains("docker-credential-missing cannot be run"), "{missing}");
}
