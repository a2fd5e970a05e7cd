//! Access to Azure storage: an account whose endpoint comes from the connection string, and credentials with limited
//! permissions.

use azure_storage::shared_access_signature::service_sas::BlobSasPermissions;

use crate::fleet::{ELECTION, Fleet};
use crate::node::{Event, Finished, Node, baton, finish};
use crate::store::Store;

const ACCOUNT: &str = "azure://devstoreaccount1/fleet";
const CONNECTION_STRING: &str = "AZURE_STORAGE_CONNECTION_STRING";
/// The emulator's well-known key.
const KEY: &str = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

fn node(fleet: &Fleet, name: &str, connection_string: &str) -> Node {
    fleet.launch_with(name, &[("--store", ACCOUNT)]).env(CONNECTION_STRING, connection_string).start()
}

fn command(fleet: &Fleet, connection_string: &str, args: &[&str]) -> Finished {
    let mut command = baton(fleet.home.path());
    command.args(args).args(["--store", ACCOUNT]).env(CONNECTION_STRING, connection_string);
    finish(command)
}

#[test]
fn connection_string_sets_endpoint_of_account() {
    let fleet = Fleet::new(Store::azurite());
    let by_key = format!("AccountName=devstoreaccount1;AccountKey={KEY};BlobEndpoint={}", fleet.store.endpoint());
    let mut alpha = node(&fleet, "alpha", &by_key);
    let term = fleet.beat_above(0).term;
    let status = command(&fleet, &by_key, &["status", ELECTION, "--output=json"]);
    assert_eq!(status.code, Some(0), "{status:?}");
    assert_eq!((&status.json()[0]["node"], &status.json()[0]["term"]), (&"alpha".into(), &term.into()), "{status:?}");
    // `baton status` must find the same election through the other form of the store's URL.
    assert_eq!(fleet.status()["term"], term);
    assert_eq!(alpha.terminate().code(), Some(0));
    fleet.check_promises();

    let other = by_key.replace("AccountName=devstoreaccount1;", "").replace("/devstoreaccount1", "/contoso");
    for args in [&["status"][..], &["rerun", ELECTION]] {
        let refused = command(&fleet, &other, args);
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.stderr.contains(CONNECTION_STRING) && refused.stderr.contains("contoso"), "{refused:?}");
        assert!(!refused.stderr.contains(KEY), "{refused:?}");
    }
}

/// The permissions that a host needs.
fn enough() -> BlobSasPermissions {
    BlobSasPermissions { read: true, write: true, create: true, add: true, list: true, ..Default::default() }
}

const FORBIDDEN: [&str; 3] = ["AuthorizationPermissionMismatch", "container fleet", "the rights"];

#[test]
fn signature_without_write_is_reported_once_and_node_waits() {
    let fleet = Fleet::new(Store::azurite());
    let by_sas = |rights| {
        format!("BlobEndpoint={};SharedAccessSignature={}", fleet.store.endpoint(), fleet.store.signature(rights))
    };
    let reads = by_sas(BlobSasPermissions { write: false, create: false, add: false, ..enough() });
    let mut alpha = node(&fleet, "alpha", &reads);
    let complaints = |events: &[Event]| {
        let of_alpha = events.iter().filter(|event| event.name == "misconfigured" && event.from == "alpha");
        of_alpha.cloned().collect::<Vec<_>>()
    };
    let first = fleet.journal.wait("a complaint", |events| complaints(events).first().cloned());
    for word in FORBIDDEN {
        assert!(first.raw.contains(word), "no `{word}` in {first:?}");
    }
    // Beta may write, so it leads. Alpha may only read, but still becomes beta's standby.
    let mut beta = node(&fleet, "beta", &by_sas(enough()));
    let term = fleet.beat_above(0).term;
    alpha.event("to follow beta", |event| event.name == "standby" && event.text("reason").contains("beta"));
    let status = command(&fleet, &reads, &["status", "--output=json"]);
    assert_eq!((status.code, &status.json()[0]["term"]), (Some(0), &term.into()), "{status:?}");
    assert!(alpha.is_running(), "a host survives problems of its store");
    assert_eq!((alpha.terminate().code(), beta.terminate().code()), (Some(0), Some(0)));
    // The node logs `misconfigured` a second time only if it has logged `unreachable` in between.
    let events = fleet.journal.events();
    let silences = events.iter().filter(|event| event.name == "unreachable" && event.from == "alpha").count();
    assert!(complaints(&events).len() <= 1 + silences, "the same problem is reported once: {events:?}");
    let signature = reads.split("sig=").nth(1).expect("a signature");
    assert!(!format!("{:?}", fleet.journal.events()).contains(signature), "a signature is never logged");
    fleet.check_promises();
}

/// A node that cannot list announcements does not know whether this is the first term. So the node waits as if the
/// lease of a previous term had to expire first.
#[test]
fn signature_without_list_waits_for_previous_lease() {
    let fleet = Fleet::new(Store::azurite());
    let rights = BlobSasPermissions { list: false, ..enough() };
    let by_sas =
        format!("BlobEndpoint={};SharedAccessSignature={}", fleet.store.endpoint(), fleet.store.signature(rights));
    let alpha = node(&fleet, "alpha", &by_sas);
    let complaint = alpha.event("a complaint", |event| event.name == "misconfigured");
    for word in FORBIDDEN {
        assert!(complaint.raw.contains(word), "no `{word}` in {complaint:?}");
    }
    let waiting = alpha.event("to wait", |event| event.name == "waiting_for_previous_lease");
    assert!(waiting.text("reason").contains("cannot be read"), "{waiting:?}");
    assert!(waiting.fields["wait_s"].as_f64() >= Some(fleet.lease().as_secs_f64()), "{waiting:?}");
    let early = fleet.journal.events().into_iter().find(|event| event.name == "elected");
    assert!(early.is_none(), "{early:?}");
}

#[test]
fn signature_without_read_shows_no_status() {
    let fleet = Fleet::new(Store::azurite());
    let (_alpha, _) = fleet.leader("alpha");
    let status = |rights, args: &[&str]| {
        let by_sas =
            format!("BlobEndpoint={};SharedAccessSignature={}", fleet.store.endpoint(), fleet.store.signature(rights));
        command(&fleet, &by_sas, &[&["status"], args].concat())
    };
    let forbidden = |finished: Finished| {
        assert_eq!((finished.code, finished.stdout.as_str()), (Some(1), ""), "{finished:?}");
        for word in FORBIDDEN {
            assert!(finished.stderr.contains(word), "no `{word}` in {finished:?}");
        }
    };
    forbidden(status(BlobSasPermissions { read: false, ..enough() }, &[ELECTION]));
    // Reading the status of a single election does not require permission to list the elections.
    let unlisted = BlobSasPermissions { list: false, ..enough() };
    forbidden(status(unlisted, &[]));
    let one = status(BlobSasPermissions { list: false, ..enough() }, &[ELECTION]);
    assert!(one.code == Some(0) && one.stdout.contains("alpha"), "{one:?}");
}
