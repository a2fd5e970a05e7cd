//! The table of `--print-config`.

use super::{Key, Origin};
use crate::cli::columns;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct SettingRow {
    /// The election to which the setting applies; `None` for the whole host.
    pub election: Option<String>,
    pub key: Key,
    /// Name of the value, for a multi-value setting.
    pub part: Option<String>,
    /// The value, with secrets hidden.
    pub value: String,
    pub origin: Origin,
}

pub(super) fn render(rows: &[SettingRow]) -> String {
    let mut lines = vec![["SETTING".to_string(), "VALUE".to_string(), "FROM".to_string()]];
    let mut section = None;
    for row in rows {
        if row.election != section {
            section.clone_from(&row.election);
            let name = section.as_deref().unwrap_or_default();
            lines.push([String::new(), String::new(), String::new()]);
            lines.push([format!("[{name}]"), String::new(), String::new()]);
        }
        let name = match &row.part {
            Some(part) => format!("{}.{part}", row.key.name()),
            None => row.key.name().to_string(),
        };
        lines.push([name, row.value.clone(), row.origin.show(row.key).to_string()]);
    }
    columns(&lines)
}
