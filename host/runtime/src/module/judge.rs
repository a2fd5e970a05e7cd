//! Judges a component by its interfaces: determines its kind, and checks that this host provides the imports and the
//! contract version that the component needs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use wasmparser::{Parser, Payload};
use wasmtime::component::Component;

use crate::module::engine::Engine;
use crate::runner::denied::EMPTY;
use crate::runner::guest::{CONTRACT, CONTRACT_VERSION, DRAFTS, GRANTED};

/// Prefix of an import of the state interface.
pub(crate) const STATE: &str = "baton:host/state@";
/// Prefix of the export that makes a component a command. The version of the interface follows the prefix.
pub(crate) const COMMAND: &str = "wasi:cli/run@";

/// Maximum number of problems that are listed. Further problems are only counted.
const MOST_PROBLEMS: usize = 20;
/// Maximum length of one problem, in characters. The rest is cut off.
const LONGEST_PROBLEM: usize = 500;

/// Maximum total number of imports and exports. Each import or export takes host memory, and no tool produces more.
const MOST_INTERFACES: usize = 10_000;
/// Maximum nesting depth of components. Each level takes host memory, and no tool produces more levels.
const DEEPEST: u32 = 1_000;

/// The kind of a component, by its exports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModuleKind {
    /// Built for Baton: exports the contract's `task`.
    Coordinator,
    /// An ordinary program with a `main`, not built for Baton: exports `wasi:cli/run`.
    Command,
}

/// One interface that a component imports.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Import {
    /// The interface's name and version.
    pub name: String,
    /// True if the interface is granted.
    pub granted: bool,
    /// The reason why the interface is not granted, with the remedy if there is one; empty if granted.
    pub needs: String,
    /// True if this host lets a component import the interface, whether or not the interface is granted.
    #[serde(skip)]
    is_there: bool,
}

pub(crate) struct Interfaces {
    imports: Vec<String>,
    exports: Vec<String>,
    /// True if there are more interfaces, or more deeply nested components, than any tool produces.
    is_too_much: bool,
}

impl Interfaces {
    pub(crate) fn of(engine: &Engine, component: &Component) -> Self {
        let ty = component.component_type();
        let imports = ty.imports(engine.wasmtime()).map(|(name, _)| name.to_owned());
        let exports = ty.exports(engine.wasmtime()).map(|(name, _)| name.to_owned());
        let mut found = Self::none();
        found.imports = imports.take(MOST_INTERFACES + 1).collect();
        found.exports = exports.take(MOST_INTERFACES + 1).collect();
        found.is_too_much = found.are_too_many();
        found
    }

    /// Reads the interfaces without compiling the component, which is fast.
    pub(crate) fn in_bytes(component: &[u8]) -> wasmparser::Result<Self> {
        let mut found = Self::none();
        // Skip the imports and exports of nested modules and components.
        let mut depth = 0_u32;
        for payload in Parser::new(0).parse_all(component) {
            match payload? {
                Payload::Version { .. } => depth += 1,
                Payload::End(_) => depth = depth.saturating_sub(1),
                Payload::ComponentImportSection(imports) if depth == 1 => {
                    for import in imports.into_iter().take(MOST_INTERFACES + 1) {
                        found.imports.push(import?.name.name.to_owned());
                    }
                }
                Payload::ComponentExportSection(exports) if depth == 1 => {
                    for export in exports.into_iter().take(MOST_INTERFACES + 1) {
                        found.exports.push(export?.name.name.to_owned());
                    }
                }
                _ => {}
            }
            found.is_too_much = depth > DEEPEST || found.are_too_many();
            if found.is_too_much {
                break;
            }
        }
        Ok(found)
    }

    fn none() -> Self {
        Self { imports: Vec::new(), exports: Vec::new(), is_too_much: false }
    }

    fn are_too_many(&self) -> bool {
        self.imports.len() + self.exports.len() > MOST_INTERFACES
    }
}

