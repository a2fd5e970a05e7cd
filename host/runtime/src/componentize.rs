//! Core modules that can be made components, as the linkers of other toolchains leave them: those that carry
//! their component types with them (wit-bindgen), and those for WASI preview 1.
//!
//! `judge` says whether the result fits.

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

/// What the names of the sections begin with that hold component types.
const COMPONENT_TYPE: &str = "component-type";

/// No module speaks of as many packages of interfaces.
const MOST_PACKAGES: usize = 1_000;

/// What told how to make a core module a component.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wrapped {
    /// It carries component types, and says there what it imports and exports.
    ComponentTypes,
    /// It is made for WASI preview 1.
    WasiPreview1,
}

/// Why a core module cannot be made a component.
#[derive(Debug)]
pub(super) enum Unwrappable {
    /// Nothing in it tells how.
    Unmarked,
    /// What tells so is wrong.
    Wrong(String),
}

/// Makes a core module a component. The module must be valid.
pub(super) fn componentize(module: &[u8]) -> Result<(Vec<u8>, Wrapped), Unwrappable> {
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

/// Refuses component types whose packages need each other in a circle, or in a long chain, as those of a damaged
/// module may: the encoder follows them until its stack is full, and that would be the end of the host.
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

/// Of each package of interfaces those that it needs, in the encoded types of worlds.
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
                    // The world's own package needs those of its interfaces.
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

/// Whose interface has which types of another's.
fn note_needs(world: &[ComponentTypeDeclaration<'_>], needs: &mut Needs) {
    // The packages that each type of the world is taken from, and the package of each of its interfaces.
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

/// The package of an interface, with its version.
fn package(interface: &str) -> Option<String> {
    let (package, rest) = interface.split_once('/')?;
    Some(format!("{package}@{}", rest.split_once('@').map_or("", |(_, version)| version)))
}

/// Whether the packages have an order in which none needs a later one, and are not too many.
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

/// Whether a core module, or one within a component, is made for WASI preview 1.
pub(super) fn is_for_preview1(bytes: &[u8]) -> bool {
    marks(bytes).is_ok_and(|marks| marks.imports_preview1)
}

/// What preview 1 calls a command has a start of its own; anything else is entered through its exports.
fn adapter(marks: &Marks) -> &'static [u8] {
    if marks.exports_start { WASI_SNAPSHOT_PREVIEW1_COMMAND_ADAPTER } else { WASI_SNAPSHOT_PREVIEW1_REACTOR_ADAPTER }
}

/// What of a core module, or of those in a component, tells how to make it a component.
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

    /// A core module with the component types of a world with these imports.
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
    fn packages_that_need_each_other_are_an_error_and_not_the_end() {
        let y = r#"(import "a:a/y" (instance $y (export "t" (type (sub resource))))) (alias export $y "t" (type $t))"#;
        let x = r#"(import "b:b/x" (instance $x (export "t" (type (eq $t))))) (alias export $x "t" (type $u))"#;
        let z = r#"(import "a:a/z" (instance (export "t" (type (eq $u)))))"#;
        let line = componentize(&module(&format!("{y} {x}")));
        assert!(line.is_ok(), "{line:?}");
        // One of two packages, and one with the world's package.
        for imports in [format!("{y} {x} {z}"), format!("{y} {x}").replace("a:a/", "c:c/")] {
            let circle = componentize(&module(&imports));
            assert!(
                matches!(&circle, Err(Unwrappable::Wrong(why)) if why.contains("depend on each other")),
                "{circle:?}"
            );
        }
    }
}
