//! What following modules reads of others' bytes, for [`crate::foreign`].

use minisign_verify::Signature;

use super::{Announcement, Control, ModuleSource, check_election, oci};
use crate::foreign::{Reader, text};

/// These.
pub(crate) const READERS: &[Reader] = &[
    Reader { name: "control", read: control },
    Reader { name: "announcement", read: announcement },
    Reader { name: "manifest", read: oci::foreign::manifest },
    Reader { name: "challenge", read: oci::foreign::challenge },
    Reader { name: "credentials", read: oci::foreign::credentials },
    Reader { name: "signature", read: signature },
    Reader { name: "module-source", read: module_source },
];

fn control(bytes: &[u8]) {
    let Ok(mut control) = Control::decode(bytes) else { return };
    assert_eq!(Control::decode(&control.encode()), Ok(control.clone()), "it is written as it is read");
    // Whatever is there can be gone on with.
    let (current, fallback) = (control.current().cloned(), control.fallback().cloned());
    assert!(fallback.is_none() || current != fallback);
    drop(control.rollback(None));
    assert!(Control::decode(&control.encode()).is_ok(), "what became of it can be read");
}

fn announcement(bytes: &[u8]) {
    let Some(said) = Announcement::decode(bytes) else { return };
    let _ = said.when();
    assert_eq!(Announcement::decode(&said.encode()), Some(said), "it is written as it is read");
}

fn signature(bytes: &[u8]) {
    if let Ok(signature) = Signature::decode(text(bytes)) {
        drop(check_election(&signature, None).map_err(|error| error.to_string()));
    }
}

fn module_source(bytes: &[u8]) {
    match text(bytes).parse::<ModuleSource>() {
        Ok(source) => {
            drop(source.stem());
            assert_eq!(source.to_string().parse(), Ok(source), "it is written as it is read");
        }
        Err(error) => drop(error.to_string()),
    }
}
