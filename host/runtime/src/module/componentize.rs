//! Wraps core modules from other toolchains as components. There are two kinds: modules with component types (from
//! wit-bindgen), and modules for WASI preview 1. `judge` checks whether this host can run the result.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use serde::{Deserialize, Serialize};
use wasi_preview1_component_adapter_provider::{
    WASI_SNAPSHOT_PREVIEW1_ADAPTER_NAME as PREVIEW1, WASI_SNAPSHOT_PREVIEW1_COMMAND_ADAPTER,
    WASI_SNAPSHOT_PREVIEW1_REACTOR_ADAPTER,
};
use wasmparser::{
    ComponentAlias, ComponentExternalKind, ComponentImport, ComponentOuterAliasKind, ComponentType,
    ComponentTypeDeclaration, ComponentTypeRef, InstanceTypeDeclaration, Parser, Payload, TypeBounds,
};
use wit_component::ComponentEncoder;

/// Prefix of the names of custom sections that hold component types.
const COMPONENT_TYPE: &str = "component-type";

/// Maximum number of interface packages in a module. Real modules have far fewer.
const MOST_PACKAGES: usize = 1_000;

/// The kind of core module that was wrapped as a component.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wrapped {
    /// The module carries component types, which list its imports and exports.
    ComponentTypes,
    /// The module is built for WASI preview 1.
    WasiPreview1,
}

#[derive(Debug)]
pub(crate) enum Unwrappable {
    /// The module is of neither supported kind.
    Unmarked,
    /// The module is of a supported kind, but invalid.
    Wrong(String),
}

/// The module must be valid WebAssembly.
pub(crate) fn componentize(module: &[u8]) -> Result<(Vec<u8>, Wrapped), Unwrappable> {
    let marks = marks(module).map_err(|error| Unwrappable::Wrong(error.to_string()))?;
    let wrapped = match marks {
        Marks { has_types: true, .. } => Wrapped::ComponentTypes,
        Marks { imports_preview1: true, .. } => Wrapped::WasiPreview1,
        _ => return Err(Unwrappable::Unmarked),
    };
    check_types(module).map_err(Unwrappable::Wrong)?;
    let encoded = ComponentEncoder::default()
        .module(module)
        .and_then(|encoder| match marks.imports_preview1 {
            true => encoder.adapter(PREVIEW1, adapter(&marks)),
            false => Ok(encoder),
        })
        .and_then(|mut encoder| encoder.encode());
    encoded.map(|component| (component, wrapped)).map_err(|error| Unwrappable::Wrong(format!("{error:#}")))
}

/// Rejects component types with cyclic dependencies between packages, or with too many packages. For such types, the
/// encoder would recurse until the stack overflows and the process crashes. Only damaged modules contain them.
fn check_types(module: &[u8]) -> Result<(), String> {
    for payload in Parser::new(0).parse_all(module) {
        if let Payload::CustomSection(section) = payload.map_err(|error| error.to_string())?
            && section.name().starts_with(COMPONENT_TYPE)
        {
            let wrong = |why: &dyn Display| format!("its component types in {} are damaged: {why}", section.name());
            let needs = needs(section.data()).map_err(|error| wrong(&error))?;
            if !is_ordered(needs) {
                return Err(wrong(&"their packages depend on each other"));
            }
        }
    }
    Ok(())
}

/// The dependencies of each interface package, collected from the encoded types of worlds.
type Needs = BTreeMap<String, BTreeSet<String>>;

fn needs(types: &[u8]) -> wasmparser::Result<Needs> {
    let mut needs = Needs::new();
    for payload in Parser::new(0).parse_all(types) {
        let Payload::ComponentTypeSection(section) = payload? else { continue };
        for ty in section {
            let ComponentType::Component(outer) = ty? else { continue };
            for declaration in &outer {
                match declaration {
                    ComponentTypeDeclaration::Type(ComponentType::Component(world)) => note_needs(world, &mut needs),
                    // The world's own package depends on the packages of its interfaces.
                    ComponentTypeDeclaration::Export { name, .. } => {
                        if let Some(package) = package(name.name) {
                            let others: Vec<String> =
                                needs.keys().filter(|other| **other != package).cloned().collect();
                            needs.entry(package).or_default().extend(others);
                        }
                    }
                    _ => {}
                }
            }
        }
    }
    Ok(needs)
}