/// Returns true if the file contains the whole module, as far as the lengths of its sections show. A module that is
/// nested too deeply counts as complete: the function stops early, since the parser would allocate memory for each
/// level.
pub fn is_complete(module: &[u8]) -> bool {
    let mut depth = 0_u32;
    for payload in Parser::new(0).parse_all(module) {
        match payload {
            Err(_) => return false,
            Ok(Payload::Version { .. }) => depth += 1,
            Ok(Payload::End(_)) => depth = depth.saturating_sub(1),
            Ok(_) => {}
        }
        if depth > DEEPEST {
            break;
        }
    }
    true
}

pub(crate) struct Judged {
    pub kind: Option<ModuleKind>,
    pub imports: Vec<Import>,
    pub exports: Vec<String>,
    pub problems: Vec<String>,
}

pub(crate) fn judge(Interfaces { imports, exports, is_too_much }: Interfaces) -> Judged {
    if is_too_much {
        let problem = format!(
            "it has more than {MOST_INTERFACES} imports and exports, or components nested more than {DEEPEST} deep, \
             which no tool produces: build it again"
        );
        return Judged { kind: None, imports: Vec::new(), exports: Vec::new(), problems: vec![problem] };
    }
    let imports: Vec<Import> = imports.iter().map(|name| import(name)).collect();
    let (kind, lack) = kind(&exports).map_or_else(|lack| (None, Some(lack)), |kind| (Some(kind), None));
    let mut problems: Vec<String> = lack.into_iter().collect();
    // Group the problems by package, since a language's runtime may import a dozen interfaces of one package.
    let mut missing: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for import in imports.iter().filter(|import| !import.is_there) {
        let package = import.name.split('/').next().unwrap_or_default();
        missing.entry((package, &import.needs)).or_default().push(&import.name);
    }
    problems.extend(missing.into_iter().map(|((package, needs), names)| match names[..] {
        [name] => format!("it imports {name}: {needs}"),
        _ => format!("it imports {package} ({} interfaces): {needs}", names.len()),
    }));
    Judged { kind, imports, exports, problems: bounded(problems) }
}

/// Limits the number and length of the problems, since a module can cause any number of problems, of any length.
fn bounded(mut problems: Vec<String>) -> Vec<String> {
    let more = problems.len().saturating_sub(MOST_PROBLEMS);
    problems.truncate(MOST_PROBLEMS);
    for problem in &mut problems {
        if let Some((end, _)) = problem.char_indices().nth(LONGEST_PROBLEM) {
            problem.truncate(end);
            problem.push('…');
        }
    }
    if more > 0 {
        problems.push(format!("and {more} more"));
    }
    problems
}

/// A component of both kinds counts as a coordinator.
fn kind(exports: &[String]) -> Result<ModuleKind, String> {
    let task = format!("{CONTRACT}/task@");
    let made_for: Vec<&str> = exports.iter().filter_map(|export| export.strip_prefix(&task)).collect();
    match made_for.iter().map(|version| fit(version, CONTRACT_VERSION)).min() {
        Some(Fit::Good) => return Ok(ModuleKind::Coordinator),
        Some(misfit) => {
            let version = made_for.join(" and ");
            return Err(format!("it is built for version {version} of {CONTRACT}, and {}", misfit.remedy()));
        }
        None => {}
    }
    match exports.iter().find_map(|export| export.strip_prefix(COMMAND)) {
        Some(version) if version.starts_with("0.2.") => Ok(ModuleKind::Command),
        Some(version) => Err(format!(
            "it is a command for WASI {version}, but this host supports 0.2: build it for the target wasm32-wasip2"
        )),
        None => Err(format!(
            "it exports neither {task}{CONTRACT_VERSION} (a coordinator) nor wasi:cli/run (a command): build a \
             program, or a library of type cdylib with the guest SDK's `baton_sdk::coordinator!`"
        )),
    }
}

fn import(name: &str) -> Import {
    let empty = EMPTY.iter().find(|(package, _)| name.split('/').next() == Some(package));
    let (needs, is_there) = match empty {
        Some((_, what_it_comes_to)) if is_wasi_0_2(name) => ((*what_it_comes_to).to_owned(), true),
        _ => (what_it_needs(name), false),
    };
    let granted = needs.is_empty();
    Import { name: name.to_owned(), granted, needs, is_there: is_there || granted }
}

