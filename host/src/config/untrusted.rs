//! Fuzzing targets that read configurations and the kernel's list of mounts. The list of all targets is
//! [`crate::untrusted`].

use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::path::Path;

use rustix::fs::{MemfdFlags, memfd_create};

use super::{Environment, Key, Layer, path_isolation, resolve};
use baton_base::escape::escape;
use baton_base::untrusted::Reader;

pub(crate) const READERS: &[Reader] =
    &[Reader { name: "configuration", read: configuration }, Reader { name: "mounts", read: mounts }];

fn configuration(bytes: &[u8]) {
    let Ok(file) = memfd_create("baton-configuration", MemfdFlags::CLOEXEC) else { return };
    let mut file = File::from(file);
    file.write_all(bytes).unwrap_or_else(|error| panic!("{error}"));
    let name = format!("/proc/self/fd/{}", file.as_raw_fd());
    let flags = Layer::new().flag(Key::Config, Some(name));
    match resolve(&flags, &Environment::artificial(&[], Path::new("/nowhere"))) {
        Ok(config) => drop(config.table()),
        Err(error) => {
            let message = error.to_string();
            assert_eq!(escape(&message).lines().count(), 1, "{message:?} as it is printed");
        }
    }
}

fn mounts(bytes: &[u8]) {
    drop(path_isolation::Mounts::of(bytes));
}
