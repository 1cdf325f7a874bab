//! Translation of PostgreSQL's errors, with a fix.

use std::error::Error as _;

use outcore_core::{Error, ErrorKind};
use postgres::error::{Severity, SqlState};

use super::session::Database;

/// Whether an error ends the session.
pub(super) fn is_of_session(error: &postgres::Error) -> bool {
    error.as_db_error().is_none_or(|found| {
        let is_fatal = matches!(found.parsed_severity(), Some(Severity::Fatal | Severity::Panic));
        is_fatal || matches!(found.severity(), "FATAL" | "PANIC")
    })
}

impl Database {
    /// The error of a failed action.
    pub(super) fn describe(&self, what: &str, error: &postgres::Error) -> Error {
        let (kind, fix) = kind_of(error);
        let have = match (error.as_db_error(), error.source()) {
            (Some(found), _) => found.message().to_owned(),
            (None, Some(cause)) => format!("{error}: {cause}"),
            (None, None) => error.to_string(),
        };
        let text =
            format!("need to {what} the metadata store in the database {}, have: {have}; {fix}", self.name);
        Error::new(kind, text)
    }
}

/// The kind of an error, and the fix.
fn kind_of(error: &postgres::Error) -> (ErrorKind, &'static str) {
    let Some(state) = error.code() else {
        return (
            ErrorKind::Io,
            "start the database (its log says whether its disk was full), or see whether the network works",
        );
    };
    match &state.code()[..2] {
        _ if *state == SqlState::DISK_FULL => (ErrorKind::DiskFull, "make room on its disk"),
        _ if *state == SqlState::LOCK_NOT_AVAILABLE => {
            (ErrorKind::Busy, "wait for the other process that is writing to it, or end it")
        }
        _ if *state == SqlState::INSUFFICIENT_PRIVILEGE => {
            (ErrorKind::Denied, "make the user of the URL the owner of the database")
        }
        _ if *state == SqlState::READ_ONLY_SQL_TRANSACTION => {
            (ErrorKind::ReadOnly, "name the server that takes writes")
        }
        _ if [SqlState::DATA_CORRUPTED, SqlState::INDEX_CORRUPTED].contains(state) => {
            (ErrorKind::Corrupt, "restore it from a backup")
        }
        // The classes of PostgreSQL's list of error codes: invalid authorization, an unknown database, unknown tables.
        "28" => {
            (ErrorKind::Denied, "correct the user or the password of the URL, or the database's pg_hba.conf")
        }
        "3D" => (ErrorKind::NotFound, "create the database with createdb, or correct the URL"),
        "42" => (ErrorKind::Corrupt, "restore its tables from a backup"),
        // Too many connections, a server that starts or ends, a transaction that lost against another one.
        "40" | "53" | "57" => (ErrorKind::Busy, "wait until it is ready, or see its log"),
        _ => (ErrorKind::Io, "see the log of the database"),
    }
}
