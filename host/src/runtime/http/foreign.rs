//! What is granted and asked for, for [`crate::foreign`].

use super::grant::{Grant, Grants, Origin};
use crate::foreign::text;

/// A grant on the first line, and addresses that a guest asks for.
pub(in crate::runtime) fn grant(bytes: &[u8]) {
    let mut lines = text(bytes).lines();
    let Ok(grant) = lines.next().unwrap_or_default().parse::<Grant>() else { return };
    assert_eq!(grant.to_string().parse(), Ok(grant.clone()), "it is written as it is read");
    let grants = Grants::new(vec![grant]);
    for uri in lines.filter_map(|line| line.parse::<http::Uri>().ok()) {
        let Some(origin) = Origin::of(&uri) else { continue };
        if grants.reach(&origin, uri.path()).is_none()
            && let Some(wanted) = grants.wanted(&origin, uri.path())
        {
            drop(grants.lines_with(&wanted));
            let reach = Grants::new(vec![wanted.clone()]).reach(&origin, uri.path());
            assert!(reach.is_some(), "who is told to grant {wanted} grants {uri}");
        }
    }
}
