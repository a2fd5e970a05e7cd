//! Trusted keys, pinned digests and the cache. A host refuses modules that are not trusted, and caches to which other
//! users can write.

use std::path::Path;

use baton_store::Digest;
use time::OffsetDateTime;

use crate::fleet::{ELECTION, Fleet};
use crate::guests::Guest;
use crate::minisign::Signer;
use crate::node::{Launch, baton, finish};
use crate::store::Store;

fn launch(fleet: &Fleet, module: &Path) -> Launch {
    let launch = Launch::run("alpha", fleet.home.path(), &fleet.journal).arg(module);
    let env = Guest::Beats.env().map(|(key, value)| format!("{key}={value}"));
    let launch = env.iter().fold(launch, |launch, pair| launch.flag("--env", pair));
    launch.flag("--election", ELECTION).flag("--store", fleet.store.url())
}

#[test]
fn untrusted_module_neither_runs_nor_stops_another() {
    let fleet = Fleet::new(Store::sqlite());
    let (signer, stranger) = (Signer::with_new_key(), Signer::with_new_key());
    let path = fleet.home.path().join("job.wasm");
    let signature = fleet.home.path().join("job.wasm.minisig");
    let offer = |module: &[u8], text: Option<String>| {
        match text {
            Some(text) => std::fs::write(&signature, text).expect("written"),
            None => std::fs::remove_file(&signature).expect("removed"),
        }
        std::fs::write(path.with_extension("new"), module).expect("written");
        std::fs::rename(path.with_extension("new"), &path).expect("renamed");
        Digest::of(module).to_string()
    };
    let first = Guest::Beats.build(1);
    offer(&first, Some(signer.sign(&first)));
    let node = launch(&fleet, &path).flag("--trust", signer.public()).start();
    let term = fleet.beat_above(0).term;

    let mut flipped = Guest::Beats.build(2);
    let half = flipped[..flipped.len() / 2].to_vec();
    let of_whole = signer.sign(&flipped);
    let middle = flipped.len() / 2;
    flipped[middle] ^= 1;
    for (module, text, reason) in [
        (Guest::Beats.build(3), None, "is not signed,"),
        (Guest::Beats.build(4), Some(stranger.sign(&Guest::Beats.build(4))), "that this host trusts (keys: 1)"),
        (Guest::Beats.build(5), Some(signer.sign(&first)), "does not match the module"),
        (flipped, Some(of_whole.clone()), "does not match the module"),
        (half, Some(of_whole), "does not match the module"),
        (Guest::Beats.build(6), Some("signed: me\n".to_owned()), "signature is invalid"),
        // Text with a valid signature is still not a module.
        (b"a text".to_vec(), Some(signer.sign(b"a text")), "not WebAssembly"),
    ] {
        let digest = offer(&module, text);
        node.event(&format!("to refuse it: {reason}"), |event| {
            event.name == "module_refused" && event.text("module") == digest && event.text("error").contains(reason)
        });
        let now = OffsetDateTime::now_utc();
        let beat = fleet.beat("a beat", |event| event.ts > now);
        assert_eq!(beat.term, term, "the instance keeps running");
    }
    let elsewhere = |module: &[u8]| signer.sign_saying(module, "election:other\tfile:job.wasm");
    let digest = offer(&Guest::Beats.build(8), Some(elsewhere(&Guest::Beats.build(8))));
    let refused = node.event("to refuse a module that is signed for another election", |event| {
        event.name == "module_refused" && event.text("module") == digest
    });
    let wanted = format!(
        "other elections (other): to run the module in this election too, sign it again with `minisign -Sm \
                          MODULE -t 'election:other election:{ELECTION}'`"
    );
    assert!(refused.text("error").contains(&wanted), "{refused:?}");
    // The signature also covers the comment, so a changed comment invalidates the signature.
    let forged = elsewhere(&Guest::Beats.build(9)).replace("election:other", &format!("election:{ELECTION}"));
    let forged = offer(&Guest::Beats.build(9), Some(forged));
    node.event("to refuse a forged comment", |event| {
        event.name == "module_refused"
            && event.text("module") == forged
            && event.text("error").contains("does not match")
    });
    let here = signer.sign_saying(&Guest::Beats.build(10), &format!("election:other election:{ELECTION}"));
    let digest = offer(&Guest::Beats.build(10), Some(here));
    node.event("the module for this election", |event| event.name == "module_ready" && event.text("module") == digest);

    let digest = offer(&Guest::Beats.build(7), Some(signer.sign_legacy(&Guest::Beats.build(7))));
    node.event("the legacy signature", |event| event.name == "module_ready" && event.text("module") == digest);
    fleet.check_promises();
}

#[test]
fn host_does_not_start_when_module_or_key_is_not_trusted() {
    let home = tempfile::tempdir().expect("a folder");
    let module = home.path().join("job.wasm");
    std::fs::write(&module, Guest::Beats.build(1)).expect("written");
    let run = |flags: &[&str]| {
        let mut command = baton(home.path());
        command.arg("run").arg(&module).args(flags);
        let finished = finish(command);
        assert_eq!(finished.code, Some(2), "{finished:?}");
        finished.stderr
    };
    let signer = Signer::with_new_key();
    let public = signer.public();
    let secret = public.with_file_name("minisign.key");
    let (public, secret) = (public.to_str().expect("a path"), secret.to_str().expect("a path"));
    let other = Digest::of(b"another").to_string();
    for (flags, expected) in [
        (["--trust", "/nowhere/minisign.pub"], "/nowhere/minisign.pub: No such file"),
        (["--trust", secret], "is it a secret key"),
        (["--trust", public], "minisign -Sm"),
        (["--pin", "sha256:abc"], "64 hexadecimal digits"),
        (["--pin", &other], "--pin sha256:"),
        (["--compile-timeout", "0s"], "0 is too short"),
    ] {
        let error = run(&flags);
        assert!(error.contains(expected), "{expected:?} is not in {error}");
    }
}

#[test]
fn cache_is_not_used_when_others_can_write_to_it() {
    let fleet = Fleet::new(Store::sqlite());
    let cache = fleet.home.path().join("cache");
    std::fs::create_dir(&cache).expect("a folder");
    std::fs::set_permissions(&cache, std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("writable");
    let mut node = launch(&fleet, &Guest::Beats.module()).flag("--cache", &cache).start();
    node.event("the error", |event| event.name == "error" && event.text("error").contains("chmod 700"));
    fleet.beat_above(0);
    assert!(node.terminate().success());
    assert_eq!(std::fs::read_dir(&cache).expect("a folder").count(), 0);
}
