//! Core modules that can be made components, as the linkers of other toolchains leave them: those that carry
//! their component types with them (wit-bindgen), and those for WASI preview 1.
//!
//! The judgement of what came out is left to whoever judges components.

use serde::Serialize;
use wasi_preview1_component_adapter_provider::{
    WASI_SNAPSHOT_PREVIEW1_ADAPTER_NAME as PREVIEW1, WASI_SNAPSHOT_PREVIEW1_COMMAND_ADAPTER,
    WASI_SNAPSHOT_PREVIEW1_REACTOR_ADAPTER,
};
use wasmparser::{Parser, Payload};
use wit_component::ComponentEncoder;

/// What told how to make a core module a component.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
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
pub(super) fn wrap(module: &[u8]) -> Result<(Vec<u8>, Wrapped), Unwrappable> {
    let marks = marks(module).map_err(|error| Unwrappable::Wrong(error.to_string()))?;
    let wrapped = match marks {
        Marks { has_types: true, .. } => Wrapped::ComponentTypes,
        Marks { imports_preview1: true, .. } => Wrapped::WasiPreview1,
        _ => return Err(Unwrappable::Unmarked),
    };
    let encoded = ComponentEncoder::default()
        .module(module)
        .and_then(|encoder| match marks.imports_preview1 {
            true => encoder.adapter(PREVIEW1, adapter(&marks)),
            false => Ok(encoder),
        })
        .and_then(|mut encoder| encoder.encode());
    encoded.map(|component| (component, wrapped)).map_err(|error| Unwrappable::Wrong(format!("{error:#}")))
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
            Payload::CustomSection(section) => marks.has_types |= section.name().starts_with("component-type"),
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
