//! Tests of the Azure store's account and credentials. Environment variables set the account and the credentials, so
//! each test sends its requests from a child process.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]
#![allow(clippy::disallowed_methods, reason = "nobody suspends the machine while it is tested")]

mod identities;

use std::process::Command;
use std::time::Duration;

use azure_storage::prelude::SasToken;
use azure_storage::shared_access_signature::service_sas::BlobSasPermissions;
use azure_storage::{CloudLocation, StorageCredentials};
use azure_storage_blobs::prelude::{ClientBuilder, ContainerClient};
use baton_election::{ElectionName, LeaseId, Op, Record};
use baton_store::StoreUrl;
use baton_test_support::azurite::Azurite;
use time::OffsetDateTime;

const STORE: &str = "BATON_TEST_STORE";
const CONNECTION_STRING: &str = "AZURE_STORAGE_CONNECTION_STRING";
const CONTAINER: &str = "container";
/// The emulator's well-known account key.
const KEY: &str = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// Sends requests to a store from a process with these environment variables. Returns what the process prints about the
/// answers.
pub fn answers(store: &str, variables: &[(&str, &str)]) -> String {
    let out = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "--nocapture", "as_a_process_of_its_own"])
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env(STORE, store)
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr)
}

#[tokio::test]
#[ignore = "run by the tests beside it, as a process of its own"]
async fn as_a_process_of_its_own() {
    let url: StoreUrl = std::env::var(STORE).expect("it is run by other tests only").parse().unwrap();
    let store = match baton_store::open(&url) {
        Ok(store) => store,
        Err(error) => return println!("cannot be opened: {error} {error:?}"),
    };
    let (job, id) = (ElectionName::new("job").unwrap(), LeaseId::from_random(0xa));
    let record = Record {
        term: 1,
        node: None,
        incarnation: String::new(),
        since: Duration::ZERO,
        lease: Duration::from_secs(15),
        module: None,
        outcome: None,
        failures: 0,
        released: false,
        paused_until: None,
        progress: None,
    };
    for op in [Op::Read, Op::Create { record }, Op::Read, Op::Renew { id }] {
        match store.request(&job, op.clone()).await {
            Ok(reply) => println!("{op}: {reply:?}"),
            Err(error) => println!("{op}: {error} {error:?}"),
        }
    }
    match store.elections().await {
        Ok(elections) => println!("list: {elections:?}"),
        Err(error) => println!("list: {error} {error:?}"),
    }
}

/// Creates the container, and returns a SAS that grants these rights to it.
async fn container(azurite: &Azurite, rights: BlobSasPermissions) -> String {
    client(azurite).create().await.unwrap();
    signature(azurite, rights).await
}

async fn signature(azurite: &Azurite, rights: BlobSasPermissions) -> String {
    let until = OffsetDateTime::now_utc() + time::Duration::hours(1);
    client(azurite).shared_access_signature(rights, until).await.unwrap().token().unwrap()
}

fn client(azurite: &Azurite) -> ContainerClient {
    let location = CloudLocation::Emulator { address: "127.0.0.1".to_owned(), port: azurite.address().port() };
    ClientBuilder::with_location(location, StorageCredentials::emulator()).container_client(CONTAINER)
}

fn enough() -> BlobSasPermissions {
    BlobSasPermissions { read: true, write: true, create: true, add: true, list: true, ..Default::default() }
}

fn at(azurite: &Azurite) -> String {
    format!("azurite://{}/{CONTAINER}", azurite.address())
}

