//! The failure message of an instance: its length, and the backtrace in it.

use crate::fleet::Fleet;
use crate::guests::Guest;
use crate::store::Store;

#[test]
fn recursive_function_is_named_once_in_backtrace() {
    let fleet = Fleet::new(Store::sqlite()).with(Guest::Recurses);
    // The host does not pass this variable to its compiler process, but must still accept the code that the compiler
    // process produces.
    let node = fleet.launch("alpha").env("WASMTIME_BACKTRACE_DETAILS", "1").start();
    let ended = node.after(0, "ended");
    let message = ended.text("message");
    assert_eq!(message.matches("fixtures::recurse").count(), 1, "{message}");
    assert!(message.contains("more of the same") && !message.contains("WASMTIME"), "{message}");
}

#[test]
fn failure_message_is_cut_as_output_is() {
    let fleet = Fleet::new(Store::sqlite()).with(Guest::FailsAtLength);
    let node = fleet.node("alpha");
    let ended = node.after(0, "ended");
    assert!(ended.text("message").ends_with("x … and 1040384 more bytes"), "{} bytes", ended.raw.len());
    node.event("the cool-off", |event| event.is_ineligible("cooling-off"));
    for event in fleet.journal.events() {
        assert!(event.raw.len() < 10_000, "{} has {} bytes", event.name, event.raw.len());
    }
}
