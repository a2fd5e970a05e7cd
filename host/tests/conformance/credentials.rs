//! How the Azure store proves who it is: by what it finds in its environment, so as a process of its own.

use std::process::Command;

use azure_storage::prelude::SasToken;
use azure_storage::shared_access_signature::service_sas::BlobSasPermissions;
use azure_storage::{CloudLocation, StorageCredentials};
use azure_storage_blobs::prelude::ClientBuilder;
use baton::store::{AzureStore, LeaseStore};
use baton_election::Op;
use time::OffsetDateTime;

use crate::azurite::Azurite;
use crate::suite::{job, record};

const ADDRESS: &str = "BATON_TEST_ADDRESS";
const CONNECTION_STRING: &str = "AZURE_STORAGE_CONNECTION_STRING";
const CONTAINER: &str = "container";

/// Asks the emulator's store from a process with such a connection string. Returns what it says of the answers.
fn answers(port: u16, connection_string: &str) -> String {
    answers_with(&[(ADDRESS, &format!("127.0.0.1:{port}")), (CONNECTION_STRING, connection_string)])
}

/// The same with these variables; without an address, of an account that is not the emulator's.
fn answers_with(variables: &[(&str, &str)]) -> String {
    let out = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "--nocapture", "credentials::as_a_process_of_its_own"])
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr)
}

#[tokio::test]
#[ignore = "run by the tests beside it, as a process of its own"]
async fn as_a_process_of_its_own() {
    let opened = match std::env::var(ADDRESS) {
        Ok(address) => AzureStore::emulator(&address, CONTAINER),
        Err(_) => AzureStore::open("devstoreaccount1", CONTAINER),
    };
    let store = match opened {
        Ok(store) => store,
        Err(error) => return println!("cannot be opened: {error} {error:?}"),
    };
    let create = Op::Create { record: record(1) };
    for op in [create, Op::Read] {
        match store.request(&job(), op.clone()).await {
            Ok(reply) => println!("{op}: {reply:?}"),
            Err(refusal) => println!("{op}: {refusal} {refusal:?}"),
        }
    }
}

async fn container(azurite: &Azurite) -> String {
    let location = CloudLocation::Emulator { address: "127.0.0.1".to_owned(), port: azurite.address().port() };
    let container = ClientBuilder::with_location(location, StorageCredentials::emulator()).container_client(CONTAINER);
    container.create().await.unwrap();
    let rights = BlobSasPermissions { read: true, write: true, create: true, add: true, ..Default::default() };
    let until = OffsetDateTime::now_utc() + time::Duration::hours(1);
    container.shared_access_signature(rights, until).await.unwrap().token().unwrap()
}

#[tokio::test]
async fn a_key_or_a_signature_of_the_environment_is_used_and_never_shown() {
    let azurite = Azurite::start();
    let sas = container(&azurite).await;
    let with_sas = |sas: &str| format!("AccountName=devstoreaccount1;SharedAccessSignature={sas}");

    let good = answers(azurite.address().port(), &with_sas(&sas));
    assert!(good.contains("create: Version") && good.contains("term: 1"), "{good}");

    let spoilt = sas.replace("sig=", "sig=c2VjcmV0");
    let wrong = answers(azurite.address().port(), &with_sas(&spoilt));
    assert!(wrong.contains("create: ") && wrong.contains("Misconfigured"), "{wrong}");
    assert!(!wrong.contains("c2VjcmV0"), "{wrong}");

    // Not the emulator's key.
    let wrong = answers(azurite.address().port(), "AccountName=devstoreaccount1;AccountKey=c2VjcmV0c2VjcmV0");
    assert!(wrong.contains("Misconfigured") && wrong.contains("check the key"), "{wrong}");
    assert!(!wrong.contains("c2VjcmV0"), "{wrong}");

    // Nobody listens, and the error tells the address that was asked.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let nobody = answers(closed, &with_sas(&spoilt));
    assert!(nobody.contains("create: ") && nobody.contains(&format!("127.0.0.1:{closed}")), "{nobody}");
    assert!(nobody.contains("Unknown") && !nobody.contains("c2VjcmV0"), "{nobody}");

    let nonsense = answers(azurite.address().port(), "AccountKey");
    assert!(nonsense.contains("cannot be opened") && nonsense.contains(CONNECTION_STRING), "{nonsense}");
}

#[tokio::test]
async fn an_account_is_reached_where_the_environment_says_that_it_is() {
    let azurite = Azurite::start();
    let sas = container(&azurite).await;
    let endpoint = format!("http://{}/devstoreaccount1", azurite.address());
    // The key is the emulator's own, which everybody may know.
    let key = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";
    let by_key = format!("AccountName=devstoreaccount1;AccountKey={key};BlobEndpoint={endpoint};");
    let by_sas = format!("BlobEndpoint={endpoint}/;SharedAccessSignature={sas}");
    for (variables, answer) in [
        (vec![(CONNECTION_STRING, by_key.as_str())], "create: Version"),
        (vec![(CONNECTION_STRING, &by_sas)], "create: the record has changed"),
        (vec![("AZURE_STORAGE_KEY", key), ("AZURE_STORAGE_SERVICE_ENDPOINT", &endpoint)], "read: Read"),
    ] {
        let answers = answers_with(&variables);
        assert!(answers.contains(answer) && answers.contains("term: 1"), "{answers}");
    }
}
