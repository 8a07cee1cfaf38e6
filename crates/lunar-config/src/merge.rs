//! Merges the files of a configuration into one table.

use crate::diagnostic::Diagnostics;
use crate::file::given_twice;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

/// Adds a table to the table of the files before it: tables merge, and arrays of tables append. Any other key that
/// both have is reported with both places, and the first counts.
pub fn merge<'a>(p: &mut Diagnostics<'_>, whole: &mut DeTable<'a>, table: DeTable<'a>) {
    for (key, value) in table {
        let first = whole.get_key_value(&**key.get_ref()).map(|(key, _)| key.span());
        let (Some(first), Some(known)) = (first, whole.get_mut(&**key.get_ref())) else {
            whole.insert(key, value);
            continue;
        };
        match (known.get_mut(), value.into_inner()) {
            (DeValue::Table(known), DeValue::Table(table)) => merge(p, known, table),
            (DeValue::Array(known), DeValue::Array(array)) if has_tables(known) && has_tables(&array) => {
                array.into_iter().for_each(|element| known.push(element));
            }
            _ => given_twice(p, &key.span(), Some(first.start)),
        }
    }
}

/// Whether all elements are tables, and there is one.
fn has_tables(array: &DeArray<'_>) -> bool {
    let is_table = |element: &Spanned<DeValue<'_>>| element.get_ref().is_table();
    !array.is_empty() && array.iter().all(is_table)
}