#[tokio::test]
async fn credentials_of_the_environment_are_used_and_never_shown() {
    let azurite = Azurite::start();
    let sas = container(&azurite, enough()).await;
    let with_sas = |sas: &str| format!("AccountName=devstoreaccount1;SharedAccessSignature={sas}");

    let good = answers(&at(&azurite), &[(CONNECTION_STRING, &with_sas(&sas))]);
    assert!(good.contains("create: Version") && good.contains("term: 1"), "{good}");

    let spoilt = sas.replace("sig=", "sig=c2VjcmV0");
    let wrong = answers(&at(&azurite), &[(CONNECTION_STRING, &with_sas(&spoilt))]);
    assert!(wrong.contains("create: ") && wrong.contains("Misconfigured"), "{wrong}");
    assert!(!wrong.contains("c2VjcmV0"), "{wrong}");

    // This is not the emulator's account key.
    let other = "AccountName=devstoreaccount1;AccountKey=c2VjcmV0c2VjcmV0";
    let wrong = answers(&at(&azurite), &[(CONNECTION_STRING, other)]);
    assert!(wrong.contains("Misconfigured") && wrong.contains("check the key"), "{wrong}");
    assert!(!wrong.contains("c2VjcmV0"), "{wrong}");

    // Nothing listens on this address. The error must contain the address.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let nobody = answers(&format!("azurite://{closed}/{CONTAINER}"), &[(CONNECTION_STRING, &with_sas(&spoilt))]);
    assert!(nobody.contains("create: ") && nobody.contains(&closed.to_string()), "{nobody}");
    assert!(nobody.contains("Unknown") && !nobody.contains("c2VjcmV0"), "{nobody}");

    let nonsense = answers(&at(&azurite), &[(CONNECTION_STRING, "AccountKey")]);
    assert!(nonsense.contains("cannot be opened") && nonsense.contains(CONNECTION_STRING), "{nonsense}");
}

#[tokio::test]
async fn signature_without_rights_is_reported_with_a_remedy() {
    let azurite = Azurite::start();
    let all = container(&azurite, enough()).await;
    let told = |sas: &str| answers(&at(&azurite), &[(CONNECTION_STRING, &format!("SharedAccessSignature={sas}"))]);
    let made = told(&all);
    assert!(made.contains("create: Version") && made.contains("list: ["), "{made}");
    for (rights, forbidden, allowed) in [
        (
            BlobSasPermissions { write: false, create: false, add: false, ..enough() },
            ["create", "renew"],
            ["read", "list"],
        ),
        (BlobSasPermissions { read: false, list: false, ..enough() }, ["read", "list"], ["create", "renew"]),
    ] {
        let told = told(&signature(&azurite, rights).await);
        let line = |request: &str| told.lines().find(|line| line.starts_with(request)).unwrap_or(&told).to_owned();
        for request in forbidden {
            let line = line(request);
            assert!(line.contains("Misconfigured") && line.contains("AuthorizationPermissionMismatch"), "{line}");
            assert!(line.contains(&format!("the container {CONTAINER}")) && line.contains("the rights"), "{line}");
        }
        for request in allowed {
            // The store carries out the request, or refuses it for a reason other than missing rights.
            assert!(!line(request).contains("Misconfigured"), "{told}");
        }
    }
}

#[tokio::test]
async fn account_address_comes_from_connection_string_or_endpoint() {
    let azurite = Azurite::start();
    let sas = container(&azurite, enough()).await;
    let endpoint = format!("http://{}/devstoreaccount1", azurite.address());
    let account = format!("azure://devstoreaccount1/{CONTAINER}");
    let by_key = format!("AccountName=devstoreaccount1;AccountKey={KEY};BlobEndpoint={endpoint};");
    // The format that the Azure portal shows: no account name, and a slash at the end of the endpoint.
    let by_sas = format!("BlobEndpoint={endpoint}/;SharedAccessSignature={sas}");
    let elsewhere = ("AZURE_STORAGE_SERVICE_ENDPOINT", endpoint.as_str());
    for (n, variables) in [
        &[(CONNECTION_STRING, by_key.as_str())][..],
        &[(CONNECTION_STRING, by_sas.as_str())],
        &[elsewhere, ("AZURE_STORAGE_KEY", KEY)],
        &[elsewhere, ("AZURE_STORAGE_SAS_TOKEN", sas.as_str())],
    ]
    .into_iter()
    .enumerate()
    {
        let told = answers(&account, variables);
        // The first process creates the record, and the others find it.
        let created = if n == 0 { "create: Version" } else { "Conflict" };
        assert!(told.contains(created) && told.contains("term: 1") && told.contains("list: ["), "{told}");
    }
    let other = answers(&format!("azure://contoso/{CONTAINER}"), &[(CONNECTION_STRING, &by_sas)]);
    assert!(other.contains("cannot be opened") && other.contains("the account devstoreaccount1"), "{other}");
}
