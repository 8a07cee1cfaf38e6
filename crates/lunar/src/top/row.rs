//! The rows of the views, and their columns.

use super::activity::Activity;
use clap::ValueEnum;
use lunar_admin::rows::shown;
use serde::Serialize;
use utoipa::ToSchema;

/// A table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum View {
    /// LUNs
    #[default]
    Luns,
    /// Sessions of hosts
    Sessions,
    /// Paths of routers to their upstreams
    Paths,
}

/// A column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Column {
    /// Name of the target
    Target,
    /// LUN
    Lun,
    /// Session ID
    Id,
    /// Name of the initiator
    Initiator,
    /// Address of the initiator
    Address,
    /// Name of the router
    Router,
    /// Name of the upstream
    Upstream,
    /// URL of the path
    Url,
    /// State of the path
    State,
    /// Reads a second
    Reads,
    /// Writes a second
    Writes,
    /// Bytes read a second
    Read,
    /// Bytes written a second
    Written,
    /// Commands that have not ended
    InFlight,
    /// Mean latency of reads and writes
    Mean,
    /// Their median latency
    P50,
    /// Their 99th percentile
    P99,
    /// Commands a second that ended without GOOD
    Errors,
}

use Column::{
    Address, Errors, Id, InFlight, Initiator, Lun, Mean, P50, P99, Read, Reads, Router, State, Target,
    Upstream, Url, Writes, Written,
};

const LUN_COLUMNS: [Column; 11] =
    [Target, Lun, Reads, Writes, Read, Written, InFlight, Mean, P50, P99, Errors];
const SESSION_COLUMNS: [Column; 13] =
    [Id, Initiator, Address, Target, Reads, Writes, Read, Written, InFlight, Mean, P50, P99, Errors];
const PATH_COLUMNS: [Column; 14] =
    [Router, Upstream, Lun, Url, State, Reads, Writes, Read, Written, InFlight, Mean, P50, P99, Errors];

impl View {
    /// All views, in the order of the key Tab.
    pub const ALL: [View; 3] = [View::Luns, View::Sessions, View::Paths];

    /// Its name for people.
    pub fn title(self) -> &'static str {
        ["LUNs", "Sessions", "Paths"][self as usize]
    }

    /// Its columns, the most important ones first. A narrow terminal shows no further ones.
    pub fn columns(self) -> &'static [Column] {
        match self {
            View::Luns => &LUN_COLUMNS,
            View::Sessions => &SESSION_COLUMNS,
            View::Paths => &PATH_COLUMNS,
        }
    }
}

impl Column {
    /// Its name on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// Its header.
    pub fn head(self) -> String {
        match self {
            Reads | Writes | Errors => self.name().to_uppercase() + "/S",
            _ => self.name().to_uppercase().replace('-', " "),
        }
    }
}

/// The object of a row.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ToSchema)]
#[serde(untagged)]
#[schema(as = TopObject)]
pub enum Place {
    /// A LUN.
    Lun {
        /// Name of its target.
        target: String,
        /// Its number.
        lun: u16,
    },
    /// A session.
    Session {
        /// Its number.
        tsih: u16,
        /// Name of the initiator.
        initiator: String,
        /// Address and port of the initiator.
        initiator_address: String,
        /// Name of the target; None in a discovery session.
        target: Option<String>,
    },
    /// A path, with all of its cores and hosts.
    Path {
        /// Name of the router.
        router: String,
        /// Name of the upstream.
        upstream: String,
        /// The logical unit.
        lun: String,
        /// Its URL.
        url: String,
    },
}

/// A row.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = TopRow)]
pub struct Row {
    /// The object.
    #[serde(flatten)]
    pub place: Place,
    /// The states of a path, each once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Its rates and latencies.
    #[serde(flatten)]
    pub activity: Activity,
}

/// The value of a cell, by which rows are sorted.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// A text without control characters.
    Text(String),
    /// An index.
    Index(u64),
    /// A measured value, if there is one.
    Number(Option<f64>),
}

impl Row {
    /// The cell of a column.
    pub fn cell(&self, column: Column) -> Cell {
        let Activity { reads_s, writes_s, read_bytes_s, written_bytes_s, in_flight, .. } = self.activity;
        Cell::Number(match column {
            Reads => reads_s,
            Writes => writes_s,
            Read => read_bytes_s,
            Written => written_bytes_s,
            InFlight => in_flight.map(|count| count as f64),
            Mean => self.activity.latency_s,
            P50 => self.activity.latency_p50_s,
            P99 => self.activity.latency_p99_s,
            Errors => self.activity.errors_s,
            _ => return self.name(column),
        })
    }

    /// The cell of a column that identifies the row.
    fn name(&self, column: Column) -> Cell {
        let text = match (&self.place, column) {
            (Place::Lun { lun, .. }, Lun) => return Cell::Index((*lun).into()),
            (Place::Session { tsih, .. }, Id) => return Cell::Index((*tsih).into()),
            (Place::Lun { target, .. }, Target) => target,
            (Place::Session { initiator, .. }, Initiator) => initiator,
            (Place::Session { initiator_address, .. }, Address) => initiator_address,
            (Place::Session { target, .. }, Target) => target.as_deref().unwrap_or("(discovery)"),
            (Place::Path { router, .. }, Router) => router,
            (Place::Path { upstream, .. }, Upstream) => upstream,
            (Place::Path { lun, .. }, Lun) => lun,
            (Place::Path { url, .. }, Url) => url,
            (Place::Path { .. }, State) => self.state.as_deref().unwrap_or_default(),
            _ => "",
        };
        Cell::Text(shown(text))
    }

    /// Whether each word of the filter occurs in a name of the row, in capitals or not.
    pub fn matches(&self, view: View, filter: &str) -> bool {
        let names = view.columns().iter().filter_map(|column| match self.name(*column) {
            Cell::Text(text) => Some(text.to_lowercase()),
            Cell::Index(index) => Some(index.to_string()),
            Cell::Number(_) => None,
        });
        let text = names.collect::<Vec<_>>().join(" ");
        filter.to_lowercase().split_whitespace().all(|word| text.contains(word))
    }
}
