//! Measures the size of a component: its number of core instances, and its number of instantiation steps. The limit on
//! instances applies to the core instances.

use wasmtime::component::Component;
use wasmtime_environ::component::{ComponentTranslation, ComponentTypesBuilder, GlobalInitializer, Translator};
use wasmtime_environ::wasmparser::{Parser, Payload, Validator, WasmFeatures};
use wasmtime_environ::{ScopeVec, Tunables};

/// The size of a component, counted without compiling it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ComponentSize {
    pub instances: u64,
    /// Number of instantiation steps, plus the number of imports and exports, and the number of globals and segments in
    /// all core modules. Each counted item takes memory in the process that loads the component. A small component can
    /// have millions of items.
    pub steps: usize,
    /// True if the component contains no start function. Instantiating the component then runs none of its code.
    pub is_inert: bool,
}

/// Counts the parts of a component.
///
/// Wasmtime reports the number of memories and tables, but not the number of instances. The binary does not show the
/// number of instances directly: a nested component may be instantiated several times, and wasmtime adds a module
/// between two components that call each other. So this function repeats wasmtime's translation of the component, but
/// compiles nothing.
///
/// # Errors
/// Returns an error for a binary that wasmtime would not compile either.
pub(crate) fn component_size(binary: &[u8]) -> wasmtime::Result<ComponentSize> {
    let mut validator = Validator::new_with_features(WasmFeatures::all());
    let mut types = ComponentTypesBuilder::new(&validator);
    let (tunables, scope) = (Tunables::default_host(), ScopeVec::new());
    let translator = Translator::new(&tunables, &mut validator, &mut types, &scope);
    let (ComponentTranslation { component, trampolines, .. }, _) = translator.translate(binary)?;
    let makes_one = |step: &&GlobalInitializer| matches!(step, GlobalInitializer::InstantiateModule(..));
    Ok(ComponentSize {
        instances: component.initializers.iter().filter(makes_one).count() as u64,
        steps: component.initializers.len()
            + component.imports.len()
            + component.export_items.len()
            + trampolines.len()
            + declared(binary),
        is_inert: is_inert(binary),
    })
}

/// Counts the globals and segments of all core modules, instantiated or not. Wasmtime keeps a description of each,
/// which takes many times more memory than the encoding in the binary.
fn declared(binary: &[u8]) -> usize {
    let payloads = Parser::new(0).parse_all(binary).map_while(Result::ok);
    let counts = payloads.map(|payload| match payload {
        Payload::GlobalSection(globals) => globals.count(),
        Payload::DataSection(segments) => segments.count(),
        Payload::ElementSection(segments) => segments.count(),
        _ => 0,
    });
    counts.map(|count| count as usize).sum()
}

/// Computes [`ComponentSize::is_inert`]. A start function counts even in a part that is never instantiated.
fn is_inert(binary: &[u8]) -> bool {
    let starts =
        |payload: &Payload<'_>| matches!(payload, Payload::StartSection { .. } | Payload::ComponentStartSection { .. });
    Parser::new(0).parse_all(binary).all(|payload| payload.is_ok_and(|payload| !starts(&payload)))
}

