//! Modules generated for tests.

/// Returns a custom section with these contents, at most 125 bytes. A module to which this section is appended has the
/// same code, but a different digest.
pub fn section(contents: impl AsRef<[u8]>) -> Vec<u8> {
    let contents = contents.as_ref();
    // A section consists of its id, its size, the length of its name, its name, and its contents.
    let size = u8::try_from(2 + contents.len()).ok().filter(|size| *size < 0x80).expect("a short text");
    [&[0, size, 1, b'v'], contents].concat()
}

/// A copy of `module` with the same code. Each `n` gives a different digest.
pub fn numbered(mut module: Vec<u8>, n: impl ToString) -> Vec<u8> {
    module.extend(section(n.to_string()));
    module
}

/// A program that does nothing and succeeds. Each number gives a different module.
pub fn command(number: u32) -> Vec<u8> {
    component(&format!("(func (export \"number\") (result i32) i32.const {number})"), "wasi:cli/run@0.2.0")
}

/// A component that exports the interface `export`. `more` is WebAssembly text that is added to the core module.
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

/// A core module that is a program for WASI preview 1.
pub fn core_command() -> Vec<u8> {
    wat::parse_str(
        r#"(module
            (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
            (memory (export "memory") 1)
            (func (export "_start") (call $exit (i32.const 0))))"#,
    )
    .unwrap()
}

/// A component that takes most of a minute to compile. Its only function has so much control flow that the compile time
/// grows faster than the length of the function.
pub fn slow() -> Vec<u8> {
    let block = "(if (i32.eqz (local.get 0)) (then (local.set 1 (i32.mul (local.get 0) (local.get 1)))) \
                 (else (local.set 0 (i32.add (local.get 1) (local.get 0)))))";
    let function = format!("(func (param i32 i32) (result i32) {} (local.get 0))", block.repeat(300_000));
    component(&function, "wasi:cli/run@0.2.0")
}
