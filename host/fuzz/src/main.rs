//! Runs libFuzzer on one of the host's readers, which are functions that parse untrusted bytes. `BATON_FUZZ_READER`
//! names the reader. `make fuzz` runs this program.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;

static READ: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let wanted = std::env::var("BATON_FUZZ_READER").unwrap_or_default();
    match baton::untrusted::readers().find(|reader| reader.name == wanted) {
        Some(reader) => reader.read,
        None => {
            let names: Vec<&str> = baton::untrusted::readers().map(|reader| reader.name).collect();
            panic!("BATON_FUZZ_READER names no reader: it is one of {}", names.join(", "));
        }
    }
});

fuzz_target!(|bytes: &[u8]| READ(bytes));
