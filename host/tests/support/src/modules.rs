//! Modules that are made for a test.

/// The custom section of no meaning that holds this text, of less than 100 bytes: at the end of a module it makes another
/// module of it, with the same code.
pub fn section(holds: impl AsRef<[u8]>) -> Vec<u8> {
    let holds = holds.as_ref();
    // Its id, its size, its name with the length before it, and what it holds.
    let size = u8::try_from(2 + holds.len()).ok().filter(|size| *size < 0x80).expect("a short text");
    [&[0, size, 1, b'v'], holds].concat()
}

/// The same component unlike all others: the nth of them.
pub fn numbered(mut module: Vec<u8>, n: impl ToString) -> Vec<u8> {
    module.extend(section(n.to_string()));
    module
}

/// A program that does nothing and succeeds. Each number makes another one.
pub fn command(number: u32) -> Vec<u8> {
    component(&format!("(func (export \"number\") (result i32) i32.const {number})"), "wasi:cli/run@0.2.0")
}

/// A component with such an export, and with more in its core module.
pub fn component(more: &str, export: &str) -> Vec<u8> {
    wat::parse_str(format!(
        r#"(component
            (core module $m {more} (func (export "run") (result i32) i32.const 0))
            (core instance $i (instantiate $m))
            (func $run (result (result)) (canon lift (core func $i "run")))
            (instance $interface (export "run" (func $run)))
            (export "{export}" (instance $interface)))"#
    ))
    .unwrap()
}

/// A program for WASI preview 1, which is a core module.
pub fn core_command() -> Vec<u8> {
    wat::parse_str(
        r#"(module
            (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
            (memory (export "memory") 1)
            (func (export "_start") (call $exit (i32.const 0))))"#,
    )
    .unwrap()
}

/// A component that takes a processor most of a minute to be compiled: a function with so much control flow that the compiler has its
/// work with it, more than twice as much for one twice as long.
pub fn slow() -> Vec<u8> {
    let block = "(if (i32.eqz (local.get 0)) (then (local.set 1 (i32.mul (local.get 0) (local.get 1)))) \
                 (else (local.set 0 (i32.add (local.get 1) (local.get 0)))))";
    let function = format!("(func (param i32 i32) (result i32) {} (local.get 0))", block.repeat(300_000));
    component(&function, "wasi:cli/run@0.2.0")
}