fn note_needs(world: &[ComponentTypeDeclaration<'_>], needs: &mut Needs) {
    // `types` holds, for each type of the world, the packages that the type comes from. `interfaces` holds each
    // interface's package.
    let (mut types, mut interfaces) = (Vec::<BTreeSet<String>>::new(), Vec::<Option<String>>::new());
    let of = |types: &[BTreeSet<String>], index: u32| types.get(index as usize).cloned().unwrap_or_default();
    for declaration in world {
        match declaration {
            ComponentTypeDeclaration::Type(ComponentType::Instance(inner)) => {
                let taken = inner.iter().filter_map(|inner| match inner {
                    InstanceTypeDeclaration::Alias(ComponentAlias::Outer {
                        kind: ComponentOuterAliasKind::Type,
                        index,
                        ..
                    }) => Some(of(&types, *index)),
                    _ => None,
                });
                let taken = taken.flatten().collect();
                types.push(taken);
            }
            ComponentTypeDeclaration::Alias(ComponentAlias::InstanceExport {
                kind: ComponentExternalKind::Type,
                instance_index,
                ..
            }) => types.push(interfaces.get(*instance_index as usize).cloned().flatten().into_iter().collect()),
            ComponentTypeDeclaration::Type(_)
            | ComponentTypeDeclaration::Alias(ComponentAlias::Outer { kind: ComponentOuterAliasKind::Type, .. }) => {
                types.push(BTreeSet::new());
            }
            ComponentTypeDeclaration::Import(ComponentImport { name, ty })
            | ComponentTypeDeclaration::Export { name, ty } => match ty {
                ComponentTypeRef::Type(TypeBounds::Eq(index)) => types.push(of(&types, *index)),
                ComponentTypeRef::Type(TypeBounds::SubResource) => types.push(BTreeSet::new()),
                ComponentTypeRef::Instance(index) => {
                    let package = package(name.name);
                    if let Some(package) = &package {
                        let others = of(&types, *index).into_iter().filter(|needed| needed != package);
                        needs.entry(package.clone()).or_default().extend(others);
                    }
                    interfaces.push(package);
                }
                _ => {}
            },
            _ => {}
        }
    }
}

/// Returns the package of an interface with its version: `a:b@1.0.0` for `a:b/c@1.0.0`.
fn package(interface: &str) -> Option<String> {
    let (package, rest) = interface.split_once('/')?;
    Some(format!("{package}@{}", rest.split_once('@').map_or("", |(_, version)| version)))
}

/// Returns true if the dependencies have no cycle and there are at most [`MOST_PACKAGES`] packages.
fn is_ordered(mut needs: Needs) -> bool {
    while !needs.is_empty() && needs.len() <= MOST_PACKAGES {
        let left: BTreeSet<String> = needs.keys().cloned().collect();
        needs.retain(|_, needed| !needed.is_disjoint(&left));
        if needs.len() == left.len() {
            return false;
        }
    }
    needs.is_empty()
}

/// Returns true if a core module, or any core module in a component, is built for WASI preview 1.
pub(crate) fn is_for_preview1(bytes: &[u8]) -> bool {
    marks(bytes).is_ok_and(|marks| marks.imports_preview1)
}

fn adapter(marks: &Marks) -> &'static [u8] {
    if marks.exports_start { WASI_SNAPSHOT_PREVIEW1_COMMAND_ADAPTER } else { WASI_SNAPSHOT_PREVIEW1_REACTOR_ADAPTER }
}

/// Features of a core module that determine how to wrap the module; for a component, the features of all its core
/// modules.
#[derive(Default)]
struct Marks {
    has_types: bool,
    imports_preview1: bool,
    exports_start: bool,
}

fn marks(module: &[u8]) -> wasmparser::Result<Marks> {
    let mut marks = Marks::default();
    for payload in Parser::new(0).parse_all(module) {
        match payload? {
            Payload::CustomSection(section) => marks.has_types |= section.name().starts_with(COMPONENT_TYPE),
            Payload::ImportSection(imports) => {
                for import in imports.into_imports() {
                    marks.imports_preview1 |= import?.module == PREVIEW1;
                }
            }
            Payload::ExportSection(exports) => {
                for export in exports {
                    marks.exports_start |= export?.name == "_start";
                }
            }
            _ => {}
        }
    }
    Ok(marks)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;

    /// Builds a core module that contains the component type of a world with these imports.
    fn module(imports: &str) -> Vec<u8> {
        let types = wat::parse_str(format!(
            r#"(component
                (type (component
                    (type (component {imports}))
                    (export "c:c/w" (component (type 0)))))
                (export "w" (type 0))
                (@custom "wit-component-encoding" "\04\00"))"#
        ))
        .unwrap();
        let types: String = types.iter().map(|byte| format!("\\{byte:02x}")).collect();
        wat::parse_str(format!(r#"(module (@custom "component-type:w" "{types}"))"#)).unwrap()
    }

    #[test]
    fn circular_packages_are_refused_without_a_crash() {
        let y = r#"(import "a:a/y" (instance $y (export "t" (type (sub resource))))) (alias export $y "t" (type $t))"#;
        let x = r#"(import "b:b/x" (instance $x (export "t" (type (eq $t))))) (alias export $x "t" (type $u))"#;
        let z = r#"(import "a:a/z" (instance (export "t" (type (eq $u)))))"#;
        let line = componentize(&module(&format!("{y} {x}")));
        assert!(line.is_ok(), "{line:?}");
        // The first cycle is between two packages. The second includes the package of the world itself.
        for imports in [format!("{y} {x} {z}"), format!("{y} {x}").replace("a:a/", "c:c/")] {
            let circle = componentize(&module(&imports));
            assert!(
                matches!(&circle, Err(Unwrappable::Wrong(why)) if why.contains("depend on each other")),
                "{circle:?}"
            );
        }
    }
}