/// Returns the highest of three numbers that wasmtime limits: core instances (`instances`), memories and tables.
pub(crate) fn most(component: &Component, instances: u64) -> u64 {
    // `resources_required` returns `None` for a component that imports core modules. A component with core imports
    // cannot run here anyway.
    let others = component.resources_required().map_or(0, |needs| needs.num_memories.max(needs.num_tables));
    instances.max(others.into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use wasmtime::component::Linker;
    use wasmtime::{Engine, Store, StoreLimits, StoreLimitsBuilder};

    use super::*;

    fn fits(component: &Component, limit: u64) -> bool {
        let engine = component.engine();
        let limit = usize::try_from(limit).unwrap();
        let limits = StoreLimitsBuilder::new().instances(limit).memories(limit).tables(limit).build();
        let mut store: Store<StoreLimits> = Store::new(engine, limits);
        store.limiter(|limits| limits);
        match Linker::new(engine).instantiate(&mut store, component) {
            Ok(_) => true,
            Err(error) => {
                assert!(error.to_string().contains("resource limit exceeded"), "{error:?}");
                false
            }
        }
    }

    #[test]
    fn declarations_count_even_when_not_instantiated() {
        let steps = |text: &str| component_size(&wat::parse_str(text).unwrap()).unwrap().steps;
        let nothing = steps("(component (core module $m))");
        for declared in ["(global i32 (i32.const 0))", "(data \"\")", "(elem func)"] {
            let many = format!("(component (core module $m (memory 0) {}))", declared.repeat(1000));
            assert_eq!(steps(&many), nothing + 1000, "{declared}");
        }
    }

    #[test]
    fn count_is_the_lowest_limit_that_wasmtime_accepts() {
        // The cases are: two instances of one module, nested components, a module that is passed to a component, calls
        // between components, memories, and tables.
        let plain = "(component (core module $m) (core instance (instantiate $m)) (core instance (instantiate $m)))";
        let nested = "(component
            (component $inner
                (core module $m)
                (component $innermost (core module $m) (core instance (instantiate $m)))
                (core instance (instantiate $m))
                (instance (instantiate $innermost)) (instance (instantiate $innermost)))
            (instance (instantiate $inner)) (instance (instantiate $inner))
            (component $unused (core module $m) (core instance (instantiate $m))))";
        let handed = r#"(component
            (core module $m)
            (component $takes (import "m" (core module $m)) (core instance (instantiate $m)) (core instance (instantiate $m)))
            (instance (instantiate $takes (with "m" (core module $m))))
            (core instance (instantiate $m)))"#;
        let calls = r#"(component
            (component $a
                (core module $m (func (export "f") (param i32) (result i32) (local.get 0)))
                (core instance $i (instantiate $m))
                (func (export "f") (param "x" u32) (result u32) (canon lift (core func $i "f"))))
            (component $b
                (import "f" (func $f (param "x" u32) (result u32)))
                (core func $g (canon lower (func $f)))
                (core module $m (import "" "f" (func (param i32) (result i32))))
                (core instance (instantiate $m (with "" (instance (export "f" (func $g)))))))
            (instance $i (instantiate $a))
            (instance (instantiate $b (with "f" (func $i "f")))))"#;
        let memories = "(component (core module $m (memory 1) (memory 1) (memory 1)) (core instance (instantiate $m)))";
        let tables = "(component
            (core module $m (table 1 funcref) (table 1 funcref))
            (core instance (instantiate $m)) (core instance (instantiate $m)))";
        let engine = Engine::default();
        for (text, expected) in [(plain, 2), (nested, 6), (handed, 3), (calls, 3), (memories, 3), (tables, 4)] {
            let binary = wat::parse_str(text).unwrap();
            let component = Component::from_binary(&engine, &binary).unwrap();
            assert_eq!(most(&component, component_size(&binary).unwrap().instances), expected, "{text}");
            assert!(fits(&component, expected), "{expected} are not enough for {text}");
            assert!(!fits(&component, expected - 1), "{expected} are too many for {text}");
        }
        let binary = wat::parse_str("(component)").unwrap();
        assert_eq!(component_size(&binary).unwrap().instances, 0);
    }

    #[test]
    fn component_with_any_start_function_is_not_inert() {
        let is_inert = |text: &str| component_size(&wat::parse_str(text).unwrap()).unwrap().is_inert;
        assert!(is_inert("(component (core module $m (func)) (core instance (instantiate $m)))"));
        assert!(!is_inert("(component (core module $m (func) (start 0)) (core instance (instantiate $m)))"));
        assert!(!is_inert("(component (component (core module (func) (start 0))))"));
    }
}