/// The WASI version that this host supports. Must match the packages in wasmtime-wasi 48 and wasmtime-wasi-http 48.
const WASI_VERSION: &str = "0.2.12";

/// Returns the version of an import if it is a WASI 0.2 version newer than this host's. Such an import works here,
/// unless the component uses something that the newer version added.
pub(crate) fn newer_wasi(import: &str) -> Option<&str> {
    let (_, version) = import.strip_prefix("wasi:")?.rsplit_once('@')?;
    (is_wasi_0_2(import) && numbers(version) > numbers(WASI_VERSION)).then_some(version)
}

/// Returns a likely reason why a component does not link: it imports a newer WASI version than this host's.
pub(crate) fn needs_newer_wasi(Interfaces { imports, .. }: &Interfaces) -> Option<String> {
    let newest = imports.iter().filter_map(|import| newer_wasi(import)).max_by_key(|version| numbers(version))?;
    Some(format!(
        "it is built for WASI {newest}, but this host supports {WASI_VERSION}: update the host, or build it with tools \
         for {WASI_VERSION} or older"
    ))
}

fn is_wasi_0_2(name: &str) -> bool {
    name.rsplit_once('@').is_some_and(|(_, version)| version.starts_with("0.2."))
}

/// Returns why an import is not granted, with the remedy if there is one; empty if the import is granted.
fn what_it_needs(import: &str) -> String {
    let (interface, version) = import.split_once('@').unwrap_or((import, ""));
    if GRANTED.contains(&interface) {
        let draft = DRAFTS.iter().find(|(draft, _)| *draft == interface);
        return if interface.starts_with(CONTRACT) {
            fit(version, CONTRACT_VERSION).remedy()
        } else if let Some((_, known)) = draft {
            match *known == version {
                true => String::new(),
                false => format!("this host supports only version {known} of this draft"),
            }
        } else if interface.starts_with("wasi:") && !is_wasi_0_2(import) {
            "this host supports WASI 0.2: build the module for the target wasm32-wasip2".to_owned()
        } else {
            String::new()
        };
    }
    "this host does not support it".to_owned()
}

/// Compatibility between the version that a component was built for and this host's version, from best to worst.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Fit {
    /// This host has the version, or a compatible later version.
    Good,
    /// The version is newer than this host's.
    Newer,
    /// This host no longer supports the version.
    Older,
    /// The version is a draft, or invalid.
    Unknown,
}

impl Fit {
    /// Returns advice for the module's author; empty if the version is compatible.
    fn remedy(self) -> String {
        let known = CONTRACT_VERSION;
        match self {
            Self::Good => String::new(),
            Self::Newer => format!("this host supports up to {known}: update the host, or build for {known}"),
            Self::Older => format!("this host supports {known} and no older versions: build for {known}"),
            Self::Unknown => format!("this host supports {known} and no drafts: build for {known}"),
        }
    }
}

/// Compares a component's version `theirs` with the host's version `known`. By Cargo's rule, a version is compatible
/// with earlier versions that have the same major number, or, for 0.x, the same minor number.
fn fit(theirs: &str, known: &str) -> Fit {
    let (Some(theirs), Some(known)) = (numbers(theirs), numbers(known)) else { return Fit::Unknown };
    let line = |[major, minor, _]: [u64; 3]| (major, if major == 0 { minor } else { 0 });
    match theirs {
        _ if theirs > known => Fit::Newer,
        _ if line(theirs) == line(known) => Fit::Good,
        _ => Fit::Older,
    }
}

