//! Tests of pins and of signatures made with minisign.

use std::path::{Path, PathBuf};

use baton_modules::{Distrust, Offer, PrepareError, Preparer, Trust};
use baton_store::Digest;

use baton_election::ElectionName;

use super::minisign::Signer;
use super::modules::command;
use super::{offer, preparer};

fn trusting(signers: &[&Signer]) -> Preparer {
    let files: Vec<PathBuf> = signers.iter().map(|signer| signer.public()).collect();
    Preparer { trust: Trust::new(Vec::new(), &files).unwrap(), ..preparer() }
}

fn signed(bytes: Vec<u8>, signature: String) -> Offer {
    Offer { signature: Some(signature), ..offer(bytes) }
}

async fn distrust(preparer: &Preparer, offer: &Offer) -> Distrust {
    match preparer.prepare(offer).await.err() {
        Some(PrepareError::Distrusted(distrust)) => distrust,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn module_is_accepted_if_signed_by_trusted_key() {
    let signer = Signer::with_new_key();
    let preparer = trusting(&[&signer]);
    let bytes = command(1);
    for signature in [signer.sign(&bytes), signer.sign_legacy(&bytes)] {
        preparer.prepare(&signed(bytes.clone(), signature)).await.unwrap();
    }
}

#[tokio::test]
async fn signature_only_counts_for_elections_it_names() {
    let signer = Signer::with_new_key();
    let within = |name: &str| {
        let trust = Trust::new(Vec::new(), &[signer.public()]).unwrap();
        Preparer { trust: trust.in_election(&ElectionName::new(name).unwrap()), ..preparer() }
    };
    let bytes = command(1);
    let with_comment = |comment: &str| signed(bytes.clone(), signer.sign_saying(&bytes, comment));
    for comment in ["election:one", "timestamp:1 election:two  election:one", "election", "an election: any", ""] {
        let comment = if comment.contains(": any") { "of no election" } else { comment };
        within("one").prepare(&with_comment(comment)).await.unwrap();
    }
    for comment in ["election:two", "election:one-more", "election:", "election:One", "file:x\telection:two"] {
        let refused = distrust(&within("one"), &with_comment(comment)).await;
        assert!(matches!(refused, Distrust::OtherElection { .. }), "{comment}: {refused}");
        assert!(refused.to_string().contains("election:one'`"), "{refused}");
    }
    // No election is set for this preparer, so it rejects signatures that name an election.
    let refused = distrust(&trusting(&[&signer]), &with_comment("election:one")).await;
    assert!(matches!(refused, Distrust::OtherElection { .. }), "{refused}");
}

#[tokio::test]
async fn module_is_refused_without_trusted_signature() {
    let (signer, stranger) = (Signer::with_new_key(), Signer::with_new_key());
    let preparer = trusting(&[&signer]);
    let bytes = command(1);
    let signature = signer.sign(&bytes);
    assert_eq!(distrust(&preparer, &offer(bytes.clone())).await, Distrust::Unsigned);
    assert_eq!(distrust(&preparer, &signed(bytes.clone(), stranger.sign(&bytes))).await, Distrust::UnknownKey(1));
    // Both signatures were made with the trusted key, but they sign another module.
    assert_eq!(distrust(&preparer, &signed(command(2), signature.clone())).await, Distrust::Wrong);
    assert_eq!(distrust(&preparer, &signed(command(2), signer.sign_legacy(&bytes))).await, Distrust::Wrong);
    for at in [0, 8, bytes.len() / 2, bytes.len() - 1] {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1;
        assert_eq!(distrust(&preparer, &signed(flipped, signature.clone())).await, Distrust::Wrong, "byte {at}");
    }
    let half = bytes[..bytes.len() / 2].to_vec();
    assert_eq!(distrust(&preparer, &signed(half, signature.clone())).await, Distrust::Wrong);
    let forged = signature.replace("trusted comment: timestamp:", "trusted comment: timestamp:9");
    assert_ne!(forged, signature);
    assert_eq!(distrust(&preparer, &signed(bytes.clone(), forged)).await, Distrust::Wrong);
    // Forge a signature: a stranger signs, but the signature names the id of the trusted key. The id is in the first
    // bytes of the second line.
    let (own, strange) = (line(&signature, 1), line(&stranger.sign(&bytes), 1));
    let forged = stranger.sign(&bytes).replace(&strange, &format!("{}{}", &own[..12], &strange[12..]));
    let refused = distrust(&preparer, &signed(bytes.clone(), forged)).await;
    assert!(matches!(refused, Distrust::Wrong | Distrust::UnknownKey(1)), "{refused}");
    for garbage in ["", "signature", &signature[..signature.len() / 2], &"x".repeat(1 << 20)] {
        let refused = distrust(&preparer, &signed(bytes.clone(), garbage.to_owned())).await;
        assert!(matches!(refused, Distrust::Unreadable(_)), "{refused}");
    }
}

fn line(text: &str, number: usize) -> String {
    text.lines().nth(number).unwrap().to_owned()
}

#[tokio::test]
async fn key_rotation_works_while_both_keys_are_trusted() {
    let (old, new) = (Signer::with_new_key(), Signer::with_new_key());
    let bytes = command(1);
    let (by_old, by_new) = (signed(bytes.clone(), old.sign(&bytes)), signed(bytes.clone(), new.sign(&bytes)));
    let both = trusting(&[&old, &new]);
    both.prepare(&by_old).await.unwrap();
    both.prepare(&by_new).await.unwrap();
    let later = trusting(&[&new]);
    later.prepare(&by_new).await.unwrap();
    assert_eq!(distrust(&later, &by_old).await, Distrust::UnknownKey(1));

    // A single file may hold both keys.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    let keys = [old.public(), new.public()].map(|file| std::fs::read_to_string(file).unwrap());
    std::fs::write(&file, format!("# ours\n{}\n{}", keys[0], keys[1])).unwrap();
    let both = Preparer { trust: Trust::new(Vec::new(), &[file]).unwrap(), ..preparer() };
    both.prepare(&by_old).await.unwrap();
    both.prepare(&by_new).await.unwrap();
}

#[tokio::test]
async fn pin_admits_one_module_and_replaces_no_signature() {
    let signer = Signer::with_new_key();
    let bytes = command(1);
    let pins = || vec![Digest::of(&command(3)), Digest::of(&bytes)];
    let pinned = Preparer { trust: Trust::new(pins(), &[]).unwrap(), ..preparer() };
    pinned.prepare(&offer(bytes.clone())).await.unwrap();
    assert_eq!(distrust(&pinned, &offer(command(2))).await, Distrust::NotPinned(Digest::of(&command(2))));
    let both = Preparer { trust: Trust::new(pins(), &[signer.public()]).unwrap(), ..preparer() };
    assert_eq!(distrust(&both, &offer(bytes.clone())).await, Distrust::Unsigned);
    both.prepare(&signed(bytes.clone(), signer.sign(&bytes))).await.unwrap();
    let other = command(2);
    let signature = signer.sign(&other);
    assert!(matches!(distrust(&both, &signed(other, signature)).await, Distrust::NotPinned(_)));
}

#[test]
fn invalid_key_file_is_refused_with_advice() {
    let signer = Signer::with_new_key();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys");
    let secret = signer.public().with_file_name("minisign.key");
    let public = std::fs::read_to_string(signer.public()).unwrap();
    let contents = [String::new(), "# none\n".to_owned(), std::fs::read_to_string(secret).unwrap()];
    for content in contents.into_iter().chain([format!("{public}{}", signer.sign(b"x")), "é".repeat(70_000)]) {
        std::fs::write(&path, content).unwrap();
        assert_refused(&path);
    }
    std::fs::write(&path, b"\xff\xfe").unwrap();
    assert_refused(&path);
    assert_refused(folder.path());
    assert_refused(&folder.path().join("nothing"));
}

fn assert_refused(path: &Path) {
    let error = Trust::new(Vec::new(), &[path.to_owned()]).unwrap_err().to_string();
    assert!(error.contains(path.to_str().unwrap()) && error.contains("minisign.pub"), "{error}");
}
