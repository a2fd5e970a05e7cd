//! Fuzzing targets that read untrusted modules, messages, traps and requests. See [`baton_base::untrusted`].

use std::io::Cursor;

use crate::module::Module;
use crate::module::component_size::component_size;
use crate::module::{backtrace, componentize, judge, names};
use crate::runner::http;
use crate::wire::protocol::{self, FromRunner, FromTemplate, How};
use baton_base::untrusted::{Reader, text};

/// The fuzzing targets of this crate.
pub const READERS: &[Reader] = &[
    Reader { name: "module", read: module },
    Reader { name: "runner", read: runner },
    Reader { name: "trap", read: trap },
    Reader { name: "grant", read: http::untrusted::grant },
    Reader { name: "headers", read: http::untrusted::headers },
];

/// Reads a module as the host does before compilation, and then as the compiler does.
fn module(bytes: &[u8]) {
    judge::is_complete(bytes);
    componentize::is_for_preview1(bytes);
    drop(Module::precheck("module", bytes).map_err(|error| error.to_string()));
    drop(component_size(bytes));
    if wasmparser::validate(bytes).is_ok() {
        drop(componentize::componentize(bytes).map(|(component, _)| component_size(&component)));
    }
}

/// Reads messages from a runner, which a guest may have taken over, or from a template.
fn runner(bytes: &[u8]) {
    const LONGEST: usize = 1 << 20;
    let mut rest = Cursor::new(bytes);
    while let Ok(Some(message)) = protocol::read::<FromRunner>(&mut rest, LONGEST) {
        match message {
            FromRunner::Commit(changes) => drop(changes.read(LONGEST)),
            FromRunner::Ended(ended) => {
                if let How::Failed(why) | How::Crashed(why) = &ended.how {
                    drop(backtrace::shortened(why));
                }
                drop(ended.backtrace.map(|trace| backtrace::shortened(&trace)));
            }
            _ => {}
        }
    }
    drop(protocol::read::<FromTemplate>(&mut Cursor::new(bytes), LONGEST));
}

/// Reads a trap's backtrace. The names in it come from the guest.
fn trap(bytes: &[u8]) {
    let text = text(bytes);
    drop(backtrace::shortened(text));
    drop(names::plain(text));
}