/// Parses a version of three numbers and nothing else.
fn numbers(version: &str) -> Option<[u64; 3]> {
    let parts: Option<Vec<u64>> = version.split('.').map(|part| part.parse().ok()).collect();
    parts?.try_into().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use wasmtime::component::Linker;

    use super::*;

    #[test]
    fn version_fits_compatible_hosts_that_are_not_older() {
        for (theirs, known, expected) in [
            ("0.1.0", "0.1.0", Fit::Good),
            ("0.0.9", "0.1.0", Fit::Older),
            ("0.1.1", "0.1.0", Fit::Newer),
            ("0.2.0", "0.1.0", Fit::Newer),
            ("1.0.0", "0.1.0", Fit::Newer),
            ("0.1.0", "0.1.3", Fit::Good),
            ("0.1.3", "0.1.3", Fit::Good),
            ("0.1.4", "0.1.3", Fit::Newer),
            ("0.1.10", "0.1.9", Fit::Newer),
            ("0.1.9", "0.1.10", Fit::Good),
            ("0.1.9", "0.2.0", Fit::Older),
            ("0.9.9", "1.0.0", Fit::Older),
            ("1.0.0", "1.2.3", Fit::Good),
            ("1.3.0", "1.2.3", Fit::Newer),
            ("0.1.0-rc.1", "0.1.0", Fit::Unknown),
            ("0.1", "0.1.0", Fit::Unknown),
            ("", "0.1.0", Fit::Unknown),
            ("0.1.99999999999999999999", "0.1.0", Fit::Unknown),
        ] {
            assert_eq!(fit(theirs, known), expected, "{theirs} on a host that has {known}");
        }
    }

    fn coordinator(version: &str) -> Vec<u8> {
        wat::parse_str(format!(
            r#"(component
                (import "baton:host/term@{version}" (instance))
                (instance $task)
                (export "baton:host/task@{version}" (instance $task)))"#
        ))
        .unwrap()
    }

    #[test]
    fn contract_problem_names_both_versions() {
        for (version, remedy) in [
            ("0.1.0", None),
            ("0.1.1", None),
            ("0.0.9", Some("no older versions")),
            ("0.1.2", Some("update the host")),
            ("0.2.0", Some("update the host")),
        ] {
            let Judged { kind, problems, .. } = judge(Interfaces::in_bytes(&coordinator(version)).unwrap());
            match remedy {
                None => assert_eq!((kind, problems), (Some(ModuleKind::Coordinator), Vec::new())),
                Some(remedy) => {
                    assert_eq!(kind, None, "{version}");
                    // One problem is about the export, the other about the import.
                    assert_eq!(problems.len(), 2, "{problems:?}");
                    for problem in problems {
                        for part in [version, CONTRACT_VERSION, remedy] {
                            assert!(problem.contains(part), "{part:?} is not in {problem:?}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn newer_wasi_problem_names_both_versions() {
        let imports = ["wasi:clocks/monotonic-clock@0.2.99", "wasi:io/poll@0.2.100", "wasi:random/random@0.2.0"];
        let importing = |names: &[&str]| Interfaces {
            imports: names.iter().copied().map(str::to_owned).collect(),
            ..Interfaces::none()
        };
        let reason = needs_newer_wasi(&importing(&imports)).unwrap();
        assert!(reason.contains("0.2.100") && reason.contains(WASI_VERSION), "{reason}");
        for old_or_other in ["wasi:io/poll@0.2.12", "wasi:io/poll@0.3.0", "wasi:io/poll", "other:io/poll@0.2.99"] {
            assert_eq!(needs_newer_wasi(&importing(&[old_or_other])), None, "{old_or_other}");
        }
    }

    #[test]
    fn problems_are_bounded_in_number_and_length() {
        let imports = (0..100).map(|number| format!("a:b{number}/é{}", "c".repeat(100_000))).collect();
        let problems = judge(Interfaces {
            imports,
            exports: vec![format!("{COMMAND}{}", "1".repeat(1_000_000))],
            is_too_much: false,
        })
        .problems;
        assert_eq!(problems.len(), MOST_PROBLEMS + 1);
        assert_eq!(problems[MOST_PROBLEMS], "and 81 more");
        assert!(problems.iter().all(|problem| problem.chars().count() <= LONGEST_PROBLEM + 1));
    }

    #[test]
    fn oversized_component_is_not_read_to_its_end() {
        fn leb(number: usize) -> Vec<u8> {
            let bytes = [0, 7, 14, 21].map(|shift| u8::try_from(number >> shift & 0x7f).unwrap() | 0x80);
            [&bytes[..], &[u8::try_from(number >> 28).unwrap()]].concat()
        }
        let preamble = b"\0asm\x0d\0\x01\0";
        let section = |id: u8, content: &[u8]| [&[id][..], &leb(content.len()), content].concat();
        let importing = |number: usize| {
            let import = |at: usize| [&[0, 5][..], format!("{at:05}").as_bytes(), &[5, 0]].concat();
            let imports: Vec<u8> = (0..number).flat_map(import).collect();
            [&preamble[..], &section(10, &[leb(number), imports].concat())].concat()
        };
        let nested =
            |depth| (0..depth).fold(preamble.to_vec(), |inner, _| [&preamble[..], &section(4, &inner)].concat());
        let imports = |component: &[u8]| Interfaces::in_bytes(component).map(|found| found.imports.len());
        assert_eq!(imports(&importing(MOST_INTERFACES)).unwrap(), MOST_INTERFACES);
        for bomb in [importing(1_000_000), [importing(MOST_INTERFACES), section(10, b"\x01\0\x01a\x05\0")].concat()] {
            assert_eq!(imports(&bomb).unwrap(), MOST_INTERFACES + 1);
            let problems = judge(Interfaces::in_bytes(&bomb).unwrap()).problems;
            assert!(problems[0].contains("more than 10000 imports") && problems.len() == 1, "{problems:?}");
        }
        assert!(!Interfaces::in_bytes(&nested(999)).unwrap().is_too_much);
        // The deepest level is not read, so nothing notices that its last byte is missing.
        let mut deep = nested(1_001);
        deep.pop();
        assert!(Interfaces::in_bytes(&deep).unwrap().is_too_much && is_complete(&deep));
        assert!(!is_complete(&importing(1)[..12]) && is_complete(&importing(1)));
    }

    /// Checks that wasmtime links a component whenever [`fit`] accepts the component's version, and finds the
    /// component's exports.
    #[test]
    fn component_for_an_earlier_patch_links_with_a_later_host() {
        let engine = Engine::new().unwrap();
        let text = r#"(component
            (import "baton:trial/import@0.1.2" (instance (export "f" (func))))
            (instance $export)
            (export "baton:trial/export@0.1.2" (instance $export)))"#;
        let component = Component::new(engine.wasmtime(), wat::parse_str(text).unwrap()).unwrap();
        for (host, links) in [("0.1.2", true), ("0.1.3", true), ("0.2.0", false)] {
            let mut linker = Linker::<()>::new(engine.wasmtime());
            let mut instance = linker.instance(&format!("baton:trial/import@{host}")).unwrap();
            instance.func_wrap("f", |_, (): ()| Ok(())).unwrap();
            assert_eq!(linker.instantiate_pre(&component).is_ok(), links, "{host}");
            // The generated bindings look up exports in this way.
            let export = component.get_export_index(None, format!("baton:trial/export@{host}"));
            assert_eq!(export.is_some(), links, "{host}");
        }
    }

    #[test]
    fn interfaces_exclude_those_of_nested_components() {
        let text = r#"(component
            (component (import "inner:a/b" (instance)) (instance $x) (export "inner:c/d" (instance $x)))
            (core module (import "m" "n" (func)) (func (export "o")))
            (import "outer:a/b@1.0.0" (instance))
            (instance $x)
            (export "outer:c/d@1.0.0" (instance $x)))"#;
        let engine = Engine::new().unwrap();
        let component = Component::new(engine.wasmtime(), wat::parse_str(text).unwrap()).unwrap();
        let compiled = Interfaces::of(&engine, &component);
        let Interfaces { imports, exports, .. } = Interfaces::in_bytes(&wat::parse_str(text).unwrap()).unwrap();
        assert_eq!((&imports, &exports), (&compiled.imports, &compiled.exports));
        assert_eq!((imports, exports), (vec!["outer:a/b@1.0.0".to_owned()], vec!["outer:c/d@1.0.0".to_owned()]));
    }
}
