//! `baton token`: creates a token for hosts' admin endpoints.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::Context as _;

use crate::cli::{print, say};

const BYTES: usize = 24;

pub(super) fn token(file: Option<&Path>) -> anyhow::Result<()> {
    let mut bytes = [0; BYTES];
    getrandom::fill(&mut bytes).context("cannot get random numbers from the system")?;
    let token = bytes.iter().fold(String::new(), |mut token, byte| {
        let _ = write!(token, "{byte:02x}");
        token
    });
    let Some(file) = file else {
        return Ok(print(&(token + "\n"))?);
    };
    let create =
        || OpenOptions::new().write(true).create_new(true).mode(0o600).open(file)?.write_all((token + "\n").as_bytes());
    create().with_context(|| format!("cannot write {}", file.display()))?;
    let path = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let path = path.display();
    say(&format!("wrote a token to {path}, which only this user may read"));
    say(&format!("hosts:    admin-token-file = \"{path}\" in baton.toml, or --admin-token-file {path}"));
    say(&format!("commands: --token-file {path}, or the same line in baton.toml"));
    say("page:     paste the token when the page asks for it");
    say("Give every node and operator the same token. To serve other machines, hosts also need --admin-tls-cert and \
         --admin-tls-key.");
    Ok(())
}
