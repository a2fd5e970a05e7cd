//! An operator who pushes versions, and reads the saved state at the end.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::guests;
use crate::node::{baton, finish};
use crate::store::{Done, ELECTION};
use baton_test_support::modules::numbered;

pub struct Operator {
    home: PathBuf,
    /// The value of `--store` for the operator's commands. Connections to this store never fail.
    store: String,
    module: Vec<u8>,
    pushed: u8,
    under_way: Vec<(u8, Child)>,
}

impl Operator {
    pub fn new(home: &Path, store: String, keeps_state: bool) -> Self {
        let guest = if keeps_state { guests::effects() } else { guests::effects_without_state() };
        let module = std::fs::read(guest).expect("the guest is built");
        Self { home: home.to_owned(), store, module, pushed: 0, under_way: Vec::new() }
    }

    pub fn push_first(&mut self) {
        let finished = finish(self.next());
        assert_eq!(finished.code, Some(0), "{finished:?}");
    }

    pub fn push_last(&mut self) -> Done<String> {
        let finished = finish(self.next());
        if finished.code != Some(0) {
            return Err(format!("the last version cannot be pushed: {finished:?}"));
        }
        let module = std::fs::read(self.file()).map_err(|error| error.to_string())?;
        Ok(baton_store::Digest::of(&module).to_string())
    }

    pub fn push(&mut self) {
        let mut command = self.next();
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        self.under_way.push((self.pushed, child.expect("the binary starts")));
    }

    /// Prepares the push of a new version. It has the same code as the other versions, but another number.
    fn next(&mut self) -> Command {
        self.pushed = self.pushed.wrapping_add(1);
        let file = self.file();
        std::fs::write(&file, numbered(self.module.clone(), self.pushed)).expect("a file");
        let mut command = baton(&self.home);
        command.arg("push").arg(file).args([ELECTION, "--store", &self.store]);
        command
    }

    fn file(&self) -> PathBuf {
        self.home.join(format!("effects-{}.wasm", self.pushed))
    }

    /// Reaps the pushes that have ended since the previous call, and describes their results.
    pub fn ended(&mut self) -> Vec<String> {
        let mut messages = Vec::new();
        self.under_way.retain_mut(|(number, child)| match child.try_wait().expect("a child can be waited for") {
            Some(status) => {
                messages.push(format!("the push of version {number} has ended, {status}"));
                false
            }
            None => true,
        });
        messages
    }

    pub fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }

    pub fn saved(&self) -> Done<u64> {
        let mut command = baton(&self.home);
        command.args(["state", "get", ELECTION, "saved", "--store", &self.store]);
        let finished = finish(command);
        match finished.code {
            Some(0) => {
                let count = finished.stdout.split_whitespace().next().and_then(|count| count.parse().ok());
                count.ok_or_else(|| format!("{finished:?}"))
            }
            // The command exits with 1 if the key does not exist yet.
            Some(1) => Ok(0),
            _ => Err(format!("{finished:?}")),
        }
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        for (_, child) in &mut self.under_way {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
